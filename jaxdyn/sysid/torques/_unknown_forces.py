"""Equations of motion without the torques that nobody has measured: those of contact forces, of a base that a gantry
holds, of a joint without a sensor."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import DataError
from jaxdyn.algorithms import frame_jacobian
from jaxdyn.model import Model
from jaxdyn.sysid.recordings import Recording, signals
from jaxdyn.sysid.torques._effects import JointEffects, on_driven_joints
from jaxdyn.sysid.torques._recorded_motions import clipped_torques, free_dofs, motion_arrays

_frame_jacobian = eqx.filter_jit(frame_jacobian)
# The noise of a row without a sensor, as the base of a floating robot, whose torque is zero, is at least this part of
# the joints' median noise: far less says no more about the parameters, and costs digits.
_LEAST_NOISE = 1e-3
# Ratios of the noise of two rounds, as logarithms, up to which steps are longer, and the least part of noise that makes
# them so.
_NEAR, _LEAST_SHARE = 0.7, 0.1
# Singular values below this part of the largest count as zero. Weights by the noise spread those of independent
# directions by up to the inverse of the number above.
_RANK_TOLERANCE = 1e-7


def has_contacts(recordings: Sequence[Recording]) -> bool:
    """Whether some of the recordings have contacts, whose forces are unknown."""
    return any(x.contacts is not None for x in recordings)


def driven_effects(effects: JointEffects, model: Model, recordings: Sequence[Recording]) -> JointEffects:
    """Return the effects without those of free joints, which have no drive: an offset there would be a constant force
    on the base. **Raises** `DataError` for effects that cannot be told from unknown forces of contacts."""
    topology = model.topology
    if free_dofs(model).any() and not topology.has_loops:
        kinds = zip(model.joint_names, topology.joint_types, strict=True)
        driven = tuple(x for i, (x, kind) in enumerate(kinds) if kind != "free" and i not in topology.leaders)
        names = [x.name for x in dataclasses.fields(effects) if x.name != "length"]
        effects = dataclasses.replace(effects, **{x: driven for x in names if getattr(effects, x) is True})
    alike = ("gain", "length", "flexibility", "backlash") if has_contacts(recordings) else ()
    refused = [x for x in alike if getattr(effects, x)]
    if refused:
        raise DataError(
            f"effects: {', '.join(refused)}, in recordings with contacts, whose unknown forces act along the lengths "
            "that the model has and on all joints together: leave these effects out"
        )
    return effects


class DriveEquations:
    """The map from torques of all joints to those that equations compare: of motors, of the driven joints of closed
    loops, or of what unknown forces of contacts leave."""

    model: Model
    q: np.ndarray
    joints: tuple[str, ...] | None
    transmission: np.ndarray | None
    forces: UnknownForces | None = None
    """The forces of contacts; None for recordings without."""
    _chunks: list[np.ndarray]

    def low_passed(self, x: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def on_drives(self, samples: np.ndarray | slice, torques: np.ndarray) -> np.ndarray:
        """Torques `[n, nv, k]` of all joints at samples as those of the drives that do the same."""
        if self.transmission is not None:
            return self.transmission.T @ torques
        return self.friction_on_drives(samples, torques)

    def friction_on_drives(self, samples: np.ndarray | slice, torques: np.ndarray) -> np.ndarray:
        """Torques `[n, nv, k]` of armature and friction as those of the drives that do the same: those at the joints of
        closed loops, or at motors, which have their own; with contacts without what their forces may be."""
        if self.forces is not None:
            return self.forces.maps[samples] @ torques
        return torques if self.joints is None else on_driven_joints(self.model, self.q[samples], torques, self.joints)

    def next_noise(self, before: np.ndarray, sigma: np.ndarray) -> np.ndarray:
        """Return the joints' noise `[nv]` for the next round of weights, from that of this round and what its residuals
        have. Beside unknown forces residuals have a part of the noise only, and estimates approach their end slowly:
        near it, steps are longer by the root of the inverse of that part (in simulated fits half of the rounds)."""
        if self.forces is None:
            return sigma
        ratio, share = sigma / before, np.maximum(self.noise_share.mean(axis=0), _LEAST_SHARE)
        near = np.abs(np.log(ratio)) < _NEAR
        return self.forces.bounded(before * ratio ** np.where(near, share**-0.5, 1.0))

    def take_noise(self, sigma: np.ndarray) -> bool:
        """Take the joints' noise `[nv]`, by which the equations beside unknown forces are chosen; return whether that
        changes them."""
        changed = self.forces is not None and self.forces.weigh(sigma)
        if changed:
            self._chunks = []
        return changed

    @property
    def noise_share(self) -> Any:
        """The part of each joint's noise that equations have, `[equations, nv]`; 1 without unknown forces."""
        return 1.0 if self.forces is None else np.clip(self.low_passed(self.forces.share), 0.0, 1.0)


