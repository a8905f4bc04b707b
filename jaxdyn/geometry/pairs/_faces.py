"""Flat faces of convex shapes, and the contacts of an edge or of a disk with them (mjc_multicontact of MuJoCo 4)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxdyn.geometry._componentwise import select
from jaxdyn.geometry._witness import Witness, inactive_unless
from jaxdyn.geometry.pairs._candidates import Placed
from jaxdyn.spatial import Mat3, Vec3

DISK_EDGES = 16
"""The number of edges that MuJoCo gives to a disk; one of its corners is on the cylinder's x-axis."""
SLANT = 0.0888
"""The cosine of the angle between an edge and a face's normal below which the edge lies along the face."""
OPPOSITE = 0.99605
"""The cosine of the angle between the normals of two faces, one reversed, from which on they lie on each other."""


class Face(NamedTuple):
    """A face of a convex shape."""

    axes: Mat3
    """Two axes along it and its outward normal."""
    origin: Vec3
    """Its middle."""
    lines: list[tuple[Any, Any, Any]]
    """Its edges: for each the outward normal along the face, two numbers, and the distance from the middle."""

    @property
    def normal(self) -> Vec3:
        return self.axes.z


def disk(cylinder: Placed, side) -> Face:
    """The disk of a cylinder at its upper (`side` 1) or lower (-1) end, with its edges in MuJoCo's order."""
    R = cylinder.pose.rotation
    normal, inner = R.z * side, cylinder.size(0) * math.cos(math.pi / DISK_EDGES)
    angles = [-(2 * k + 1) * math.pi / DISK_EDGES for k in range(DISK_EDGES)]
    lines = [(math.cos(angle), math.sin(angle), inner) for angle in angles]
    return Face(Mat3(R.x, R.y * side, normal), cylinder.position + normal * cylinder.size(1), lines)


def edge_on_face(face: Face, ends: tuple[Vec3, Vec3], margin, shift: Any = 0.0) -> tuple[Any, tuple[Witness, Witness]]:
    """Whether an edge has a part over a face within the margin, and its two contacts, with the face's normal.

    They are at the ends of that part. An end where the edge leaves the face counts twice while the other end is above
    the margin. `shift` is added to the distances from the face, halfway on both sides.
    """
    flat = [face.axes.apply_transpose(end - face.origin) for end in ends]
    # The part of the edge, from 0 to 1, inside all lines.
    low, high = jnp.zeros_like(flat[0].x), jnp.ones_like(flat[0].x)
    misses = low > high
    for a, b, offset in face.lines:
        outside = [a * end.x + b * end.y - offset for end in flat]
        first, last = outside[0] > 0, outside[1] > 0
        misses, enters, leaves = misses | (first & last), first & ~last, last & ~first
        place = outside[0] / jnp.where(enters | leaves, outside[0] - outside[1], 1)
        low = jnp.where(enters, jnp.maximum(low, place), low)
        high = jnp.where(leaves, jnp.minimum(high, place), high)
    found = []
    for share in (low, high):
        point = flat[0] + (flat[1] - flat[0]) * share
        distance = point.z + shift
        place = face.axes.apply(Vec3(point.x, point.y, 0.5 * distance)) + face.origin
        found.append(Witness(distance, face.normal, place))
    first, second = found
    near1, near2 = first.gap <= margin, second.gap <= margin
    twice = select(near2, second, first)
    twice = inactive_unless((near1 & near2) | (near1 & (low > 0)) | (near2 & (high < 1)), twice)
    lies = ~misses & (low <= high) & (near1 | near2)
    return lies, (select(near1, first, second), twice)
