"""Energies and the center of mass."""

from __future__ import annotations

from jaxdyn._types import Array, Configuration, Float, Velocity
from jaxdyn.algorithms.recursions._algorithm import batched, full, rows
from jaxdyn.algorithms.recursions._equations_of_motion import (
    absolute_poses,
    gravity_rows,
    kinematics,
    node_inertias,
    velocities,
)
from jaxdyn.model import Model
from jaxdyn.model._configuration import spring_energy
from jaxdyn.tree._rows import rows_of


@batched(lambda _: ())
def kinetic_energy(model: Model, q: Configuration, v: Velocity) -> Float[Array, "*batch"]:
    """`v^T M(q) v / 2` in J, with the rotors' energy `armature v^2 / 2`."""
    (q, v), batch, rank = rows(model, q=q, v=v)
    poses, S = kinematics(model, q, rank)
    _, velocity = velocities(model.topology, S, v)
    bodies = velocity.dot(node_inertias(model, poses, rank).apply(velocity)).sum(axis=0)
    return full(0.5 * (bodies + (rows_of(model.armature, rank) * v * v).sum(axis=0)), batch)


@batched(lambda _: ())
def potential_energy(model: Model, q: Configuration) -> Float[Array, "*batch"]:
    """`-sum(m_i g . c_i)` in J, zero for a mass at the world's origin, and the energy of the joints' springs."""
    (q,), batch, rank = rows(model, q=q)
    energy = -_first_moment(model, q, rank)[1].dot(gravity_rows(model, rank))[0]
    if model.stiffness is not None:
        stiffness, reference = rows_of(model.stiffness, rank), rows_of(model.spring_reference, rank)
        energy = energy + spring_energy(model.topology, *(full(x, batch) for x in (stiffness, reference, q)))
    return full(energy, batch)


@batched(lambda _: (3,))
def center_of_mass(model: Model, q: Configuration) -> Float[Array, "*batch 3"]:
    """The center of mass of all moving bodies, m, world axes."""
    (q,), batch, rank = rows(model, q=q)
    mass, moment = _first_moment(model, q, rank)
    com = moment * (1 / mass)
    return type(com)(*(full(c[0], batch) for c in (com.x, com.y, com.z))).to_array()


def _first_moment(model: Model, q, rank: int):
    """`[1, *batch]`: total mass, and first moment about the world's origin."""
    inertia = node_inertias(model, absolute_poses(model, q, rank), rank)
    h = inertia.first_moment
    total = type(h)(*(c.sum(axis=0, keepdims=True) for c in (h.x, h.y, h.z)))
    return inertia.mass.sum(axis=0, keepdims=True), total
