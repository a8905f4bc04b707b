"""The possible contacts of two boxes at places that move smoothly along their faces."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdyn.geometry._componentwise import (
    along_candidates,
    clipped,
    largest_of,
    length_and_direction,
    select,
    side_by_side,
    sign,
    slab,
)
from jaxdyn.geometry._witness import Witness
from jaxdyn.geometry.pairs._candidates import Placed, half_sizes, parts
from jaxdyn.spatial import Vec3

COUNT = 13
"""Eight places on the edges of one face, four corners of the other face, and the crossing of two edges."""
EDGE_ADVANTAGE = 0.02
"""The part of the smallest half size by which two edges have to be farther apart than faces before they count."""
FACE_ADVANTAGE = 1e-3
"""The part of the smallest half size by which a face of the second box has to be farther apart than one of the first
before it counts. Between boxes that lie flat on each other neither is: without it the faces took turns, step by step,
and a stack of boxes never came to rest."""
FADE = 10.0
"""How much faster than the advantage of faces over edges grows the gap of edges grows."""
PARALLEL = 1e-3
"""The sine of the angle below which two edges count as parallel."""


class _Box(NamedTuple):
    """A box by its center, unit axes and half sizes; components `[n, 1, *batch]`."""

    center: Vec3
    axes: tuple[Vec3, Vec3, Vec3]
    half: tuple[Any, Any, Any]

    def reach(self, direction: Vec3):
        """How far the box reaches along a direction, from its center."""
        return sum(jnp.abs(a.dot(direction)) * h for a, h in zip(self.axes, self.half, strict=True))


class _Side(NamedTuple):
    """A face by its center, its outward normal, and two unit tangents with half sizes."""

    center: Vec3
    normal: Vec3
    tangents: tuple[Vec3, Vec3]
    half: tuple[Any, Any]

    def coordinates(self, point: Vec3) -> tuple[Any, Any]:
        """The place of a point along the two tangents."""
        offset = point - self.center
        return offset.dot(self.tangents[0]), offset.dot(self.tangents[1])

    def beside(self, point: Vec3):
        """How far the point is from the prism over the face."""
        x, y = self.coordinates(point)
        return length_and_direction(Vec3(x - clipped(x, self.half[0]), y - clipped(y, self.half[1]), 0.0))[0]


def smooth_boxes(first_box: Placed, second_box: Placed, margin) -> list[Witness]:
    """The gaps, normals and points of boxes, which fade where they leave a face."""
    one, two = _box(first_box), _box(second_box)
    between = two.center - one.center
    best1, face1 = largest_of([(_separation(one, two, i, between), _face(one, i, between)) for i in range(3)])
    best2, face2 = largest_of([(_separation(two, one, i, between), _face(two, i, -between)) for i in range(3)])
    smallest = functools.reduce(jnp.minimum, (*one.half, *two.half))
    first, faces = best1 + FACE_ADVANTAGE * smallest >= best2, jnp.maximum(best1, best2)
    reference = select(first, face1, face2)
    incident = select(first, _facing(two, face1.normal), _facing(one, face2.normal))
    outward = select(first, reference.normal, -reference.normal)
    edges, gap, normal, point = _crossing_edges(one, two, between)
    gap = gap + FADE * jnp.maximum(faces + EDGE_ADVANTAGE * smallest - edges, 0)
    # Where edges are farther apart than faces, no place is closer than the edges are.
    later = jnp.maximum(edges - faces, 0)
    on_faces = [Witness(height + later, outward, place) for height, place in _places_on_faces(reference, incident)]
    return [*on_faces, Witness(gap, normal, point)]


def _box(box: Placed) -> _Box:
    return _Box(box.position, parts(box.pose.rotation), parts(half_sizes(box)))


def _separation(one: _Box, two: _Box, i: int, between: Vec3):
    """The distance of two boxes along an axis of the first."""
    axis = one.axes[i]
    return jnp.abs(between.dot(axis)) - one.half[i] - two.reach(axis)


def _face(box: _Box, i: int, towards: Vec3) -> _Side:
    """The face with axis `i`, on the side that looks along a direction."""
    j, k = (i + 1) % 3, (i + 2) % 3
    normal = box.axes[i] * sign(box.axes[i].dot(towards))
    center = box.center + normal * box.half[i]
    return _Side(center, normal, (box.axes[j], box.axes[k]), (box.half[j], box.half[k]))


def _facing(box: _Box, normal: Vec3) -> _Side:
    """The face that looks most against a normal."""
    return largest_of([(jnp.abs(box.axes[i].dot(normal)), _face(box, i, -normal)) for i in range(3)])[1]


def _places_on_faces(reference: _Side, incident: _Side) -> list[tuple[Any, Vec3]]:
    """The gaps and points of eight places on the edges of one face, and of the four corners of the other face."""
    (u, v), (hu, hv) = incident.tangents, incident.half
    ways = along_candidates([-1.0, 1.0], hu)
    # The four edges: their middles, directions and half lengths.
    middle, along, limit = side_by_side(
        [
            (incident.center + v * (ways * hv), u, hu),
            (incident.center + u * (ways * hu), v, hv),
        ]
    )
    slabs = [
        slab(x, along.dot(tangent), half, limit)
        for x, tangent, half in zip(reference.coordinates(middle), reference.tangents, reference.half, strict=True)
    ]
    low, high = jnp.maximum(slabs[0][0], slabs[1][0]), jnp.minimum(slabs[0][1], slabs[1][1])
    # An edge that misses the face has one place twice, which lies beside it.
    center, crosses = 0.5 * (low + high), low <= high
    place = side_by_side([middle + along * jnp.where(crosses, s, center) for s in (low, high)])
    height = (place - reference.center).dot(reference.normal)
    on_edges = _faded(height, reference.beside(place)), place - reference.normal * (0.5 * height)

    (u, v), (hu, hv) = reference.tangents, reference.half
    ways = along_candidates([-1.0, -1.0, 1.0, 1.0], hu), along_candidates([-1.0, 1.0, -1.0, 1.0], hu)
    corner = reference.center + u * (ways[0] * hu) + v * (ways[1] * hv)
    # The faces look at each other: the cosine is at least 1 / sqrt(3).
    height = (incident.center - corner).dot(incident.normal) / incident.normal.dot(reference.normal)
    place = corner + reference.normal * height
    return [on_edges, (_faded(height, incident.beside(place)), corner + reference.normal * (0.5 * height))]


def _faded(height, beside):
    """The gap of a place at a height over a face, or under it, and at a distance beside it."""
    above = jnp.maximum(height, 0)
    return length_and_direction(Vec3(above, beside, 0.0))[0] + jnp.minimum(height, 0)


def _crossing_edges(one: _Box, two: _Box, between: Vec3) -> tuple[Any, Any, Vec3, Vec3]:
    """The separation along the best of the nine directions across two edges, and the gap, normal and point there."""
    pairs = [(i, j) for i in range(3) for j in range(3)]
    u1, half1 = side_by_side([(one.axes[i], one.half[i]) for i, _ in pairs])
    u2, half2 = side_by_side([(two.axes[j], two.half[j]) for _, j in pairs])
    sine, direction = length_and_direction(u1.cross(u2))
    crossing = sine > PARALLEL
    normal = direction * sign(direction.dot(between))
    reaches = one.reach(normal) + two.reach(normal)
    distance = normal.dot(between)
    separation = jnp.where(crossing, distance - reaches, -jnp.abs(distance) - reaches)
    p1 = _middle_of_edge(one, normal, [i for i, _ in pairs])
    p2 = _middle_of_edge(two, -normal, [j for _, j in pairs])
    # The nearest places of the lines p1 + s u1 and p2 + t u2.
    w, cosine, square = p1 - p2, u1.dot(u2), jnp.where(crossing, sine * sine, 1)
    s = (cosine * u2.dot(w) - u1.dot(w)) / square
    t = (u2.dot(w) - cosine * u1.dot(w)) / square
    on1, on2 = clipped(s, half1), clipped(t, half2)
    gap = separation + jnp.abs(s - on1) + jnp.abs(t - on2)
    point = (p1 + u1 * on1 + p2 + u2 * on2) * 0.5
    cases = [jax.tree.map(lambda x, k=k: x[:, k : k + 1], (separation, gap, normal, point)) for k in range(9)]
    return largest_of([(case[0], case) for case in cases])[1]


def _middle_of_edge(box: _Box, normal: Vec3, axes: list[int]) -> Vec3:
    """The middles of the edges along some axes that are farthest along the normals."""
    middle = box.center
    for k in range(3):
        others = along_candidates([float(k != i) for i in axes], box.half[k])
        middle = middle + box.axes[k] * (box.half[k] * sign(box.axes[k].dot(normal)) * others)
    return middle
