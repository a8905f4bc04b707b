"""Candidates of two boxes, after MuJoCo's engine_collision_box.c: the direction in which they are farthest apart, and
then either two edges that cross, or one box's face clipped to the other's (Sutherland & Hodgman 1974)."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdyn.geometry._componentwise import SHORTEST, clipped, largest_of, roundoff, select
from jaxdyn.geometry._witness import FAR, Witness, inactive_unless
from jaxdyn.geometry.pairs._candidates import Placed, half_sizes, parts
from jaxdyn.spatial import Mat3, Vec3

COUNT = 8
"""Two convex quadrangles share at most eight corners."""
EDGE_HANDICAP = 1e-6
"""The part of its separation by which two edges have to be farther apart than faces."""
SAME_DIRECTION = 0.99
"""The cosine from which on the direction of two edges is the face's, which then counts instead."""
FACE_ADVANTAGE = 0.05
"""The part of the faces' separation by which such edges have to be farther apart than faces."""


class _Tiny(NamedTuple):
    """The sizes below which numbers of a precision count as zero."""

    separation: float
    """The slack of separations, as a part of the sum of all half sizes."""
    parallel: float
    """The square of the sine of the angle between parallel edges."""
    sideways: float
    """The component of a direction that has no sign."""
    equal: float
    """The square of the distance of equal points, as a part of the squared size of the face."""


_LIMITS = {True: _Tiny(1e-13, 1e-16, 1e-9, 1e-14), False: _Tiny(1e-6, 1e-7, 1e-5, 1e-10)}
"""For double precision and for single precision."""


class _Boxes(NamedTuple):
    """Two boxes, seen from the first."""

    half1: Vec3
    half2: Vec3
    turn: Mat3
    """Takes vectors in the second box's axes to the first box's."""
    to_two: Vec3
    """The second box's center in the first box's axes."""
    to_one: Vec3
    """The first box's center in the second box's axes."""
    limits: _Tiny
    noise: Any
    """Lengths that are smaller are zero."""

    @property
    def slack(self):
        return self.limits.separation * sum(jax.tree.leaves((self.half1, self.half2)))


class _Reference(NamedTuple):
    """The face that separates the boxes best, with the other box in its axes: two along the face, and its normal."""

    half: Vec3
    """The half sizes of the face's box along these axes."""
    center: Vec3
    """The other box's center."""
    other: Mat3
    """The other box's axes."""
    other_half: Vec3
    axes: Mat3
    """The three axes in the world."""
    origin: Vec3
    """The center of the face's box in the world."""
    of_one: Any
    """Whether it belongs to the first box."""


def box_box(one: Placed, two: Placed, margin) -> list[Witness]:
    boxes = _seen_from_first(one, two)
    slack = margin + boxes.slack
    face_apart, best_face = largest_of(_faces(boxes, one, two), boxes.noise)
    edges_apart, counts, edge = _best_edges(boxes, face_apart)
    apart = jnp.maximum(face_apart, edges_apart)
    along_face = jnp.abs(edge.axis.dot(_normal_in_first(best_face, one)))
    by_edges = counts & ~(
        (along_face > SAME_DIRECTION) & (edge.separation < face_apart + FACE_ADVANTAGE * jnp.abs(face_apart) + SHORTEST)
    )
    crossing = _crossing(boxes, edge, one)
    touching = apart <= slack
    corners = _clipped_corners(best_face, margin, boxes)
    found = []
    for k, corner in enumerate(corners):
        each = inactive_unless(touching & ~by_edges, corner)
        if k == 0:
            each = select(by_edges, inactive_unless(touching, crossing), each)
        found.append(each)
    return found


def _seen_from_first(one: Placed, two: Placed) -> _Boxes:
    half1, half2 = (half_sizes(box) for box in (one, two))
    between, r1, r2 = two.position - one.position, one.pose.rotation, two.pose.rotation
    turn = r1.T.compose(r2)
    to_two, to_one = r1.apply_transpose(between), r2.apply_transpose(-between)
    dtype = jnp.result_type(between.x)
    lengths = sum(jnp.abs(x) for x in jax.tree.leaves((half1, half2, one.position, two.position)))
    noise = roundoff(between.x) * lengths
    return _Boxes(half1, half2, turn, to_two, to_one, _LIMITS[dtype == jnp.float64], noise)


def _absolute(v):
    return jax.tree.map(jnp.abs, v)


def _permuted(v, i: int):
    """The components of a vector, or the columns of a matrix, with the one of number `i` last."""
    own = parts(v)
    return type(v)(own[(i + 1) % 3], own[(i + 2) % 3], own[i])


