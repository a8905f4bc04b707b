"""Equality constraints of a world, as rows: points, poses, coordinates and lengths of tendons that are held together.

Source: MuJoCo's manual, chapter Modeling, Equality; `engine_core_constraint.c` of MuJoCo 4.0.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._types import Array, Float, float_leaf
from jaxdyn.algorithms.recursions import Robot, turning_accelerations, velocity_accelerations
from jaxdyn.io.mjcf import enum_name, is_disabled, object_name
from jaxdyn.laws import SoftEquality
from jaxdyn.rows import Ends, MatrixRows, between, rates_of, unit_rows
from jaxdyn.solve import Term
from jaxdyn.spatial import Force, Motion, Quaternion, Vec3, compose_poses, pose_array
from jaxdyn.tree import columns_of, sum_down, take_rows
from jaxdyn.worlds._parts import Instant, Located, Part, PartRows, Places, frames_of
from jaxdyn.worlds._rows import Timing, coherent, regularization, soft_term, softness
from jaxdyn.worlds._tendons import TendonRows


class _Held(Part):
    """Equalities between frames: the points of connections come first, then those of welds."""

    numbers: tuple[int, ...] = eqx.field(static=True)
    """MuJoCo's numbers of the equalities."""
    active: Float[Array, "*batch n"]
    """Positive for those that act."""
    connections: int = eqx.field(static=True)
    bodies: tuple[tuple[int, int], ...] = eqx.field(static=True)
    """MuJoCo's numbers of the bodies."""
    first: Places
    second: Places
    scale: Float[Array, "*batch welds"]
    """The length that makes an angle an error, of each weld (`torquescale`)."""
    solref: Float[Array, "*batch n 2"]
    solimp: Float[Array, "*batch n 5"]
    weight: Float[Array, "*batch n"]
    """The estimate of the diagonal of `J M^-1 J^T` of the rows of the positions."""
    turning_weight: Float[Array, "*batch n"]


class _Coupled(Part):
    """Equalities of coordinates or of the lengths of tendons."""

    numbers: tuple[int, ...] = eqx.field(static=True)
    """MuJoCo's numbers of the equalities."""
    active: Float[Array, "*batch n"]
    """Positive for those that act."""
    tendons: bool = eqx.field(static=True)
    pairs: tuple[tuple[int, int, int, int], ...] = eqx.field(static=True)
    """Both coordinates and degrees of freedom, or both tendons and -1; the second is -1 where there is none."""
    reference: Float[Array, "*batch n 2"]
    polynomial: Float[Array, "*batch n 5"]
    solref: Float[Array, "*batch n 2"]
    solimp: Float[Array, "*batch n 5"]
    weight: Float[Array, "*batch n"]


class Equalities(Part):
    """The equality constraints of a world."""

    names: tuple[str, ...] = eqx.field(static=True)
    """The names of all constraints of the file."""

    held: _Held | None
    joints: _Coupled | None
    tendons: _Coupled | None

    def row_count(self) -> int:
        """Return the number of rows."""
        held = (
            0 if self.held is None else 3 * len(self.held.bodies) + 3 * (len(self.held.bodies) - self.held.connections)
        )
        return held + sum(len(x.pairs) for x in (self.joints, self.tendons) if x is not None)

    @classmethod
    def of(cls, m) -> Self:
        """Return the equalities of an `mjModel`."""
        by_kind: dict[str, list[int]] = {}
        for i in [] if is_disabled(m, "equality", "constraint") else range(m.neq):
            by_kind.setdefault(enum_name("mjtEq", m.eq_type[i]), []).append(i)
        connect, weld = (_moving(m, by_kind.get(kind, [])) for kind in ("connect", "weld"))
        joints, tendons = by_kind.get("joint", []), by_kind.get("tendon", [])
        return cls(
            tuple(object_name(m, "equality", i) for i in range(m.neq)),
            _held(m, connect, weld) if connect or weld else None,
            _coupled(m, joints, tendons=False) if joints else None,
            _coupled(m, tendons, tendons=True) if tendons else None,
        )


