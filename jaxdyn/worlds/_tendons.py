"""Tendons of a world: sums of joints' coordinates (fixed tendons), and paths through sites (spatial tendons).

MuJoCo's documentation, chapter Computation, section "Tendons"; `engine_core_smooth.c` of MuJoCo 4.0, `mj_tendon`.
"""

from __future__ import annotations

from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._types import Array, Float, float_leaf
from jaxdyn.algorithms.recursions import Robot
from jaxdyn.io.mjcf import enum_name, object_name
from jaxdyn.rows import MatrixRows, moving
from jaxdyn.spatial import Vec3
from jaxdyn.tree import take_rows
from jaxdyn.worlds._parts import SMALL, Instant, Loads, Part, PartRows, Places, point_rows, sums


class TendonRows(eqx.Module):
    """The tendons at one state."""

    length: Any
    """`[nt, *batch]`"""
    velocity: Any
    """`[nt, *batch]`"""
    jacobian: Any
    """The derivatives of the lengths by the velocities, `[nt, nv, *batch]`."""
    entries: tuple[tuple[bool, ...], ...] = eqx.field(static=True)
    """Truth values `[nt, nv]`: which degrees of freedom can change a tendon's length."""

    def moves(self, which) -> np.ndarray:
        """Return which degrees of freedom change the lengths of some tendons, by their numbers, -1 for none."""
        none = np.zeros((1, self.jacobian.shape[1]), bool)
        return np.concatenate([np.array(self.entries, bool), none])[which]

    def rows(self, which, signs=(1.0,)) -> MatrixRows:
        """Return the rows of the lengths of some tendons, for each of some signs."""
        jacobian = take_rows(self.jacobian, which)
        stacked = jnp.concatenate([sign * jacobian for sign in signs])
        return MatrixRows.of(stacked, np.tile(self.moves(which), (len(signs), 1)))


class Tendons(Part):
    """The tendons of a world, in the file's order."""

    names: tuple[str, ...] = eqx.field(static=True)
    joints: tuple[tuple[int, int, int], ...] = eqx.field(static=True)
    """For each joint of a fixed tendon: the tendon, the coordinate, and the degree of freedom."""
    coefficient: Float[Array, "*batch nj"]
    """The factor of each of these."""
    segments: tuple[tuple[int, int, int], ...] = eqx.field(static=True)
    """For each straight piece of a spatial tendon: the tendon, and the rows of `sites` at its ends."""
    sites: Places
    divisor: Float[Array, "*batch ns"]
    """The number that divides the length of each piece, behind pulleys."""
    bodies: tuple[int, ...] = eqx.field(static=True)
    """MuJoCo's number of the body of each of `sites`."""

    @classmethod
    def of(cls, m) -> Self:
        """Return the tendons of an `mjModel`, which must not have any that `reasons_against_tendons` names."""
        joints, coefficient, segments, divisors = [], [], [], []
        sites: dict[int, int] = {}
        for i in range(m.ntendon):
            divisor, last = 1.0, None
            for w in range(m.tendon_adr[i], m.tendon_adr[i] + m.tendon_num[i]):
                kind, number, parameter = enum_name("mjtWrap", m.wrap_type[w]), int(m.wrap_objid[w]), m.wrap_prm[w]
                if kind == "joint":
                    joints.append((i, int(m.jnt_qposadr[number]), int(m.jnt_dofadr[number])))
                    coefficient.append(parameter)
                elif kind == "pulley":
                    divisor, last = float(parameter), None
                else:
                    row = sites.setdefault(number, len(sites))
                    if last is not None:
                        segments.append((i, last, row))
                        divisors.append(divisor)
                    last = row
        return cls(
            tuple(object_name(m, "tendon", i) for i in range(m.ntendon)),
            tuple(joints),
            float_leaf(np.array(coefficient, float)),
            tuple(segments),
            Places.of(m, "site", list(sites)),
            float_leaf(np.array(divisors, float)),
            tuple(int(m.site_bodyid[i]) for i in sites),
        )


