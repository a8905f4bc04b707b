"""Candidates of cylinders with cylinders and boxes, also where they overlap.

MuJoCo's general routine finds the direction in which they are farthest apart, and then looks for faces and edges that
lie on each other: two faces have up to four contacts, an edge on a face has two, and otherwise there is one. Normals of
more than one contact are those of a face.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdyn.geometry._componentwise import SHORTEST, length_and_direction, select, sign
from jaxdyn.geometry._witness import Witness, inactive_unless
from jaxdyn.geometry.pairs._candidates import Placed
from jaxdyn.geometry.pairs._convex_pairs import SIDEWAYS, contact_at
from jaxdyn.geometry.pairs._faces import OPPOSITE, SLANT, Face, disk, edge_on_face
from jaxdyn.geometry.pairs._overlapping_faces import CORNERS, faces_overlap, shared_with_disk, shared_with_rectangle
from jaxdyn.geometry.pairs._separation import box_shape, cylinder_shape, separation
from jaxdyn.spatial import Mat3, Vec3

AT_END = {True: 1e-6, False: 1e-3}
"""How near a coordinate comes to the end of a summand, in parts of it, where the nearest point is at that end."""


class _Round(NamedTuple):
    """The part of a cylinder that faces another shape."""

    disk: Face
    at_disk: Any
    """Whether its nearest points are on one disk only."""
    facing: Any
    """The cosine of the angle between this disk's normal and the direction to the other shape."""
    line: tuple[Vec3, Vec3]
    """The ends of the line on its side that is nearest to the other shape."""
    has_line: Any
    """Whether there is one: the direction to the other shape is not along the axis."""


def cylinder_cylinder(one: Placed, two: Placed, margin) -> list[Witness]:
    apart = separation(two.position - one.position, cylinder_shape(one), cylinder_shape(two))
    first = _round(one, apart.normal, apart.inner[0][1][0])
    second = _round(two, -apart.normal, apart.inner[1][1][0])
    single = contact_at(one, two, apart)
    cosine = first.disk.normal.dot(second.disk.normal)
    facing = (first.facing > SLANT) & (second.facing > SLANT)
    flat = first.at_disk & second.at_disk & facing & (cosine < -OPPOSITE)
    along1 = _lies_along(first, second, one.axis)
    along2 = _lies_along(second, first, two.axis)
    edges = [(along1, second.disk, first.line, -1.0), (along2, first.disk, second.line, 1.0)]
    shared = shared_with_disk(two.size(0))
    overlap = faces_overlap(first.disk, one.size(0), second.disk, shared, margin, flat & (single.gap <= margin))
    return _chosen(single, margin, flat, overlap, edges)


def cylinder_box(one: Placed, two: Placed, margin) -> list[Witness]:
    apart = separation(two.position - one.position, cylinder_shape(one), box_shape(two))
    first = _round(one, apart.normal, apart.inner[0][1][0])
    signs, fixed, facing = _box_sides(two, apart.normal, [x[0] for x in apart.inner[1]])
    axes = (two.pose.rotation.x, two.pose.rotation.y, two.pose.rotation.z)
    faces = [_box_face(two, i, signs[i]) for i in range(3)]
    # The face on which the disk lies.
    cosines = [first.disk.normal.dot(face.normal) for face in faces]
    fits = [fixed[i] & (facing[i] > SLANT) & (cosines[i] < -OPPOSITE) for i in range(3)]
    flat = first.at_disk & (first.facing > SLANT) & (fits[0] | fits[1] | fits[2])
    face = select(fits[0], faces[0], select(fits[1], faces[1], faces[2]))
    single, shared = contact_at(one, two, apart), shared_with_rectangle(face.lines[0][2], face.lines[1][2])
    overlap = faces_overlap(first.disk, one.size(0), face, shared, margin, flat & (single.gap <= margin))
    # The first face along which the cylinder's side lies.
    edges, none = [], first.has_line
    for i in range(3):
        lies = none & fixed[i] & (facing[i] > 0) & (jnp.abs(faces[i].normal.dot(one.axis)) < SLANT)
        edges.append((lies, faces[i], first.line, -1.0))
        none = none & ~lies
    # The first edge that lies along the disk.
    free = sum(jnp.where(x, 0.0, 1.0) for x in fixed)
    none = (none | ~first.has_line) & first.at_disk & (first.facing > 0)
    for i in range(3):
        is_edge = (free < 1) | ((free < 2) & ~fixed[i])
        lies = none & is_edge & (jnp.abs(first.disk.normal.dot(axes[i])) < SLANT)
        edges.append((lies, first.disk, _box_edge(two, i, signs), 1.0))
        none = none & ~lies
    return _chosen(single, margin, flat, overlap, edges)


