"""The torque model of identification, which is linear in its parameters, along recordings."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import DataError
from jaxdyn.algorithms import spring_torque, torque_regressor
from jaxdyn.model import Model
from jaxdyn.sysid.recordings import Recording, Recordings, as_recordings, signals, transmissions
from jaxdyn.sysid.torques._deflections import DEFLECTED, SLOW, deflection_slopes, require_simple_joints
from jaxdyn.sysid.torques._effect_columns import effect_leaves, effect_terms, searched_numbers, temperatures
from jaxdyn.sysid.torques._effect_columns import torque_columns as torque_columns
from jaxdyn.sysid.torques._effect_values import VALUES, EffectShape, FrictionMotion, JointEffectValues
from jaxdyn.sysid.torques._effects import (
    SEARCHED,
    JointEffects,
    delay_signal,
    frictionless_torque,
    require_no_redundant_drives,
)
from jaxdyn.sysid.torques._friction_motion import friction_motion, shape_slopes
from jaxdyn.sysid.torques._layout import (
    DELAYS,
    SCALES,
    Layout,
    kind_of,
    length_slopes,
    motion_of,
    place_positions,
    waves,
    with_positions,
)
from jaxdyn.sysid.torques._recorded_motions import (
    TorqueData,
    alike_blocks,
    clipped_torques,
    drive_torques,
    driven_joints,
    free_dofs,
    is_unclipped,
    low_pass_of,
    motion_arrays,
    transmission_of,
    triangular_factors,
)
from jaxdyn.sysid.torques._recorded_motions import consecutive_blocks as consecutive_blocks
from jaxdyn.sysid.torques._unknown_forces import DriveEquations, UnknownForces, driven_effects, has_contacts

_CHUNK = 4096
# A regressor of at most this many bytes is kept between passes over the samples; a larger one is recomputed.
_KEPT = 2**28
_torque_regressor = eqx.filter_jit(torque_regressor)


class Samples(DriveEquations):
    """The samples of recordings, from which the columns of the torque model are computed chunk by chunk."""

    def __init__(
        self,
        model: Model,
        recordings: Recordings | Samples,
        effects: JointEffects | None = None,
        shape: EffectShape | None = None,
        refined: np.ndarray | None = None,
    ):
        """In the place of recordings, other samples of them share their motion and the columns of the bodies: those of
        a model with the same lengths and gravity. The default `shape` has the model's friction velocities."""
        effects, shape = effects or JointEffects(), shape or EffectShape.default(model.friction_velocity)
        self.recordings = recordings_of(recordings)
        effects = driven_effects(effects, model, self.recordings)
        self.joints = driven_joints(model, self.recordings)
        """The joints that drive a robot with closed loops; None for a tree, where all do."""
        self.transmission = transmission_of(model, self.recordings)
        """The matrix from motors to joints, where motors were recorded. Torques are those of the motors then, and the
        armature and friction of a model are theirs."""
        self.driven = np.full(model.nv, True)
        """`[nv]`: the degrees of freedom whose torques were recorded."""
        require_simple_joints(model, effects, self.transmission)
        if self.joints is not None:
            effects = effects.of_driven(model, self.joints)
            self.driven[:] = effects.dofs_of(self.joints, model)
        self.before, self.effects, self.shape = model, effects, shape
        self.model = model
        """The model with the lengths at which the columns are taken."""
        self.refined = np.zeros((len(SEARCHED), model.nv), bool) if refined is None else refined
        """`[6, nv]` of bool: which numbers of the shape are parameters."""
        self.layout = Layout.of(model, effects, refined, self.transmission)
        self.names = self.layout.names(model)
        """The names of the parameters."""
        if isinstance(recordings, Samples):
            self._recorded, self._body_columns = recordings._recorded, recordings._shared_body_columns
            self._clipped, self.temperature = recordings._clipped, recordings.temperature
        else:
            motions = [(*motion_arrays(model, x)[:3], drive_torques(model, x)) for x in self.recordings]
            self._recorded = [np.concatenate(x) for x in zip(*motions, strict=True)]
            self._clipped = np.concatenate([clipped_torques(model, x) for x in self.recordings])
            self._body_columns: list[np.ndarray] = []
            self.temperature = temperatures(self.recordings, model.nv)
        self.q, self.v, self.a, self.measured = self._recorded
        self._shared_body_columns = self._body_columns
        if self.joints is not None:
            require_no_redundant_drives(model, self.q[:1], self.joints, effects)
        self.starts = np.cumsum([0, *(len(x) for x in self.recordings)])
        self.filters = [low_pass_of(x) for x in self.recordings]
        self.lengths = np.array([f.count(len(x)) for f, x in zip(self.filters, self.recordings, strict=True)])
        """The number of equations of each recording at each joint: its samples, or those that its filter keeps."""
        self.clock_start = min(float(x.t[0]) for x in self.recordings)
        self.reference_temperature = None if self.temperature is None else self.temperature.mean(axis=0)
        self.cutoff = SLOW * min(x.cutoff or np.inf for x in self.recordings)
        self._linearized, self._values = model, None
        self._take_shape()
        self.transmitted = self.tau
        """`[n, nv]`: the torque that friction may grow with; at first the measured one."""
        self._slopes = shape_slopes(self, self._linearized, self._values)
        self.deflections: dict[tuple[str, int], np.ndarray] = self._deflection_slopes(model)
        size = np.sqrt(np.mean(self.tau**2, axis=0))
        if not size.max() > 0:
            raise DataError("the recording's torques are all zero: nothing can be identified from them")
        # Joints that carry no torque get a floor.
        self.torque_scale = np.maximum(size, 1e-3 * size.max())
        if has_contacts(self.recordings):
            # Noise of the base's equations, as of its acceleration, is sought from above: from below it hardly grows.
            self.torque_scale = np.where(free_dofs(model), size.max(), self.torque_scale)
            self.forces = UnknownForces(model, self.recordings, self.q, self._clipped, self.torque_scale)
        self.velocity_scale, self.acceleration_scale = (np.sqrt(np.mean(x**2, axis=0)) for x in self.drive_motion[1:])
        self._chunks: list[np.ndarray] = []

    def __len__(self) -> int:
        return int(self.lengths.sum())

    @property
    def searched(self) -> np.ndarray:
        """`[6, nv]` of bool: whether the effects search for a number of the shape."""
        return searched_numbers(self.effects, self.before, self.temperature is not None)

    def refining(self, refined: np.ndarray) -> Samples:
        """The same samples with the numbers of the shape that are `refined` `[6, nv]` among the parameters."""
        return Samples(self.before, self, self.effects, self.shape, refined)

    def linearize(self, model: Model, values: JointEffectValues | None = None) -> None:
        """Let load friction grow with the torques that `model` transmits in these motions, and take the derivatives by
        lengths and deflections there, and those by the numbers of the shape at the values."""
        if self.layout.places:
            self._linearized, places = model, self.layout.places
            self.model = with_positions(self.before, places, place_positions(model, places))
            motion = motion_of(self.model, (self.q, self.v, self.a), self.joints)
            self.q, self.v, self.a = (np.asarray(x, np.float64) for x in motion)
            self._body_columns = []
        if values is not None and self.layout.dofs(*SCALES, *DELAYS):
            self.shape = values.shape(model.friction_velocity)
            self._linearized, self._values = model, values
        if self.layout.nonlinear:
            self._take_shape()
        self.deflections = self._deflection_slopes(model)
        self.take_transmitted(self.tau if self.forces is not None else self.frictionless_torque(model))

    def frictionless_torque(self, model: Model) -> np.ndarray:
        """The torque `[n, nv]` that the drives transmit in these motions (`frictionless_torque`)."""
        return frictionless_torque(model, *self.motion, self.joints, self.transmission)

    @property
    def drive_motion(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The positions, velocities and accelerations of what drives: motors, where they were recorded, or joints."""
        q, v, a = (transmissions.motor_motion(self.transmission, x) for x in self.motion)
        return q, v, a

    @property
    def shape_scales(self) -> np.ndarray:
        """`[4, nv]`: what velocities, distances and times of the shape are parts of: the largest velocity, twice, the
        way between the ends of the motion, and the time to the last sample."""
        v = self.drive_motion[1]
        ways = self.on_recordings(lambda t, x: np.cumsum(v[x] * np.gradient(t)[:, None], axis=0))
        ends = [np.ptp(ways[slice(*x)], axis=0) for x in itertools.pairwise(self.starts)]
        last = max(float(x.t[-1]) for x in self.recordings)
        top = np.abs(v).max(axis=0)
        return np.stack([top, top, np.max(ends, axis=0), np.full_like(top, last - self.clock_start)])

    @property
    def motion(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.q, self.v, self.a

    def take_transmitted(self, torque: np.ndarray) -> None:
        """Let load friction grow with these torques `[n, nv]`."""
        self.transmitted, self._chunks = torque, []
        self._slopes = shape_slopes(self, self._linearized, self._values)

    def _take_shape(self) -> None:
        """Take what friction depends on, and the measured torques, for the numbers of the shape."""
        self.friction_motion = friction_motion(self, self.shape, self.effects)
        """The motion that friction depends on, but for the load; `[n, nv]` each."""
        self.u = self.friction_motion.velocity
        # The torque of the motion at t is recorded at t + delay, unless the recording ends before.
        delay = self.shape.torque_delay
        self.tau = self.on_recordings(lambda t, x: delay_signal(t, self.measured[x], None, -delay))
        self.valid = self.valid_at(delay)
        """`[len(self), nv]`: whether the torque of all samples of an equation was recorded, without a limit."""

    def valid_at(self, delay: np.ndarray) -> np.ndarray:
        """`valid` for torques that are recorded later than the motion by a delay `[nv]`, s."""
        # Contacts mix the torques of joints, and torques without a sensor are projected out of them.
        mixed = has_contacts(self.recordings)
        clipped = self.on_recordings(lambda t, x: delay_signal(t, self._clipped[x] * (not mixed), None, -delay))
        parts = zip(self.recordings, self.filters, itertools.pairwise(self.starts), strict=True)
        each = [
            (f.ends(x.t)[:, None] + delay <= x.t[-1]) & is_unclipped(clipped[slice(*part)], f) for x, f, part in parts
        ]
        valid = np.concatenate(each)
        return valid & valid.all(axis=1, keepdims=True) if mixed else valid

    def on_recordings(self, signal: Callable[[np.ndarray, slice], np.ndarray]) -> np.ndarray:
        """The values `[n, ...]` of `signal(times, samples)` of all recordings."""
        parts = [slice(*x) for x in itertools.pairwise(self.starts)]
        return np.concatenate([signal(x.t, part) for x, part in zip(self.recordings, parts, strict=True)])

    def deflection_scale(self, kind: str) -> np.ndarray:
        """The largest root mean square of the torque for one unit of a joint's deflection, for all joints: joints whose
        deflection changes no torque deflect as little. `[nv]`, 1 without deflections."""
        found = [np.sqrt(np.mean(x**2)) for (other, _), x in self.deflections.items() if other == kind]
        return np.full(self.layout.nv, max(found, default=1.0))

    def _deflection_slopes(self, model: Model) -> dict[tuple[str, int], np.ndarray]:
        """The derivatives `[n, nv]` of the torque of all joints with respect to each deflection."""
        joints = {kind: self.layout.dofs(kind) for kind in DEFLECTED if self.layout.dofs(kind)}
        if not joints:
            return {}
        parts = [slice(*x) for x in itertools.pairwise(self.starts)]
        found = [
            deflection_slopes(model, r.t, tuple(x[part] for x in self.motion), self.cutoff, joints)
            for r, part in zip(self.recordings, parts, strict=True)
        ]
        return {key: np.concatenate([x[key] for x in found]) for key in found[0]}

    def joint_columns(self, samples: np.ndarray) -> np.ndarray:
        """The columns `[n, nv, P - 10 nb + 2]` after those of the bodies, at samples: of the effects, the known torque
        and the measured one."""
        layout, model, shape = self.layout, self.model, self.shape
        motion = FrictionMotion(*(x[samples] for x in self.friction_motion))._replace(load=self.transmitted[samples])
        q, a = self.q[samples], self.drive_motion[2][samples]
        terms = effect_terms(model, q, a, motion, shape.stribeck_velocity, layout)
        known = self._known_springs(samples)
        if self.transmission is not None:
            known = self.on_drives(samples, known[..., None])[..., 0]
        for kind, leaf in effect_leaves(model).items():
            fixed = np.setdiff1d(np.arange(layout.nv), layout.dofs(kind))
            known[:, fixed] += leaf[fixed] * terms[kind][:, fixed]
        # Slopes are about the values that the samples were linearized at.
        about = dict(zip((*SCALES, *DELAYS), shape, strict=True))
        out = np.zeros((len(samples), layout.nv, len(layout.joints) + 2))
        for k, (kind, j) in enumerate(layout.joints):
            if kind in about:
                out[:, j, k] = self._slopes[kind][samples, j]
                known[:, j] -= out[:, j, k] * about[kind][j]
            elif kind in DEFLECTED:
                out[..., k] = self.deflections[kind, j][samples]
            else:
                out[:, j, k] = 1.0 if kind == "offset" else terms[kind][:, j]
        out[..., -2], out[..., -1] = known, self.tau[samples]
        out = self.friction_on_drives(samples, out)
        return self._with_length_columns(samples, out) if layout.places else out

    def _known_springs(self, samples: np.ndarray) -> np.ndarray:
        """The torque `[n, nv]` of the springs that are not among the parameters."""
        model = self.model
        if model.stiffness is None:
            return np.zeros((len(samples), self.layout.nv))
        stiffness = jnp.where(jnp.asarray(self.layout.springs) < 0, model.stiffness, 0.0)
        model = eqx.tree_at(lambda m: m.stiffness, model, stiffness)
        return np.array(spring_torque(model, jnp.asarray(self.q[samples])), np.float64)

    def _with_length_columns(self, samples: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """`joint_columns` with those of the positions, and the known torque for the positions that they are about."""
        places = self.layout.places
        motion = (self.q[samples], self.v[samples], self.a[samples])
        slopes = length_slopes(self._linearized, places, motion, self.joints, self.transmission)
        known = columns[..., -2] - slopes @ place_positions(self.model, places)
        return np.concatenate([columns[..., :-2], slopes, known[..., None], columns[..., -1:]], axis=-1)

    def regressor(self, samples: np.ndarray) -> np.ndarray:
        """The columns `[n, nv, 10 nb]` of the bodies at samples."""
        motion = (jnp.asarray(x[samples]) for x in (self.q, self.v, self.a))
        return self.on_drives(samples, np.asarray(_torque_regressor(self.model, *motion), np.float64))

    def low_passed_columns(self, part: int, samples: np.ndarray, low_pass: signals.Decimation) -> np.ndarray:
        """All columns after the low pass, for the samples of this number among `_parts`."""
        if part >= len(self._body_columns):
            bodies = low_pass.apply(self.regressor(samples))
            if self.forces is None and len(self) * self.layout.nv * 10 * self.layout.nb * 8 <= _KEPT:
                self._body_columns.append(bodies)
        else:
            bodies = self._body_columns[part]
        return np.concatenate([bodies, low_pass.apply(self.joint_columns(samples))], axis=-1)

    def low_passed(self, x: np.ndarray) -> np.ndarray:
        """The equations' values `[len(self), ...]` of what the samples `x` `[n, ...]` have."""
        parts = zip(self.filters, self.starts, self.starts[1:], strict=False)
        return np.concatenate([f.apply(x[start:stop]) for f, start, stop in parts])

    def chunks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield rows and their `[rows, nv, P + 2]`: columns `Y`, known torque, measured torque; 0 where not valid."""
        keep = len(self) * self.layout.nv * (self.layout.size + 2) * 8 <= _KEPT
        for k, (rows, samples, low_pass) in enumerate(self._parts()):
            if k < len(self._chunks):
                yield rows, self._chunks[k]
                continue
            B = self.low_passed_columns(k, samples, low_pass)
            B = B[: rows.stop - rows.start] * self.valid[rows][..., None]
            if keep:
                self._chunks.append(B)
            yield rows, B

    def _parts(self) -> Iterator[tuple[slice, np.ndarray, signals.Decimation]]:
        """Yield equations, the numbers of their samples, and the filter between them. Parts bound the memory; the last
        one of a recording is filled up with repeated samples, so that one program serves all parts."""
        longest = max(f.half for f in self.filters)
        size = min(max(len(x) for x in self.recordings), max(_CHUNK, 8 * longest))
        first = 0
        for f, length, start, stop in zip(self.filters, self.lengths, self.starts, self.starts[1:], strict=False):
            for k in range(0, length, f.count(size)):
                samples = np.minimum(start + k * f.step + np.arange(size), stop - 1)
                yield slice(first + k, first + min(k + f.count(size), length)), samples, f
            first += length

    def alike_blocks(self, count: int) -> np.ndarray:
        """The block number `[len(self)]` of each equation: `count` blocks with alike motions (`alike_blocks`)."""
        ends = list(zip(self.filters, self.starts, self.starts[1:], strict=False))
        # The motion at the middle of the filter.
        q, v = (np.concatenate([x[a + f.half : b - f.half : f.step] for f, a, b in ends]) for x in (self.q, self.v))
        return alike_blocks(self.lengths, q, v, count)

    def compressed(self, weights: np.ndarray | None = None, groups: np.ndarray | None = None) -> list[TorqueData]:
        """The samples as triangular factors, one `TorqueData` for each of the `groups` `[len(self)]`, or one for all.

        `|Y_j p + known_j - tau_j|^2 = |R_j [p, 1, -1]|^2` holds exactly for every `p`, so no step of a fit touches the
        samples again. `weights` `[n, nv]` multiply the squares.
        """
        groups = np.zeros(len(self), int) if groups is None else groups
        counts = self.valid * (1.0 if weights is None else weights)
        out = []
        for group in range(int(groups.max()) + 1):
            factors = np.zeros((self.layout.nv, 0, 0))
            for rows, B in self.chunks():
                mine = groups[rows] == group
                if mine.any():
                    block = (B[mine] * np.sqrt(counts[rows][mine])[..., None]).swapaxes(0, 1)
                    factors = factors.reshape(len(block), -1, block.shape[-1])
                    factors = triangular_factors(np.concatenate([factors, block], axis=1))
            count = (counts * self.noise_share)[groups == group].sum(axis=0)
            out.append(TorqueData(factors, np.maximum(count, 1.0)))
        return out

    def residuals(self, parameters: np.ndarray, gain: np.ndarray | float = 1.0) -> np.ndarray:
        """The residuals `(Y p + known) / g - tau`, `[len(self), nv]`, zero where not valid."""
        p = np.append(parameters, 1.0)
        return np.concatenate([B[..., :-1] @ p / gain - B[..., -1] for _, B in self.chunks()])


def recordings_of(recordings: Recordings | Samples) -> tuple[Recording, ...]:
    return recordings.recordings if isinstance(recordings, Samples) else as_recordings(recordings)


def with_parameters(samples: Samples, parameters: np.ndarray, gain: np.ndarray) -> tuple[Model, JointEffectValues]:
    """The model of the samples with the leaves that parameters `[P]` name, and the values that no leaf holds."""
    model, layout = samples.before, samples.layout
    if layout.places:
        model = with_positions(model, layout.places, layout.positions(parameters))
    joints = layout.joint_values(parameters)
    found = [joints[x] for x in (*SCALES, *DELAYS)]
    shape = EffectShape(*(np.where(np.isnan(x), old, x) for x, old in zip(found, samples.shape, strict=True)))
    leaves = {k: np.where(np.isnan(joints[k]), x, joints[k]) for k, x in effect_leaves(model).items()}
    slipping = np.isnan(joints["static"])
    others: dict[str, Any] = {name: np.nan_to_num(joints[kind_of(name)]) for name in VALUES}
    values = JointEffectValues(
        offset=np.nan_to_num(joints["offset"]),
        static=np.where(slipping, leaves["coulomb"], joints["static"]),
        stribeck_velocity=np.where(slipping, 1.0, shape.stribeck_velocity),
        load=np.nan_to_num(joints["load"]),
        gain=gain,
        friction_delay=shape.friction_delay,
        torque_delay=shape.torque_delay,
        presliding=shape.presliding,
        **others,
        cosine=np.array([np.nan_to_num(joints[x]) for x in waves(layout.harmonics)[::2]]).reshape(-1, layout.nv),
        sine=np.array([np.nan_to_num(joints[x]) for x in waves(layout.harmonics)[1::2]]).reshape(-1, layout.nv),
        harmonics=layout.harmonics,
        warm_up=shape.warm_up,
        warm_up_start=samples.clock_start,
        temperature=samples.reference_temperature if layout.dofs("warm-up coulomb") else None,
        deflection_cutoff=samples.cutoff,
    )
    new = {
        "inertial_parameters": np.asarray(parameters)[: 10 * layout.nb].reshape(layout.nb, 10),
        "armature": leaves["armature"],
        "damping": leaves["viscous"],
        "friction": leaves["coulomb"],
        "friction_velocity": shape.friction_velocity,
    }
    if any(i >= 0 for i in layout.springs):
        old = np.zeros(layout.nv) if model.stiffness is None else np.asarray(model.stiffness, np.float64)
        new["stiffness"] = np.where(np.isnan(joints["spring"]), old, joints["spring"])
        new["spring_reference"] = np.zeros(model.nq) if model.spring_reference is None else model.spring_reference
    return dataclasses.replace(model, **{name: jnp.asarray(x, model.dtype) for name, x in new.items()}), values


def require_effects_of_state(effects: JointEffects | None, what: str) -> None:
    """Raise `DataError` for effects that more than a joint's present motion and load determine."""
    chosen = [x for x in ("warm_up", "flexibility", "backlash") if effects is not None and getattr(effects, x)]
    if chosen:
        raise DataError(f"{what} does not take the effects {', '.join(chosen)}; leave them out")


def require_known_lengths(effects: JointEffects | None, what: str, advice: str) -> None:
    """Raise `DataError` for effects with unknown lengths."""
    if effects is not None and effects.length:
        raise DataError(f"{what} does not take unknown lengths, in which torques are not linear; {advice}")
