"""Where two boxes meet."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdyn._types import Array
from jaxdyn.geometry._signed_distances import clipped, largest_of, select, sign, slab
from jaxdyn.geometry._witness import UP, length_and_direction
from jaxdyn.spatial import Pose, Vec3

BOX_PAIR_COUNT = 13
"""Eight places on the edges of one face, four corners of the other face, and the crossing of two edges."""
FADE = 10.0
"""How much faster than the directions of faces get better the gap of two edges grows."""
EDGE_ADVANTAGE = 0.02
"""By how much of the smallest half size two edges have to be closer than faces."""
PARALLEL = 1e-3
"""The sine of the angle below which two edges count as parallel."""


class _Box(NamedTuple):
    """A box by its center, unit axes and half sizes."""

    center: Vec3
    axes: tuple[Vec3, Vec3, Vec3]
    half: tuple[Any, Any, Any]

    def reach(self, direction: Vec3, without: int | None = None):
        """How far the box reaches along a direction, from its center."""
        return sum(
            jnp.abs(a.dot(direction)) * h
            for i, (a, h) in enumerate(zip(self.axes, self.half, strict=True))
            if i != without
        )


class _Face(NamedTuple):
    """A face by its center, its outward normal, and two unit tangents with half sizes."""

    center: Vec3
    normal: Vec3
    first: Vec3
    second: Vec3
    half: tuple[Any, Any]

    def coordinates(self, point: Vec3) -> tuple[Any, Any]:
        """The place of a point along the two tangents."""
        offset = point - self.center
        return offset.dot(self.first), offset.dot(self.second)

    def beside(self, point: Vec3):
        """How far the point is from the prism over the face."""
        x, y = self.coordinates(point)
        return length_and_direction(Vec3(x - clipped(x, self.half[0]), y - clipped(y, self.half[1]), 0.0))[0]


def box_pair(sizes1: Array, at1: Pose, sizes2: Array, at2: Pose) -> tuple[Any, Vec3, Vec3]:
    """The gaps, normals and points of boxes; components `[n, count, *batch]`."""
    one, two = _box(sizes1, at1), _box(sizes2, at2)
    between = two.center - one.center
    cases1 = [(_separation(one, two, i, between), _face(one, i, between)) for i in range(3)]
    cases2 = [(_separation(two, one, i, between), _face(two, i, -between)) for i in range(3)]
    best1, face1 = largest_of(cases1)
    best2, face2 = largest_of(cases2)
    first = best1 >= best2
    reference = select(first, face1, face2)
    incident = select(first, _facing(two, face1.normal), _facing(one, face2.normal))
    outward = select(first, reference.normal, -reference.normal)
    parts = [
        _edges_over_face(reference, incident),
        _corners_under_face(reference, incident),
        _crossing_edges(one, two, between, jnp.maximum(best1, best2)),
    ]
    normals = [outward, outward, parts[2][2]]
    joined = [(gap, normal, point) for (gap, point, *_), normal in zip(parts, normals, strict=True)]
    return _joined(joined)


def _box(sizes: Array, at: Pose) -> _Box:
    axes = at.rotation
    return _Box(at.translation, (axes.x, axes.y, axes.z), (sizes[:, :1], sizes[:, 1:2], sizes[:, 2:3]))


def _separation(one: _Box, two: _Box, i: int, between: Vec3):
    """The distance of two boxes along an axis of the first."""
    axis = one.axes[i]
    return jnp.abs(between.dot(axis)) - one.half[i] - two.reach(axis)


def _face(box: _Box, i: int, towards: Vec3) -> _Face:
    """The face with axis `i`, on the side that looks along a direction."""
    j, k = (i + 1) % 3, (i + 2) % 3
    normal = box.axes[i] * sign(box.axes[i].dot(towards))
    center = box.center + normal * box.half[i]
    return _Face(center, normal, box.axes[j], box.axes[k], (box.half[j], box.half[k]))


def _facing(box: _Box, normal: Vec3) -> _Face:
    """The face that looks most against a normal."""
    return largest_of([(jnp.abs(box.axes[i].dot(normal)), _face(box, i, -normal)) for i in range(3)])[1]


def _edges_over_face(reference: _Face, incident: _Face) -> tuple[Any, Vec3]:
    """The gaps and points where the four edges of a face enter and leave the prism over another face."""
    gaps, points = [], []
    sides = ((incident.first, incident.second, 0, 1), (incident.second, incident.first, 1, 0))
    for along, across, i, j in sides:
        for way in (-1.0, 1.0):
            middle = incident.center + across * (way * incident.half[j])
            x, y = reference.coordinates(middle)
            slab1 = slab(x, along.dot(reference.first), reference.half[0], incident.half[i])
            slab2 = slab(y, along.dot(reference.second), reference.half[1], incident.half[i])
            low, high = jnp.maximum(slab1[0], slab2[0]), jnp.minimum(slab1[1], slab2[1])
            # An edge that misses the face has one place twice, which lies beside it.
            center, crosses = 0.5 * (low + high), low <= high
            for s in (jnp.where(crosses, low, center), jnp.where(crosses, high, center)):
                point = middle + along * s
                height = (point - reference.center).dot(reference.normal)
                gaps.append(_faded(height, reference.beside(point)))
                points.append(point - reference.normal * (0.5 * height))
    return _side_by_side(gaps), _side_by_side(points)


def _corners_under_face(reference: _Face, incident: _Face) -> tuple[Any, Vec3]:
    """The gaps and points of the four corners of the reference face under the other face."""
    gaps, points = [], []
    # The faces look at each other: the cosine is at least 1 / sqrt(3).
    cosine = incident.normal.dot(reference.normal)
    for way1 in (-1.0, 1.0):
        for way2 in (-1.0, 1.0):
            across = reference.second * (way2 * reference.half[1])
            corner = reference.center + reference.first * (way1 * reference.half[0]) + across
            height = (incident.center - corner).dot(incident.normal) / cosine
            gaps.append(_faded(height, incident.beside(corner + reference.normal * height)))
            points.append(corner + reference.normal * (0.5 * height))
    return _side_by_side(gaps), _side_by_side(points)


def _crossing_edges(one: _Box, two: _Box, between: Vec3, faces) -> tuple[Any, Vec3, Vec3]:
    """The gap, point and normal of the two edges that are closest, which fade where the separation of faces,
    `faces`, is larger."""
    cases = []
    for i in range(3):
        for j in range(3):
            length, direction = length_and_direction(one.axes[i].cross(two.axes[j]), UP)
            normal = direction * sign(direction.dot(between))
            separation = normal.dot(between) - one.reach(normal, i) - two.reach(normal, j)
            never = -(one.reach(normal) + two.reach(normal)) - jnp.abs(normal.dot(between))
            crossing = (separation, normal, *_edge(one, i, normal), *_edge(two, j, -normal))
            cases.append((jnp.where(length > PARALLEL, separation, never), crossing))
    _, (gap, normal, p1, u1, half1, p2, u2, half2) = largest_of(cases)
    # The nearest places of two lines, p1 + s u1 and p2 + t u2.
    w, cosine = p1 - p2, u1.dot(u2)
    sine2 = u1.cross(u2).squared_norm()
    sine2 = jnp.where(sine2 > PARALLEL**2, sine2, 1)
    s = (cosine * u2.dot(w) - u1.dot(w)) / sine2
    t = (u2.dot(w) - cosine * u1.dot(w)) / sine2
    on1, on2 = clipped(s, half1), clipped(t, half2)
    missed = jnp.abs(s - on1) + jnp.abs(t - on2)
    smallest = jnp.minimum(*(jnp.minimum(jnp.minimum(b.half[0], b.half[1]), b.half[2]) for b in (one, two)))
    worse = jnp.maximum(faces + EDGE_ADVANTAGE * smallest - gap, 0)
    return gap + FADE * worse + missed, (p1 + u1 * on1 + p2 + u2 * on2) * 0.5, normal


def _edge(box: _Box, i: int, normal: Vec3) -> tuple[Vec3, Vec3, Any]:
    """The edge along axis `i` that is farthest along a normal: its middle, direction and half length."""
    middle = box.center
    for k in ((i + 1) % 3, (i + 2) % 3):
        middle = middle + box.axes[k] * (box.half[k] * sign(box.axes[k].dot(normal)))
    return middle, box.axes[i], box.half[i]


def _faded(height, beside):
    """The gap of a place at a height over a face, or under it, and at a distance beside it."""
    above = jnp.maximum(height, 0)
    return length_and_direction(Vec3(above, beside, 0.0))[0] + jnp.minimum(height, 0)


def _side_by_side(candidates: list) -> Any:
    """Candidates `[n, 1, *batch]` as `[n, count, *batch]`."""
    return jax.tree.map(lambda *x: jnp.concatenate(jnp.broadcast_arrays(*x), axis=1), *candidates)


def _joined(parts: list[tuple[Any, Vec3, Vec3]]) -> tuple[Any, Vec3, Vec3]:
    """Parts with different numbers of candidates, one after the other."""
    filled = []
    for gap, normal, point in parts:
        arrays = jnp.broadcast_arrays(gap, *jax.tree.leaves((normal, point)))
        filled.append((arrays[0], Vec3(*arrays[1:4]), Vec3(*arrays[4:])))
    return jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), *filled)
