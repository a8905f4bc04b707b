"""Meshes in contact with planes: the structure of a convex hull, and its candidates (mjc_PlaneConvex of MuJoCo 4)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import ModelError
from jaxdyn.geometry._componentwise import roundoff, select
from jaxdyn.geometry._witness import Witness, inactive_unless
from jaxdyn.geometry.pairs._candidates import Placed, point_on_plane
from jaxdyn.spatial import Vec3

CORNERS = 4
"""A face has contacts at so many of its corners at most."""


@dataclasses.dataclass(frozen=True)
class Hull:
    """The faces of a mesh's convex hull."""

    faces: tuple[tuple[int, ...], ...]
    """The corners of each face, in order around it, as numbers of vertices."""
    normals: tuple[tuple[float, ...], ...]
    """The outward normals of the faces."""
    corners: tuple[tuple[tuple[int, ...], ...], ...]
    """For each face, and for each of its corners as the lowest one, the corners that may have contacts."""

    @classmethod
    def of(cls, vertices: np.ndarray, faces: Sequence[Sequence[int]], normals: np.ndarray) -> Hull:
        """Return a hull of vertices `[n, 3]`, the numbers of those around each face, and their normals `[k, 3]`."""
        corners = [tuple(_spread_corners(vertices, face, k) for k in range(len(face))) for face in faces]
        return cls(
            tuple(tuple(int(x) for x in face) for face in faces),
            tuple(tuple(float(x) for x in normal) for normal in normals),
            tuple(corners),
        )


def _spread_corners(vertices: np.ndarray, face: Sequence[int], first: int) -> tuple[int, ...]:
    """A corner of a face and three others that span a large area with it: each is moved on while the area grows."""
    n = len(face)
    if n <= CORNERS:
        return tuple(int(x) for x in face)
    points = vertices[list(face)]

    def area(a, b, c, d):
        return np.linalg.norm(np.cross(points[a] - points[c], points[b] - points[d]))

    a, b, c, d = ((first + k) % n for k in range(CORNERS))
    largest = area(a, b, c, d)
    while area(a, b, c, (d + 1) % n) > largest:
        d = (d + 1) % n
        largest = area(a, b, c, d)
        while area(a, b, (c + 1) % n, d) > largest:
            c = (c + 1) % n
            largest = area(a, b, c, d)
        while area(a, (b + 1) % n, c, d) > largest:
            b = (b + 1) % n
            largest = area(a, b, c, d)
    return tuple(int(face[k]) for k in (a, b, c, d))


def plane_mesh(plane: Placed, mesh: Placed, margin) -> list[Witness]:
    """The lowest vertex, and corners of the lowest face that has it.

    A face with more than four corners that lies flat has several lowest ones. MuJoCo's choice of them, which follows
    the rounding errors of the vertices, may be another.
    """
    hull = mesh.structure
    if not isinstance(hull, Hull):
        raise ModelError("a mesh needs a Hull as its structure, and the positions of its vertices as sizes")
    shape = (mesh.sizes.shape[0], -1, 3, *mesh.sizes.shape[2:])
    vertices = mesh.sizes.reshape(shape)
    vertices = Vec3(vertices[:, :, 0], vertices[:, :, 1], vertices[:, :, 2])
    downward = mesh.pose.rotation.apply_transpose(-plane.axis)
    depths = downward.dot(vertices)
    size = jnp.max(jnp.abs(mesh.sizes), axis=1, keepdims=True)
    lowest = jnp.max(depths, axis=1, keepdims=True) - roundoff(size) * size
    best = None
    for face, normal, corners in zip(hull.faces, hull.normals, hull.corners, strict=True):
        facing = downward.dot(Vec3(*normal))
        touching = [depths[:, k : k + 1] >= lowest for k in face]
        places = _places(vertices, touching, corners)
        value = jnp.where(functools.reduce(jnp.logical_or, touching), facing, -2.0)
        if best is None:
            best = value, places
            continue
        better = value > best[0] + roundoff(size)
        best = jnp.where(better, value, best[0]), select(better, places, best[1])
    assert best is not None
    found = []
    for place, present in best[1]:
        depth = downward.dot(place)
        found.append(
            inactive_unless(
                (present > 0) & ((depth >= 0) | (depth >= lowest)), point_on_plane(plane, mesh.pose.apply(place))
            )
        )
    return found


def _places(vertices: Vec3, touching: list[Any], corners) -> list[tuple[Vec3, Any]]:
    """The positions of up to four corners of a face, and 1 for those that exist."""

    def of(numbers):
        zero = jnp.zeros_like(vertices.x[:, :1])
        filled = (*numbers, *[numbers[0]] * (CORNERS - len(numbers)))
        return [
            (jax.tree.map(lambda x, k=k: x[:, k : k + 1], vertices), zero + (i < len(numbers)))
            for i, k in enumerate(filled)
        ]

    if len(corners) <= CORNERS:
        return of(corners[0])
    chosen = of(corners[-1])
    for at_plane, numbers in reversed(list(zip(touching, corners, strict=True))[:-1]):
        chosen = select(at_plane, of(numbers), chosen)
    return chosen
