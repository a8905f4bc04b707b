"""Roll-outs along recordings: the robot that is simulated, segments of recordings, errors from measured states, and
states on closed loops, some of whose joints are not measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import DataError, naming_arguments, require_choice, require_positive
from jaxdyn._types import Array, Float
from jaxdyn.algorithms import constraint_error, constraint_jacobian, motion_map
from jaxdyn.model import Model
from jaxdyn.simulate import State, Trajectory, rollout
from jaxdyn.simulate.integrators import Integrator, closed
from jaxdyn.sysid.parameters import leaves
from jaxdyn.sysid.recordings import Recording
from jaxdyn.sysid.rollouts._recorded_worlds import (
    Inputs,
    activations_along,
    first_activation,
    require_inputs,
    simulate_world,
    steps_between,
)
from jaxdyn.worlds import World

# Configurations at which the noise of passive joints is averaged.
_CONFIGURATIONS = 200
_RANK_TOLERANCE = 1e-6


def simulate_robot(
    robot: Any, start: State, inputs: Inputs, dt, integrator: Integrator | None, substeps: int
) -> Trajectory:
    """Return the trajectory of a robot from `start`, with its loops closed, under recorded inputs."""
    if isinstance(robot, World):
        return simulate_world(robot, start, inputs, substeps)
    model = leaves.model_of(robot)
    options: Any = {"integrator": integrator or "rk4", "substeps": substeps}
    return rollout(model, closed(model, start), inputs.tau, dt, **options)


def held_inputs(robot: Any, recording: Recording, hold: str) -> Inputs:
    """Return the inputs from each sample to the next, `[n - 1, ...]`: controls are held. **Raises** `DataError`."""
    require_choice(hold, ("mean", "start"), "hold", error=DataError)
    tau, control = recording.tau, recording.control
    if tau is None and control is None:
        tau = np.zeros((len(recording), leaves.model_of(robot).nv))
    if tau is not None:
        tau = tau[:-1] if hold == "start" else 0.5 * (tau[:-1] + tau[1:])
    return Inputs(tau, None if control is None else control[:-1])


class RolloutErrors(NamedTuple):
    """Position errors of roll-outs from measured states."""

    start: np.ndarray
    """`[starts]`: times at which they begin, s."""
    horizon: np.ndarray
    """`[steps + 1]`: time since then, s."""
    position: np.ndarray
    """`[starts, steps + 1, nv]`: `difference(measured, simulated)`, rad or m."""

    def curves(self) -> np.ndarray:
        """Return the root mean square of each roll-out's errors up to each horizon after the start, `[starts, steps]`,
        over all degrees of freedom and all samples after the start."""
        sums = np.cumsum(np.mean(self.position[:, 1:] ** 2, axis=2), axis=1)
        return np.sqrt(sums / np.arange(1, sums.shape[1] + 1))

    def rmse(self, horizon: float | None = None) -> np.ndarray:
        """Return the root mean square of each roll-out's errors, `[starts]`, over all degrees of freedom and all
        samples after the start up to a horizon (s; None: the whole).

        **Raises** `DataError` for a horizon without samples.
        """
        last = self.horizon[-1] if horizon is None else horizon
        # A horizon is a whole number of samples, apart from rounding.
        upto = int(np.searchsorted(self.horizon, last * (1 + 1e-9), side="right"))
        if upto < 2 or last > self.horizon[-1] * (1 + 1e-9):
            first, end = self.horizon[[1, -1]]
            raise DataError(f"horizon is {last:g} s; the roll-outs have samples from {first:g} to {end:g} s")
        return self.curves()[:, upto - 2]


class Starts(NamedTuple):
    """The samples of a recording at which roll-outs begin, and the length of the roll-outs."""

    rows: np.ndarray
    """`[starts]`: the samples at which they begin."""
    steps: int
    dt: float
    """s"""


@naming_arguments
def rollout_errors(
    robot: Any,
    recording: Recording,
    horizon: float,
    *,
    every: float,
    hold: str = "mean",
    integrator: Integrator | None = None,
    substeps: int = 1,
) -> RolloutErrors:
    """Roll out a `Model` or `World` from the measured states `q, v` at many times of a recording, with its
    torques or controls.

    On a recording that a fit has not seen, the errors say how good the fit is.

    **Arguments**

    - `recording`: uniform in time, with velocities.
    - `horizon`: duration of each roll-out, s.
    - `every`: time from one start to the next, s.
    - `hold`, `integrator`, `substeps`: as in `fit_rollouts`.

    **Raises** `DataError` for a recording that is too short, not uniform, or without velocities.
    """
    model = leaves.model_of(robot)
    recording = recording.completed(model)
    starts = choose_starts(robot, recording, horizon, every)
    states = measured_states(robot, recording, starts)
    return errors_from(robot, recording, starts, states, hold, integrator, substeps)


def choose_starts(robot: Any, recording: Recording, horizon: float, every: float, begin: float = 0.0) -> Starts:
    """Return the starts from `begin` (s after the first sample) on. **Raises** `DataError` if there are none."""
    require_positive(horizon, "horizon (s)", error=DataError)
    require_positive(every, "every (s)", error=DataError)
    rate = uniform_rate(robot, recording)
    steps, stride = round(horizon * rate), max(1, round(every * rate))
    rows = np.arange(int(np.ceil(begin * rate - 1e-6)), len(recording) - steps, stride)
    if steps < 1 or not len(rows):
        after = f" after the first {begin:g} s" if begin else ""
        raise DataError(f"a horizon of {horizon:g} s does not fit into {recording.duration:g} s of recording{after}")
    return Starts(rows, steps, 1 / rate)


def measured_states(robot: Any, recording: Recording, starts: Starts) -> State:
    """Return the measured states at the starts. **Raises** `DataError` without velocities."""
    if recording.v is None:
        raise DataError("the recording has no velocities, and roll-outs start from measured ones; differentiate first")
    dtype, activation = leaves.model_of(robot).dtype, recorded_activations(robot, recording, starts.dt)
    arrays = recording.q, recording.v, activation
    return State(*(None if x is None else jnp.asarray(x[starts.rows], dtype) for x in arrays))  # pyright: ignore[reportArgumentType]


def recorded_activations(robot: Any, recording: Recording, dt: float) -> np.ndarray | None:
    """Return the activations at all samples of a recording, `[samples, na]`; None for robots without."""
    if not isinstance(robot, World) or not robot.na:
        return None
    first, control = first_activation(robot, recording), recording.require("control")[0][:-1]
    dtype, steps = robot.model.dtype, steps_between(robot, dt, None, 1)
    along = jax.jit(activations_along, static_argnums=3)
    return np.asarray(along(robot, jnp.asarray(control, dtype), jnp.asarray(first, dtype), steps))


def errors_from(
    robot: Any,
    recording: Recording,
    starts: Starts,
    states: State,
    hold: str,
    integrator: Integrator | None,
    substeps: int,
) -> RolloutErrors:
    """Return the errors of the roll-outs from `states` along the recording."""
    model = leaves.model_of(robot)
    rows = starts.rows[:, None] + np.arange(starts.steps + 1)
    inputs = jax.tree.map(lambda x: jnp.asarray(x[rows[:, :-1]], model.dtype), held_inputs(robot, recording, hold))
    substeps = steps_between(robot, starts.dt, integrator, substeps)
    q = _positions(robot, states, inputs, starts.dt, integrator, substeps)
    error = model.difference(jnp.asarray(recording.q[rows], model.dtype), q)
    horizon = np.arange(starts.steps + 1) * starts.dt
    return RolloutErrors(recording.t[starts.rows], horizon, np.asarray(error, np.float64))


@eqx.filter_jit
def _positions(robot, start, inputs, dt, integrator: Any, substeps: int) -> Float[Array, "starts samples nq"]:
    return simulate_robot(robot, start, inputs, dt, integrator, substeps).q


def uniform_rate(robot: Any, recording: Recording) -> float:
    """Return the samples per second of a recording that fits the robot. **Raises** `DataError`."""
    recording.require_columns(leaves.model_of(robot))
    require_inputs(robot, recording)
    if recording.rate is None:
        raise DataError("the recording's samples are not uniform in time, and roll-outs step evenly; resample first")
    return recording.rate


class Segments(NamedTuple):
    """Recordings in pieces of equal length, one after the other."""

    inputs: Inputs
    """Torques and controls that act from each sample to the next, `[segments, steps, ...]`."""
    q: Float[Array, "segments samples nq"]
    """Measured, `samples = steps + 1`: the last of a segment is the first of the next."""
    v: Float[Array, "segments samples nv"] | None
    weight: Float[Array, "segments samples"]
    """1 where a sample counts: each of a recording does once."""
    linked: Float[Array, "segments"]
    """1 where the next segment continues the same recording."""
    recording: np.ndarray
    """`[segments]` of int: number of the recording."""
    start: np.ndarray
    """`[segments]`: time of the first sample, s."""
    activation: Float[Array, "recordings na"] | None = None
    """Activations of a world's actuators at the first sample of each recording; None without any."""


