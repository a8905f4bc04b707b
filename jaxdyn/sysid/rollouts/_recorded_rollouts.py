"""Recordings as roll-outs take them: the robot that is simulated, inputs and activations, segments, and states on
closed loops, some of whose joints are not measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdyn._errors import DataError, ModelError, require_choice
from jaxdyn._types import Array, Float
from jaxdyn.algorithms import constraint_error, constraint_jacobian, motion_map
from jaxdyn.model import Model
from jaxdyn.simulate import State, Trajectory, rollout
from jaxdyn.simulate.integrators import Integrator, closed
from jaxdyn.sysid.parameters import leaves
from jaxdyn.sysid.recordings import Recording
from jaxdyn.worlds import World, next_activation

# Configurations at which the noise of passive joints is averaged.
_CONFIGURATIONS = 200
_RANK_TOLERANCE = 1e-6
# How far the time between two samples may be from a multiple of the time step, relatively: times are written with six
# digits or so. Over a segment of a second the clock is off by ten microseconds then.
_CLOCK = 1e-5


class Inputs(NamedTuple):
    """The inputs that drive a robot from each sample to the next."""

    tau: Any
    """`[..., steps, nv]`: torques; None for worlds where none were recorded."""
    control: Any = None
    """`[..., steps, nu]`: the controls of a world's actuators; None for robots without."""


def require_inputs(robot: Any, recording: Recording) -> None:
    """Raise `DataError` unless a recording has what drives the robot."""
    tau, control, where = recording.tau, recording.control, recording.name
    if not isinstance(robot, World):
        if tau is None:
            has = "controls, which only worlds take, and no torques" if control is not None else "no torques"
            raise DataError(f"{where}: the recording has {has}; give zeros as tau if nothing drove the robot")
        return
    for name, x, width, columns in (
        ("control", control, robot.nu, f"one for each actuator: {', '.join(robot.actuator_names)}"),
        ("activation", recording.activation, robot.na, "one for each actuator with dynamics"),
    ):
        if x is None and width and name == "control":
            torques = "" if tau is None else "; its tau are torques on the joints beside those of the actuators"
            raise DataError(f"{where}: there are no controls{torques}; give control [samples, {width}], {columns}")
        if x is not None and x.shape[1] != width:
            raise DataError(f"{where}: {name} has {x.shape[1]} columns, but the world needs {width}, {columns}")


def steps_between(robot: Any, dt: float, integrator: Integrator | None, substeps: int) -> int:
    """Return the number of steps from a sample to the next, `dt` (s) later: `substeps`, and for a world as many as its
    time step needs. **Raises** `DataError` where that is no whole number, `ModelError` for options that worlds lack."""
    if not isinstance(robot, World):
        return substeps
    if integrator is not None or substeps != 1:
        raise ModelError(
            "a world steps with the integrator and the time step of its file; leave out integrator and substeps"
        )
    timestep = float(robot.timestep)
    count = round(dt / timestep)
    if count < 1 or abs(dt - count * timestep) > _CLOCK * dt:
        raise DataError(
            f"the recording has a sample every {dt:.6g} s, and that is no multiple of the world's time step, "
            f"{timestep:.6g} s; call resampled(rate) with a rate that fits, or change the timestep in the world's file"
        )
    return count


def simulate_robot(
    robot: Any, start: State, inputs: Inputs, dt, integrator: Integrator | None, substeps: int
) -> Trajectory:
    """Return the trajectory of a robot from `start`, with its loops closed, under recorded inputs."""
    if isinstance(robot, World):
        intervals = next(x.shape[-2] for x in inputs if x is not None)
        begin = robot.state(start.q, start.v, start.activation)
        return robot.rollout(begin, inputs.control, steps=intervals, torques=inputs.tau, substeps=substeps)
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


def first_activation(world: World, recording: Recording) -> np.ndarray:
    """Return the activations `[na]` at a recording's first sample: the recorded ones, or those at which its first
    controls hold filters and muscles. **Raises** `DataError` for integrators whose activation was not recorded."""
    actuators = world.parts.actuators
    remembered = actuators.activations - actuators.dynamic
    if any(x.remembered for x in actuators.force_path) or (remembered and recording.activation is None):
        raise ModelError(
            "blocks of the world's actuators remember something (a lag or a delay), which is unknown at the starts of "
            "segments; give actuators a time_constant in their place, or shift or filter the recorded controls"
        )
    if recording.activation is not None or not world.na or recording.control is None:
        return np.zeros(world.na) if recording.activation is None else recording.activation[0]
    order = sorted((i for i in range(world.nu) if actuators.states[i] >= 0), key=lambda i: actuators.states[i])
    summing = [actuators.names[i] for i in order if actuators.dynamics[i] == "integrator"]
    if summing:
        raise DataError(
            f"{recording.name}: the actuators {', '.join(summing)} integrate their controls, so nothing in the "
            "recording tells their activations at its start; give Recording(activation=...), whose first row counts"
        )
    unit = np.array([[0.0, 1.0] if actuators.dynamics[i] == "muscle" else [-np.inf, np.inf] for i in order])
    out = recording.control[0, order]
    for bounds in (unit, *(np.asarray(x)[order] for x in (actuators.control_range, actuators.activation_range))):
        out = np.clip(out, *bounds.T)
    return out


def activations_along(world: World, control: Any, first: Any, steps: int) -> jax.Array:
    """Return the activations `[intervals + 1, na]` from those of the first sample on, under controls `[intervals, nu]`
    that are each held for `steps` time steps."""

    def interval(activation, u):
        after, _ = lax.scan(lambda x, _: (next_activation(world, x, u), None), activation, length=steps)
        return after, after

    return jnp.concatenate([first[None], lax.scan(interval, first, control)[1]])


def start_activations(world: World, control: Any, first: Any, owner: Any, steps: int) -> jax.Array:
    """Return the activations at the starts of segments, `[segments, na]`. They depend on controls alone, so they follow
    from those at the recordings' first samples, `first` `[recordings, na]`, without further unknowns.

    `control`: `[segments, intervals, nu]`; `owner`: `[segments]`, the number of the recording of each.
    """

    def segment(carry, now):
        before, activation = carry
        number, u = now
        activation = jnp.where(number == before, activation, first[number])
        return (number, activations_along(world, u, activation, steps)[-1]), activation

    owner = jnp.asarray(owner)
    return lax.scan(segment, (jnp.full_like(owner[0], -1), first[0]), (owner, control))[1]


def recorded_activations(robot: Any, recording: Recording, dt: float) -> np.ndarray | None:
    """Return the activations at all samples of a recording, `[samples, na]`; None for robots without."""
    if not isinstance(robot, World) or not robot.na:
        return None
    first, control = first_activation(robot, recording), recording.require("control")[0][:-1]
    dtype, steps = robot.model.dtype, steps_between(robot, dt, None, 1)
    along = jax.jit(activations_along, static_argnums=3)
    return np.asarray(along(robot, jnp.asarray(control, dtype), jnp.asarray(first, dtype), steps))


def uniform_rate(robot: Any, recording: Recording) -> float:
    """Return the samples per second of a recording that fits the robot. **Raises** `DataError`."""
    if recording.transmission is not None:
        raise DataError(
            f"{recording.name}: its columns are those of motors with a transmission, and roll-outs have joints: give "
            "recording.of_joints(), whose torques contain the friction and inertia of the motors"
        )
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
