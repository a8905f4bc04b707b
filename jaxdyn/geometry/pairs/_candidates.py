"""Shapes at their places, and what the functions of all pairs of classes share."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

from jaxdyn.geometry._componentwise import SHORTEST, clipped, direction, length_and_direction, select
from jaxdyn.geometry._witness import Witness
from jaxdyn.spatial import Mat3, Pose, Vec3


class Candidates(NamedTuple):
    """Possible contacts, one a row: arrays `[n, *batch]` with the contact first and the batch axes last."""

    distance: Any
    """m, negative where the shapes overlap, and `FAR` for what MuJoCo does not report."""
    position: Vec3
    """Halfway between the two surfaces, in the world, m."""
    frame: Mat3
    """Its columns are the unit normal, from the first shape to the second, and the two tangents, in the world."""

    @property
    def normal(self) -> Vec3:
        """The unit normal, from the first shape to the second."""
        return self.frame.x


class Placed(NamedTuple):
    """Shapes of one class as functions of pairs see them; components `[n, 1, *batch]`."""

    sizes: Any
    """`[n, k, *batch]`, as `AbstractShape.sizes`."""
    pose: Pose
    structure: Hashable = None
    """The part of the shapes that is not numbers: the faces of a mesh, the grid of a height field."""

    def size(self, i: int) -> Any:
        """One of the sizes, `[n, 1, *batch]`."""
        return self.sizes[:, i : i + 1]

    @property
    def position(self) -> Vec3:
        return self.pose.translation

    @property
    def axis(self) -> Vec3:
        """The z-axis: the normal of a plane, the axis of a capsule or a cylinder."""
        return self.pose.rotation.z


def parts(v: Any) -> tuple[Any, Any, Any]:
    """The three components of a vector, or the three columns of a matrix."""
    return v.x, v.y, v.z


def half_sizes(box: Placed) -> Vec3:
    """The half sizes of boxes, `[n, 1, *batch]`."""
    return Vec3(box.size(0), box.size(1), box.size(2))


def spheres_touch(center1: Vec3, radius1, axis1: Vec3, center2: Vec3, radius2, axis2: Vec3) -> Witness:
    """The contact of two spheres, whose z-axes give the normal where the centers agree."""
    length, normal = length_and_direction(center2 - center1, direction(axis1.cross(axis2)), SHORTEST)
    distance = length - radius1 - radius2
    return Witness(distance, normal, center1 + normal * (radius1 + 0.5 * distance))


def sphere_on_plane(plane: Placed, center: Vec3, radius) -> Witness:
    """The contact of a sphere and a plane."""
    distance = plane.axis.dot(center - plane.position) - radius
    return Witness(distance, plane.axis, center - plane.axis * (0.5 * distance + radius))


def point_on_plane(plane: Placed, point: Vec3) -> Witness:
    """The contact of a point and a plane."""
    return sphere_on_plane(plane, point, 0.0)


def complete_frame(normal: Vec3, tangent: Vec3 | None = None) -> Mat3:
    """The frame of a contact: the normal, the part of the tangent across it, and their product.

    Without a tangent it is the y-axis, or the z-axis for normals near the y-axis (mju_makeFrame).
    """
    flat = (normal.y < 0.5) & (normal.y > -0.5)
    along: Vec3 = select(flat, Vec3(0.0, 1.0, 0.0), Vec3(0.0, 0.0, 1.0)) if tangent is None else tangent
    first = direction(along - normal * normal.dot(along))
    return Mat3(normal, first, normal.cross(first))


def place_on_axis(shape: Placed, point: Vec3, half) -> Vec3:
    """The place on a shape's axis, within a half length of its middle, that is nearest to a point."""
    return shape.position + shape.axis * clipped(shape.axis.dot(point - shape.position), half)
