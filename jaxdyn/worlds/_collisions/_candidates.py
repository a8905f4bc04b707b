"""Possible contacts of two geoms: their shape, and what all pairs of types share."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxdyn.geometry import clipped, length_and_direction, select
from jaxdyn.spatial import Mat3, Pose, Vec3

FAR = 1e10
"""The distance of a candidate that MuJoCo does not report, m."""
SHORTEST = 1e-15
"""A shorter vector has no direction (mjMINVAL)."""
X_AXIS = Vec3(1.0, 0.0, 0.0)
"""The direction that MuJoCo gives to a vector without one."""
NOISE = 100.0
"""Numbers are equal where they differ by less than so many roundoffs of the lengths that they come from: what is
chosen of equal ones may then not depend on rounding, which differs between compiled programs."""


class Candidates(NamedTuple):
    """Possible contacts, one a row: arrays `[n, *batch]` with the contact first and the batch axes last."""

    distance: Any
    """m, negative where the geoms overlap, and `FAR` for what MuJoCo does not report."""
    position: Vec3
    """Halfway between the two surfaces, in the world, m."""
    frame: Mat3
    """Its columns are the unit normal, from the first geom to the second, and the two tangents, in the world."""

    @property
    def normal(self) -> Vec3:
        """The unit normal, from the first geom to the second."""
        return self.frame.x


class Geom(NamedTuple):
    """A geom as functions of pairs see it; components `[n, 1, *batch]`."""

    sizes: Any
    """`[n, k, *batch]`: the three numbers of `geom_size`, or the vertices of a mesh."""
    pose: Pose
    structure: Hashable = None
    """The part of its shape that is not numbers, such as the faces of a mesh."""

    def size(self, i: int) -> Any:
        """One of its sizes, `[n, 1, *batch]`."""
        return self.sizes[:, i : i + 1]

    @property
    def position(self) -> Vec3:
        return self.pose.translation

    @property
    def axis(self) -> Vec3:
        """Its z-axis: the normal of a plane, the axis of a capsule or a cylinder."""
        return self.pose.rotation.z


class Found(NamedTuple):
    """Candidates of one kind of all pairs, before their frames are complete; components `[n, count, *batch]`."""

    distance: Any
    position: Vec3
    normal: Vec3
    tangent: Vec3 = Vec3(0.0, 0.0, 0.0)
    """The direction that the first tangent has as far as it can; zero for MuJoCo's default."""


def parts(v: Any) -> tuple[Any, Any, Any]:
    """The three components of a vector, or the three columns of a matrix."""
    return v.x, v.y, v.z


def inactive_unless(condition, found: Found) -> Found:
    """The candidates, where a condition holds; elsewhere ones that MuJoCo does not report."""
    return found._replace(distance=jnp.where(condition, found.distance, FAR))


def direction(v: Vec3, otherwise: Vec3 = X_AXIS) -> Vec3:
    """The direction of a vector, as MuJoCo has it for vectors of length zero as well."""
    return length_and_direction(v, otherwise, SHORTEST)[1]


def spheres_touch(center1: Vec3, radius1, axis1: Vec3, center2: Vec3, radius2, axis2: Vec3) -> Found:
    """The contact of two spheres, whose z-axes give the normal where the centers agree."""
    length, normal = length_and_direction(center2 - center1, direction(axis1.cross(axis2)), SHORTEST)
    distance = length - radius1 - radius2
    return Found(distance, center1 + normal * (radius1 + 0.5 * distance), normal)


def sphere_on_plane(plane: Geom, center: Vec3, radius) -> Found:
    """The contact of a sphere and a plane."""
    distance = plane.axis.dot(center - plane.position) - radius
    return Found(distance, center - plane.axis * (0.5 * distance + radius), plane.axis)


def point_on_plane(plane: Geom, point: Vec3) -> Found:
    """The contact of a point and a plane."""
    return sphere_on_plane(plane, point, 0.0)


def complete_frame(normal: Vec3, tangent: Vec3) -> Mat3:
    """The frame of a contact: the normal, the part of the tangent across it, and their product.

    Where the tangent is shorter than 1/2 it is the y-axis, or the z-axis for normals near the y-axis (mju_makeFrame).
    """
    flat = (normal.y < 0.5) & (normal.y > -0.5)
    default = select(flat, Vec3(0.0, 1.0, 0.0), Vec3(0.0, 0.0, 1.0))
    tangent = select(jnp.asarray(tangent.squared_norm()) < 0.25, default, tangent)
    first = direction(tangent - normal * normal.dot(tangent))
    return Mat3(normal, first, normal.cross(first))


def place_on_axis(geom: Geom, point: Vec3, half) -> Vec3:
    """The place on a geom's axis, within a half length of its middle, that is nearest to a point."""
    return geom.position + geom.axis * clipped(geom.axis.dot(point - geom.position), half)


def roundoff(like) -> float:
    """The relative difference up to which numbers of an array's precision are equal."""
    return NOISE * float(jnp.finfo(jnp.result_type(like)).eps)
