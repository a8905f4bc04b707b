"""The possible contacts of shapes with a surface of the world."""

from __future__ import annotations

import math
from typing import Any

from jaxdyn._types import Array
from jaxdyn.geometry._componentwise import along_candidates, side_by_side, with_candidates
from jaxdyn.geometry._shapes import AbstractRoundedPoints, AbstractShape, Cylinder, Ellipsoid
from jaxdyn.geometry._surfaces import AbstractSurface, nearest_of_convex
from jaxdyn.geometry._witness import Witness, witness_rows
from jaxdyn.spatial import Pose, Vec3


def surface_witnesses(kind: type[AbstractShape], sizes: Array, pose: Pose, surface: AbstractSurface) -> Witness:
    """Return the possible contacts of shapes of one class with a surface.

    `sizes` are the rows `[n, k, *batch]` of the shapes' `sizes`, and `pose` has the poses of the shapes as rows
    `[n, *batch]`, in the axes of the surface. The witnesses are rows `[n * count, *batch]`, with
    `count = kind.witness_count(k)`, ordered shape by shape: a sphere has one, a capsule two (its end spheres, first the
    one at -z), a box eight (its corners: z changes fastest, then y, then x), a cylinder six (the deepest points of the
    rims at -z and z, then those a third of a turn behind and before them), an ellipsoid one, and points one each.
    Everything is elementwise, and all derivatives are finite.
    """
    return witness_rows(*places_on_surface(kind, sizes, with_candidates(pose), surface))


def places_on_surface(kind: type[AbstractShape], sizes: Array, at: Pose, surface: AbstractSurface) -> tuple:
    """Return the gaps, normals and points of `surface_witnesses`, components `[n, count, *batch]`, for poses `[n, 1,
    *batch]`."""
    if issubclass(kind, Ellipsoid):

        def nearest(normal):
            return at.rotation.apply(kind.farthest(sizes, -at.rotation.apply_transpose(normal)))

        return nearest_of_convex(surface, at.translation, nearest)
    if issubclass(kind, Cylinder):
        return _of_rims(sizes, at, surface)
    assert issubclass(kind, AbstractRoundedPoints)
    centers, radius = kind.spheres(sizes)
    center = at.apply(centers)
    gap, normal = surface.sphere_distance(center, radius)
    return gap, normal, center - normal * radius


def _of_rims(sizes: Array, at: Pose, surface: AbstractSurface) -> tuple[Any, Vec3, Vec3]:
    """The gaps, normals and points of cylinders; components `[n, 6, *batch]`."""
    center = at.apply(Vec3(0.0, 0.0, sizes[:, 1:2] * along_candidates([-1, 1], sizes)))

    def nearest(normal):
        return at.rotation.apply(Cylinder.farthest_of_rim(sizes, -at.rotation.apply_transpose(normal)))

    parts = [nearest_of_convex(surface, center, nearest)]
    offset = parts[0][2] - center
    across = at.rotation.z.cross(offset)
    for turn in (-2 * math.pi / 3, 2 * math.pi / 3):
        point = center + offset * math.cos(turn) + across * math.sin(turn)
        parts.append((*surface.distance(point), point))
    return side_by_side(parts)
