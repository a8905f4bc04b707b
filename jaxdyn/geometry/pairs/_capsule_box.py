"""Candidates of spheres and capsules with boxes, after MuJoCo's engine_collision_box.c."""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdyn.geometry._componentwise import (
    SHORTEST,
    X_AXIS,
    clipped,
    largest_of,
    length_and_direction,
    roundoff,
    select,
    side_by_side,
)
from jaxdyn.geometry._witness import FAR, Witness, inactive_unless
from jaxdyn.geometry.pairs._candidates import Placed, half_sizes
from jaxdyn.spatial import Vec3

type Triple = tuple[Any, ...]
"""One entry for each axis of the box."""


def sphere_box(sphere: Placed, box: Placed, margin) -> list[Witness]:
    center = box.pose.rotation.apply_transpose(sphere.position - box.position)
    return [sphere_at_box(box, center, sphere.size(0))]


def sphere_at_box(box: Placed, center: Vec3, radius) -> Witness:
    """The contact of a sphere whose center is given in the box's axes."""
    distance, normal = nearest_of_box(box, center)
    middle = center + normal * (0.5 * (distance + radius))
    return Witness(distance - radius, box.pose.rotation.apply(normal), box.pose.apply(middle))


def nearest_of_box(box: Placed, point: Vec3) -> tuple[Any, Vec3]:
    """The signed distance of a point in the box's axes, and the direction from it inward."""
    half = half_sizes(box)
    nearest = jax.tree.map(clipped, point, half)
    distance, inward = length_and_direction(nearest - point, X_AXIS, SHORTEST)
    # A point on the surface, but for rounding, is inside.
    tiny = roundoff(distance) * (half.x + half.y + half.z)
    outside = distance > tiny
    # Inside the box the nearest face counts, and among equally near ones the first.
    x, y, z = (jnp.where(c <= 0, 1.0, -1.0).astype(jnp.result_type(c)) for c in jax.tree.leaves(point))
    depth = jax.tree.map(lambda c, h: jnp.abs(c) - h, point, half)
    faces = [(depth.x, Vec3(x, 0.0, 0.0)), (depth.y, Vec3(0.0, y, 0.0)), (depth.z, Vec3(0.0, 0.0, z))]
    height, from_face = largest_of(faces, tiny)
    return jnp.where(outside, distance, height), select(outside, inward, from_face)


class _Nearest(NamedTuple):
    """Which place of a capsule's axis is nearest to which part of a box; arrays `[n, 1, *batch]`."""

    square: Any
    """The squared distance, m^2."""
    on_axis: Any
    """The place on the capsule's axis, from -1 to 1."""
    on_edge: Any
    """The place on the edge of the box, from -1 to 1."""
    is_face: Any
    """Whether an end of the capsule is nearest, which is over a face of the box or inside."""
    is_corner: Any
    """Whether an edge of the box is nearest, and with its end."""
    corner: Triple
    """The signs of the coordinates of the corner, or of the lower end of the edge."""
    along: Triple
    """With which axis of the box the edge runs, or to which the face belongs; none for an end inside the box."""


def capsule_box(capsule: Placed, box: Placed, margin) -> list[Witness]:
    """The contact nearest to the box, and a second one farther along the capsule where that lies along a face or an
    edge. Both are those of spheres at these places.

    MuJoCo's choice of the second place depends on the signs of the components of the capsule's axis in the box's axes,
    also where they are rounding errors: see `_Axis`.
    """
    center = box.pose.rotation.apply_transpose(capsule.position - box.position)
    axis = box.pose.rotation.apply_transpose(capsule.axis)
    reach = axis * capsule.size(1)
    nearest = _nearest_place(capsule, box, center, reach)
    exists, step = _second_place(box, center, axis, reach, nearest)

    def touching(place):
        return sphere_at_box(box, center + reach * place, capsule.size(0))

    known = nearest.square < FAR
    second = touching(nearest.on_axis + jnp.where(exists, step, 0))
    return [inactive_unless(known, touching(nearest.on_axis)), inactive_unless(exists & known, second)]


