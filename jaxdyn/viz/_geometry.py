"""Triangles: the solids that pictures are made of, and the poses that place them. NumPy; lengths in m."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Visual:
    """A piece of what a robot looks like: triangles of one color, fixed in a frame of its model.

    `vertices` `[n, 3]` in the axes of the frame, m; `faces` `[m, 3]`, numbers of vertices, counter-clockwise seen from
    outside; `color` `[4]`: red, green, blue (sRGB) and opacity in [0, 1]. `textured` is the same surface with an image
    on it, a `trimesh.Trimesh`, where the file has one (browsers show it); else None.
    """

    frame: str
    vertices: np.ndarray
    faces: np.ndarray
    color: np.ndarray
    textured: Any = None


@dataclasses.dataclass(frozen=True, eq=False)
class Solid:
    """Triangles without a place or a color: `vertices` `[n, 3]`, `faces` `[m, 3]`."""

    vertices: np.ndarray
    faces: np.ndarray

    def scaled(self, factors) -> Solid:
        """Stretched along the axes; a reflection turns the triangles round, so that they still look outwards."""
        factors = np.broadcast_to(np.asarray(factors, np.float64), 3)
        faces = self.faces[:, ::-1] if np.prod(factors) < 0 else self.faces
        return Solid(self.vertices * factors, faces)

    def moved(self, pose: np.ndarray) -> Solid:
        """Placed by a pose `[7]`, position and quaternion `w x y z`."""
        return Solid(self.vertices @ rotation_of(pose[3:]).T + pose[:3], self.faces)


def rotation_of(quaternion: np.ndarray) -> np.ndarray:
    """`[..., 3, 3]`: the rotation matrices of quaternions `[..., 4]`, `w x y z`, taken by their direction."""
    quaternion = np.asarray(quaternion, np.float64)
    w, x, y, z = np.moveaxis(quaternion / np.linalg.norm(quaternion, axis=-1, keepdims=True), -1, 0)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def placed(points: np.ndarray, pose: np.ndarray) -> np.ndarray:
    """`[n, 3]`: points placed by a pose `[7]`."""
    return points @ rotation_of(pose[3:]).T + pose[:3]


def box(size) -> Solid:
    """With edges `size` along the axes, about the origin. Each side has vertices of its own: its edges are sharp."""
    corners, faces = [], []
    for axis in range(3):
        for sign in (-1.0, 1.0):
            u, v = (axis + 1) % 3, (axis + 2) % 3
            side = np.zeros((4, 3))
            side[:, axis] = sign
            side[:, u], side[:, v] = [-1, 1, 1, -1], [-1, -1, 1, 1]
            quad = np.array([[0, 1, 2], [0, 2, 3]])
            faces.append(4 * len(corners) + (quad if sign > 0 else quad[:, ::-1]))
            corners.append(side)
    return Solid(np.concatenate(corners) * np.asarray(size, np.float64) / 2, np.concatenate(faces))


def sphere(radii, rings: int = 12) -> Solid:
    """An ellipsoid (a ball, if `radii` is one number) about the origin."""
    return _turned(*_arc(np.pi / 2, -np.pi / 2, rings), around=2 * rings).scaled(radii)


def capsule(radius: float, length: float, rings: int = 12) -> Solid:
    """A cylinder of `length` along z with half a ball at each end."""
    (r1, z1), (r2, z2) = _arc(np.pi / 2, 0.0, rings // 2), _arc(0.0, -np.pi / 2, rings // 2)
    z = [*(radius * z1 + length / 2), *(radius * z2 - length / 2)]
    return _turned(radius * np.concatenate([r1, r2]), np.array(z), around=2 * rings)


def cylinder(radius: float, length: float, around: int = 24) -> Solid:
    """Along z, about the origin."""
    return cone(radius, radius, length, around)


def cone(bottom: float, top: float, length: float, around: int = 24) -> Solid:
    """With the radii `bottom` at `-length / 2` and `top` at `length / 2`. The rims have vertices twice: they are
    sharp."""
    half = length / 2
    r = np.array([0.0, top, top, bottom, bottom, 0.0])
    return _turned(r, np.array([half, half, half, -half, -half, -half]), around)


def between(solid: Solid, start: np.ndarray, end: np.ndarray) -> Solid:
    """A solid along z, as long as the two points are apart, put between them."""
    return Solid(solid.vertices @ turned_to(end - start).T + (start + end) / 2, solid.faces)


def turned_to(direction: np.ndarray) -> np.ndarray:
    """`[3, 3]`: a rotation that takes the axis z to a direction that is not zero."""
    z = np.asarray(direction, np.float64) / np.linalg.norm(direction)
    x = np.cross(np.eye(3)[np.argmin(np.abs(z))], z)
    x /= np.linalg.norm(x)
    return np.stack([x, np.cross(z, x), z], axis=1)


def joined(solids: list[Solid]) -> Solid:
    """All of them as one."""
    starts = np.cumsum([0] + [len(x.vertices) for x in solids])
    return Solid(
        np.concatenate([x.vertices for x in solids]),
        np.concatenate([x.faces + n for x, n in zip(solids, starts[:-1], strict=True)]),
    )


def _arc(start: float, end: float, rings: int) -> tuple[np.ndarray, np.ndarray]:
    angles = np.linspace(start, end, rings + 1)
    return np.abs(np.cos(angles)), np.sin(angles)


def _turned(radii: np.ndarray, heights: np.ndarray, around: int) -> Solid:
    """The surface of a profile, from top to bottom, turned about z; without the triangles that have no area."""
    angles = np.linspace(0, 2 * np.pi, around, endpoint=False)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    xy = radii[:, None, None] * circle
    vertices = np.concatenate([xy, np.broadcast_to(heights[:, None, None], (len(radii), around, 1))], axis=-1)
    k = np.arange(around)
    a, b = np.stack([k, (k + 1) % around])
    faces = []
    for ring in range(len(radii) - 1):
        above, below = ring * around, (ring + 1) * around
        faces += [np.stack([above + a, below + a, below + b], 1), np.stack([above + a, below + b, above + b], 1)]
    return without_slivers(Solid(vertices.reshape(-1, 3), np.concatenate(faces)))


def without_slivers(solid: Solid) -> Solid:
    """Without the triangles that have no area."""
    a, b, c = np.moveaxis(solid.vertices[solid.faces], 1, 0)
    area = np.linalg.norm(np.cross(b - a, c - a), axis=1)
    return Solid(solid.vertices, solid.faces[area > 1e-12 * (area.max(initial=0.0) or 1.0)])
