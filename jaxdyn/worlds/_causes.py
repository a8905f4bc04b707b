"""Causes that pass a change of a state on to the velocity after a time step: contacts, limits and actuators by name."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.algorithms.recursions import Robot
from jaxdyn.model import independent_forces, spanning_coordinates
from jaxdyn.simulate import State
from jaxdyn.solve import apart
from jaxdyn.tree import take_rows
from jaxdyn.worlds._contact_rows import Contacts
from jaxdyn.worlds._equations import balance
from jaxdyn.worlds._parts import PartRows, sums
from jaxdyn.worlds._states import given_of
from jaxdyn.worlds._steps import solved

if TYPE_CHECKING:
    from jaxdyn.worlds._world import World


def cause_names(world: World) -> tuple[str, ...]:
    """Return the names of what passes changes on, in the order of `changes_by_cause`: the constraints (pairs of geoms,
    limits and friction of joints and tendons, equalities), the actuators, and last everything else."""
    constraints = tuple(dict.fromkeys(_constraint_of_row(world))) if world.parts.as_mujoco else ()
    return (*constraints, *(f"actuator {name}" for name in world.actuator_names), "bodies and passive forces")


def changes_by_cause(world: World, state: State, control: Any, change: State, change_of_control: Any) -> Any:
    """Return the change of the velocity after a time step that each of `cause_names` passes on, `[n, causes, nv]`, for
    one state and `n` tangents of it and of its control, with an axis in front.

    The accelerations balance all forces. At fixed accelerations a change of the state changes the force of each cause,
    and each of these changes acts on the balance like a torque from outside. The last cause has the rest: inertia,
    gravity, springs, dampers, and the velocity itself. The parts sum to the derivative of the step; of a step of RK4 to
    that of an explicit Euler step, which solves for accelerations only once. Without MuJoCo's law contacts are part of
    the rest, too.
    """

    def after(state: State, control: Any, torque: Any) -> Any:
        if world.parts.integrator == "rk4":
            return state.v + world.timestep * world.accelerations(state, control, torque)
        return world.step(state, control, torque).v

    none = jnp.zeros_like(state.v)
    slope = jax.linearize(after, state, control, none)[1]
    total = jax.vmap(slope, (0, 0, None))(change, change_of_control, none)
    if not world.parts.as_mujoco:
        own = jnp.zeros((len(total), world.nu, *none.shape), total.dtype)
    else:
        forces = _force_changes(world, state, control, change, change_of_control)
        still = jax.tree.map(jnp.zeros_like, (state, control))
        own = jax.vmap(jax.vmap(lambda force: slope(*still, force)))(forces)
    return jnp.concatenate([own, total[:, None] - own.sum(axis=1, keepdims=True)], axis=1)


def _force_changes(world: World, state: State, control: Any, change: State, change_of_control: Any) -> Any:
    """Return the change of the forces of each cause but the last on the degrees of freedom, `[n, causes - 1, nv]`."""
    given = given_of(world, state, control, None, None)
    bound, operands = given.bound()
    model = world.model
    a = spanning_coordinates(model, solved(given).a, velocity=True)
    rows = _constraint_of_row(world)
    numbers = {name: k for k, name in enumerate(dict.fromkeys(rows))}
    function = _Forces(tuple(numbers[name] for name in rows))

    def forces(q: Any, v: Any, control: Any, activation: Any) -> Any:
        changed = {"q": q, "v": v, "control": control, "activation": activation}
        now = given._replace(arguments=dataclasses.replace(given.arguments, **changed)).on_tree()
        return bound.call(function, operands, a=a, **now)

    slope = jax.linearize(forces, state.q, state.v, control, state.activation)[1]
    flat = jax.vmap(slope)(change.q, change.v, change_of_control, change.activation)
    return independent_forces(model, flat.reshape(len(flat), -1, model.topology.spanning.nv))


@dataclasses.dataclass(frozen=True)
class _Forces:
    """The forces of all causes but the last on the degrees of freedom at fixed accelerations, as a function of rows."""

    owners: tuple[int, ...]
    """The number of the constraint of each row."""

    def __call__(self, robot: Robot, world: PartRows, q, v, control, activation, applied, a):
        at = balance(robot, world, q, v, control, activation, applied)
        found = []
        # Nothing was searched for, so that each candidate has rows of its own.
        terms, lists = apart(at.terms)
        assert not lists
        if terms:
            S = at.now.equations.S
            pushes = jnp.concatenate([robot.broadcast(x) for x in at.pushes(robot, robot.broadcast(a))])
            J = jnp.concatenate([robot.broadcast(term.rows.jacobian(robot, S)) for term in terms])
            found.append(sums(J * pushes[:, None], np.array(self.owners), max(self.owners) + 1))
        found.append(_by_actuator(robot, world.actuators, at.now.actuators))
        total = jnp.concatenate([robot.broadcast(x) for x in found])
        return total.reshape(-1, *total.shape[2:])


def _by_actuator(robot: Robot, actuators: PartRows, found: Any) -> Any:
    """Return the forces of each actuator on the degrees of freedom, `[nu, nv, *batch]`."""
    count = len(actuators.names)
    total = jnp.zeros((count, robot.nv, *robot.batch), robot.dtype)
    if actuators.idle:
        return total
    if actuators.axes_of_joints:
        numbers, _, dofs = np.array(actuators.axes_of_joints).T
        place = np.full((count, robot.nv), -1)
        place[numbers, dofs] = numbers
        own = robot.broadcast(actuators.gear[:, 0] * found.pull)
        total = total + take_rows(own, place.ravel()).reshape(total.shape)
    if found.transmission.moment is not None:
        coupled = np.array(actuators.coupled)
        total = total + sums(found.transmission.moment * take_rows(found.pull, coupled)[:, None], coupled, count)
    return total


# The constraint of each row, in the order of `constraint_terms`.


def _constraint_of_row(world: World) -> list[str]:
    """Return the name of the constraint of each row."""
    constraints, tendons = world.parts.constraints, world.parts.tendons.names
    # In the order of the tree of all joints.
    joints = _joint_of_dof(world)
    losses, limits, equalities = constraints.losses, constraints.limits, constraints.equalities
    names = []
    if (held := equalities.held) is not None:
        names += 3 * list(held.numbers) + 3 * list(held.numbers[held.connections :])
    names += [number for x in (equalities.joints, equalities.tendons) if x is not None for number in x.numbers]
    names = [f"equality {equalities.names[number]}" for number in names]
    names += [f"dry friction of {joints[dof]}" for dof in losses.dofs]
    names += [f"dry friction of tendon {tendons[i]}" for i in losses.tendons]
    names += 2 * [f"limit of {joints[dof]}" for _, dof in limits.joints]
    names += [f"limit of {joints[dof]}" for _, dof in limits.balls]
    names += 2 * [f"limit of tendon {tendons[i]}" for i in limits.tendons]
    return names + _contact_of_row(constraints.contacts)


def _joint_of_dof(world: World) -> list[str]:
    tree = world.model.topology.spanning
    return [name for i, name in enumerate(tree.joint_names) for _ in range(*tree.v_starts[i : i + 2])]


def _contact_of_row(contacts: Contacts) -> list[str]:
    """Return the pair of geoms of each row, contacts with few directions first, and direction by direction."""
    candidates: dict[int, list[str]] = {}
    for pairs in contacts.pairs:
        count = pairs.count()
        for first, second, dim in zip(pairs.first, pairs.second, pairs.dims, strict=True):
            name = f"contact of {contacts.names[first]} with {contacts.names[second]}"
            candidates.setdefault(dim, []).extend(itertools.repeat(name, count))
    return [name for dim in sorted(candidates) for name in dim * candidates[dim]]