def reasons_against_equalities(m) -> dict[str, str]:
    """Return, by the names of the equality constraints of an `mjModel` that are not built, why."""
    built = ("connect", "weld", "joint", "tendon")
    kinds = {object_name(m, "equality", i): enum_name("mjtEq", m.eq_type[i]) for i in range(m.neq)}
    return {name: f"it is of the kind {kind!r}" for name, kind in kinds.items() if kind not in built}


def _bodies(m, i: int) -> list[int]:
    ends = [int(m.eq_obj1id[i]), int(m.eq_obj2id[i])]
    return [int(m.site_bodyid[e]) for e in ends] if _of_sites(m, i) else ends


def _of_sites(m, i: int) -> bool:
    return enum_name("mjtObj", m.eq_objtype[i]) == "site"


def _moving(m, numbers: list[int]) -> list[int]:
    """Return the equalities that joints can move."""
    return [i for i in numbers if m.body_dofnum[m.body_weldid[_bodies(m, i)]].any()]


def _held(m, connect: list[int], weld: list[int]) -> _Held:
    numbers = [*connect, *weld]
    dofs, poses = frames_of(m, "body")
    site_dofs, site_poses = frames_of(m, "site")
    ends: list[list[tuple[int, np.ndarray]]] = [[], []]
    for i in numbers:
        data = np.array(m.eq_data[i])
        if i in weld:
            own = pose_array(data[3:6], data[6:10]), pose_array(data[:3], [1.0, 0, 0, 0])
        else:
            own = tuple(pose_array(x, [1.0, 0, 0, 0]) for x in (data[:3], data[3:6]))
        for side, (end, number) in enumerate(zip(own, (m.eq_obj1id[i], m.eq_obj2id[i]), strict=True)):
            if _of_sites(m, i):
                ends[side].append((int(site_dofs[number]), site_poses[number]))
            else:
                ends[side].append((int(dofs[number]), compose_poses(poses[number], end)))
    bodies = np.array([_bodies(m, i) for i in numbers])
    first, second = (
        Places.fixed_to(m, [d for d, _ in side], np.array([p for _, p in side]), own)
        for side, own in zip(ends, bodies.T, strict=True)
    )
    weights = m.body_invweight0.reshape(-1, 2)[bodies].sum(axis=1)
    return _Held(
        numbers=tuple(numbers),
        active=float_leaf(m.eq_active0[numbers]),
        connections=len(connect),
        bodies=tuple((int(one), int(two)) for one, two in bodies),
        first=first,
        second=second,
        scale=float_leaf(m.eq_data[weld, 10]),
        solref=float_leaf(coherent(m.eq_solref[numbers])),
        solimp=float_leaf(m.eq_solimp[numbers]),
        weight=float_leaf(weights[:, 0]),
        turning_weight=float_leaf(weights[:, 1]),
    )


def _coupled(m, numbers: list[int], *, tendons: bool) -> _Coupled:
    pairs, references, weights = [], [], []
    for i in numbers:
        ends = [int(m.eq_obj1id[i]), int(m.eq_obj2id[i])]
        there = [e for e in ends if e >= 0]
        if tendons:
            pairs.append((*ends, -1, -1))
            values, own = m.tendon_length0, m.tendon_invweight0[there]
            references.append([values[e] if e >= 0 else 0.0 for e in ends])
        else:
            places = [(m.jnt_qposadr[e], m.jnt_dofadr[e]) if e >= 0 else (-1, -1) for e in ends]
            pairs.append(tuple(int(x) for x in (places[0][0], places[1][0], places[0][1], places[1][1])))
            own = m.dof_invweight0[m.jnt_dofadr[there]]
            references.append([m.qpos0[m.jnt_qposadr[e]] if e >= 0 else 0.0 for e in ends])
        weights.append(own.sum())
    arrays = references, m.eq_data[numbers, :5], coherent(m.eq_solref[numbers]), m.eq_solimp[numbers], weights
    active = float_leaf(m.eq_active0[numbers])
    return _Coupled(tuple(numbers), active, tendons, tuple(pairs), *(float_leaf(np.array(x, float)) for x in arrays))


