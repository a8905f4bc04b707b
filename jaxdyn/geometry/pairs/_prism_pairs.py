"""Candidates of height fields with other geoms: one for each prism below the triangles of the field.

Along a unit vector `n` a prism and a geom are `g(n) = min n x - max n p` apart, over the points `x` of the geom and `p`
of the prism. The largest `g` is their distance, or minus the depth of the shallowest way out of each other. Where it is
largest `n` is normal to a face of the prism, or is the direction in which the geom is farthest from one of its edges.
Every `g` is a lower bound, so the largest one of these directions is the answer, without cases for what is beside and
above. Ellipsoids and cylinders that overlap deeply can have a better direction, which is not looked for.
"""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp

from jaxdyn._compile import once
from jaxdyn.geometry._componentwise import SHORTEST, X_AXIS, clipped, direction, sign
from jaxdyn.geometry._witness import FAR, Witness, inactive_unless
from jaxdyn.geometry.pairs._candidates import Placed
from jaxdyn.geometry.pairs._height_fields import MOST_CONTACTS, Prisms, along_second, prisms_near
from jaxdyn.geometry.pairs._separation import (
    Shape,
    box_shape,
    capsule_axis,
    cylinder_shape,
    ellipsoid_shape,
    separation,
)
from jaxdyn.spatial import Pose, Vec3

SAME_EDGE = 1e-3
"""The part of the distance between an edge and the farthest point of its prism that counts against the edge."""

type Directions = tuple[Vec3, Vec3]
"""Unit vectors, and for each the point of the geom that is nearest to the prism along it: `[n, k, prisms, *batch]`."""


def field_sphere(field: Placed, sphere: Placed, margin) -> list[Witness]:
    return _contacts(field, sphere, lambda geom: (), _from_point, sphere.size(0), margin)


def field_capsule(field: Placed, capsule: Placed, margin) -> list[Witness]:
    return _contacts(field, capsule, capsule_axis, _from_segment, capsule.size(0), margin)


def field_ellipsoid(field: Placed, ellipsoid: Placed, margin) -> list[Witness]:
    return _contacts(field, ellipsoid, ellipsoid_shape, _from_solid, 0.0, margin)


def field_cylinder(field: Placed, cylinder: Placed, margin) -> list[Witness]:
    return _contacts(field, cylinder, cylinder_shape, _from_cylinder, 0.0, margin)


def field_box(field: Placed, box: Placed, margin) -> list[Witness]:
    return _contacts(field, box, box_shape, _from_box, 0.0, margin)


def _contacts(field: Placed, geom: Placed, shape_of, from_edges, radius: Any, margin) -> list[Witness]:
    """The contacts of a shape, to which a radius is added, with all prisms in the window."""
    R = field.pose.rotation
    pose = Pose(R.T.compose(geom.pose.rotation), R.apply_transpose(geom.position - field.position))
    shape: Shape = shape_of(Placed(geom.sizes, pose))
    reach = [_support(shape, axis) + radius + margin for axis in (Vec3(1.0, 0.0, 0.0), Vec3(0.0, 1.0, 0.0))]
    prisms, inside = once(prisms_near(field, pose, (reach[0], reach[1])))
    shape, center, radius = jax.tree.map(
        lambda x: jnp.asarray(x)[:, None], (shape, pose.translation, radius + 0 * margin)
    )
    faces = along_second([face + center * 0.0 for face in prisms.faces])
    cases = [(faces, center - _farthest(shape, faces)), from_edges(prisms, shape, center)]
    normals, places = (along_second([case[i] for case in cases]) for i in (0, 1))
    support = prisms.support(normals)
    gaps = once(normals.dot(center) - _support(shape, normals) - radius - support)
    # Edges with the same direction have the same normals across; the one that is farthest along them has the place.
    lost = support[:, faces.x.shape[1] :] - _along_edges(prisms, cases[1][0])
    lost = jnp.concatenate([jnp.zeros_like(support[:, : faces.x.shape[1]]), lost], axis=1)
    best = jnp.argmax(gaps - SAME_EDGE * lost, axis=1, keepdims=True)

    def chosen(x):
        return jnp.take_along_axis(jnp.broadcast_to(x, gaps.shape), best, axis=1)[:, 0]

    gap, normal, place = once(jax.tree.map(chosen, (gaps, normals, places)))
    place = place - normal * (radius[:, 0] + 0.5 * gap)
    first = jnp.cumsum(gap <= margin, axis=1) <= MOST_CONTACTS
    # What lies outside of the window is unknown, which the accelerations show.
    unknown = jnp.where(inside, 0.0, jnp.nan).astype(gap.dtype)
    found = Witness(jnp.where(inside, gap, -FAR), R.apply(normal) + X_AXIS * unknown, field.position + R.apply(place))
    return [inactive_unless(first | ~inside, found)]


def _along_edges(prisms: Prisms, normals: Vec3):
    """How far the edges reach along directions: those of all edges, any number of times."""
    middle, half = prisms.edges()
    times = normals.x.shape[1] // middle.x.shape[1]
    middle, half = (along_second([v] * times) for v in (middle, half))
    return normals.dot(middle) + jnp.abs(normals.dot(half))


def _support(shape: Shape, normal: Vec3):
    """How far a shape reaches from its center in a direction."""
    squares = [sum(normal.dot(axis) ** 2 for axis in axes) for axes in shape]
    return sum((jnp.sqrt(square + SHORTEST**2) for square in squares), 0.0)


