"""The quantities from which the accelerations of a world are made, in their order: to compare with MuJoCo."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._compile import compiled
from jaxdyn.algorithms.recursions import Robot, RobotAndParts
from jaxdyn.simulate import State
from jaxdyn.solve import ListedTerm, mass_matrix
from jaxdyn.worlds._contact_rows import FoundBodies, by_directions
from jaxdyn.worlds._contact_search import found_contacts
from jaxdyn.worlds._control_steps import control_step, step_from
from jaxdyn.worlds._equations import balance, bias_of, bodies_of
from jaxdyn.worlds._parts import Instant, PartRows
from jaxdyn.worlds._states import as_in, given_of
from jaxdyn.worlds._steps import solved, takes_stages
from jaxdyn.worlds._world import World


class Stages(NamedTuple):
    """Quantities of states, with batch axes in front, and the velocities of free joints in body axes. The rows of
    constraints stand in the order of `world.parts.constraints.kinds`."""

    tendon_lengths: Any
    """`[nt]`"""
    mass_matrix: Any
    """`[nv, nv]`; only its lower triangle is right, and only where a column moves the body of the row."""
    passive: Any
    """`[nv]`"""
    bias: Any
    """`[nv]`"""
    actuator_forces: Any
    """`[nu]`"""
    actuator_torque: Any
    """`[nv]`"""
    activation_rates: Any
    """`[na]`"""
    J: Any
    """`[rows, nv]`"""
    aref: Any
    """`[rows]`"""
    D: Any
    """`[rows]`: zero for rows that do not act."""
    contacts: Any
    """`[contacts, 11]`, in the order of their rows: number in `Contacts.candidate_names`, distance (m), place, normal,
    and first tangent."""


@compiled()
def world_stages(world: World, state: State, control: Any) -> Stages:
    """Return what the accelerations of states are made of; the arguments have the same batch axes."""
    world = as_in(world, state)
    bound, operands = RobotAndParts.of(world.model, world.parts, state.q.dtype, "world")
    named = {}
    if world.parts.constraints.contacts.listed:
        named = {"contacts": found_contacts(given_of(world, state, control, None, None))}
    found = bound.call(_stages, operands, state.q, state.v, control, state.activation, **named)
    batch, nv = state.q.shape[:-1], world.model.nv
    return found._replace(
        mass_matrix=found.mass_matrix.reshape(*batch, nv, nv),
        J=found.J.reshape(*batch, -1, nv),
        contacts=found.contacts.reshape(*batch, -1, 11),
    )


@compiled()
def accelerations_step_and_sensors(world: World, state: State, control: Any) -> tuple[Any, State, Any]:
    """Return what `World.accelerations` and `World.step` do, and the values of all sensors `[*batch, n]` one after the
    other, with one program that solves the constraints once, or with RK4 in the steps once more."""
    given = given_of(world, state, control, None, None)
    step = () if takes_stages(world) else ("step",)
    found = solved(given, "acceleration", "sensors", *step)
    after = step_from(given, found) if step else control_step(world, state, control).state
    return found.results["acceleration"], after, found.results["sensors"]


def _stages(robot: Robot, world: PartRows, q, v, control, activation, contacts=None) -> Stages:
    at = balance(robot, world, q, v, control, activation, robot.zeros(), contacts)
    now, terms = at.now, [x.whole(robot) if isinstance(x, ListedTerm) else x for x in at.terms]
    S, none = now.equations.S, robot.broadcast(robot.zeros()[:0])
    J = jnp.concatenate(
        [robot.broadcast(robot.constant(np.zeros((0, robot.nv)))), *(x.rows.jacobian(robot, S) for x in terms)]
    )
    laws: list[Any] = [term.law for term in terms]
    M = mass_matrix(robot, bodies_of(now))
    bias = bias_of(robot, now)
    stages = Stages(
        robot.zeros()[:0] if now.tendons is None else now.tendons.length,
        M.reshape(-1, *M.shape[2:]),
        now.passive.torque,
        bias,
        now.actuators.force,
        now.actuators.torque,
        now.actuators.rate,
        J.reshape(-1, *J.shape[2:]),
        jnp.concatenate([none, *(-x.offset for x in terms)]),
        jnp.concatenate([none, *(law.D for law in laws)]),
        _places_of_contacts(robot, world, now.at),
    )
    return jax.tree.map(robot.broadcast, stages)


def _places_of_contacts(robot: Robot, world: PartRows, at: Instant) -> Any:
    """Return what `Stages.contacts` has, rows `[contacts, 11]`."""
    contacts, first = world.constraints.contacts, 0
    counts = dict(contacts.part.directions())
    out = [robot.broadcast(robot.constant(np.zeros((0, 11))))]
    for dim, own in by_directions(robot, contacts, at):
        distance, place, frame = own.touching.candidates
        number = own.numbers if isinstance(own, FoundBodies) else robot.constant(np.arange(len(own.dims)))
        columns = first + number, distance, *jax.tree.leaves((place, frame.x, frame.y))
        first += counts[dim]
        out.append(jnp.stack([robot.broadcast(x) for x in columns], axis=1))
    found = jnp.concatenate(out)
    return found.reshape(-1, *found.shape[2:])
