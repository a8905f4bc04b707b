"""Candidates of spheres and capsules with boxes, after MuJoCo's engine_collision_box.c."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdyn.geometry import clipped, largest_of, length_and_direction, select, side_by_side
from jaxdyn.scenes._collisions._candidates import (
    FAR,
    SHORTEST,
    X_AXIS,
    Found,
    Geom,
    inactive_unless,
)
from jaxdyn.spatial import Vec3

type Triple = tuple[Any, Any, Any]


def sphere_box(sphere: Geom, box: Geom, margin) -> list[Found]:
    center = box.pose.rotation.apply_transpose(sphere.position - box.position)
    return [_sphere_at(box, center, sphere.size(0))]


def _sphere_at(box: Geom, center: Vec3, radius) -> Found:
    """The contact of a sphere whose center is given in the box's axes."""
    half = Vec3(box.size(0), box.size(1), box.size(2))
    nearest = jax.tree.map(clipped, center, half)
    distance, inward = length_and_direction(nearest - center, X_AXIS, SHORTEST)
    outside = distance > 0
    # Inside the box the nearest face counts, and among equally near ones the first.
    x, y, z = (jnp.where(c <= 0, 1.0, -1.0).astype(jnp.result_type(c)) for c in jax.tree.leaves(center))
    depth = jax.tree.map(lambda c, h: jnp.abs(c) - h, center, half)
    height, from_face = largest_of(
        [
            (depth.x, Vec3(x, 0.0, 0.0)),
            (depth.y, Vec3(0.0, y, 0.0)),
            (depth.z, Vec3(0.0, 0.0, z)),
        ]
    )
    distance, normal = jnp.where(outside, distance, height), select(outside, inward, from_face)
    middle = center + normal * (0.5 * (distance + radius))
    return Found(distance - radius, box.pose.apply(middle), box.pose.rotation.apply(normal))


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
    upper: Triple
    """Which coordinates of the corner, or of the edge, are positive."""
    along: Triple
    """With which axis of the box the edge runs, or to which the face belongs; none for an end inside the box."""


def capsule_box(capsule: Geom, box: Geom, margin) -> list[Found]:
    """The contact nearest to the box, and a second one farther along the capsule where that lies along a face or an
    edge. Both are those of spheres at these places."""
    center = box.pose.rotation.apply_transpose(capsule.position - box.position)
    axis = box.pose.rotation.apply_transpose(capsule.axis)
    reach = axis * capsule.size(1)
    nearest = _nearest_place(capsule, box, center, reach)
    exists, step = _second_place(box, center, axis, reach, nearest)

    def touching(place):
        return _sphere_at(box, center + reach * place, capsule.size(0))

    first = inactive_unless(nearest.square < FAR, touching(nearest.on_axis))
    second = touching(nearest.on_axis + jnp.where(exists, step, 0))
    return [first, inactive_unless(exists & (nearest.square < FAR), second)]


def _nearest_place(capsule: Geom, box: Geom, center: Vec3, reach: Vec3) -> _Nearest:
    """The two ends of the capsule are looked at first, then the twelve edges of the box in MuJoCo's order."""
    half = Vec3(box.size(0), box.size(1), box.size(2))
    no = jnp.zeros_like(center.x, bool)
    zero = jnp.zeros_like(center.x)
    limit = capsule.size(0) + capsule.size(1) + half.x + half.y + half.z
    best = _Nearest(FAR + zero, zero, zero, no, no, (no, no, no), (no, no, no))
    for way in (-1.0, 1.0):
        end = center + reach * way
        beside = end - jax.tree.map(clipped, end, half)
        over = tuple(x != 0 for x in jax.tree.leaves(beside))
        one_face = ~((over[0] & over[1]) | (over[1] & over[2]) | (over[2] & over[0]))
        square = beside.squared_norm()
        better = one_face & (square < jnp.minimum(best.square, 2 * limit))
        best = select(better, _Nearest(square, way + zero, zero, ~no, no, (no, no, no), over), best)
    edges = side_by_side([_nearest_on_edges(j, capsule, half, center, reach) for j in range(3)])
    for k in range(12):
        j, square, known, on_axis, on_edge, low, high = k // 4, *(x[:, k : k + 1] for x in edges)
        # The corner numbers of the four edges along axis j, in order.
        number = [i for i in range(8) if not i >> j & 1][k % 4]
        upper = tuple(high if i == j else no | bool(number >> i & 1) for i in range(3))
        along = tuple(no | (i == j) for i in range(3))
        better = known & (square < jnp.minimum(best.square, 2 * limit) - SHORTEST)
        best = select(better, _Nearest(square, on_axis, on_edge, no, low | high, upper, along), best)
    return best