def _farthest(shape: Shape, normal: Vec3) -> Vec3:
    """The point of a shape that is farthest from its center in a direction, or the middle of those that are."""
    total = normal * 0.0
    for axes in shape:
        along = [normal.dot(axis) for axis in axes]
        length = jnp.sqrt(sum(x * x for x in along) + SHORTEST**2)
        for x, axis in zip(along, axes, strict=True):
            total = total + axis * (x / length)
    return total


def _from_point(prisms: Prisms, shape: Shape, center: Vec3) -> Directions:
    """The directions from the nearest points of the edges."""
    middle, half = prisms.edges()
    return direction(center - _nearest_on_edge(middle, half, center)), center + middle * 0.0


def _nearest_on_edge(middle: Vec3, half: Vec3, point: Vec3) -> Vec3:
    share = clipped(half.dot(point - middle) / half.squared_norm(), 1.0)
    return middle + half * share


def _from_segment(prisms: Prisms, shape: Shape, center: Vec3) -> Directions:
    """The directions from the nearest points of the edges to both ends of the segment, those from the ends of the edges
    to the nearest points of the segment, and those across both."""
    ((axis,),) = shape
    middle, half = prisms.edges()
    cases = []
    for way in (-1.0, 1.0):
        end = center + axis * way
        cases.append((end - _nearest_on_edge(middle, half, end), end + middle * 0.0))
        corner = middle + half * way
        nearest = _nearest_on_edge(center, axis, corner)
        cases.append((nearest - corner, nearest))
    across, crossing = axis.cross(half), _nearest_of_lines(center, axis, middle, half)
    cases += [(across, crossing), (-across, crossing)]
    return along_second([direction(v) for v, _ in cases]), along_second([place for _, place in cases])


def _from_solid(prisms: Prisms, shape: Shape, center: Vec3) -> Directions:
    """The directions in which the shape is farthest from each edge."""
    middle, half = prisms.edges()
    shape = jax.tree.map(lambda x: x + 0 * middle.x, shape)
    apart = separation(center - middle, ((half,),), shape)
    return apart.normal, center + apart.place2


def _from_cylinder(prisms: Prisms, shape: Shape, center: Vec3) -> Directions:
    """The same, and for deep overlaps the directions along the axis, across the axis and the edges, and across the axis
    to the ends of the edges."""
    middle, half = prisms.edges()
    axis = shape[1][0]
    outward = direction(axis)
    across = direction(outward.cross(half))
    cases = [_from_solid(prisms, shape, center)]
    for way in (-1.0, 1.0):
        cases.append(_from_ends(outward * way, shape, center, middle, half))
        normal = across * way
        line = center - _farthest(shape[:1], normal)
        cases.append((normal, _nearest_of_lines(line, axis, middle, half)))
        offset = center - middle - half * way
        cases.append(_from_ends(direction(offset - outward * outward.dot(offset)), shape, center, middle, half))
    return along_second([normal for normal, _ in cases]), along_second([place for _, place in cases])


def _from_box(prisms: Prisms, shape: Shape, center: Vec3) -> Directions:
    """The directions along the axes of the box, across its edges and those of the prism, from the nearest points of the
    prism's edges to its corners, and from the corners of the prism to the nearest points of its edges."""
    middle, half = prisms.edges()
    axes = [summand[0] for summand in shape]
    cases = []
    for i, axis in enumerate(axes):
        others = [axes[(i + 1) % 3], axes[(i + 2) % 3]]
        across = direction(axis.cross(half))
        for way in (-1.0, 1.0):
            cases.append(_from_ends(direction(axis) * way, shape, center, middle, half))
            # The edges that cross: the box's is the one that is farthest against the normal.
            normal = across * way
            line = center - _sum(v * sign(normal.dot(v)) for v in others)
            cases.append((normal, _nearest_of_lines(line, axis, middle, half)))
        for signs in itertools.product((-1.0, 1.0), repeat=2):
            line = center + _sum(v * way for v, way in zip(others, signs, strict=True))
            for way in (-1.0, 1.0):
                corner = middle + half * way
                nearest = _nearest_on_edge(line, axis, corner)
                cases.append((direction(nearest - corner), nearest))
    for signs in itertools.product((-1.0, 1.0), repeat=3):
        corner = center + _sum(v * way for v, way in zip(axes, signs, strict=True))
        cases.append((direction(corner - _nearest_on_edge(middle, half, corner)), corner + middle * 0.0))
    return along_second([normal for normal, _ in cases]), along_second([place for _, place in cases])


def _from_ends(normal: Vec3, shape: Shape, center: Vec3, middle: Vec3, half: Vec3) -> Directions:
    """A direction, and the place on a face of the shape that has it beside the farther end of each edge."""
    normal = normal + middle * 0.0
    end = middle + half * sign(normal.dot(half))
    return normal, end + normal * (normal.dot(center - end) - _support(shape, normal))


def _nearest_of_lines(middle: Vec3, half: Vec3, other: Vec3, along: Vec3) -> Vec3:
    """The point of a segment that is nearest to a line through another point."""
    across = half.cross(along)
    square = across.squared_norm()
    share = across.dot(along.cross(middle - other)) / jnp.where(square > SHORTEST**2, square, 1)
    return middle + half * clipped(share, 1.0)


def _sum(vectors) -> Vec3:
    return sum(vectors, Vec3(0.0, 0.0, 0.0))