def _faces(boxes: _Boxes, one: Placed, two: Placed) -> list[tuple[Any, _Reference]]:
    """The separations along the normals of the six faces, and these."""
    cases = []
    for box, half, center, turn, other_half, of_one in (
        (one, boxes.half1, boxes.to_two, boxes.turn, boxes.half2, True),
        (two, boxes.half2, boxes.to_one, boxes.turn.T, boxes.half1, False),
    ):
        rows = turn.T
        for i in range(3):
            reach = _absolute(parts(rows)[i]).dot(other_half)
            apart = jnp.abs(parts(center)[i]) - parts(half)[i] - reach
            other = _permuted(rows, i).T
            axes = _permuted(box.pose.rotation, i)
            flag = jnp.full_like(apart, of_one, bool)
            face = _Reference(_permuted(half, i), _permuted(center, i), other, other_half, axes, box.position, flag)
            cases.append((apart, face))
    return cases


def _normal_in_first(face: _Reference, one: Placed) -> Vec3:
    return one.pose.rotation.apply_transpose(face.axes.z)


class _Edges(NamedTuple):
    """Two edges that cross, in the first box's axes."""

    separation: Any
    axis: Vec3
    """The direction across both."""
    which1: Vec3
    """1 for the axis of the first box along which its edge runs, 0 for the others."""
    which2: Vec3
    """The same for the second box, in its axes."""


def _best_edges(boxes: _Boxes, face_apart) -> tuple[Any, Any, _Edges]:
    """The largest separation along the nine directions across two edges, whether one of them is better than the faces,
    and the best one."""
    units = (Vec3(1.0, 0.0, 0.0), Vec3(0.0, 1.0, 0.0), Vec3(0.0, 0.0, 1.0))
    zero = jnp.zeros_like(face_apart)

    def filled(v: Vec3) -> Vec3:
        return jax.tree.map(lambda x: x + zero, v)

    best = _Edges(face_apart, filled(units[0]), filled(units[0]), filled(units[0]))
    largest, counts = face_apart, jnp.zeros_like(face_apart, bool)
    for unit1, (unit2, column) in itertools.product(units, zip(units, parts(boxes.turn), strict=True)):
        across = unit1.cross(column)
        square = across.squared_norm()
        crossing = square >= boxes.limits.parallel
        axis = across * (1 / jnp.sqrt(jnp.where(crossing, square, 1)))
        reaches = _absolute(axis).dot(boxes.half1) + _absolute(boxes.turn.apply_transpose(axis)).dot(boxes.half2)
        apart = jnp.where(crossing, jnp.abs(axis.dot(boxes.to_two)) - reaches, -FAR)
        largest = jnp.maximum(largest, apart)
        better = crossing & (apart - EDGE_HANDICAP * jnp.abs(apart) > best.separation) & (apart > face_apart)
        counts = counts | better
        best = select(better, _Edges(apart, axis, filled(unit1), filled(unit2)), best)
    return largest, counts, best


def _crossing(boxes: _Boxes, edges: _Edges, one: Placed) -> Witness:
    """The contact of two edges that cross. Where the direction across is also across another edge of the same face,
    both edges are tried, and the nearer one counts."""
    axis = edges.axis * jnp.where(edges.axis.dot(boxes.to_two) < 0, -1.0, 1.0).astype(jnp.result_type(edges.axis.x))
    in_two = boxes.turn.apply_transpose(axis)
    along = boxes.turn.apply(edges.which2)
    cosine = edges.which1.dot(along)
    reach1, reach2 = edges.which1.dot(boxes.half1), edges.which2.dot(boxes.half2)
    square = 1 - cosine * cosine
    apart = square >= SHORTEST
    corners1 = [_corner(axis, boxes.half1, edges.which1, boxes.limits, flip) for flip in (False, True)]
    corners2 = [_corner(-in_two, boxes.half2, edges.which2, boxes.limits, flip, tie=-1.0) for flip in (False, True)]
    cases = []
    for corner1, corner2 in itertools.product(corners1, corners2):
        start = boxes.turn.apply(corner2) + boxes.to_two
        offset = start - corner1
        on1, on2 = edges.which1.dot(offset), along.dot(offset)
        s = jnp.where(apart, (on1 - cosine * on2) / jnp.where(apart, square, 1), 0)
        t = clipped(cosine * clipped(s, reach1) - on2, reach2)
        s = clipped(on1 + cosine * t, reach1)
        place1, place2 = corner1 + edges.which1 * s, start + along * t
        cases.append((-(place2 - place1).squared_norm(), (place1, place2)))
    place1, place2 = largest_of(cases, boxes.noise * boxes.noise)[1]
    distance = (place2 - place1).dot(axis)
    return Witness(distance, one.pose.rotation.apply(axis), one.pose.apply((place1 + place2) * 0.5))


