"""The steps of a world: Euler, implicitfast, implicit and RK4 as MuJoCo has them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxdyn._compile import compiled
from jaxdyn._errors import ShapeError, broadcast_batches
from jaxdyn.contact import straight_motion
from jaxdyn.simulate import State
from jaxdyn.worlds import _equations as rows
from jaxdyn.worlds._no_slip import without_slip
from jaxdyn.worlds._sensed import sensor_rows
from jaxdyn.worlds._solver import Solved, solve
from jaxdyn.worlds._states import Given, completed, given_of, with_batch
from jaxdyn.worlds._world_velocities import body_velocity, rates_of_rotation_vectors, world_velocity

if TYPE_CHECKING:
    from jaxdyn.worlds._world import World

# RK4: the parts of the step at which its later stages stand, and the weights of all stages.
_SHARES = 0.5, 0.5, 1.0
_WEIGHTS = 1 / 6, 1 / 3, 1 / 3, 1 / 6


def solved(given: Given) -> Solved:
    bound, operands = given.bound()
    parts, arguments = given.world.parts, given.arguments.named()
    found = solve(bound, operands, arguments, given.world.options)
    if parts.no_slip is None:
        return found
    a, pushes = without_slip(bound, operands, arguments, parts, found.a)
    return found._replace(a=a, pushes=pushes)


def sensed(given: Given, found: Solved) -> Any:
    """Return the values of all sensors at a solved state, `[*batch, n]`, one after the other."""
    bound, operands = given.bound()
    time = jnp.broadcast_to(given.state.time, given.arguments.q.shape[:-1])[..., None]
    named = given.arguments.named() | ({} if given.wrenches is None else {"wrenches": given.wrenches})
    return bound.call(sensor_rows, operands, found.a, time, **named, **found.given_pushes())


def rolled_out(world: World, state: State, controls: Any, torques: Any, wrenches: Any) -> State:
    controls = jnp.asarray(controls)
    if controls.ndim < 2:
        raise ShapeError(f"controls has shape {controls.shape}; [*batch, steps, {world.nu}] is needed")
    further = {"torques": (torques, 2), "wrenches": (wrenches, 3)}
    inputs = {"controls": (controls, 2)} | {k: (jnp.asarray(x), n) for k, (x, n) in further.items() if x is not None}
    batches = {name: x.shape[: x.ndim - n] for name, (x, n) in inputs.items()}
    state = completed(world, state)
    batch = broadcast_batches({"state": state.q.shape[:-1]} | batches)
    state = with_batch(state, batch)
    # The axis of the steps first.
    given = {name: jnp.moveaxis(x, -n, 0) for name, (x, n) in inputs.items()}

    def one(state: State, now: dict[str, Any]):
        after = stepped(world, state, *(now.get(name) for name in ("controls", "torques", "wrenches")))
        return after, after

    _, states = lax.scan(one, state, given, length=controls.shape[-2])

    def joined(first, rest):
        return jnp.moveaxis(jnp.concatenate([first[None], rest]), 0, len(batch))

    return jax.tree.map(joined, state, states)


def stepped(world: World, state: State, control: Any, torque: Any, wrenches: Any) -> State:
    given = given_of(world, state, control, torque, wrenches)
    return step_from(given, solved(given).a)


@compiled()
def next_activation(world: World, activation: Any, control: Any) -> Any:
    """The activations `[*batch, na]` after one time step. They depend on the controls `[*batch, nu]` alone."""
    given = given_of(world, State(world.start, activation=activation), control, None, None)
    bound, operands = given.bound()

    def rate(activation):
        now = dataclasses.replace(given.arguments, activation=activation)
        return bound.call(rows.rates, operands, **now.named())

    now, slope = given.arguments.activation, rate(given.arguments.activation)
    if world.parts.integrator == "rk4":
        slopes = [slope]
        for share in _SHARES:
            slopes.append(rate(now + share * _times(world.timestep, slopes[-1])))
        slope = sum(w * x for w, x in zip(_WEIGHTS, slopes, strict=True))
    return bound.call(rows.activations, operands, now, slope)


def step_from(given: Given, a: Any) -> State:
    """Return the state after a time step from one with the accelerations `a`, those of `solved`."""
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
    for share in _SHARES:
        velocity, acceleration, rate = (share * x for x in stages[-1])
        now = reached(velocity, acceleration, rate)
        stages.append(slopes(now, velocity, solved(now).a))
    velocity, acceleration, rate = (
        sum(w * x for w, x in zip(_WEIGHTS, parts, strict=True)) for parts in zip(*stages, strict=True)
    )
    end = reached(velocity, acceleration, rate).arguments
    after = bound.call(rows.activations, operands, arguments.activation, rate)
    return end.q, end.v, after