def reasons_against_tendons(m) -> dict[str, str]:
    """Return, by the names of the tendons of an `mjModel` that are not built, why."""
    out = {}
    for i in range(m.ntendon):
        wraps = range(m.tendon_adr[i], m.tendon_adr[i] + m.tendon_num[i])
        kinds = {enum_name("mjtWrap", m.wrap_type[w]) for w in wraps}
        name = object_name(m, "tendon", i)
        if kinds - {"joint", "site", "pulley"}:
            out[name] = "it wraps around geoms"
        elif m.tendon_springyield[i] > 0:
            out[name] = "its spring yields (springyield)"
    return out


def tendon_rows(robot: Robot, tendons: PartRows, at: Instant) -> TendonRows:
    """Return the tendons at a state."""
    count, nv = len(tendons.names), robot.nv
    length = jnp.zeros((count, *robot.batch), robot.dtype)
    jacobian = jnp.zeros((count, nv, *robot.batch), robot.dtype)
    if tendons.joints:
        owners, coordinates, dofs = np.array(tendons.joints).T
        coefficient = robot.broadcast(tendons.coefficient)
        length = length + sums(coefficient * take_rows(at.q, coordinates), owners, count)
        flat = sums(coefficient, owners * nv + dofs, count * nv)
        jacobian = jacobian + flat.reshape(jacobian.shape)
    if tendons.segments:
        owners, first, second, sites, (distance, direction) = _pieces(tendons, at)
        moved = point_rows(robot, at, sites).linear
        along = jax.tree.map(lambda x: x[:, None], direction)
        rows = along.dot(take_rows(moved, second) - take_rows(moved, first)) / tendons.divisor[:, None]
        length = length + sums(distance / tendons.divisor, owners, count)
        jacobian = jacobian + sums(rows, owners, count)
    return TendonRows(length, (jacobian * at.v[None]).sum(axis=1), jacobian, _entries(robot, tendons))


def _entries(robot: Robot, tendons: PartRows) -> tuple[tuple[bool, ...], ...]:
    """Return which degrees of freedom can change the length of each tendon."""
    moves = np.zeros((len(tendons.names), robot.nv), bool)
    for owner, _, dof in tendons.joints:
        moves[owner, dof] = True
    carried = moving(robot, np.array(tendons.sites.dofs, int))
    for owner, first, second in tendons.segments:
        # What carries both ends of a piece moves them as one body.
        moves[owner] |= carried[first] ^ carried[second]
    return tuple(map(tuple, moves.tolist()))


def tendon_loads(robot: Robot, tendons: PartRows, at: Instant, tension) -> tuple[Loads, ...]:
    """Return the forces of spatial tendons on the bodies of their sites, for the forces along the tendons, `[nt,
    *batch]`, which push their ends apart."""
    if not tendons.segments:
        return ()
    owners, first, second, sites, (_, direction) = _pieces(tendons, at)
    force = jax.tree.map(robot.broadcast, direction * (take_rows(tension, owners) / tendons.divisor))
    none, bodies = jax.tree.map(jnp.zeros_like, force), np.array(tendons.bodies)
    ends = ((first, -force), (second, force))
    return tuple(Loads(bodies[rows], take_rows(sites.pose.translation, rows), f, none) for rows, f in ends)


def _pieces(tendons: PartRows, at: Instant) -> tuple:
    """Return the tendon and the sites at the ends of each straight piece, the sites, and lengths and directions."""
    owners, first, second = np.array(tendons.segments).T
    sites = Places.located(tendons.sites, at)
    position = sites.pose.translation
    return owners, first, second, sites, _straight(take_rows(position, second) - take_rows(position, first))


def _straight(shift: Vec3) -> tuple[Any, Vec3]:
    """Return the lengths of vectors, and their directions: that of x for one of no length."""
    square = shift.squared_norm()
    there = square > SMALL * SMALL
    distance = jnp.sqrt(jnp.where(there, square, 1))
    inverse = jnp.where(there, 1 / distance, 0)
    direction = Vec3(shift.x * inverse + jnp.where(there, 0.0, 1.0), shift.y * inverse, shift.z * inverse)
    return jnp.where(there, distance, 0), direction
