"""The steps of a world: Euler, implicitfast, implicit and RK4 as MuJoCo has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxdyn._errors import ShapeError, broadcast_batches
from jaxdyn.contact import straight_motion
from jaxdyn.simulate import State
from jaxdyn.solve import solve
from jaxdyn.worlds._equations import EQUATIONS, activations
from jaxdyn.worlds._no_slip import without_slip
from jaxdyn.worlds._sensed import Quantities
from jaxdyn.worlds._states import Given, completed, given_of, with_batch
from jaxdyn.worlds._world_velocities import body_velocity, rates_of_rotation_vectors, world_velocity

if TYPE_CHECKING:
    from jaxdyn.worlds._world import World


class Solved(NamedTuple):
    """The solution of a state."""

    a: Any
    """`[*batch, nv]`"""
    error: Any
    iterations: Any
    """As in `SolverReport`."""
    results: dict[str, Any]
    """The quantities that were asked for."""


def solved(given: Given, *names: str) -> Solved:
    """Return the solution of a state, and `Quantities` that are made of it, by one function where there are no sweeps
    against slip."""
    bound, operands = given.bound()
    parts, arguments, further = given.world.parts, given.arguments.named(), {}
    if "sensors" in names:
        further = {"time": jnp.broadcast_to(given.state.time, given.arguments.q.shape[:-1])[..., None]}
        further |= {} if given.wrenches is None else {"wrenches": given.wrenches}
    together = parts.no_slip is None
    equations = EQUATIONS._replace(results=Quantities(names) if names and together else None)
    found = solve(equations, bound, operands, arguments, given.world.options, further if together else {})
    a, results = found.a, found.results
    if not together:
        a, pushes = without_slip(bound, operands, arguments, parts, found.a)
        results = bound.call(Quantities(names, alone=True), operands, a, pushes, further, **arguments)
    return Solved(a, found.error, found.iterations, results or {})


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
    return step_from(given, solved(given, *step_quantities(world)))


def step_quantities(world: World) -> tuple[str, ...]:
    """Return what steps of a world are made of."""
    return ("rates",) if world.parts.integrator == "rk4" else ("step",)


def step_from(given: Given, found: Solved) -> State:
    """Return the state after a time step from one with its solution, which has the `step_quantities`."""
    world, state = given.world, given.state
    if world.parts.integrator == "rk4":
        q, v, activation = _runge_kutta(given, found)
    else:
        q, v, activation = found.results["step"]
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


def _runge_kutta(given: Given, first: Solved) -> tuple[Any, Any, Any]:
    """Return the configuration, velocity and activations after a step of RK4 from a state with the solution `first`.
    It is of Munthe-Kaas's kind: the stages add up displacements from the start, of positions along the world's
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

    def slopes(now: Given, velocity, found: Solved):
        at = now.arguments
        a = world_velocity(model, at.q, found.a)
        turned = _times(world.timestep, velocity)
        own = rates_of_rotation_vectors(model, turned, world_velocity(model, at.q, at.v))
        return own, a, found.results["rates"]

    stages = [slopes(given, jnp.zeros_like(start), first)]
    for share in (0.5, 0.5, 1.0):
        velocity, acceleration, rate = (share * x for x in stages[-1])
        now = reached(velocity, acceleration, rate)
        stages.append(slopes(now, velocity, solved(now, "rates")))
    weights = 1 / 6, 1 / 3, 1 / 3, 1 / 6
    velocity, acceleration, rate = (
        sum(w * x for w, x in zip(weights, parts, strict=True)) for parts in zip(*stages, strict=True)
    )
    end = reached(velocity, acceleration, rate).arguments
    after = bound.call(activations, operands, arguments.activation, rate)
    return end.q, end.v, after
