"""The momentum of the whole robot about its center of mass, and the motion of the center of mass.

Orin, Goswami & Lee, Centroidal dynamics of a humanoid robot, Autonomous Robots 2013. A rotor whose inertia is reflected
to a joint (armature) has no momentum of its own here: it is no body.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxdyn._types import Array, Configuration, Float, Velocity
from jaxdyn.algorithms.recursions._algorithm import batched, full, rows
from jaxdyn.algorithms.recursions._body_frames import components
from jaxdyn.algorithms.recursions._equations_of_motion import (
    absolute_poses,
    kinematics,
    node_inertias,
    velocities,
    velocity_accelerations,
)
from jaxdyn.algorithms.recursions._sensitivities import operator
from jaxdyn.model import Model
from jaxdyn.spatial import Force, Inertia, Motion, Sym3, Vec3
from jaxdyn.tree._rows import matrix_to_leading
from jaxdyn.tree._walks import sum_down, sum_up, take_rows


class _Whole(NamedTuple):
    """Rows `[nv, *batch]` in world axes about the points of reference, and the center of mass from each of them."""

    S: Motion
    inertia: Inertia
    mass: Any
    """`[1, *batch]`: of all bodies."""
    center: Vec3
    """`[1, *batch]` where all bodies are one tree, else `[nv, *batch]`."""


def _whole(model: Model, q, rank: int) -> _Whole:
    poses, S = kinematics(model, q, rank)
    inertia = node_inertias(model, poses, rank)
    mass, h = inertia.mass.sum(axis=0, keepdims=True), inertia.first_moment
    if len(model.topology.reference_dof) == 1:
        return _Whole(S, inertia, mass, _total(h) * (1 / mass))
    # Trees have points of reference of their own: all from that of the first.
    origin = absolute_poses(model, q, rank).translation - poses.translation
    origin = origin - Vec3(origin.x[:1], origin.y[:1], origin.z[:1])
    return _Whole(S, inertia, mass, _total(h + origin * inertia.mass) * (1 / mass) - origin)


def _total(x: Vec3) -> Vec3:
    """`[1, *batch]`: the sum of the rows."""
    return Vec3(*(c.sum(axis=0, keepdims=True) for c in (x.x, x.y, x.z)))


def _momentum(whole: _Whole, forces: Force) -> Force:
    """`[1, *batch]`: the sum of momenta, or forces, of rows `[nv]`, about the center of mass."""
    forces = forces.moved_from(-whole.center)
    return Force(_total(forces.moment), _total(forces.force))


def _vector(parts: list, batch: tuple[int, ...]):
    """`[*batch, n]` from components `[1, *batch]`."""
    return jnp.stack([full(x[0], batch) for x in parts], axis=-1)


def _matrix(columns: list, batch: tuple[int, ...]):
    """`[*batch, n, nv]` from components, rows `[nv, *batch]` each."""
    return matrix_to_leading(jnp.stack([full(x, batch) for x in columns]))


def _forces(model: Model, whole: _Whole, v, a) -> Force:
    """Rows `[nv]`: the rates of the momenta of the bodies, `I a + v x* I v`, gravity not counted."""
    topology = model.topology
    joint, velocity = velocities(topology, whole.S, v)
    across = velocity_accelerations(topology, joint, velocity)
    acceleration = sum_down(topology.dofs, across if a is None else whole.S * a + across)
    return whole.inertia.apply(acceleration) + velocity.cross_force(whole.inertia.apply(velocity))


@batched(lambda _: (6,))
def centroidal_momentum(model: Model, q: Configuration, v: Velocity) -> Float[Array, "*batch 6"]:
    """The momentum `h_G` `[*batch, 6]` of all bodies, `[linear, angular]` in kg m/s and kg m^2/s, in world axes, the
    angular part about the center of mass."""
    (q, v), batch, rank = rows(model, q=q, v=v)
    whole = _whole(model, q, rank)
    _, velocity = velocities(model.topology, whole.S, v)
    return _vector(components(_momentum(whole, whole.inertia.apply(velocity))), batch)


@batched(lambda _: (6,))
def centroidal_momentum_time_derivative(
    model: Model, q: Configuration, v: Velocity, a: Velocity
) -> Float[Array, "*batch 6"]:
    """The rate of `centroidal_momentum` at the acceleration `a`, `A_G a + dA_G/dt v`, `[*batch, 6]`: N and N m.

    It is the sum of all forces on the robot from outside, gravity and the ground's included, about the center of mass.
    At `a = 0` it is the bias `dA_G/dt v`.
    """
    (q, v, a), batch, rank = rows(model, q=q, v=v, a=a)
    whole = _whole(model, q, rank)
    return _vector(components(_momentum(whole, _forces(model, whole, v, a))), batch)


@batched(lambda model: (6, model.nv), forces=(-1,))
def centroidal_momentum_matrix(model: Model, q: Configuration) -> Float[Array, "*batch 6 nv"]:
    """`A_G(q)` `[*batch, 6, nv]` with `centroidal_momentum = A_G v`.

    Column `j` is `I_j^c S_j` about the center of mass, with `I_j^c` the inertia of the subtree of `j`.

    Rows `[linear, angular]`, in kg m/s and kg m^2/s for a unit of velocity (Orin, Goswami & Lee 2013).
    """
    (q,), batch, rank = rows(model, q=q)
    whole = _whole(model, q, rank)
    column = sum_up(model.topology.dofs, whole.inertia).apply(whole.S).moved_from(-whole.center)
    return _matrix(components(column), batch)


@batched(lambda model: (6, model.nv), forces=(-1,))
def centroidal_momentum_matrix_time_derivative(
    model: Model, q: Configuration, v: Velocity
) -> Float[Array, "*batch 6 nv"]:
    """`dA_G/dt` `[*batch, 6, nv]` along the velocity `v`: the rate of `centroidal_momentum` is `A_G a + dA_G/dt v`.

    Analytic: about a fixed point the rate of a column is `dI_j^c/dt S_j + I_j^c dS_j/dt`, with `dS_j/dt = v_j x S_j`
    and `dI/dt = (v x*) I - I (v x)` of each body. The center of mass moves with a velocity `u`, so about it the moment
    is less by `u x f`, `f` the force part of the column.
    """
    (q, v), batch, rank = rows(model, q=q, v=v)
    topology = model.topology
    whole = _whole(model, q, rank)
    S, inertia = whole.S, whole.inertia
    _, velocity = velocities(topology, S, v)
    momentum = inertia.apply(velocity)
    # The rate of an inertia is one without mass: the first moment's is the momentum.
    rates = Inertia(jnp.zeros_like(momentum.force.x), momentum.force, operator(inertia, velocity, momentum).K)
    inertia, rate = sum_up(topology.dofs, (inertia, rates))
    dS = take_rows(velocity, topology.mover).cross(S)
    column, dcolumn = inertia.apply(S), rate.apply(S) + inertia.apply(dS)
    drift = (_total(momentum.force) * (1 / whole.mass)).cross(column.force)
    dcolumn = dcolumn.moved_from(-whole.center)
    return _matrix(components(Force(dcolumn.moment - drift, dcolumn.force)), batch)


@batched(lambda _: (6, 6))
def centroidal_inertia(model: Model, q: Configuration) -> Float[Array, "*batch 6 6"]:
    """The inertia `I_G(q)` `[*batch, 6, 6]` of the robot as one rigid body, `[[m 1, 0], [0, J]]`, with `m` the mass in
    kg and `J` about the center of mass in world axes, kg m^2.

    `I_G^-1 centroidal_momentum` is the average spatial velocity (Orin, Goswami & Lee 2013).
    """
    (q,), batch, rank = rows(model, q=q)
    whole = _whole(model, q, rank)
    c = -whole.center
    h, mc = whole.inertia.first_moment, c * whole.inertia.mass
    shift = Sym3.isotropic(c.dot(mc) + 2 * c.dot(h)) - Sym3.outer(c, mc) - Sym3.outer_pair(c, h)
    J = whole.inertia.rotational + shift
    xx, xy, yy, xz, yz, zz = (x.sum(axis=0, keepdims=True) for x in (J.xx, J.xy, J.yy, J.xz, J.yz, J.zz))
    m, o = whole.mass, jnp.zeros_like(whole.mass)
    entries = [m, o, o, o, o, o, o, m, o, o, o, o, o, o, m, o, o, o]
    entries += [o, o, o, xx, xy, xz, o, o, o, xy, yy, yz, o, o, o, xz, yz, zz]
    return _vector(entries, batch).reshape((*batch, 6, 6))


@batched(lambda model: (3, model.nv), forces=(-1,))
def com_jacobian(model: Model, q: Configuration) -> Float[Array, "*batch 3 nv"]:
    """The Jacobian `[*batch, 3, nv]` of the center of mass of all bodies: its velocity, m/s, in world axes is `J v`."""
    (q,), batch, rank = rows(model, q=q)
    whole = _whole(model, q, rank)
    momentum = sum_up(model.topology.dofs, whole.inertia).apply(whole.S).force
    return _matrix(components(momentum * (1 / whole.mass)), batch)


@batched(lambda _: (3,))
def com_velocity(model: Model, q: Configuration, v: Velocity) -> Float[Array, "*batch 3"]:
    """The velocity `[*batch, 3]` of the center of mass of all bodies, m/s, world axes."""
    (q, v), batch, rank = rows(model, q=q, v=v)
    whole = _whole(model, q, rank)
    _, velocity = velocities(model.topology, whole.S, v)
    return _vector(components(_total(whole.inertia.apply(velocity).force) * (1 / whole.mass)), batch)


@batched(lambda _: (3,))
def com_acceleration(model: Model, q: Configuration, v: Velocity, a: Velocity) -> Float[Array, "*batch 3"]:
    """The acceleration `[*batch, 3]` of the center of mass of all bodies, m/s^2, world axes; gravity is not added."""
    (q, v, a), batch, rank = rows(model, q=q, v=v, a=a)
    whole = _whole(model, q, rank)
    return _vector(components(_total(_forces(model, whole, v, a).force) * (1 / whole.mass)), batch)


@batched(lambda _: (3,))
def com_bias_acceleration(model: Model, q: Configuration, v: Velocity) -> Float[Array, "*batch 3"]:
    """`dJ/dt v` `[*batch, 3]` of the center of mass, m/s^2: its acceleration where `a` is zero."""
    (q, v), batch, rank = rows(model, q=q, v=v)
    whole = _whole(model, q, rank)
    return _vector(components(_total(_forces(model, whole, v, None).force) * (1 / whole.mass)), batch)
