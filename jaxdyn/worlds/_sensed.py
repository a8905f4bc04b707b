"""Quantities of a solved state that sensors read: accelerations, and the forces of constraints on bodies."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.algorithms.recursions import Robot, turning_accelerations
from jaxdyn.spatial import Force, Mat3, Quaternion, Vec3
from jaxdyn.tree import take_rows
from jaxdyn.worlds._actuators import actuator_tension
from jaxdyn.worlds._bodies import loads_of, packed_vectors
from jaxdyn.worlds._constraints import RowKinds
from jaxdyn.worlds._contact_rows import FoundBodies, TouchingBodies, by_directions, deep_contacts
from jaxdyn.worlds._equalities import coupling
from jaxdyn.worlds._equations import Acting, Balance, after_step, balance, constraint_torque
from jaxdyn.worlds._parts import Instant, Loads, PartRows, Places, sums
from jaxdyn.worlds._passive import spring_energy
from jaxdyn.worlds._readings import ContactLoads, Readings
from jaxdyn.worlds._sensors import sensor_values
from jaxdyn.worlds._tendons import inertial_tension, tendon_loads


class ContactTable(NamedTuple):
    """Contacts, rows `[n, *batch]`, as `ContactForces` has them."""

    gap: Any
    normal: Vec3
    point: Vec3
    force: Vec3


def sensor_rows(robot: Robot, world: PartRows, at: Balance, a, pushes, time, wrenches=None):
    """Return the values of all sensors at the accelerations `a` of a solved state, `[n, *batch]`, with the forces of
    the rows of constraints."""
    now, kinds = at.now, world.constraints.kinds
    loads, contacts = _loads_of_rows(robot, world, at, pushes)
    if wrenches is not None:
        loads += (loads_of(robot, world, now.at, wrenches),)
    if now.tendons is not None:
        tension = _tension(robot, world, now) + _constrained_tension(robot, world, now, kinds, pushes)
        if now.along is not None:
            tension = tension + inertial_tension(world.tendons, now.tendons, now.along, a)
        loads += tendon_loads(robot, world.tendons, now.at, tension)
    joint_limits, tendon_limits = _limits(robot, world, kinds, pushes)
    readings = Readings(
        acceleration=a - turning_accelerations(robot, now.at.v),
        tendons=now.tendons,
        along=now.along,
        actuated=now.actuators,
        loads=loads,
        contacts=contacts,
        springs=spring_energy(robot, world.passive, now.at, now.tendons),
        joint_limits=joint_limits,
        tendon_limits=tendon_limits,
        time=robot.broadcast(time[0]),
    )
    return robot.broadcast(sensor_values(robot, world.sensors, now.at, readings))


def _loads_of_rows(robot: Robot, world: PartRows, at: Balance, pushes):
    """Return the forces of contacts, connections and welds on bodies, and the contacts as sensors of touch see them."""
    loads, contacts = _contacts(robot, world, at.now.at, world.constraints.kinds, pushes)
    if world.constraints.equalities.held is not None:
        loads += _held(robot, world.constraints.equalities.held, at.now.at, pushes)
    return loads, contacts


def _body_wrenches(robot: Robot, world: PartRows, at: Balance, pushes):
    """Return the forces of contacts, connections and welds on bodies and their moments about the centers of mass,
    rows `[6 nbody]`."""
    count = len(world.bodies.names)
    centers = Places.located(world.bodies.centers, at.now.at).pose.translation
    none = [jnp.zeros((count, *robot.batch), robot.dtype)] * 3
    total = Force(Vec3(*none), Vec3(*none))
    for loads in _loads_of_rows(robot, world, at, pushes)[0]:
        moment = loads.moment + (loads.point - take_rows(centers, loads.bodies)).cross(loads.force)
        total = total + sums(jax.tree.map(robot.broadcast, Force(moment, loads.force)), loads.bodies, count)
    return packed_vectors(total.force, total.moment)


def _tension(robot: Robot, world: PartRows, now: Acting):
    """Return the forces along the tendons of springs, dampers and actuators."""
    tension = now.passive.tension
    if world.actuators.pulling:
        tension = tension + actuator_tension(robot, world.actuators, now.actuators.pull, tension.shape[0])
    return tension


def _constrained_tension(robot: Robot, world: PartRows, now: Acting, kinds: RowKinds, pushes):
    """Return the forces along the tendons of their equalities, friction losses and limits."""
    losses, limits, coupled = world.constraints.losses, world.constraints.limits, world.constraints.equalities.tendons
    count = len(world.tendons.names)
    start = kinds.equalities + len(losses.dofs)
    total = sums(pushes[start : kinds.equalities + kinds.frictions], np.array(losses.tendons, int), count)
    start = kinds.equalities + kinds.frictions + 2 * len(limits.joints) + len(limits.balls)
    lower, upper = (pushes[start + k * len(limits.tendons) :][: len(limits.tendons)] for k in range(2))
    total = total + sums(lower - upper, np.array(limits.tendons, int), count)
    if coupled is not None:
        assert now.tendons is not None
        first, second, *_ = np.array(coupled.pairs).T
        # Their rows are the last ones of equalities.
        own = pushes[kinds.equalities - len(first) : kinds.equalities]
        _, slope = coupling(robot, coupled, take_rows(now.tendons.length, second))
        total = total + sums(own, first, count) - sums(slope * own, second, count)
    return total


def _contacts(
    robot: Robot, world: PartRows, at: Instant, kinds: RowKinds, pushes
) -> tuple[tuple[Loads, ...], tuple[ContactLoads, ...]]:
    """Return the forces of contacts on both bodies, and as sensors of touch see them."""
    loads, contacts = [], []
    for own, along, total in _pushing(robot, world, at, kinds, pushes):
        position, frame = own.touching.candidates.position, own.touching.candidates.frame
        moment = jax.tree.map(jnp.zeros_like, total) if len(along) <= 3 else _along(frame, along[3:])
        ends = own.bodies if isinstance(own, FoundBodies) else (own.bodies[:, 0], own.bodies[:, 1])
        contacts.append(ContactLoads(ends, position, frame.x, along[0]))
        if isinstance(own, FoundBodies):
            loads.append(_of_bodies(world, at, own, total, moment))
            continue
        loads.append(Loads(own.bodies[:, 0], position, -total, -moment))
        loads.append(Loads(own.bodies[:, 1], position, total, moment))
    return tuple(loads), tuple(contacts)


def _of_bodies(world: PartRows, at: Instant, own: FoundBodies, force: Vec3, moment: Vec3) -> Loads:
    """Return the sums of the forces of found contacts on each body, about its center of mass."""
    count = len(world.bodies.names)
    centers = Places.located(world.bodies.centers, at).pose.translation
    numbers = world.robot.constant(np.arange(count))[:, None]
    # Axes: the bodies, the contacts, the batch.
    first, second = (jnp.where(x[None] == numbers, 1.0, 0.0) for x in own.bodies)
    force, moment, position = (
        jax.tree.map(lambda x: x[None], v) for v in (force, moment, own.touching.candidates.position)
    )
    arm = position - jax.tree.map(lambda x: x[:, None], centers)
    sums_of = functools.partial(jax.tree.map, lambda x: (x * (second - first)).sum(axis=1))
    return Loads(np.arange(count), centers, sums_of(force), sums_of(moment + arm.cross(force)))


def _pushing(
    robot: Robot, world: PartRows, at: Instant, kinds: RowKinds, pushes
) -> Iterator[tuple[TouchingBodies | FoundBodies, list, Vec3]]:
    """Yield the candidates by the number of their directions, the pushes along these, and the forces in the world."""
    starts = iter(kinds.cone_starts)
    for dim, own in by_directions(robot, world.constraints.contacts, at):
        count = len(own.dims)
        start = kinds.scalars - count if dim == 1 else next(starts)
        along = [pushes[start + k * count : start + (k + 1) * count] for k in range(dim)]
        yield own, along, _along(own.touching.candidates.frame, along[:3])


def _along(frame: Mat3, lengths: list) -> Vec3:
    """Return the vectors with these lengths along the first axes of frames."""
    return functools.reduce(
        operator.add, (axis * x for axis, x in zip((frame.x, frame.y, frame.z), lengths, strict=False))
    )


def contact_table(robot: Robot, world: PartRows, at: Instant, kinds: RowKinds, pushes) -> ContactTable:
    """Return the gaps, normals, points and forces on the second bodies of all candidates, in the order of
    `Contacts.candidate_names`; gaps that MuJoCo does not report are `FAR`."""
    none = robot.broadcast(robot.zeros()[:0])
    parts = [ContactTable(none, *(Vec3(none, none, none) for _ in range(3)))]
    for own, _, total in _pushing(robot, world, at, kinds, pushes):
        found = own.touching.candidates
        parts.append(ContactTable(found.distance, found.normal, found.position, total))
    return jax.tree.map(lambda *x: jnp.concatenate([robot.broadcast(y) for y in x]), *parts)


def _held(robot: Robot, held: PartRows, at: Instant, pushes) -> tuple[Loads, ...]:
    """Return the forces of connections and welds on both bodies."""
    one, two = Places.located(held.first, at), Places.located(held.second, at)
    count, connections = len(held.bodies), held.connections
    along = Vec3(*(pushes[k * count : (k + 1) * count] for k in range(3)))
    moment = jax.tree.map(jnp.zeros_like, along)
    welded = np.arange(connections, count)
    if len(welded):
        n, start = len(welded), 3 * count
        turns = Vec3(*(pushes[start + k * n : start + (k + 1) * n] for k in range(3)))
        R = take_rows(two.pose.rotation, welded)
        Q = Quaternion.from_rotation(R.T.compose(take_rows(one.pose.rotation, welded)))
        own = R.apply(turns * Q.w + Q.vector.cross(turns)) * (0.5 * held.scale)
        where = np.full(count, -1)
        where[welded] = np.arange(n)
        moment = take_rows(own, where)
    bodies = np.array(held.bodies)
    first = Loads(bodies[:, 0], one.pose.translation, along, moment)
    second = Loads(bodies[:, 1], two.pose.translation, -along, -moment)
    return first, second


def _limits(robot: Robot, world: PartRows, kinds: RowKinds, pushes) -> tuple[Any, Any]:
    """Return the forces of the limits of joints and of tendons, both sides together."""
    limits, sensors = world.constraints.limits, world.sensors
    singles, balls, pulled = len(limits.joints), len(limits.balls), len(limits.tendons)
    count = 2 * singles + balls + 2 * pulled
    start = kinds.equalities + kinds.frictions
    own = pushes[start : start + count]
    joint_of = {dof: j for j, (_, _, dof) in enumerate(sensors.joints)}
    of_singles = [joint_of.get(dof, -1) for _, dof in limits.joints]
    owners = np.array([*of_singles, *of_singles, *(joint_of.get(dof, -1) for _, dof in limits.balls)], int)
    tendons = np.array([*limits.tendons, *limits.tendons], int)
    return (
        sums(own[: len(owners)], owners, len(sensors.joints)),
        sums(own[len(owners) :], tendons, max(len(sensors.tendons_limited), 1)),
    )


@dataclasses.dataclass(frozen=True)
class Quantities:
    """Quantities that are made of the solution of a state, by their names, as a function of rows:

    `acceleration`, as this library has it; `step`, the configuration, velocity and activations after a step of an
    integrator other than `rk4`; `rates` of the activations; `torque` of the constraints on the degrees of freedom;
    `sensors`, all values one after the other; `contacts`, a `ContactTable`; `deep`, the number of contacts as in
    `SolverReport`; and those of `World.step_and_read`.
    """

    names: tuple[str, ...]
    alone: bool = False
    """Whether the function is called with a state, or with what acts there."""

    def __call__(self, robot: Robot, world: PartRows, *arguments: Any, **named: Any) -> dict[str, Any]:
        if self.alone:
            a, pushes, further = arguments
            return self._of(robot, world, balance(robot, world, **named), a, pushes, **further)
        at, a = arguments
        pushes = jnp.concatenate([robot.broadcast(x) for x in (robot.zeros()[:0], *at.pushes(robot, a))])
        return self._of(robot, world, at, a, pushes, **named)

    def _of(self, robot: Robot, world: PartRows, at: Balance, a, pushes, **further: Any) -> dict[str, Any]:
        now = at.now

        def torque():
            split = jnp.split(pushes, np.cumsum([term.size for term in at.terms]))
            return constraint_torque(robot, at, split[:-1])

        made: dict[str, Callable] = {
            "acceleration": lambda: a - turning_accelerations(robot, robot.broadcast(now.at.v)),
            "step": lambda: after_step(robot, world, now, a),
            "rates": lambda: now.actuators.rate,
            "torque": torque,
            "sensors": lambda: sensor_rows(robot, world, at, a, pushes, **further),
            "contacts": lambda: contact_table(robot, world, now.at, world.constraints.kinds, pushes),
            "deep": lambda: deep_contacts(robot, world, now.at),
            "actuator_torque": lambda: now.actuators.torque,
            "body_wrenches": lambda: _body_wrenches(robot, world, at, pushes),
        }
        return {name: jax.tree.map(robot.broadcast, made[name]()) for name in self.names}
