"""Triangles: the solids that pictures are made of. NumPy; lengths in m."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from jaxdyn.spatial import transform_points


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
class Solid:
    """Triangles without a place or a color, as the fields of `Visual` with the same names."""

    vertices: np.ndarray
    faces: np.ndarray
    textured: Any = None

    def scale(self, factors) -> Solid:
        """Return the solid stretched along the axes; a reflection reverses the triangles, so they face outwards."""
        factors = np.broadcast_to(np.asarray(factors, np.float64), 3)
        faces = self.faces[:, ::-1] if np.prod(factors) < 0 else self.faces
        return self._with(self.vertices * factors, faces)

    def transform(self, pose: np.ndarray) -> Solid:
        """Return the solid of a frame at a pose `[7]`, in the axes of the parent frame."""
        return self._with(transform_points(pose, self.vertices), self.faces)

    def point_z_along(self, direction: np.ndarray) -> Solid:
        """Return the solid rotated so that its z axis points in a direction `[3]` that is not zero."""
        z = np.asarray(direction, np.float64) / np.linalg.norm(direction)
        x = np.cross(np.eye(3)[np.argmin(np.abs(z))], z)
        x /= np.linalg.norm(x)
        return Solid(self.vertices @ np.stack([x, np.cross(z, x), z]), self.faces)

    def _with(self, vertices: np.ndarray, faces: np.ndarray) -> Solid:
        textured = self.textured
        if textured is not None:
            textured = textured.copy()
            textured.vertices, textured.faces = vertices, faces
        return Solid(vertices, faces, textured)


def box(size) -> Solid:
    """Return a box about the origin with edges `size` along the axes. No sides share vertices: the edges are sharp."""
    corners = np.array(list(np.ndindex(2, 2, 2))) - 0.5
    sides = np.array([[0, 1, 3, 2], [4, 6, 7, 5], [0, 4, 5, 1], [2, 3, 7, 6], [0, 2, 6, 4], [1, 5, 7, 3]])
    faces = 4 * np.arange(6)[:, None, None] + np.array([[0, 1, 2], [0, 2, 3]])
    return Solid(corners[sides].reshape(-1, 3) * np.asarray(size, np.float64), faces.reshape(-1, 3))


def sphere(radii, rings: int = 12) -> Solid:
    """Return an ellipsoid (a ball, if `radii` is one number) about the origin."""
    return _revolve(*_arc(np.pi / 2, -np.pi / 2, rings), around=2 * rings).scale(radii)


def capsule(radius: float, length: float, rings: int = 12) -> Solid:
    """Return a cylinder of `length` along z with half a ball at each end."""
    (r1, z1), (r2, z2) = _arc(np.pi / 2, 0.0, rings // 2), _arc(0.0, -np.pi / 2, rings // 2)
    z = [*(radius * z1 + length / 2), *(radius * z2 - length / 2)]
    return _revolve(radius * np.concatenate([r1, r2]), np.array(z), around=2 * rings)


def cylinder(radius: float, length: float, around: int = 24, top: float | None = None) -> Solid:
    """Return a cylinder along z about the origin, or a cone with the radius `top` at its upper end."""
    top = radius if top is None else top
    # The rims have vertices twice: they are sharp.
    r = np.array([0.0, top, top, radius, radius, 0.0])
    return _revolve(r, 0.5 * length * np.array([1.0, 1, 1, -1, -1, -1]), around)


def rod(start: np.ndarray, end: np.ndarray, bottom: float, top: float | None = None, around: int = 12) -> Solid:
    """Return a cone with the radii `bottom` at `start` and `top` (by default the same) at `end`."""
    solid = cylinder(bottom, float(np.linalg.norm(end - start)), around, top).point_z_along(end - start)
    return Solid(solid.vertices + (start + end) / 2, solid.faces)


def merge(solids: list[Solid]) -> Solid:
    """Return several solids as one."""
    starts = np.cumsum([0] + [len(x.vertices) for x in solids])
    faces = [x.faces + n for x, n in zip(solids, starts[:-1], strict=True)]
    return Solid(np.concatenate([x.vertices for x in solids]), np.concatenate(faces))


def _arc(start: float, end: float, rings: int) -> tuple[np.ndarray, np.ndarray]:
    angles = np.linspace(start, end, rings + 1)
    return np.abs(np.cos(angles)), np.sin(angles)


def _revolve(radii: np.ndarray, heights: np.ndarray, around: int) -> Solid:
    """Return the surface of revolution about z of a profile from top to bottom."""
    angles = np.linspace(0, 2 * np.pi, around, endpoint=False)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    xy = radii[:, None, None] * circle
    vertices = np.concatenate([xy, np.broadcast_to(heights[:, None, None], (len(radii), around, 1))], axis=-1)
    above = around * np.arange(len(radii) - 1)[:, None]
    a, below = np.arange(around), above + around
    b = (a + 1) % around
    faces = np.stack([above + a, below + a, below + b, above + a, below + b, above + b], axis=-1)
    return without_slivers(Solid(vertices.reshape(-1, 3), faces.reshape(-1, 3)))


def without_slivers(solid: Solid) -> Solid:
    """Return the solid without the triangles whose area is zero."""
    a, b, c = np.moveaxis(solid.vertices[solid.faces], 1, 0)
    area = np.linalg.norm(np.cross(b - a, c - a), axis=1)
    return Solid(solid.vertices, solid.faces[area > 1e-12 * (area.max(initial=0.0) or 1.0)])
