"""Fits to roll-outs of robots with closed loops: joints that are not measured, and states on the constraints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import DataError
from jaxdyn.algorithms import constraint_error, constraint_jacobian, motion_map
from jaxdyn.model import Model
from jaxdyn.simulate import State
from jaxdyn.sysid.recordings import Recording

# Configurations at which the noise of passive joints is averaged.
_CONFIGURATIONS = 200
_RANK_TOLERANCE = 1e-6


class Measured(NamedTuple):
    """Recordings with the motion of all joints, and which of it was measured."""

    recordings: tuple[Recording, ...]
    """With all joints."""
    dofs: tuple[int, ...]
    """The degrees of freedom that are measured."""
    mobility: int
    """The number of degrees of freedom that loops and couplings leave."""

    @classmethod
    def of(cls, model: Model, recordings: Sequence[Recording]) -> Measured:
        """The completed recordings. **Raises** `DataError` unless they are of the same joints."""
        joints = recordings[0].joints
        if any(x.joints != joints for x in recordings):
            raise DataError("the recordings are of different joints; fit those with the same joints together")
        full = tuple(x.completed(model) for x in recordings)
        every = tuple(range(model.nv))
        dofs = every if joints is None else tuple(model.v_index(name).start for name in joints)
        if not model.topology.has_loops:
            return cls(full, dofs, model.nv)
        J = np.asarray(constraint_jacobian(model, jnp.asarray(full[0].q[0], model.dtype)), np.float64)
        rank = int(np.linalg.matrix_rank(J, _RANK_TOLERANCE * np.linalg.norm(J, 2)))
        return cls(full, dofs, model.nv - rank)

    def noise(self, model: Model, noise: np.ndarray, joints: tuple[str, ...] | None) -> np.ndarray:
        """The standard deviations `[nv]` for those `[k]` of the recorded joints: at passive joints those that follow
        from them, averaged over the recordings."""
        if joints is None:
            return noise
        q = np.concatenate([x.q for x in self.recordings])
        q = q[:: max(1, len(q) // _CONFIGURATIONS)]
        E = np.asarray(motion_map(model, jnp.asarray(q, model.dtype), joints), np.float64)[..., list(self.dofs)]
        out = np.sqrt(np.mean(np.sum((E * noise) ** 2, axis=-1), axis=0))
        # The robot's states have to fit together at joints that do not move, too.
        out = np.maximum(out, 1e-3 * out.max())
        out[list(self.dofs)] = noise
        return out


def closure(model: Model, start: State, position_noise, velocity_noise) -> jax.Array:
    """How far states `[segments, ...]` are from satisfying loops and couplings, `[segments, 2 nc]`, in units of the
    noise. Roll-outs begin at the states that do, and do not depend on what this determines."""
    if not model.topology.has_loops:
        return jnp.zeros((len(start.q), 0), start.q.dtype)
    position, velocity = (jnp.sqrt(jnp.mean(x**2)) for x in (position_noise, velocity_noise))
    rate = (constraint_jacobian(model, start.q) * start.v[..., None, :]).sum(axis=-1)
    return jnp.concatenate([constraint_error(model, start.q) / position, rate / velocity], axis=-1)
