"""Triangles: the shapes that pictures are made of, as meshes of trimesh. Lengths in m."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdyn._extras import import_extra
from jaxdyn.spatial import transform_points

_CREASE = np.radians(30.0)
"""Neighbors at less than this angle are shaded as one surface, where a file does not say."""
_AROUND = 24
"""The number of corners of a circle."""


@dataclasses.dataclass(frozen=True, eq=False)
class Visual:
    """A piece of a robot's visual geometry: triangles of one color, fixed in a frame of its model.

    `vertices` `[n, 3]` in the axes of the frame, m; `faces` `[m, 3]`, numbers of vertices, counter-clockwise seen from
    outside; `color` `[4]`: red, green, blue (sRGB) and opacity in [0, 1]. `textured` is the same surface with an image
    on it, a `trimesh.Trimesh`, where the file has one (browsers show it), or None.
    """

    frame: str
    vertices: np.ndarray
    faces: np.ndarray
    color: np.ndarray
    textured: Any = None


@dataclasses.dataclass(frozen=True, eq=False)
class Cable:
    """A tendon: straight pieces, each between two points `[3]` in the frames of bodies, -1 for the world."""

    name: str
    pieces: tuple[tuple[tuple[int, np.ndarray], tuple[int, np.ndarray]], ...]

    def mesh(self, poses: np.ndarray, radius: float) -> Any:
        """Return the pieces as cylinders in the world, with the bodies at `poses` `[n, 7]`, of which the last is the
        world's. The triangles are the same ones at all poses."""
        ends = [[transform_points(poses[body], point) for body, point in piece] for piece in self.pieces]
        least = np.array([0, 0, 1e-6 * radius])
        return merge([rod_at(a, b if np.linalg.norm(b - a) > 0 else a + least, radius) for a, b in ends])


def mesh_of(
    vertices: np.ndarray, faces: np.ndarray, coordinates: np.ndarray | None = None, pixels: np.ndarray | None = None
) -> Any:
    """Return a `trimesh.Trimesh` with exactly these vertices and faces, and with an image on it, as `DrawnSurface` has
    it."""
    trimesh, visual = _trimesh(), None
    if coordinates is not None and pixels is not None:
        from PIL import Image

        visual = trimesh.visual.TextureVisuals(coordinates, image=Image.fromarray(pixels))
    vertices, faces = np.asarray(vertices, np.float64), np.asarray(faces, np.int64)
    return trimesh.Trimesh(vertices, faces, visual=visual, process=False)


def posed(mesh: Any, pose: np.ndarray) -> Any:
    """Return the mesh of a frame at a pose `[7]`, in the axes of the parent frame."""
    out = mesh.copy()
    out.vertices = transform_points(pose, mesh.vertices)
    return out


def scaled(mesh: Any, factors: Any) -> Any:
    """Return the mesh stretched along the axes; a reflection reverses the triangles, so they face outwards."""
    return mesh.copy().apply_transform(np.diag([*np.broadcast_to(np.asarray(factors, np.float64), 3), 1.0]))


def with_creases(mesh: Any) -> Any:
    """Return the mesh without triangles of no area, in which neighbors share vertices where the surface is smooth, and
    have vertices of their own at edges, which are drawn sharp then."""
    mesh.merge_vertices()
    mesh.update_faces(mesh.nondegenerate_faces())
    if not (mesh.face_adjacency_angles < _CREASE).any():
        # Where all edges are sharp, `smooth_shade` would leave all of them smooth.
        mesh.unmerge_vertices()
        return mesh
    return _trimesh().graph.smooth_shade(mesh, angle=_CREASE, facet_minarea=None)


def box(size: Sequence[float] | np.ndarray) -> Any:
    """Return a box about the origin with edges `size` along the axes."""
    return with_creases(_trimesh().creation.box(np.asarray(size, np.float64)))


def sphere(radii: Any) -> Any:
    """Return an ellipsoid (a ball, if `radii` is one number) about the origin, with vertices on the axes."""
    return scaled(_trimesh().creation.icosphere(3), radii)


def capsule(radius: float, length: float, around: int = _AROUND) -> Any:
    """Return a cylinder of `length` along z with half a ball at each end."""
    return _trimesh().creation.capsule(length, radius, count=[around // 2, around])


def cylinder(radius: float, length: float, around: int = _AROUND) -> Any:
    """Return a cylinder along z about the origin."""
    return with_creases(_trimesh().creation.cylinder(radius, length, sections=around))


def rod(start: np.ndarray, end: np.ndarray, radius: float) -> Any:
    """Return a cylinder between two points."""
    return with_creases(_trimesh().creation.cylinder(radius, segment=[start, end], sections=_AROUND // 2))


@functools.cache
def _unit_rod() -> Any:
    return cylinder(1.0, 1.0, around=_AROUND // 2)


def rod_at(start: np.ndarray, end: np.ndarray, radius: float) -> Any:
    """Return a cylinder between two different points, whose triangles are the same ones at all places."""
    along = end - start
    stretched = scaled(_unit_rod(), (radius, radius, np.linalg.norm(along)))
    return point_z_along(stretched, along).apply_translation((start + end) / 2)


def small_ball(radius: float) -> Any:
    """Return a ball about the origin, of few triangles."""
    return _trimesh().creation.icosphere(1, radius)


def cone(radius: float, length: float) -> Any:
    """Return a cone along z, on the origin."""
    return with_creases(_trimesh().creation.cone(radius, length, sections=_AROUND // 2))


def convex_hull(points: np.ndarray) -> Any | None:
    """Return the convex hull of points `[n, 3]`; None where it has no volume."""
    away = points - points.mean(axis=0)
    sizes = np.linalg.svd(away, compute_uv=False)
    if len(sizes) < 3 or sizes[2] < 1e-6 * sizes[0]:
        return None
    return _trimesh().convex.convex_hull(points)


def arrow(start: np.ndarray, neck: np.ndarray, tip: np.ndarray, radius: float) -> Any:
    """Return a cylinder from `start` to `neck`, and a cone from there to `tip`."""
    head = _trimesh().creation.cone(2.6 * radius, float(np.linalg.norm(tip - neck)), sections=_AROUND)
    head.apply_transform(_trimesh().geometry.align_vectors([0, 0, 1], tip - neck)).apply_translation(neck)
    return merge([rod(start, neck, radius), with_creases(head)])


def tube(points: np.ndarray, radius: float) -> Any:
    """Return a tube along a line through points `[n, 3]`, with balls at its ends."""
    ends = [sphere(radius).apply_translation(points[k]) for k in (0, -1)]
    apart = (pair for pair in itertools.pairwise(points) if np.linalg.norm(pair[1] - pair[0]) > 1e-3 * radius)
    return merge([*ends, *(rod(start, end, radius) for start, end in apart)])


def point_z_along(mesh: Any, direction: np.ndarray) -> Any:
    """Return the mesh rotated so that its z axis points in a direction `[3]` that is not zero."""
    return mesh.copy().apply_transform(_trimesh().geometry.align_vectors([0, 0, 1], direction))


def inflated(mesh: Any, distance: float) -> Any:
    """Return the mesh without images and with its surface moved outwards, so that it covers the mesh itself; of two
    equal surfaces, now one and now the other would be drawn in front."""
    return mesh_of(mesh.vertices + distance * mesh.vertex_normals, mesh.faces)


def merge(meshes: Sequence[Any]) -> Any:
    """Return several meshes as one."""
    return _trimesh().util.concatenate(list(meshes))


def _trimesh() -> Any:
    return import_extra("trimesh", "draw shapes")
