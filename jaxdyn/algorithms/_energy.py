"""Energies and the center of mass."""

from __future__ import annotations

from jaxdyn._types import Array, Configuration, Float, Velocity
from jaxdyn.algorithms.recursions import (
    Robot,
    absolute_poses,
    algorithm,
    kinematics,
    node_inertias,
    single_vector,
    spring_energy,
    velocities,
)
from jaxdyn.spatial import Vec3


@algorithm()
def kinetic_energy(robot: Robot, q: Configuration, v: Velocity) -> Float[Array, "*batch"]:
    """The kinetic energy `v^T M(q) v / 2` in J, the rotors' energy `armature v^2 / 2` included."""
    poses, S = kinematics(robot, q)
    _, velocity = velocities(robot, S, v)
    bodies = velocity.dot(node_inertias(robot, poses).apply(velocity)).sum(axis=0)
    return 0.5 * (bodies + (robot.armature * v * v).sum(axis=0))


@algorithm()
def potential_energy(robot: Robot, q: Configuration) -> Float[Array, "*batch"]:
    """The potential energy `-sum(m_i g . c_i)` in J, zero for a mass at the world's origin, the energy of the
    joints' springs included."""
    return spring_energy(robot, q) - _first_moment(robot, q)[1].dot(robot.gravity_vector)[0]


@algorithm()
def center_of_mass(robot: Robot, q: Configuration) -> Float[Array, "*batch 3"]:
    """The center of mass of all moving bodies, m, world axes."""
    mass, moment = _first_moment(robot, q)
    return single_vector(robot, moment * (1 / mass))


def _first_moment(robot: Robot, q):
    """Return the total mass, and the first moment about the world's origin, rows `[1]`."""
    inertia = node_inertias(robot, absolute_poses(robot, q))
    h = inertia.first_moment
    total = Vec3(*(c.sum(axis=0, keepdims=True) for c in (h.x, h.y, h.z)))
    return inertia.mass.sum(axis=0, keepdims=True), total