def _nearest_on_edges(j: int, capsule: Geom, half: Vec3, center: Vec3, reach: Vec3) -> tuple[Any, ...]:
    """The squared distances of four edges from the capsule's axis, whether they are known, the places on the axis and
    on the edge, and whether the edge was left at its lower or upper end; arrays `[n, 4, *batch]`."""
    sizes = jax.tree.leaves(half)
    corners = [i for i in range(8) if not i >> j & 1]
    signs = [[0.0 if k == j else (1.0 if i >> k & 1 else -1.0) for i in corners] for k in range(3)]
    shape = (1, 4) + (1,) * (jnp.ndim(center.x) - 2)
    start = Vec3(*(s * jnp.asarray(x, s.dtype).reshape(shape) for s, x in zip(sizes, signs, strict=True)))
    offset = start - center
    along, step = sizes[j], jax.tree.leaves(reach)[j]
    # Squared lengths of the half edge and the half axis, their product, and both with the offset.
    ma, mb, mc = along * along, -along * step, capsule.size(1) * capsule.size(1)
    u, v = -along * jax.tree.leaves(offset)[j], reach.dot(offset)
    det = ma * mc - mb * mb
    known = jnp.abs(det) >= SHORTEST
    safe = jnp.where(known, det, 1)
    on_edge, on_axis = (mc * u - mb * v) / safe, (ma * v - mb * u) / safe
    high, low = on_edge > 1, on_edge < -1
    on_edge = clipped(on_edge, 1.0)
    on_axis = jnp.where(high | low, (v - mb * on_edge) / mc, on_axis)
    beyond = (on_axis > 1) | (on_axis < -1)
    on_axis = clipped(on_axis, 1.0)
    again = (u - mb * on_axis) / ma
    high, low = jnp.where(beyond & (again > 1), True, high), jnp.where(beyond & (again < -1), True, low)
    # An end that was found before the axis ended still counts, unless the other end has come instead.
    high, low = high & ~(beyond & (again < -1)), low & ~(beyond & (again > 1))
    on_edge = jnp.where(beyond, clipped(again, 1.0), on_edge)
    moved = [x + along * on_edge if k == j else x for k, x in enumerate(jax.tree.leaves(offset - reach * on_axis))]
    square = Vec3(*moved).squared_norm()
    return square, known, on_axis, on_edge, low, high


def _second_place(box: Geom, center: Vec3, axis: Vec3, reach: Vec3, nearest: _Nearest) -> tuple[Any, Any]:
    """Whether there is a second contact, and how far along the axis it is from the first."""
    sizes = tuple(box.size(i) for i in range(3))
    steps = tuple(jax.tree.leaves(reach))
    turned = tuple((s > 0) ^ up for s, up in zip(steps, nearest.upper, strict=True))
    # The parts of the axis that cross the box from side to side.
    across = tuple(_quotient(2 * s, jnp.abs(h)) for s, h in zip(sizes, steps, strict=True))
    face = _second_over_face(sizes, center, steps, nearest)
    corner = _second_at_corner(axis, across, turned, nearest)
    edge = _second_at_edge(sizes, axis, steps, across, turned, nearest)
    return select(nearest.is_face, face, select(nearest.is_corner, corner, edge))


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


def _second_at_corner(axis: Vec3, across, turned, nearest: _Nearest) -> tuple[Any, Any]:
    """Along the edge with the axis that differs from the other two, or else along the face."""
    parts = jax.tree.leaves(axis)
    exists = ~((turned[0] == turned[1]) & (turned[1] == turned[2]))
    choices = []
    for k in range(3):
        i, j = (k + 1) % 3, (k + 2) % 3
        odd = (turned[i] == turned[j]) & (turned[k] != turned[i])
        way = jnp.where(turned[k], 1.0, -1.0).astype(jnp.result_type(parts[k]))
        along_edge = jnp.minimum(1 - way * nearest.on_axis, across[k]) * way
        over_face = jnp.minimum(jnp.minimum(1 + way * nearest.on_axis, across[i]), across[j]) * -way
        choices.append((odd, jnp.where(parts[k] * parts[k] > 0.5, along_edge, over_face)))
    return exists, _chosen(choices)


def _second_at_edge(sizes, axis: Vec3, steps, across, turned, nearest: _Nearest) -> tuple[Any, Any]:
    """Across the face that the axis is flatter to, where axis and edge cross."""
    parts = jax.tree.leaves(axis)
    choices, crossing = [], []
    for k in range(3):
        i, j = (k + 1) % 3, (k + 2) % 3
        crossing.append((nearest.along[k], turned[i] ^ turned[j]))
        steeper = jnp.abs(parts[i]) > jnp.abs(parts[j])
        bit, limit = jnp.where(steeper, turned[i], turned[j]), jnp.where(steeper, across[i], across[j])
        way = jnp.where(bit, 1.0, -1.0).astype(jnp.result_type(parts[k]))
        left = jnp.where((steps[k] > 0) == bit, 1 - nearest.on_edge, 1 + nearest.on_edge)
        to_end = _quotient(sizes[k] * left, jnp.abs(steps[k]))
        step = jnp.minimum(jnp.minimum(1 - way * nearest.on_axis, limit), to_end) * way
        choices.append((nearest.along[k], step))
    return functools.reduce(jnp.logical_or, (own & x for own, x in crossing)), _chosen(choices)


def _chosen(choices):
    """The number beside the condition that holds, of conditions of which at most one does; otherwise zero."""
    return functools.reduce(lambda rest, each: jnp.where(each[0], each[1], rest), choices, 0.0)


def _quotient(x, y):
    """`x / y`, or a large number where `y` is zero."""
    return jnp.where(y != 0, x / jnp.where(y != 0, y, 1), FAR)