class UnknownForces:
    """The directions of torques that are unknown at each sample of recordings."""

    def __init__(
        self, model: Model, recordings: Sequence[Recording], q: np.ndarray, unmeasured: np.ndarray, sigma: np.ndarray
    ):
        """`q` `[n, nq]` are the configurations of all samples, `unmeasured` `[n, nv]` is the part of each torque that
        comes from samples without a measurement, and `sigma` `[nv]` is the joints' noise. **Raises** `DataError` for a
        robot with closed loops, and for recordings of motors; `UnknownNameError` for frames."""
        if model.topology.has_loops or any(x.transmission is not None for x in recordings):
            raise DataError("contacts of recordings are for trees whose joints were recorded, without a transmission")
        found = [_directions(model, x, q[part]) for x, part in _parts(recordings)]
        most = max(x.shape[-1] for x in found)
        of_contacts = np.concatenate([np.pad(x, ((0, 0), (0, 0), (0, most - x.shape[-1]))) for x in found])
        missing = np.where(np.abs(unmeasured) > signals.MIXED, 1.0, 0.0)[..., None] * np.eye(model.nv)
        self.directions = np.concatenate([of_contacts, missing], axis=-1)
        """`[n, nv, k]`: `J^T` of the contacts that may touch something, and the degrees of freedom without a sensor."""
        self.share = np.ones(q.shape[:1] + (model.nv,))
        """`[n, nv]`: the part of each joint's noise that the equations have."""
        self.maps = np.zeros((len(q), model.nv, model.nv))
        """`[n, nv, nv]`: `S P S^-1`, where `S` is the joints' noise and `P` the projection onto the complement of `S^-1
        directions`. The sum of squares of the rows over `S^2` is that of generalized least squares with the unknown
        torques as parameters, and their means over `share` are the joints' variances."""
        self.exact = free_dofs(model)
        self.weigh(sigma)

    def bounded(self, sigma: np.ndarray) -> np.ndarray:
        """Return the noise of the joints `[nv]`, that of a base not far below that of others."""
        least = _LEAST_NOISE * float(np.median(sigma[~self.exact])) if not self.exact.all() else 0.0
        return np.maximum(sigma, max(least, 1e-300))

    def weigh(self, sigma: np.ndarray) -> bool:
        """Take the noise of the joints `[nv]`, and return whether that changes the maps."""
        sigma, before = self.bounded(sigma), self.maps
        U, size, _ = np.linalg.svd(self.directions / sigma[:, None], full_matrices=False)
        U = U * (size > _RANK_TOLERANCE * np.maximum(size.max(axis=1, keepdims=True), 1e-300))[:, None]
        projection = np.eye(len(sigma)) - U @ U.swapaxes(-1, -2)
        # Rounding is no equation where all torques are unknown.
        projection[np.count_nonzero(U.any(axis=1), axis=1) == len(sigma)] = 0.0
        self.share = np.clip(np.einsum("njj->nj", projection), 0.0, 1.0)
        self.maps = sigma[:, None] * projection / sigma
        return not np.array_equal(before, self.maps)


def contact_maps(model: Model, recordings: Sequence[Recording], sigma: np.ndarray) -> list[np.ndarray]:
    """Return `UnknownForces.maps` of each recording, `[n, nv, nv]`, for the joints' noise `sigma` `[nv]`; equal noise
    where a model was not fitted."""
    q = np.concatenate([motion_arrays(model, x, torques=False)[0] for x in recordings])
    unmeasured = np.concatenate([clipped_torques(model, x) for x in recordings])
    sigma = np.where(np.isfinite(sigma), sigma, 1.0)
    maps = UnknownForces(model, recordings, q, unmeasured, sigma).maps
    return [maps[part] for _, part in _parts(recordings)]


def _parts(recordings: Sequence[Recording]) -> list[tuple[Recording, slice]]:
    ends = np.cumsum([0, *map(len, recordings)])
    return [(x, slice(a, b)) for x, a, b in zip(recordings, ends, ends[1:], strict=False)]


def _directions(model: Model, recording: Recording, q: np.ndarray) -> np.ndarray:
    """Return `J^T` `[n, nv, k]` of the contacts of a recording; zeros where a contact does not touch anything."""
    rows, x = 6 if recording.contact_moments else 3, jnp.asarray(q, model.dtype)
    # Filters mix samples with and without a contact; where any has one, forces are possible.
    touching = () if recording.contacts is None else np.abs(np.asarray(recording.contacts)).T > signals.MIXED
    found = [
        np.asarray(_frame_jacobian(model, x, frame), np.float64)[:, :rows].swapaxes(-1, -2) * here[:, None, None]
        for frame, here in zip(recording.contact_frames, touching, strict=True)
    ]
    return np.concatenate(found, axis=-1) if found else np.zeros((len(q), model.nv, 0))
