"""The steps of a world: Euler, implicitfast, implicit and RK4 as MuJoCo has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from jaxdyn.contact import straight_motion
from jaxdyn.simulate import Advance, State
from jaxdyn.solve import SolverReport, solve
from jaxdyn.worlds._equations import EQUATIONS, activations
from jaxdyn.worlds._model_steps import solved_as_model
from jaxdyn.worlds._no_slip import without_slip
from jaxdyn.worlds._sensed import Quantities
from jaxdyn.worlds._states import Given, Solved, given_of, with_batch
from jaxdyn.worlds._world_velocities import body_velocity, rates_of_rotation_vectors, world_velocity

if TYPE_CHECKING:
    from jaxdyn.worlds._world import World


def solved(given: Given, *names: str) -> Solved:
    """Return the solution of a state, and `Quantities` that are made of it, by one function where there are no sweeps
    against slip."""
    if not given.world.parts.as_mujoco:
        return solved_as_model(given, names)
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


def by_name(sensors: Any, values: Any) -> dict[str, Any]:
    """Return the values `[*batch, n]` of all sensors, one after the other, by the names of the sensors."""
    ends = np.cumsum(sensors.sizes)
    return {name: values[..., end - n : end] for name, n, end in zip(sensors.names, sensors.sizes, ends, strict=True)}


def advanced(world: World, state: State, control: Any, torque: Any, wrenches: Any, sensed_too: bool) -> Advance:
    """Return the state after a time step, the readings of the sensors at its start if asked for, and how the
    constraints were solved."""
    given = given_of(world, state, control, torque, wrenches)
    found = solved(given, *step_quantities(world), *(("sensors",) if sensed_too else ()))
    tolerance = world.options.tolerance_of(found.error.dtype)
    report = SolverReport(found.error, found.iterations.astype(jnp.int32), tolerance)
    readings = by_name(world.parts.sensors, found.results["sensors"]) if sensed_too else None
    return Advance(step_from(given, found), readings, report)


def stepped(world: World, state: State, control: Any, torque: Any, wrenches: Any) -> State:
    given = given_of(world, state, control, torque, wrenches)
    return step_from(given, solved(given, *step_quantities(world)))


def step_quantities(world: World) -> tuple[str, ...]:
    """Return what steps of a world are made of."""
    return ("rates",) if _takes_stages(world) else ("step",)


def _takes_stages(world: World) -> bool:
    return world.parts.as_mujoco and world.parts.integrator == "rk4"


def step_from(given: Given, found: Solved) -> State:
    """Return the state after a time step from one with its solution, which has the `step_quantities`."""
    world, state = given.world, given.state
    if _takes_stages(world):
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
