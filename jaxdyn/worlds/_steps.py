"""The steps of a world: Euler, implicitfast, implicit and RK4 as MuJoCo has them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from jaxdyn import joints
from jaxdyn._compile import compiled
from jaxdyn._errors import ModelError, look_up
from jaxdyn.contact import ContactForces, straight_motion
from jaxdyn.geometry import FAR
from jaxdyn.model import Topology, independent_forces, mimic_coordinates
from jaxdyn.simulate import Advance, State
from jaxdyn.simulate.integrators import closed
from jaxdyn.solve import SolverReport, solve
from jaxdyn.tree import rows_of, to_leading
from jaxdyn.worlds._contact_search import among_candidates, found_contacts, left_out
from jaxdyn.worlds._equations import AT_STATE, EQUATIONS, activation_rates, activations
from jaxdyn.worlds._model_sensors import require_no_loads_of_loops
from jaxdyn.worlds._model_steps import accelerations_as_model, contacts_at, solved_as_model
from jaxdyn.worlds._no_slip import without_slip
from jaxdyn.worlds._sensed import Quantities
from jaxdyn.worlds._states import Given, Solved, given_of, with_batch
from jaxdyn.worlds._world_velocities import body_velocity, rates_of_rotation_vectors, world_velocity

if TYPE_CHECKING:
    from jaxdyn.worlds._world import World

# RK4: the parts of the step at which its later stages stand, and the weights of all stages.
_SHARES = 0.5, 0.5, 1.0
_WEIGHTS = 1 / 6, 1 / 3, 1 / 3, 1 / 6


def solved(given: Given, *names: str, of_step: bool = True) -> Solved:
    """Return the solution of a state, and `Quantities` that are made of it, by one function where there are no sweeps
    against slip; with `of_step=False`, contacts that push by what is at the end of a step push by the state."""
    if not given.world.parts.as_mujoco:
        return solved_as_model(given, names)
    bound, operands = given.bound()
    parts, arguments, further = given.world.parts, given.on_tree(), {}
    if "sensors" in names:
        require_no_loads_of_loops(given.world.model, parts.sensors)
        further = {"time": jnp.broadcast_to(given.state.time, given.arguments.q.shape[:-1])[..., None]}
        further |= {} if given.wrenches is None else {"wrenches": given.wrenches}
    together, contacts, found_contact = parts.no_slip is None, parts.constraints.contacts, None
    if contacts.listed:
        found_contact = found_contacts(given)
        # Without one of its contacts a state would have other accelerations.
        crowded = (left_out(contacts, found_contact) > 0)[..., None]
        applied = jnp.where(crowded, jnp.nan, arguments["applied"])
        arguments |= {"applied": applied, "contacts": found_contact}
    at_state = not of_step and parts.constraints.compliance is not None
    equations = (AT_STATE if at_state else EQUATIONS)._replace(
        results=Quantities(names) if names and together else None
    )
    found = solve(equations, bound, operands, arguments, given.world.options, further if together else {})
    a, results = found.a, found.results
    if not together:
        a, pushes = without_slip(bound, operands, arguments, parts, found.a)
        results = bound.call(Quantities(names, alone=True), operands, a, pushes, further, **arguments)
    return _of_own_joints(given.world, Solved(a, found.error, found.iterations, results or {}, found_contact))


def _of_own_joints(world: World, found: Solved) -> Solved:
    """Return a solution of the tree of all joints in the coordinates of the model, in which joints that mimic others
    have none, with the loops of the model closed after the step."""
    model, results = world.model, dict(found.results)
    own_q, own_v = (mimic_coordinates(model.topology, velocity=x).own for x in (False, True))
    if model.topology.mimics:
        found = found._replace(a=found.a[..., own_v])
        for name in {"acceleration"} & results.keys():
            results[name] = results[name][..., own_v]
        for name in {"torque", "actuator_torque"} & results.keys():
            results[name] = independent_forces(model, results[name])
        if "step" in results:
            q, v, activation = results["step"]
            results["step"] = q[..., own_q], v[..., own_v], activation
    if model.topology.has_loops and "step" in results:
        q, v, activation = results["step"]
        end = closed(model, State(q, v))
        results["step"] = end.q, end.v, activation
    return found._replace(results=results)


def by_name(sensors: Any, values: Any) -> dict[str, Any]:
    """Return the values `[*batch, n]` of all sensors, one after the other, by the names of the sensors."""
    ends = np.cumsum(sensors.sizes)
    return {name: values[..., end - n : end] for name, n, end in zip(sensors.names, sensors.sizes, ends, strict=True)}


def advanced(world: World, state: State, control: Any, torque: Any, wrenches: Any, sensed_too: bool) -> Advance:
    """Return the state after a time step, the readings of the sensors at its start if asked for, and how the
    constraints were solved."""
    given = given_of(world, state, control, torque, wrenches)
    sensors = ("sensors",) if sensed_too else ()
    found = solved(given, *step_quantities(world), *sensors)
    readings = by_name(world.parts.sensors, found.results["sensors"]) if sensed_too else None
    return Advance(step_from(given, found), readings, report_of(given, found))


READABLE = "q", "v", "sensors", "actuator_torque", "body_wrenches"
"""The quantities that `World.step_and_read` can read."""


def step_and_read(world: World, state: State, control: Any, names: tuple[str, ...]) -> tuple[State, dict[str, Any]]:
    """Return the state after a time step, and quantities of the last solution of the constraints in it."""
    for name in names:
        look_up(name, READABLE, "quantity of a step")
    beyond = sorted(set(names) - {"q", "v", "sensors"})
    if beyond and not world.parts.as_mujoco:
        raise ModelError(f"steps without MuJoCo's law have no {', '.join(beyond)} to read")
    given = given_of(world, state, control, None, None)
    asked = tuple(name for name in names if name not in ("q", "v"))
    found = solved(given, *step_quantities(world), *asked)
    after, last, found = _ended(given, found, asked)
    return after, {name: _reading(name, last, found) for name in names}


def _reading(name: str, given: Given, found: Solved) -> Any:
    if name in ("q", "v"):
        return getattr(given.arguments, name)
    if name == "sensors":
        return by_name(given.world.parts.sensors, found.results["sensors"])
    x = found.results[name]
    return x.reshape(*x.shape[:-1], -1, 6) if name == "body_wrenches" else x


def rate_of(given: Given) -> State:
    """Return the rate of a state: see `World.rate`."""
    state, arguments, as_mujoco = given.state, given.arguments, given.world.parts.as_mujoco
    actuators = given.world.parts.actuators
    if actuators.activations > actuators.dynamic:
        raise ModelError("blocks of this world's actuators remember signals of time steps, not rates; use step")
    turned = joints.apply_to_rows(joints.coordinate_rate, given.world.model.topology, arguments.q, arguments.v)
    found = (
        solved(given, "acceleration", "rates", of_step=False).results if as_mujoco else accelerations_as_model(given)
    )
    held = (None if x is None else jnp.zeros_like(x) for x in (state.mocap, state.active))
    return State(turned, found["acceleration"], found["rates"], jnp.ones_like(state.time), *held)


def contacts_of(given: Given, of_step: bool) -> ContactForces:
    """Return the contacts of a state: see `World.contact_forces`."""
    if not (of_step or given.world.parts.as_mujoco):
        return contacts_at(given)
    solution = solved(given, "contacts", of_step=of_step)
    found = solution.results["contacts"]
    if isinstance(found, ContactForces):
        return found
    contacts = given.world.parts.constraints.contacts
    if contacts.listed:
        found = among_candidates(contacts, solution.found, found)
    # Infinite numbers have no place in the programs of states.
    gap = jnp.where(found.gap < 0.5 * FAR, found.gap, jnp.inf)
    return ContactForces(gap, *(x.to_array() for x in (found.normal, found.point, found.force)))


def constraint_torque_of(given: Given) -> Any:
    """Return the forces of all constraints on the degrees of freedom: see `World.constraint_forces`."""
    if not given.world.parts.as_mujoco:
        raise ModelError(
            "constraint_forces are those of MuJoCo's law, which this world does not have; contact_forces has the "
            "forces of its contacts"
        )
    return solved(given, "torque").results["torque"]


def report_of(given: Given, found: Solved) -> SolverReport:
    """Return how well the constraints were solved; with `deep` where this was asked for."""
    tolerance, deep = given.world.options.tolerance_of(found.error.dtype), found.results.get("deep")
    deep = None if deep is None else deep[..., 0]
    contacts = given.world.parts.constraints.contacts
    crowded = None if found.found is None else left_out(contacts, found.found)
    return SolverReport(found.error, found.iterations.astype(jnp.int32), tolerance, deep, crowded)


def empty_report(world: World, state: State) -> SolverReport:
    """Return a report for a state with nothing to solve: see `World.no_report`."""
    zero = jnp.zeros(state.v.shape[:-1], state.v.dtype)
    crowded = zero if world.parts.constraints.contacts.listed else None
    return SolverReport(zero, zero.astype(jnp.int32), world.options.tolerance_of(zero.dtype), crowded=crowded)


def stepped(world: World, state: State, control: Any, torque: Any, wrenches: Any) -> State:
    given = given_of(world, state, control, torque, wrenches)
    return step_from(given, solved(given, *step_quantities(world)))


def step_quantities(world: World) -> tuple[str, ...]:
    """Return what steps of a world are made of."""
    return ("rates",) if _takes_stages(world) else ("step",)


def _takes_stages(world: World) -> bool:
    return world.parts.as_mujoco and world.parts.integrator == "rk4"


@compiled()
def next_activation(world: World, activation: Any, control: Any) -> Any:
    """The activations `[*batch, na]` after one time step. They depend on the controls `[*batch, nu]` alone."""
    given = given_of(world, State(world.start, activation=activation), control, None, None)
    bound, operands = given.bound()

    def rate(activation):
        now = dataclasses.replace(given.arguments, activation=activation)
        if not world.parts.as_mujoco:
            return solved_as_model(given._replace(arguments=now), ("rates",)).results["rates"]
        return bound.call(activation_rates, operands, **given._replace(arguments=now).on_tree())

    now, slope = given.arguments.activation, rate(given.arguments.activation)
    if _takes_stages(world):
        slopes = [slope]
        for share in _SHARES:
            slopes.append(rate(now + share * _times(world.timestep, slopes[-1])))
        slope = sum(w * x for w, x in zip(_WEIGHTS, slopes, strict=True))
    return bound.call(activations, operands, now, slope)


def step_from(given: Given, found: Solved) -> State:
    """Return the state after a time step from one with its solution, which has the `step_quantities`."""
    return _ended(given, found, ())[0]


def _ended(given: Given, found: Solved, names: tuple[str, ...]) -> tuple[State, Given, Solved]:
    """Return the same, and the last state at which the constraints were solved, with its solution and the quantities
    with these names, which `found` has, too."""
    world, state = given.world, given.state
    if _takes_stages(world):
        (q, v, activation), given, found = _runge_kutta(given, found, names)
    else:
        q, v, activation = found.results["step"]
    time = state.time + world.timestep.astype(state.time.dtype)
    after = State(q, v, activation, time, state.mocap, state.active)
    return with_batch(after, q.shape[:-1]), given, found


def _times(dt, x):
    return dt.astype(x.dtype)[..., None] * x


def _runge_kutta(given: Given, first: Solved, names: tuple[str, ...]) -> tuple[tuple[Any, Any, Any], Given, Solved]:
    """Return the configuration, velocity and activations after a step of RK4 from a state with the solution `first`,
    and the last stage with its solution, and quantities of it with these names.
    It is of Munthe-Kaas's kind: the stages add up displacements from the start, of positions along the world's
    axes and of rotations as rotation vectors (Munthe-Kaas, Runge-Kutta methods on Lie groups, BIT 1998)."""
    world, start = given.world, given.arguments
    topology, dt = world.model.topology, world.timestep.astype(start.q.dtype)[..., None]
    bound, operands = given.bound()

    def reached(velocity, acceleration, rate) -> Given:
        # One primitive, as the slopes are: otherwise derivatives of a step keep hundreds of numbers of the rotations
        # of free joints, each an array, and a loop over steps takes most of its compilation for storing these.
        end = joints.apply_to_rows(_stage, topology, start.q, start.v, velocity, acceleration, dt)
        nq = start.q.shape[-1]
        return given.at(end[..., :nq], end[..., nq:], start.activation + _times(world.timestep, rate))

    # What blocks remember is held over the stages, and changes as at the first of them.
    dynamic = np.arange(world.na) < world.parts.actuators.dynamic

    def slopes(now: Given, velocity, found: Solved):
        at = now.arguments
        out = joints.apply_to_rows(_slopes, topology, at.q, at.v, velocity, found.a, dt)
        return *jnp.split(out, 2, axis=-1), found.results["rates"]

    stages, now, found = [slopes(given, jnp.zeros_like(start.v), first)], given, first
    for share in _SHARES:
        velocity, acceleration, rate = (share * x for x in stages[-1])
        now = reached(velocity, acceleration, jnp.where(dynamic, rate, 0.0))
        # All stages are one program.
        found = solved(now, "rates", *names)
        stages.append(slopes(now, velocity, found))
    velocity, acceleration, rate = (
        sum(w * x for w, x in zip(_WEIGHTS, parts, strict=True)) for parts in zip(*stages, strict=True)
    )
    end = reached(velocity, acceleration, rate).arguments
    rate = jnp.where(dynamic, rate, stages[0][2])
    ended = closed(world.model, State(end.q, end.v))
    after = bound.call(activations, operands, start.activation, rate)
    return (ended.q, ended.v, after), now, found


def _stage(topology: Topology, q: Any, v: Any, velocity: Any, acceleration: Any, dt: Any) -> Any:
    """Return the configuration and the velocity in a stage of RK4, rows `[nq + nv, *batch]`, which the time `dt` at a
    velocity and an acceleration along the axes of the world leads to from a start."""
    q0, v0, velocity, acceleration = map(to_leading, (q, v, velocity, acceleration))
    rank, dt = dt.ndim - 1, dt[0]
    straight = _times(dt, straight_motion(topology, body_velocity(topology, q0, velocity), dt))
    end = joints.integrate(topology, q, rows_of(straight, rank))
    v = world_velocity(topology, q0, v0) + _times(dt, acceleration)
    return jnp.concatenate([end, rows_of(body_velocity(topology, to_leading(end), v), rank)])


def _slopes(topology: Topology, q: Any, v: Any, velocity: Any, acceleration: Any, dt: Any) -> Any:
    """Return the velocity, as the rate of displacements from the start, and the acceleration of a stage, rows
    `[2 nv, *batch]` along the axes of the world; the stage was reached at `velocity`."""
    q, v, velocity, acceleration = map(to_leading, (q, v, velocity, acceleration))
    rank, dt = dt.ndim - 1, dt[0]
    own = rates_of_rotation_vectors(topology, _times(dt, velocity), world_velocity(topology, q, v))
    return jnp.concatenate([rows_of(x, rank) for x in (own, world_velocity(topology, q, acceleration))])
