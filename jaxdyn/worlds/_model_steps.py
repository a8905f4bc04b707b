"""Worlds without MuJoCo's law: they move as `jaxdyn.step` moves their model, with the torques of their actuators."""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.algorithms import aba
from jaxdyn.algorithms.recursions import Robot, RobotAndParts
from jaxdyn.contact import (
    ContactForces,
    ShapeContacts,
    contact_accelerations,
    contact_wrenches,
    forces_of_step,
    moved_straight,
    stop_torques,
    turning_rate,
)
from jaxdyn.model import Model, independent_forces, spanning_coordinates
from jaxdyn.simulate import State
from jaxdyn.simulate.integrators import advance, common_form, symplectic_step
from jaxdyn.solve import SolverReport
from jaxdyn.spatial import Vec3
from jaxdyn.tree import take_rows
from jaxdyn.worlds._actuators import actuated, next_activation
from jaxdyn.worlds._bodies import loads_of
from jaxdyn.worlds._model_sensors import require_no_loads_of_loops
from jaxdyn.worlds._parts import Loads, PartRows, instant, sums
from jaxdyn.worlds._readings import ContactLoads, Readings
from jaxdyn.worlds._sensors import sensor_values
from jaxdyn.worlds._states import Given, Solved


class _Driven(eqx.Module):
    """The torques of the actuators in a state, and how their activations change."""

    torque: Any
    """On the model's degrees of freedom, `[*batch, nv]`, with the forces from outside."""
    damping: Any
    """The rate at which the torques fall with the velocity, `[*batch, nv]`; None without actuators."""
    rate: Any
    activation: Any
    """At the end of a step."""


def _bound(given: Given) -> tuple[RobotAndParts, list[Any], dict[str, Any]]:
    """Return the world for functions of rows, and their arguments on the tree of all joints."""
    named = given.on_tree()
    del named["applied"]
    return *given.bound(), named


def _driven(given: Given) -> _Driven:
    arguments = given.arguments
    if not given.world.nu:
        return _Driven(arguments.applied, None, arguments.activation, arguments.activation)
    bound, operands, named = _bound(given)
    torque, damping, rate, activation = bound.call(_actuators, operands, **named)
    model = given.world.model
    torque, damping = (independent_forces(model, x) for x in (torque, damping))
    return _Driven(torque + arguments.applied, damping, rate, activation)


def _actuators(robot: Robot, world: PartRows, q, v, control, activation):
    """Return torques, their damping, the rates of the activations, and these at the end of a step."""
    at, actuators = instant(robot, q, robot.broadcast(v)), world.actuators
    found = actuated(robot, actuators, at, None, control, activation, world.timestep)
    after = next_activation(robot, actuators, activation, found.rate, world.timestep)
    damping = robot.zeros()
    if actuators.axes_of_joints:
        numbers, _, dofs = np.array(actuators.axes_of_joints).T
        own = -found.slope * actuators.gear[:, 0] ** 2
        # Only what takes energy is stable at the end of the step.
        damping = jnp.maximum(sums(take_rows(own, numbers), dofs, robot.nv), 0.0)
    return tuple(robot.broadcast(x) for x in (found.torque, damping, found.rate, after))


def _implicit(given: Given, driven: _Driven) -> tuple[Model, Any]:
    """Return the model and the torques of a step that takes the damping of actuators at its end, as that of joints."""
    model = given.world.model
    if driven.damping is None or given.world.parts.integrator != "implicit_velocity":
        return model, driven.torque
    damped = eqx.tree_at(lambda m: m.damping, model, model.damping + driven.damping)
    return damped, driven.torque + driven.damping * given.arguments.v


def _with_contact(
    model: Model, touching: ShapeContacts, start: State, torque: Any, dt: Any
) -> tuple[State, Any, SolverReport]:
    """Return the state after a step with contact, its accelerations in the axes of its start, and how the contacts were
    solved."""
    a, report = contact_accelerations(model, touching, start.q, start.v, torque, dt)
    if not model.topology.has_loops:
        return State(*moved_straight(model, start.q, start.v, a, dt)), a, report
    free = aba(model, start.q, start.v, torque, joint_friction=False)
    gained = a - (free + turning_rate(model, start.v))
    return symplectic_step(model, start, torque, dt, gained=gained), a, report


