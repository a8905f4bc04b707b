"""The steps of a world: Euler, implicitfast, implicit and RK4 as MuJoCo has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from jaxdyn.contact import ContactReport, straight_motion
from jaxdyn.simulate import Advance, State
from jaxdyn.worlds import _equations as rows
from jaxdyn.worlds._model_steps import advanced_as_model
from jaxdyn.worlds._no_slip import without_slip
from jaxdyn.worlds._sensed import sensor_rows
from jaxdyn.worlds._solver import Solved, solve
from jaxdyn.worlds._states import Given, given_of, with_batch
from jaxdyn.worlds._world_velocities import body_velocity, rates_of_rotation_vectors, world_velocity

if TYPE_CHECKING:
    from jaxdyn.worlds._world import World


def solved(given: Given) -> Solved:
    if not given.world.parts.as_mujoco:
        return advanced_as_model(given, sensed=False)[1]
    bound, operands = given.bound()
    parts, arguments = given.world.parts, given.arguments.named()
    found = solve(bound, operands, arguments, given.world.options)
    if parts.no_slip is None:
        return found
    a, pushes = without_slip(bound, operands, arguments, parts, found.a)
    return found._replace(a=a, pushes=pushes)


def sensed(given: Given, found: Solved) -> Any:
    """Return the values of all sensors at a solved state, `[*batch, n]`, one after the other."""
    if not given.world.parts.as_mujoco:
        return advanced_as_model(given, sensed=True)[2]
    bound, operands = given.bound()
    time = jnp.broadcast_to(given.state.time, given.arguments.q.shape[:-1])[..., None]
    named = given.arguments.named() | ({} if given.wrenches is None else {"wrenches": given.wrenches})
    return bound.call(sensor_rows, operands, found.a, time, **named, **found.given_pushes())


def by_name(sensors: Any, values: Any) -> dict[str, Any]:
    """Return the values `[*batch, n]` of all sensors, one after the other, by the names of the sensors."""
    ends = np.cumsum(sensors.sizes)
    return {name: values[..., end - n : end] for name, n, end in zip(sensors.names, sensors.sizes, ends, strict=True)}


def advanced(world: World, state: State, control: Any, torque: Any, wrenches: Any, sensed_too: bool) -> Advance:
    """Return the state after a time step, the readings of the sensors at its start if asked for, and how the
    constraints were solved."""
    given = given_of(world, state, control, torque, wrenches)
    if world.parts.as_mujoco:
        found = solved(given)
        after, values = step_from(given, found.a), sensed(given, found) if sensed_too else None
    else:
        after, found, values = advanced_as_model(given, sensed=sensed_too)
    tolerance = world.options.tolerance_of(found.error.dtype)
    report = ContactReport(found.error, found.iterations.astype(jnp.int32), tolerance)
    readings = by_name(world.parts.sensors, values) if sensed_too else None
    return Advance(after, readings, report)


def stepped(world: World, state: State, control: Any, torque: Any, wrenches: Any) -> State:
    given = given_of(world, state, control, torque, wrenches)
    return step_from(given, solved(given).a if world.parts.as_mujoco else None)


def step_from(given: Given, a: Any) -> State:
    """Return the state after a time step from one with the accelerations `a`, those of `solved`."""
    if not given.world.parts.as_mujoco:
        return advanced_as_model(given, sensed=False)[0]
    world, state, arguments = given.world, given.state, given.arguments
    if world.parts.integrator == "rk4":
        q, v, activation = _runge_kutta(given, a)
    else:
        bound, operands = given.bound()
        a, activation = bound.call(rows.step_accelerations, operands, a, **arguments.named())
        after = arguments.v + _times(world.timestep, a)
        q, v = _moved(world, arguments.q, after, after)
    time = state.time + world.timestep.astype(state.time.dtype)
    after = State(q, v, activation, time, state.mocap, state.active)
    return with_batch(after, q.shape[:-1])


def _times(dt, x):
    return dt.astype(x.dtype)[..., None] * x


def _moved(world: World, q, rate, after) -> tuple[Any, Any]:
    """Return the configuration after a step at the velocity `rate`, and the velocity `after` in the axes of its end;
    both are given in the axes of the start."""
    model, dt = world.model, world.timestep.astype(q.dtype)
    end = model.integrate(q, dt[..., None] * straight_motion(model, rate, dt))
    return end, body_velocity(model, end, world_velocity(model, q, after))


def _runge_kutta(given: Given, first: Any) -> tuple[Any, Any, Any]:
    """Return the configuration, velocity and activations after a step of RK4 from a state with the accelerations
    `first`. It is of Munthe-Kaas's kind: the stages add up displacements from the start, of positions along the world's
    axes and of rotations as rotation vectors (Munthe-Kaas, Runge-Kutta methods on Lie groups, BIT 1998)."""
    world, arguments = given.world, given.arguments
    model, q0 = world.model, arguments.q
    bound, operands = given.bound()
    start = world_velocity(model, q0, arguments.v)

    def reached(velocity, acceleration, rate) -> Given:
        displaced = body_velocity(model, q0, velocity)
        q, _ = _moved(world, q0, displaced, displaced)
        v = body_velocity(model, q, start + _times(world.timestep, acceleration))
        return given.at(q, v, arguments.activation + _times(world.timestep, rate))

    def slopes(now: Given, velocity, a):
        at = now.arguments
        a = world_velocity(model, at.q, a)
        turned = _times(world.timestep, velocity)
        own = rates_of_rotation_vectors(model, turned, world_velocity(model, at.q, at.v))
        rate = bound.call(rows.rates, operands, **at.named()) if world.na else jnp.zeros_like(at.activation)
        return own, a, rate

    stages = [slopes(given, jnp.zeros_like(start), first)]
    for share in (0.5, 0.5, 1.0):
        velocity, acceleration, rate = (share * x for x in stages[-1])
        now = reached(velocity, acceleration, rate)
        stages.append(slopes(now, velocity, solved(now).a))
    weights = 1 / 6, 1 / 3, 1 / 3, 1 / 6
    velocity, acceleration, rate = (
        sum(w * x for w, x in zip(weights, parts, strict=True)) for parts in zip(*stages, strict=True)
    )
    end = reached(velocity, acceleration, rate).arguments
    after = bound.call(rows.activations, operands, arguments.activation, rate)
    return end.q, end.v, after