def _nearest_place(capsule: Placed, box: Placed, center: Vec3, reach: Vec3) -> _Nearest:
    """The two ends of the capsule are looked at first, then the twelve edges of the box in MuJoCo's order."""
    half = half_sizes(box)
    zero = jnp.zeros_like(center.x)
    no = zero > 0
    best = _Nearest(zero + FAR, zero, zero, no, no, (zero, zero, zero), (no, no, no))
    for way in (-1.0, 1.0):
        end = center + reach * way
        beside = jax.tree.map(lambda x, h: jnp.maximum(jnp.abs(x) - h, 0), end, half)
        over = (beside.x > 0, beside.y > 0, beside.z > 0)
        one_face = ~((over[0] & over[1]) | (over[1] & over[2]) | (over[2] & over[0]))
        square = beside.squared_norm()
        better = one_face & (square < best.square - SHORTEST)
        best = select(better, _Nearest(square, way + zero, zero, ~no, no, (zero, zero, zero), over), best)
    edges = side_by_side([_nearest_on_edges(j, capsule, half, center, reach) for j in range(3)])
    for k in range(12):
        j, (square, known, on_axis, on_edge, end) = k // 4, (x[:, k : k + 1] for x in edges)
        signs = _EDGES[j][k % 4]
        corner = tuple(jnp.where(end > 0, 1.0, -1.0) + zero if i == j else zero + signs[i] for i in range(3))
        along = tuple(~no if i == j else no for i in range(3))
        better = known & (square < best.square - SHORTEST)
        best = select(better, _Nearest(square, on_axis, on_edge, no, end != 0, corner, along), best)
    return best


_EDGES = [
    [signs[::-1] for signs in itertools.product(*[(0,) if i == j else (-1, 1) for i in (2, 1, 0)])] for j in range(3)
]
"""The signs of the coordinates of the four edges along each axis, in MuJoCo's order."""


def _nearest_on_edges(j: int, capsule: Placed, half: Vec3, center: Vec3, reach: Vec3) -> tuple[Any, ...]:
    """The squared distances of four edges from the capsule's axis, whether they are known, the places on the axis and
    on the edge, and -1 or 1 where the edge was left at its lower or upper end; arrays `[n, 4, *batch]`."""
    sizes = jax.tree.leaves(half)
    shape = (1, 4) + (1,) * (jnp.ndim(center.x) - 2)
    signs = [jnp.asarray([s[i] for s in _EDGES[j]], half.x.dtype).reshape(shape) for i in range(3)]
    offset = Vec3(*(s * x for s, x in zip(sizes, signs, strict=True))) - center
    along, step = sizes[j], jax.tree.leaves(reach)[j]
    # Squared lengths of the half edge and the half axis, their product, and both with the offset.
    ma, mb, mc = along * along, -along * step, capsule.size(1) * capsule.size(1)
    u, v = -along * jax.tree.leaves(offset)[j], reach.dot(offset)
    det = ma * mc - mb * mb
    known = jnp.abs(det) >= SHORTEST
    safe = jnp.where(known, det, 1)
    on_edge, on_axis = (mc * u - mb * v) / safe, (ma * v - mb * u) / safe
    end = _end(on_edge)
    on_axis = jnp.where(end != 0, (v - mb * end) / mc, on_axis)
    stop = _end(on_axis)
    again = (u - mb * stop) / ma
    # The end at which the edge was left first counts still where the edge is not left again.
    end = jnp.where((stop != 0) & (_end(again) != 0), _end(again), end)
    on_edge, on_axis = clipped(jnp.where(stop != 0, again, on_edge), 1.0), clipped(on_axis, 1.0)
    moved = [x + along * on_edge if k == j else x for k, x in enumerate(jax.tree.leaves(offset - reach * on_axis))]
    return Vec3(*moved).squared_norm(), known, on_axis, on_edge, end


def _end(x):
    """-1 or 1 for numbers beyond these, 0 for those between."""
    return jnp.where(x > 1, 1.0, jnp.where(x < -1, -1.0, 0.0)).astype(jnp.result_type(x))