def _lies_along(cylinder: _Round, other: _Round, axis: Vec3) -> Any:
    """Whether the side of a cylinder lies along the disk of another one."""
    slanted = jnp.abs(other.disk.normal.dot(axis)) < SLANT
    return cylinder.has_line & other.at_disk & (other.facing > 0) & slanted


def _chosen(single: Witness, margin, flat, overlap, edges) -> list[Witness]:
    """The contacts of two faces, of the first edge that lies along a face, or the single one."""
    near = single.gap <= margin
    use, found = overlap
    others = [single, *[inactive_unless(False, single)] * (CORNERS - 1)]
    chosen = [select(use, a, b) for a, b in zip(found, others, strict=True)]
    free = ~flat
    for lies, on, ends, towards in edges:
        has, pair = edge_on_face(on, ends, margin)
        for k, each in enumerate(pair):
            each = each._replace(normal=each.normal * towards)
            chosen[k] = select(free & lies & has, each, chosen[k])
        free = free & ~lies
    return [inactive_unless(near, each) for each in chosen]


def _round(cylinder: Placed, towards: Vec3, height) -> _Round:
    """The part of a cylinder in a direction, given the height of its nearest point, between -1 and 1."""
    cosine = cylinder.axis.dot(towards)
    side = sign(jax.lax.stop_gradient(cosine))
    at_disk = jnp.abs(jax.lax.stop_gradient(height)) > 1 - AT_END[jnp.result_type(cosine) == jnp.float64]
    sideways, radial = length_and_direction(towards - cylinder.axis * cosine, cylinder.pose.rotation.x, SHORTEST)
    middle = cylinder.position + radial * cylinder.size(0)
    reach = cylinder.axis * cylinder.size(1)
    line = middle - reach, middle + reach
    return _Round(disk(cylinder, side), at_disk, jnp.abs(cosine), line, sideways > SIDEWAYS)


def _box_sides(box: Placed, normal: Vec3, inner) -> tuple[list[Any], list[Any], list[Any]]:
    """For each axis of a box the side on which its nearest points are, whether they are on this side only, and the
    cosine of the angle between this side's normal and the direction to the other shape.

    `normal` points to the box, and the places `inner`, from -1 to 1, are those of the box mirrored at its center.
    """
    R = box.pose.rotation
    inner = jax.lax.stop_gradient(inner)
    signs = [-sign(x) for x in inner]
    limit = 1 - AT_END[jnp.result_type(normal.x) == jnp.float64]
    fixed = [jnp.abs(x) > limit for x in inner]
    return signs, fixed, [-normal.dot(axis) * s for axis, s in zip((R.x, R.y, R.z), signs, strict=True)]


def _box_face(box: Placed, i: int, side) -> Face:
    R = box.pose.rotation
    axes = (R.x, R.y, R.z)
    j, k = (i + 1) % 3, (i + 2) % 3
    normal = axes[i] * side
    lines = [(1.0, 0.0, box.size(j)), (0.0, 1.0, box.size(k)), (-1.0, 0.0, box.size(j)), (0.0, -1.0, box.size(k))]
    return Face(Mat3(axes[j], axes[k], normal), box.position + normal * box.size(i), lines)


def _box_edge(box: Placed, i: int, signs) -> tuple[Vec3, Vec3]:
    """The ends of the edge along an axis at the sides of the others."""
    R = box.pose.rotation
    axes = (R.x, R.y, R.z)
    j, k = (i + 1) % 3, (i + 2) % 3
    middle = box.position + axes[j] * (signs[j] * box.size(j)) + axes[k] * (signs[k] * box.size(k))
    reach = axes[i] * box.size(i)
    return middle - reach, middle + reach