def cut_recordings(
    robot: Any, recordings: tuple[Recording, ...], duration: float, hold: str, *, link: bool = True
) -> tuple[Segments, float]:
    """Return the segments of `duration` (s), independent unless `link`, and the time from a sample to the next (s).
    **Raises** `DataError`."""
    rates = [uniform_rate(robot, recording) for recording in recordings]
    if max(rates) > min(rates) * (1 + 1e-6):
        raise DataError(f"the recordings have {rates} samples per second; resample them to the same rate")
    steps = round(duration * rates[0])
    if steps < 1:
        raise DataError(f"a segment of {duration:g} s is shorter than a sample at {rates[0]:g} Hz")
    for name in ("v", "tau") if isinstance(robot, World) else ("v",):
        there = [getattr(recording, name) is not None for recording in recordings]
        if any(there) and not all(there):
            what = "velocities" if name == "v" else "torques"
            raise DataError(f"some recordings have {what} and others have none; give them all, or none")
    parts = []
    for number, recording in enumerate(recordings):
        count = (len(recording) - 1) // steps
        if count < 1:
            raise DataError(
                f"recording {number} lasts {recording.duration:g} s, less than a segment of {duration:g} s; take "
                "shorter segments"
            )
        rows = steps * np.arange(count)[:, None] + np.arange(steps + 1)
        weight, linked = np.ones((count, steps + 1)), np.full(count, float(link))
        weight[:-1, -1] = linked[-1] = 0
        v = None if recording.v is None else recording.v[rows]
        inputs = (None if x is None else x[rows[:, :-1]] for x in held_inputs(robot, recording, hold))
        start = recording.t[rows[:, 0]]
        parts.append((*inputs, recording.q[rows], v, weight, linked, np.full(count, number), start))
    *arrays, number, start = (None if x[0] is None else np.concatenate(x) for x in zip(*parts, strict=True))
    dtype = leaves.model_of(robot).dtype
    tau, control, *arrays = (None if x is None else jnp.asarray(x, dtype) for x in arrays)
    first = None
    if isinstance(robot, World) and robot.na:
        first = jnp.asarray(np.stack([first_activation(robot, x) for x in recordings]), dtype)
    q, v, weight, linked = arrays
    return Segments(Inputs(tau, control), q, v, weight, linked, number, start, first), 1 / rates[0]  # pyright: ignore[reportArgumentType]  (only `v` may be None)


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