def _second_place(box: Placed, center: Vec3, axis: Vec3, reach: Vec3, nearest: _Nearest) -> tuple[Any, Any]:
    """Whether there is a second contact, and how far along the axis it is from the first."""
    sizes = tuple(box.size(i) for i in range(3))
    parts = tuple(jax.tree.leaves(axis))
    flat = tuple(jnp.abs(x) <= roundoff(x) for x in parts)
    steps = tuple(jnp.where(small, 0, h) for small, h in zip(flat, jax.tree.leaves(reach), strict=True))
    ways = tuple(jnp.where(x > 0, 1.0, -1.0).astype(jnp.result_type(x)) for x in parts)
    axis_in_box = _Axis(parts, tuple(small & (x != 0) for small, x in zip(flat, parts, strict=True)), steps, ways)
    # 1 where the axis goes away from the corner, -1 where it comes towards it.
    outward = tuple(w * c for w, c in zip(ways, nearest.corner, strict=True))
    # The parts of the axis that cross the box from side to side.
    across = tuple(_quotient(2 * s, jnp.abs(h)) for s, h in zip(sizes, steps, strict=True))
    face = _second_over_face(sizes, center, steps, nearest)
    corner = _second_at_corner(axis_in_box, across, outward, nearest)
    edge = _second_at_edge(sizes, axis_in_box, across, outward, nearest)
    return select(nearest.is_face, face, select(nearest.is_corner, corner, edge))


class _Axis(NamedTuple):
    """The axis of a capsule in a box's axes, by components."""

    parts: Triple
    unsure: Triple
    """Which components are rounding errors, whose signs mean nothing. MuJoCo follows them. Here they are those with
    which there is a second contact."""
    steps: Triple
    """The components times half the length, without rounding errors."""
    ways: Triple
    """The signs of the components, -1 for zero as in MuJoCo."""


def _second_over_face(sizes, center: Vec3, steps, nearest: _Nearest) -> tuple[Any, Any]:
    """Where the axis leaves the face, or its other end."""
    way = -nearest.on_axis
    step = jnp.full_like(way, 2.0)
    for size, middle, h, own in zip(sizes, jax.tree.leaves(center), steps, nearest.along, strict=True):
        start = middle - way * h
        for side in (size, -size):
            place = _quotient((side - start) * way, h)
            step = jnp.where(~own & (place > 0) & (place < step), place, step)
    return functools.reduce(jnp.logical_or, nearest.along), step * way


def _second_at_corner(axis: _Axis, across, outward, nearest: _Nearest) -> tuple[Any, Any]:
    """Along the edge with the axis that differs from the other two, or else along the face."""
    squares = [x * x for x in axis.parts]
    main = largest_of(list(zip(squares, outward, strict=True)))[1]
    outward = tuple(jnp.where(unsure, -main, x) for unsure, x in zip(axis.unsure, outward, strict=True))
    exists = (outward[0] != outward[1]) | (outward[1] != outward[2])
    choices = []
    for k in range(3):
        i, j = (k + 1) % 3, (k + 2) % 3
        odd = (outward[i] == outward[j]) & (outward[k] != outward[i])
        way = -outward[k]
        along_edge = jnp.minimum(1 - way * nearest.on_axis, across[k]) * way
        over_face = jnp.minimum(jnp.minimum(1 + way * nearest.on_axis, across[i]), across[j]) * -way
        choices.append((odd, jnp.where(squares[k] > 0.5, along_edge, over_face)))
    return exists, _chosen(choices)


def _second_at_edge(sizes, axis: _Axis, across, outward, nearest: _Nearest) -> tuple[Any, Any]:
    """Across the face that the axis is flatter to, where axis and edge cross."""
    choices, crossing = [], []
    for k in range(3):
        i, j = (k + 1) % 3, (k + 2) % 3
        crossing.append(nearest.along[k] & (axis.unsure[i] | axis.unsure[j] | (outward[i] != outward[j])))
        steeper = jnp.abs(axis.parts[i]) > jnp.abs(axis.parts[j])
        way, limit = jnp.where(steeper, -outward[i], -outward[j]), jnp.where(steeper, across[i], across[j])
        to_end = _quotient(sizes[k] * (1 - axis.ways[k] * way * nearest.on_edge), jnp.abs(axis.steps[k]))
        step = jnp.minimum(jnp.minimum(1 - way * nearest.on_axis, limit), to_end) * way
        choices.append((nearest.along[k], step))
    return functools.reduce(jnp.logical_or, crossing), _chosen(choices)


def _chosen(choices):
    """The number beside the condition that holds, of conditions of which at most one does; otherwise zero."""
    return functools.reduce(lambda rest, each: jnp.where(each[0], each[1], rest), choices, 0.0)


def _quotient(x, y):
    """`x / y`, or a large number where `y` is zero."""
    return jnp.where(y != 0, x / jnp.where(y != 0, y, 1), FAR)