def with_active(equalities: Equalities, active: Any) -> Equalities:
    """Return the equalities with those acting that `active` `[*batch, neq]` has."""

    def changed(part):
        if part is None or not hasattr(part, "numbers"):
            return part
        return eqx.tree_at(lambda x: x.active, part, active[..., np.array(part.numbers, int)])

    return dataclasses.replace(
        equalities, **{k: changed(getattr(equalities, k)) for k in ("held", "joints", "tendons")}
    )


def equality_terms(
    robot: Robot, equalities: PartRows, at: Instant, tendons: TendonRows | None, timing: Timing
) -> list[Term]:
    """Return the rows of the equalities at a state."""
    out = []
    if equalities.held is not None:
        out += _held_rows(robot, equalities.held, at, timing)
    for coupled in (equalities.joints, equalities.tendons):
        if coupled is not None:
            out.append(_coupled_rows(robot, coupled, at, tendons, timing))
    return out


def _coupled_rows(robot: Robot, coupled: PartRows, at: Instant, tendons: TendonRows | None, timing: Timing) -> Term:
    first, second, dof1, dof2 = np.array(coupled.pairs).T
    if coupled.tendons:
        assert tendons is not None
        y1, y2 = (take_rows(tendons.length, x) for x in (first, second))
        J1, J2 = (take_rows(tendons.jacobian, x) for x in (first, second))
        moves = tendons.moves(first) | tendons.moves(second)
    else:
        y1, y2 = (take_rows(at.q, x) for x in (first, second))
        (J1, moves), (J2, more) = unit_rows(robot, dof1, 1.0), unit_rows(robot, np.maximum(dof2, 0), dof2 >= 0)
        moves = moves | more
    value, slope = coupling(robot, coupled, y2)
    position = y1 - columns_of(coupled.reference)[0] - value
    J = robot.broadcast(J1 - slope[:, None] * J2)
    soft = softness(coupled.solref, coupled.solimp, position, timing)
    aref = -soft.damping * rates_of(J, at.v) - soft.stiffness * position
    return soft_term(
        robot,
        SoftEquality,
        MatrixRows.of(J, moves),
        aref,
        regularization(soft.share, coupled.weight),
        coupled.active > 0,
    )


def coupling(robot: Robot, coupled: PartRows, y2) -> tuple[Any, Any]:
    """Return how far the first coordinates or lengths are to be from their references, and the derivatives of this by
    the second ones `y2`."""
    there = robot.constant((np.array(coupled.pairs)[:, 1] >= 0).astype(float))
    x, c = (y2 - columns_of(coupled.reference)[1]) * there, columns_of(coupled.polynomial)
    return _polynomial(c, x), _polynomial([k * a for k, a in enumerate(c)][1:], x) * there


def _polynomial(c: list, x):
    return functools.reduce(lambda total, a: total * x + a, reversed(c[:-1]), c[-1])


_AXES = Vec3(1.0, 0.0, 0.0), Vec3(0.0, 1.0, 0.0), Vec3(0.0, 0.0, 1.0)


