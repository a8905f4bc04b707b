"""The momentum of the composite robot about its center of mass, and the motion of the center of mass.

Orin, Goswami & Lee, Centroidal dynamics of a humanoid robot, Autonomous Robots 2013. A rotor whose inertia is reflected
to a joint (armature) is not a body, and has no momentum here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxdyn._types import Array, Configuration, Float, Velocity
from jaxdyn.algorithms.recursions import (
    Robot,
    absolute_poses,
    algorithm,
    column_vectors,
    kinematics,
    node_inertias,
    operator,
    single_vector,
    velocities,
    velocity_accelerations,
)
from jaxdyn.spatial import Force, Inertia, Motion, Sym3, Vec3
from jaxdyn.tree import sum_down, sum_up, take_rows


class _Composite(NamedTuple):
    """The robot as one body: rows `[nv, *batch]` in world axes about the points of reference."""

    S: Motion
    inertia: Inertia
    mass: Any
    """The mass of all bodies, `[1, *batch]`."""
    center: Vec3
    """The center of mass from the points of reference: `[1, *batch]` where all bodies are one tree, else
    `[nv, *batch]`."""


def _composite(robot: Robot, q) -> _Composite:
    poses, S = kinematics(robot, q)
    inertia = node_inertias(robot, poses)
    mass, h = inertia.mass.sum(axis=0, keepdims=True), inertia.first_moment
    if len(robot.topology.reference_dof) == 1:
        return _Composite(S, inertia, mass, _total(h) * (1 / mass))
    # Every tree has its point of reference; positions are taken from the first one.
    origin = absolute_poses(robot, q).translation - poses.translation
    origin = origin - Vec3(origin.x[:1], origin.y[:1], origin.z[:1])
    return _Composite(S, inertia, mass, _total(h + origin * inertia.mass) * (1 / mass) - origin)


def _total(x: Vec3) -> Vec3:
    """Return the sum of the rows, `[1, *batch]`."""
    return Vec3(*(c.sum(axis=0, keepdims=True) for c in (x.x, x.y, x.z)))


def _momentum(composite: _Composite, forces: Force) -> Force:
    """Return the sum of momenta, or forces, of rows `[nv]`, about the center of mass, `[1, *batch]`."""
    forces = forces.moved_from(-composite.center)
    return Force(_total(forces.moment), _total(forces.force))


def _forces(robot: Robot, composite: _Composite, v, a=None) -> Force:
    """Return the rates of the momenta of the bodies, `I a + v x* I v`, rows `[nv]`; gravity is not counted."""
    joint, velocity = velocities(robot, composite.S, v)
    across = velocity_accelerations(robot, joint, velocity)
    acceleration = sum_down(robot.tree, across if a is None else composite.S * a + across)
    return composite.inertia.apply(acceleration) + velocity.cross_force(composite.inertia.apply(velocity))


@algorithm()
def centroidal_momentum(robot: Robot, q: Configuration, v: Velocity) -> Float[Array, "*batch 6"]:
    """The momentum `h_G` `[*batch, 6]` of all bodies, `[linear, angular]` in kg m/s and kg m^2/s, in world axes, the
    angular part about the center of mass."""
    composite = _composite(robot, q)
    _, velocity = velocities(robot, composite.S, v)
    return single_vector(robot, _momentum(composite, composite.inertia.apply(velocity)))


@algorithm()
def centroidal_momentum_time_derivative(
    robot: Robot, q: Configuration, v: Velocity, a: Velocity
) -> Float[Array, "*batch 6"]:
    """The rate of `centroidal_momentum` at the acceleration `a`, `A_G a + dA_G/dt v`, `[*batch, 6]`: N and N m.

    It is the sum of all forces on the robot from outside, gravity and the ground's included, about the center of mass.
    At `a = 0` it is the bias `dA_G/dt v`.
    """
    composite = _composite(robot, q)
    return single_vector(robot, _momentum(composite, _forces(robot, composite, v, a)))


@algorithm()
def centroidal_momentum_matrix(robot: Robot, q: Configuration) -> Float[Array, "*batch 6 nv"]:
    """`A_G(q)` `[*batch, 6, nv]` with `centroidal_momentum = A_G v`.

    Column `j` is `I_j^c S_j` about the center of mass, with `I_j^c` the inertia of the subtree of `j`.

    Rows `[linear, angular]`, in kg m/s and kg m^2/s for a unit of velocity (Orin, Goswami & Lee 2013).
    """
    composite = _composite(robot, q)
    column = sum_up(robot.tree, composite.inertia).apply(composite.S).moved_from(-composite.center)
    return column_vectors(robot, column)


@algorithm()
def centroidal_momentum_matrix_time_derivative(
    robot: Robot, q: Configuration, v: Velocity
) -> Float[Array, "*batch 6 nv"]:
    """`dA_G/dt` `[*batch, 6, nv]` along the velocity `v`: the rate of `centroidal_momentum` is `A_G a + dA_G/dt v`.

    Analytic: about a fixed point the rate of a column is `dI_j^c/dt S_j + I_j^c dS_j/dt`, with `dS_j/dt = v_j x S_j`
    and `dI/dt = (v x*) I - I (v x)` of each body. The center of mass moves with a velocity `u`, so about it the moment
    is less by `u x f`, `f` the force part of the column.
    """
    composite = _composite(robot, q)
    S, inertia = composite.S, composite.inertia
    _, velocity = velocities(robot, S, v)
    momentum = inertia.apply(velocity)
    # The rate of an inertia is one without mass: the first moment's is the momentum.
    rates = Inertia(jnp.zeros_like(momentum.force.x), momentum.force, operator(inertia, velocity, momentum).K)
    inertia, rate = sum_up(robot.tree, (inertia, rates))
    dS = take_rows(velocity, robot.topology.mover).cross(S)
    column, dcolumn = inertia.apply(S), rate.apply(S) + inertia.apply(dS)
    drift = (_total(momentum.force) * (1 / composite.mass)).cross(column.force)
    dcolumn = dcolumn.moved_from(-composite.center)
    return column_vectors(robot, Force(dcolumn.moment - drift, dcolumn.force))


@algorithm()
def centroidal_inertia(robot: Robot, q: Configuration) -> Float[Array, "*batch 6 6"]:
    """The inertia `I_G(q)` `[*batch, 6, 6]` of the robot as one rigid body, `[[m 1, 0], [0, J]]`, with `m` the mass in
    kg and `J` about the center of mass in world axes, kg m^2.

    `I_G^-1 centroidal_momentum` is the average spatial velocity (Orin, Goswami & Lee 2013).
    """
    composite = _composite(robot, q)
    c = -composite.center
    h, mc = composite.inertia.first_moment, c * composite.inertia.mass
    shift = Sym3.isotropic(c.dot(mc) + 2 * c.dot(h)) - Sym3.outer(c, mc) - Sym3.outer_pair(c, h)
    J = composite.inertia.rotational + shift
    xx, xy, yy, xz, yz, zz = (x.sum(axis=0, keepdims=True) for x in (J.xx, J.xy, J.yy, J.xz, J.yz, J.zz))
    m, o = composite.mass, jnp.zeros_like(composite.mass)
    entries = [m, o, o, o, o, o, o, m, o, o, o, o, o, o, m, o, o, o]
    entries += [o, o, o, xx, xy, xz, o, o, o, xy, yy, yz, o, o, o, xz, yz, zz]
    return jnp.stack([x[0] for x in jnp.broadcast_arrays(*entries)]).reshape((6, 6, *xx.shape[1:]))


@algorithm()
def com_jacobian(robot: Robot, q: Configuration) -> Float[Array, "*batch 3 nv"]:
    """The Jacobian `[*batch, 3, nv]` of the center of mass of all bodies: its velocity, m/s, in world axes is `J v`."""
    composite = _composite(robot, q)
    momentum = sum_up(robot.tree, composite.inertia).apply(composite.S).force
    return column_vectors(robot, momentum * (1 / composite.mass))


@algorithm()
def com_velocity(robot: Robot, q: Configuration, v: Velocity) -> Float[Array, "*batch 3"]:
    """The velocity `[*batch, 3]` of the center of mass of all bodies, m/s, world axes."""
    composite = _composite(robot, q)
    _, velocity = velocities(robot, composite.S, v)
    return single_vector(robot, _total(composite.inertia.apply(velocity).force) * (1 / composite.mass))


@algorithm()
def com_acceleration(robot: Robot, q: Configuration, v: Velocity, a: Velocity) -> Float[Array, "*batch 3"]:
    """The acceleration `[*batch, 3]` of the center of mass of all bodies, m/s^2, world axes; gravity is not added."""
    composite = _composite(robot, q)
    return single_vector(robot, _total(_forces(robot, composite, v, a).force) * (1 / composite.mass))


@algorithm()
def com_bias_acceleration(robot: Robot, q: Configuration, v: Velocity) -> Float[Array, "*batch 3"]:
    """`dJ/dt v` `[*batch, 3]` of the center of mass, m/s^2: its acceleration where `a` is zero."""
    composite = _composite(robot, q)
    return single_vector(robot, _total(_forces(robot, composite, v).force) * (1 / composite.mass))