def _corner(axis: Vec3, half: Vec3, which: Vec3, limits: _Tiny, flip: bool, tie: float = 1.0) -> Vec3:
    """The middle of the edge that is farthest along an axis, or the other one where the axis has no sign."""

    def part(x, size, own):
        upward = (x >= 0) if tie > 0 else (x > 0)
        sign = jnp.where(upward, 1.0, -1.0).astype(jnp.result_type(x))
        if flip:
            sign = jnp.where(jnp.abs(x) < limits.sideways, -sign, sign)
        return size * sign * (1 - own)

    return jax.tree.map(part, axis, half, which)


def _clipped_corners(face: _Reference, margin, boxes: _Boxes) -> list[Witness]:
    """The corners of the part of the other box's face that lies over the face."""
    upward = jnp.where(face.center.z >= 0, 1.0, -1.0).astype(jnp.result_type(face.center.z))
    corners = _incident_corners(face, upward)
    size = jnp.full_like(face.half.x, 4.0)
    polygon, size = _within(corners, [p.x for p in corners], face.half.x, size, boxes.noise)
    polygon, size = _within(polygon, [p.y for p in polygon], face.half.y, size, boxes.noise)
    kept = [(k < size) & (p.z <= margin) for k, p in enumerate(polygon)]
    smallest = boxes.limits.equal * (face.half.x * face.half.x + face.half.y * face.half.y)
    normal = face.axes.z * jnp.where(face.of_one, upward, -upward)
    found = []
    for k, p in enumerate(polygon):
        for j in range(k):
            dx, dy = polygon[j].x - p.x, polygon[j].y - p.y
            kept[k] = kept[k] & ~(kept[j] & (dx * dx + dy * dy < smallest))
        place = face.axes.apply(Vec3(p.x, p.y, upward * (face.half.z + 0.5 * p.z))) + face.origin
        found.append(inactive_unless(kept[k], Witness(p.z, normal, place)))
    return found


def _incident_corners(face: _Reference, upward) -> list[Vec3]:
    """The corners of the other box's face that looks most against the face, one after the other around it: two
    coordinates along the face, and the height over it."""
    cases = [
        (jnp.abs(parts(face.other)[k].z), (_permuted(face.other, k), _permuted(face.other_half, k))) for k in range(3)
    ]
    tie = roundoff(upward)
    axes, half = largest_of(cases, tie)[1]
    away = jnp.where(upward * axes.z.z > 0, -1.0, 1.0).astype(jnp.result_type(upward))
    middle = face.center + axes.z * (away * half.z)

    def with_height(v: Vec3) -> Vec3:
        return Vec3(v.x, v.y, v.z * upward)

    middle, u, v = with_height(middle), with_height(axes.x * half.x), with_height(axes.y * half.y)
    middle = Vec3(middle.x, middle.y, middle.z - face.half.z)
    return [middle + u + v, middle - u + v, middle - u - v, middle + u - v]


def _within(corners: list[Vec3], xs: list[Any], half, size, noise) -> tuple[list[Vec3], Any]:
    """The corners of the part of a convex polygon in which a coordinate is within `-half` and `half`, and their number.

    The first `size` of the corners count, and there are two more places. Each edge fills the next two places: with its
    start, or where it comes in, and with where it goes out. Corners on the border, but for rounding, are inside.
    """
    places = len(corners) + 2
    slots = [jax.tree.map(jnp.zeros_like, corners[0]) for _ in range(places)]
    filled = jnp.zeros_like(size)
    beyond = [[jnp.where(jnp.abs(d) < noise, 0, d) for d in (x - half, -x - half)] for x in xs]
    for k, p in enumerate(corners):
        (above, below), counts = beyond[k], k < size
        q, above_q, below_q = corners[0], *beyond[0]
        if k + 1 < len(corners):
            after = (corners[k + 1], *beyond[k + 1])
            q, above_q, below_q = select(size == k + 1, (q, above_q, below_q), after)
        inside = (above <= 0) & (below <= 0)
        # The distances of both ends from the border that the edge comes in by, and from the one it goes out by.
        start = select(above > 0, (above, above_q), (below, below_q))
        end = select(above_q > 0, (above, above_q), (below, below_q))
        enters, leaves = (start[0] > 0) & (start[1] < 0), (end[0] < 0) & (end[1] > 0)
        edge = q - p
        first = p + edge * jnp.where(enters, start[0] / jnp.where(enters, start[0] - start[1], 1), 0)
        second = p + edge * (end[0] / jnp.where(leaves, end[0] - end[1], 1))
        emitted = ((counts & (inside | enters), first, 2 * k), (counts & leaves, second, 2 * k + 1))
        for present, point, most in emitted:
            for s in range(min(most + 1, places)):
                slots[s] = select(present & (filled == s), point, slots[s])
            filled = filled + present
    return slots, jnp.minimum(filled, places)