def solved_as_model(given: Given, names: tuple[str, ...]) -> Solved:
    """Return the accelerations of a time step, how well its contacts were solved, and quantities by their names, those
    of `Quantities`: `"step"`, `"acceleration"`, `"rates"`, `"sensors"` at its start, `"contacts"`, and `"deep"`."""
    parts, arguments = given.world.parts, given.arguments
    driven = _driven(given)
    model, torque = _implicit(given, driven)
    start, (torque,) = common_form(model, State(arguments.q, arguments.v), {"tau": (torque, (model.nv,))})
    dt = parts.timestep.astype(start.v.dtype)
    if parts.touching is None:
        end = advance(model, start, torque, dt, None, parts.integrator)
        gained = a = aba(given.world.model, arguments.q, arguments.v, driven.torque)
        error = count = jnp.zeros_like(a[..., 0])
    else:
        end, gained, report = _with_contact(model, parts.touching, start, torque, dt)
        a, error, count = gained - turning_rate(model, start.v), report.error, report.iterations

    def contacts() -> ContactForces:
        return forces_of_step(model, parts.touching, start.q, start.v, gained, dt)

    made = {
        "step": lambda: (end.q, end.v, driven.activation),
        "acceleration": lambda: a,
        "rates": lambda: driven.rate,
        "sensors": lambda: _sensed(given, a, contacts()),
        "contacts": contacts,
        "deep": lambda: jnp.zeros((*error.shape, 1), error.dtype),
    }
    return Solved(a, error, count, {name: made[name]() for name in names})


def contacts_at(given: Given) -> ContactForces:
    """Return the contacts at a state by the law at this state, without a step."""
    world, (q, v) = given.world, (given.arguments.q, given.arguments.v)
    return forces_of_step(world.model, world.parts.touching, q, v, jnp.zeros_like(v), jnp.zeros((), v.dtype))


def accelerations_as_model(given: Given) -> dict[str, Any]:
    """Return the `"acceleration"` by the law at a state, without a step, and the `"rates"` of the activations."""
    world, arguments, driven = given.world, given.arguments, _driven(given)
    contacts, wrenches, torque = world.parts.touching, None, driven.torque
    if contacts is not None:
        wrenches = contact_wrenches(world.model, contacts, arguments.q, arguments.v)
        torque = torque + stop_torques(world.model, contacts, arguments.q, arguments.v)
    a = aba(world.model, arguments.q, arguments.v, torque, wrenches)
    return {"acceleration": a, "rates": driven.rate}


def _sensed(given: Given, a: Any, found: ContactForces) -> Any:
    """Return the values of all sensors at a state with the accelerations `a` and the contacts of a step."""
    world, arguments = given.world, given.arguments
    model, contacts, sensors = world.model, world.parts.touching, world.parts.sensors
    require_no_loads_of_loops(model, sensors)
    bound, operands, named = _bound(given)
    bodies = np.zeros((0, 2), int)
    if contacts is not None and contacts.names:
        for name in ("point", "normal", "force"):
            x = getattr(found, name)
            named[name] = x.reshape(*x.shape[:-2], -1)
        bodies = np.column_stack([contacts.touching.bodies1, contacts.touching.bodies2]) + 1
    if given.wrenches is not None:
        named["wrenches"] = given.wrenches
    time: Any = given.state.time
    named["time"] = jnp.broadcast_to(time, arguments.q.shape[:-1])[..., None]
    named["a"] = spanning_coordinates(model, a, velocity=True)
    return bound.call(_Values(tuple(map(tuple, bodies.tolist()))), operands, **named)


@dataclasses.dataclass(frozen=True)
class _Values:
    """The values of all sensors, as a function of rows."""

    bodies: tuple[tuple[int, int], ...]
    """The numbers of the bodies of each contact, the world first."""

    def __call__(
        self,
        robot: Robot,
        world: PartRows,
        q,
        v,
        control,
        activation,
        a,
        time,
        point=None,
        normal=None,
        force=None,
        wrenches=None,
    ):
        at = instant(robot, q, robot.broadcast(v))
        loads, contacts, bodies = (), (), np.array(self.bodies, int).reshape(-1, 2)
        if point is not None:
            place, direction, push = (_vectors(robot, x) for x in (point, normal, force))
            none = jax.tree.map(jnp.zeros_like, push)
            loads = tuple(Loads(bodies[:, k], place, sign, none) for k, sign in ((0, -push), (1, push)))
            contacts = (ContactLoads((bodies[:, 0], bodies[:, 1]), place, direction, push.dot(direction)),)
        if wrenches is not None:
            loads += (loads_of(robot, world, at, wrenches),)
        acting = actuated(robot, world.actuators, at, None, control, activation, world.timestep)
        readings = Readings(
            acceleration=a, actuated=acting, loads=loads, contacts=contacts, time=robot.broadcast(time[0])
        )
        return robot.broadcast(sensor_values(robot, world.sensors, at, readings))


def _vectors(robot: Robot, flat: Any) -> Vec3:
    """Return rows `[3 n]` as vectors."""
    x = robot.broadcast(flat)
    return Vec3(*(x[k::3] for k in range(3)))