def _held_rows(robot: Robot, held: PartRows, at: Instant, timing: Timing) -> list[Term]:
    """Return the rows of connections and welds; those of one constraint stand apart, direction by direction."""
    one, two = Places.located(held.first, at), Places.located(held.second, at)
    bias = _biases(robot, at)
    # The points are apart where the constraint is violated.
    ends = Ends.of(two.dofs, two.arm, one.dofs, one.arm, shared=False)
    zero = Vec3(*(jnp.zeros_like(one.arm.x) for _ in range(3)))
    axes = [Vec3(*(zero.x + c for c in (a.x, a.y, a.z))) for a in _AXES]
    jacobians, moves = between(robot, at.at.S, ends, [Force(zero, a) for a in axes])
    d = one.pose.translation - two.pose.translation
    apart = _accelerations(one, at, bias).linear - _accelerations(two, at, bias).linear
    positions, extra = [d.x, d.y, d.z], [apart.x, apart.y, apart.z]
    count = len(held.first.dofs)
    welded = np.arange(held.connections, count)
    turns = None
    if len(welded):
        turns = _turns(
            robot, take_rows(held.scale, np.arange(len(welded))), one.take(welded), two.take(welded), at, bias
        )
    size = d.squared_norm()
    if turns is not None:
        angles = sum((x * x for x in turns[1]), 0.0 * turns[1][0])
        where = np.full(count, -1)
        where[welded] = np.arange(len(welded))
        size = size + take_rows(angles, where)
    there = size > 0
    norm = jnp.where(there, jnp.sqrt(jnp.where(there, size, 1.0)), 0.0)
    soft = softness(held.solref, held.solimp, norm, timing)

    acts = held.active > 0

    def rows(J, mask, position, acceleration, weight, soft, acts) -> Term:
        aref = -soft.damping * rates_of(J, at.v) - soft.stiffness * position - acceleration
        return soft_term(robot, SoftEquality, MatrixRows.of(J, mask), aref, regularization(soft.share, weight), acts)

    out = [rows(J, moves, p, a, held.weight, soft, acts) for J, p, a in zip(jacobians, positions, extra, strict=True)]
    if turns is not None:
        soft = jax.tree.map(lambda x: take_rows(x, welded), soft)
        weight, acts = take_rows(held.turning_weight, welded), take_rows(held.active, welded) > 0
        out += [rows(J, moves[welded], p, a, weight, soft, acts) for J, p, a in zip(*turns, strict=True)]
    return out


def _turns(robot: Robot, scale, one: Located, two: Located, at: Instant, bias: Motion) -> tuple[list, list, list]:
    """Return the rows, errors and accelerations due to velocities of the turns of welds: the vector part of the
    quaternion of the first frame in the second."""
    R = two.pose.rotation
    Q = Quaternion.from_rotation(R.T.compose(one.pose.rotation))
    e, w = Q.vector, Q.w
    half = 0.5 * scale
    # The rate of the vector part is 1/2 (w u + u x e), with the angular velocity u in the second frame.
    moments = [R.apply(a * w + e.cross(a)) * half for a in _AXES]
    zero = Vec3(*(jnp.zeros_like(w) for _ in range(3)))
    ends = Ends.of(two.dofs, two.arm, one.dofs, one.arm, shared=True)
    rows, _ = between(robot, at.at.S, ends, [Force(m, zero) for m in moments])
    one_turns, two_turns = (x.velocity(at).angular for x in (one, two))
    u = R.apply_transpose(one_turns - two_turns)
    grows = (take_rows(bias, x.dofs).angular for x in (one, two))
    apart = functools.reduce(operator.sub, grows) - two_turns.cross(one_turns - two_turns)
    u_rate = R.apply_transpose(apart)
    e_rate, w_rate = (u * w + u.cross(e)) * 0.5, -0.5 * u.dot(e)
    curve = (u * w_rate + u_rate * w + u_rate.cross(e) + u.cross(e_rate)) * half
    errors = [e.x * scale, e.y * scale, e.z * scale]
    return rows, errors, [curve.x, curve.y, curve.z]


def _biases(robot: Robot, at: Instant) -> Motion:
    """Return the accelerations of the bodies, about the points of reference, where MuJoCo's are zero."""
    c = velocity_accelerations(robot, at.at.S * at.v, at.velocity)
    return sum_down(robot.tree, c - at.at.S * turning_accelerations(robot, at.v))


def _accelerations(place: Located, at: Instant, bias: Motion) -> Motion:
    """Return the accelerations of frames, of their linear parts those of the points."""
    A = take_rows(bias, place.dofs).at(place.arm)
    V = place.velocity(at)
    return Motion(A.angular, A.linear + V.angular.cross(V.linear))
