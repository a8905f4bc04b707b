"""Tendons of a world: sums of joints' coordinates (fixed tendons), and paths through sites and around spheres and
cylinders (spatial tendons).

MuJoCo's documentation, chapter Computation, section "Tendons"; `engine_core_smooth.c` of MuJoCo 4.0, `mj_tendon`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._types import Array, Float, float_leaf
from jaxdyn.algorithms.recursions import Robot, turning_accelerations
from jaxdyn.io.mjcf import enum_name, object_name, with_actuators
from jaxdyn.model import Model
from jaxdyn.rows import MatrixRows, moving, rates_of
from jaxdyn.spatial import Pose, Vec3
from jaxdyn.tree import take_rows
from jaxdyn.worlds._parts import (
    SMALL,
    Instant,
    Loads,
    Located,
    Part,
    PartRows,
    Places,
    accelerations_of,
    point_rows,
    sums,
)
from jaxdyn.worlds._wrapping import wrapped


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
    wraps: tuple[tuple[int, int, int, int, int], ...] = eqx.field(static=True)
    """For each piece that wraps around a geom: the tendon, the rows of `sites` at its ends, that of the geom in
    `geoms`, and that of the site at whose side it passes, -1 for the shorter side."""
    wrap_divisor: Float[Array, "*batch nw"]
    """The same as `divisor` for these."""
    geoms: Places
    radius: Float[Array, "*batch ng"]
    spheres: tuple[bool, ...] = eqx.field(static=True)
    """Whether each of `geoms` is a sphere, or a cylinder without ends."""
    geom_numbers: tuple[int, ...] = eqx.field(static=True)
    """MuJoCo's numbers of these."""
    geom_names: tuple[str, ...] = eqx.field(static=True)
    geom_bodies: tuple[int, ...] = eqx.field(static=True)
    """MuJoCo's number of the body of each."""
    heavy: tuple[int, ...] = eqx.field(static=True)
    """The tendons with armature."""
    armature: Float[Array, "*batch nt"]
    """The inertia along each tendon, with that of actuators."""

    @classmethod
    def of(cls, m) -> Self:
        """Return the tendons of an `mjModel`, which must not have any that `reasons_against_tendons` names."""
        joints, coefficient, paths = [], [], _Paths.of(m)
        for i in range(m.ntendon):
            for w in range(m.tendon_adr[i], m.tendon_adr[i] + m.tendon_num[i]):
                if enum_name("mjtWrap", m.wrap_type[w]) == "joint":
                    number = int(m.wrap_objid[w])
                    joints.append((i, int(m.jnt_qposadr[number]), int(m.jnt_dofadr[number])))
                    coefficient.append(m.wrap_prm[w])
        sites, geoms = list(paths.sites), list(paths.geoms)
        armature = with_actuators(m, m.dof_armature, m.tendon_armature, m.actuator_armature)[1]
        return cls(
            names=tuple(object_name(m, "tendon", i) for i in range(m.ntendon)),
            joints=tuple(joints),
            coefficient=float_leaf(np.array(coefficient, float)),
            segments=tuple(paths.segments),
            sites=Places.of(m, "site", sites),
            divisor=float_leaf(np.array(paths.divisors, float)),
            bodies=tuple(m.site_bodyid[sites].tolist()),
            wraps=tuple(paths.wraps),
            wrap_divisor=float_leaf(np.array(paths.wrap_divisors, float)),
            geoms=Places.of(m, "geom", geoms),
            radius=float_leaf(m.geom_size[geoms, 0]),
            spheres=tuple(enum_name("mjtGeom", m.geom_type[g]) == "sphere" for g in geoms),
            geom_numbers=tuple(geoms),
            geom_names=tuple(object_name(m, "geom", g) for g in geoms),
            geom_bodies=tuple(m.geom_bodyid[geoms].tolist()),
            heavy=tuple(np.flatnonzero(armature).tolist()),
            armature=float_leaf(armature),
        )


class _Paths(NamedTuple):
    """The paths of the spatial tendons of an `mjModel`, in the words of `Tendons`; sites and geoms by MuJoCo's numbers,
    with their rows."""

    segments: list[tuple[int, int, int]]
    divisors: list[float]
    wraps: list[tuple[int, int, int, int, int]]
    wrap_divisors: list[float]
    sites: dict[int, int]
    geoms: dict[int, int]

    @classmethod
    def of(cls, m) -> _Paths:
        paths = cls([], [], [], [], {}, {})
        for i in range(m.ntendon):
            divisor, last, around = 1.0, None, None
            for w in range(m.tendon_adr[i], m.tendon_adr[i] + m.tendon_num[i]):
                kind, number, parameter = enum_name("mjtWrap", m.wrap_type[w]), int(m.wrap_objid[w]), m.wrap_prm[w]
                if kind == "pulley":
                    divisor, last = float(parameter), None
                elif kind in ("sphere", "cylinder"):
                    around = number, round(float(parameter))
                elif kind == "site":
                    row = paths.site(number)
                    if last is not None:
                        paths.add(i, last, row, divisor, around)
                    last, around = row, None
        return paths

    def site(self, number: int) -> int:
        return self.sites.setdefault(number, len(self.sites))

    def add(self, tendon: int, first: int, second: int, divisor: float, around: tuple[int, int] | None) -> None:
        """Add a piece between the sites of two rows, around a geom with a site at its side."""
        if around is None:
            self.segments.append((tendon, first, second))
            self.divisors.append(divisor)
            return
        geom, side = around
        row = self.geoms.setdefault(geom, len(self.geoms))
        self.wraps.append((tendon, first, second, row, self.site(side) if side >= 0 else -1))
        self.wrap_divisors.append(divisor)


