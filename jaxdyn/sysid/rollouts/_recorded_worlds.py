"""Roll-outs of worlds along recordings: controls that are held, time steps of the world's own, and activations."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdyn._errors import DataError, ModelError
from jaxdyn.simulate import State, Trajectory
from jaxdyn.simulate.integrators import Integrator
from jaxdyn.sysid.recordings import Recording
from jaxdyn.worlds import World, next_activation

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


def simulate_world(world: World, start: State, inputs: Inputs, steps: int) -> Trajectory:
    """Return the motion from states `[*batch, ...]` under inputs `[*batch, intervals, ...]`, each held for `steps` time
    steps."""
    state = world.state(start.q, start.v, start.activation)
    intervals = next(x.shape[-2] for x in inputs if x is not None)
    return world.rollout(state, inputs.control, steps=intervals, torques=inputs.tau, substeps=steps)


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
