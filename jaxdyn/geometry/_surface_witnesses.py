"""The possible contacts of shapes with a surface of the world."""

from __future__ import annotations

from jaxdyn._types import Array
from jaxdyn.geometry._shapes import AbstractRoundedPoints, AbstractShape, Ellipsoid
from jaxdyn.geometry._surfaces import AbstractSurface, nearest_of_convex
from jaxdyn.geometry._witness import Witness, with_candidates, witness_rows
from jaxdyn.spatial import Pose


def surface_witnesses(kind: type[AbstractShape], sizes: Array, pose: Pose, surface: AbstractSurface) -> Witness:
    """Return the possible contacts of shapes of one class with a surface.

    `sizes` are the rows `[n, k, *batch]` of the shapes' `sizes`, and `pose` has the poses of the shapes as rows
    `[n, *batch]`, in the axes of the surface. The witnesses are rows `[n * count, *batch]`, with
    `count = kind.witness_count(k)`, ordered shape by shape: a sphere has one, a capsule two (its end spheres, first the
    one at -z), a box eight (its corners: z changes fastest, then y, then x), an ellipsoid one, and points one each.
    Everything is elementwise, and all derivatives are finite.
    """
    at = with_candidates(pose)
    if issubclass(kind, Ellipsoid):

        def nearest(normal):
            return at.rotation.apply(kind.farthest(sizes, -at.rotation.apply_transpose(normal)))

        return witness_rows(*nearest_of_convex(surface, at.translation, nearest))
    assert issubclass(kind, AbstractRoundedPoints)
    centers, radius = kind.spheres(sizes)
    center = at.apply(centers)
    gap, normal = surface.sphere_distance(center, radius)
    return witness_rows(gap, normal, center - normal * radius)