def reasons_against_tendons(m) -> dict[str, str]:
    """Return, by the names of the tendons of an `mjModel` that are not built, why."""
    out = {}
    for i in range(m.ntendon):
        if m.tendon_springyield[i] > 0:
            out[object_name(m, "tendon", i)] = "its spring yields (springyield)"
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
    if pieces := _pieces(robot, tendons, at):
        owners = np.concatenate([piece.owners for piece in pieces])
        length = length + sums(jnp.concatenate([piece.length for piece in pieces]), owners, count)
        rows = jnp.concatenate([robot.broadcast(piece.rows(robot, at)) for piece in pieces])
        jacobian = jacobian + sums(rows, owners, count)
    return TendonRows(length, (jacobian * at.v[None]).sum(axis=1), jacobian, _entries(robot, tendons))


def _entries(robot: Any, tendons: Any) -> tuple[tuple[bool, ...], ...]:
    """Return which degrees of freedom can change the length of each tendon."""
    moves = np.zeros((len(tendons.names), robot.nv), bool)
    for owner, _, dof in tendons.joints:
        moves[owner, dof] = True
    sites, geoms = (moving(robot, np.array(x.dofs, int)) for x in (tendons.sites, tendons.geoms))
    for owner, first, second in tendons.segments:
        # What carries both ends of a piece moves them as one body.
        moves[owner] |= sites[first] ^ sites[second]
    for owner, first, second, geom, _ in tendons.wraps:
        moves[owner] |= (sites[first] ^ sites[second]) | (sites[first] ^ geoms[geom])
    return tuple(map(tuple, moves.tolist()))


class _Pieces(NamedTuple):
    """Straight pieces of tendons, each between two places that are fixed in bodies."""

    owners: np.ndarray
    length: Any
    """The part of the tendon's length, `[n, *batch]`."""
    ends: tuple[Located, Located]
    bodies: tuple[np.ndarray, np.ndarray]
    """MuJoCo's numbers of the bodies of both ends."""
    pull: Vec3
    """The derivative of the tendon's length by the place of the second end: a direction, over the divisor."""

    def rows(self, robot: Robot, at: Instant) -> Any:
        """Return the derivatives of the tendon's length by the velocities, `[n, nv, *batch]`."""
        one, two = (point_rows(robot, at, end).linear for end in self.ends)
        return jax.tree.map(lambda x: x[:, None], self.pull).dot(two - one)


def _pieces(robot: Robot, tendons: PartRows, at: Instant) -> list[_Pieces]:
    """Return the straight pieces of all spatial tendons. What lies on a geom is in the length of the piece before it;
    pieces to a geom that the path does not touch have no length and do not pull."""
    if not tendons.bodies:
        return []
    sites, bodies, out = Places.located(tendons.sites, at), np.array(tendons.bodies), []
    if tendons.segments:
        owners, first, second = np.array(tendons.segments).T
        ends = sites.take(first), sites.take(second)
        out.append(_piece(owners, ends, (bodies[first], bodies[second]), 1 / tendons.divisor))
    if not tendons.wraps:
        return out
    owners, first, second, geom, side = np.array(tendons.wraps).T
    around, on = Places.located(tendons.geoms, at).take(geom), np.array(tendons.geom_bodies)[geom]
    one, two = sites.take(first), sites.take(second)
    R, center = around.pose.rotation, around.pose.translation
    ends = [R.apply_transpose(x.pose.translation - center) for x in (one, two, sites.take(np.maximum(side, 0)))]
    spheres, radius = np.array(tendons.spheres)[geom], take_rows(tendons.radius, geom)
    wrap = wrapped(robot, spheres, radius, (ends[0], ends[1]), ends[2], side >= 0)
    touched = jnp.where(wrap.there, 1 / tendons.wrap_divisor, 0.0)
    ahead, behind = (_moved(around, R.apply(x)) for x in (wrap.first, wrap.second))
    out.append(_piece(owners, (one, two), (bodies[first], bodies[second]), 1 / tendons.wrap_divisor - touched))
    to = _piece(owners, (one, ahead), (bodies[first], on), touched)
    out.append(to._replace(length=to.length + wrap.arc * touched))
    out.append(_piece(owners, (behind, two), (on, bodies[second]), touched))
    return out


def _moved(place: Located, shift: Vec3) -> Located:
    """Return frames of the same bodies, with shifted origins."""
    return Located(Pose(place.pose.rotation, place.pose.translation + shift), place.arm + shift, place.dofs)


def _piece(owners: np.ndarray, ends: tuple[Located, Located], bodies, share) -> _Pieces:
    """Return straight pieces, of which shares count: those with the share 0 have no derivatives."""
    shift = ends[1].pose.translation - ends[0].pose.translation
    shift = jax.tree.map(lambda x, other: jnp.where(share > 0, x, other), shift, Vec3(1.0, 0.0, 0.0))
    distance, direction = _straight(shift)
    return _Pieces(owners, distance * share, ends, bodies, direction * share)


def tendon_loads(robot: Robot, tendons: PartRows, at: Instant, tension) -> tuple[Loads, ...]:
    """Return the forces of spatial tendons on bodies, for the forces along the tendons, `[nt, *batch]`, which push
    their ends apart."""
    out: list[Loads] = []
    for piece in _pieces(robot, tendons, at):
        force = jax.tree.map(robot.broadcast, piece.pull * take_rows(tension, piece.owners))
        none = jax.tree.map(jnp.zeros_like, force)
        for end, bodies, f in zip(piece.ends, piece.bodies, (-force, force), strict=True):
            out.append(Loads(bodies, end.pose.translation, f, none))
    return tuple(out)


class TendonInertia(NamedTuple):
    """The inertia along tendons at one state, rows."""

    matrix: Any
    """The part of the mass matrix that it makes, `[nv * nv, *batch]`. As in MuJoCo, only entries of which one degree of
    freedom moves the other are other than zero (`mj_tendonArmature`)."""
    bias: Any
    """The forces that it takes without acceleration, `[nv, *batch]` (`mj_tendonBias`)."""
    rate: Any
    """The accelerations of the lengths of all tendons without those of the degrees of freedom, `[nt, *batch]`."""


def tendon_inertia(robot: Robot, tendons: PartRows, at: Instant, rows: TendonRows | None) -> TendonInertia | None:
    """Return the inertia along tendons at a state; None where no tendon has any."""
    if rows is None or not tendons.heavy:
        return None
    which = np.array(tendons.heavy)
    J, rate = robot.broadcast(take_rows(rows.jacobian, which)), _rates_of_rows(robot, tendons, at)
    pulled = J * take_rows(tendons.armature, which)[:, None]
    related = robot.topology.dof_ancestors | robot.topology.dof_ancestors.T
    matrix = (J[:, :, None] * pulled[:, None]).sum(axis=0) * robot.constant(related.astype(float))
    bias = (pulled * take_rows(rate, which)[:, None]).sum(axis=0)
    return TendonInertia(matrix.reshape(-1, *matrix.shape[2:]), bias, rate)


def inertial_tension(tendons: PartRows, rows: TendonRows, along: TendonInertia, a) -> Any:
    """Return the forces along the tendons by which their inertia resists accelerations, `[nt, *batch]`."""
    return -tendons.armature * (rates_of(rows.jacobian, a) + along.rate)


def _rates_of_rows(robot: Robot, tendons: PartRows, at: Instant):
    """Return the accelerations of the tendons' lengths without those of the degrees of freedom (along axes that do not
    turn), `[nt, *batch]`. MuJoCo's compiler refuses armature of tendons that wrap around geoms."""
    total = jnp.zeros((len(tendons.names), *robot.batch), robot.dtype)
    if not tendons.segments:
        return total
    piece, v = _pieces(robot, tendons, at)[0], robot.broadcast(at.v)
    still = -turning_accelerations(robot, v)
    moving1, moving2 = (end.velocity(at).linear for end in piece.ends)
    rising1, rising2 = (accelerations_of(robot, at, still, end).linear for end in piece.ends)
    apart, shift = moving2 - moving1, piece.ends[1].pose.translation - piece.ends[0].pose.translation
    distance, direction = _straight(shift)
    there = distance > 0
    turned = (apart.squared_norm() - direction.dot(apart) ** 2) / jnp.where(there, distance, 1.0)
    rate = direction.dot(rising2 - rising1) + jnp.where(there, turned, 0.0)
    return total + sums(robot.broadcast(rate / tendons.divisor), piece.owners, len(tendons.names))


def across_branches(model: Model, tendons: Tendons) -> list[str]:
    """Return the names of tendons with armature that two degrees of freedom move of which neither moves the other."""
    entries = np.array(_entries(model, tendons), bool)
    related = model.topology.dof_ancestors | model.topology.dof_ancestors.T
    return [tendons.names[i] for i in tendons.heavy if (entries[i][:, None] & entries[i] & ~related).any()]


def _straight(shift: Vec3) -> tuple[Any, Vec3]:
    """Return the lengths of vectors, and their directions: that of x for one of no length."""
    square = shift.squared_norm()
    there = square > SMALL * SMALL
    distance = jnp.sqrt(jnp.where(there, square, 1))
    inverse = jnp.where(there, 1 / distance, 0)
    direction = Vec3(shift.x * inverse + jnp.where(there, 0.0, 1.0), shift.y * inverse, shift.z * inverse)
    return jnp.where(there, distance, 0), direction
