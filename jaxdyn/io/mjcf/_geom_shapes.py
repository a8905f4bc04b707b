"""The shapes of geoms as pairs of them see these: sizes, and what is not numbers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from jaxdyn.geometry import Grid, Hull, Hulls
from jaxdyn.io.mjcf._geom_pairs import GeomPair, GeomType


def shape_of(m: Any, geom: int, reach: float = 0.0) -> tuple[Hashable, np.ndarray]:
    """Return the structure of the shape of a geom of an `mjModel` that is no mesh, and its sizes `[k]`: None and the
    three numbers of `geom_size`, for a height field its grid for geoms that reach so far from their centers (m), and
    its sizes and elevations."""
    if m.geom_type[geom] == GeomType.HFIELD:
        return _grid_of(m, geom, reach)
    return None, m.geom_size[geom].copy()


def shapes_of_pair(m: Any, pair: GeomPair) -> tuple[tuple[Hashable, np.ndarray], tuple[Hashable, np.ndarray]]:
    """Return the shapes of both geoms of a pair of an `mjModel`, as `shape_of` does."""
    reach = float(m.geom_rbound[pair.geom2]) + pair.margin + pair.gap
    return shape_of(m, pair.geom1, reach), shape_of(m, pair.geom2)


def hulls_of_geoms(m: Any, *sides: Sequence[int]) -> tuple[list[Hulls | None], np.ndarray]:
    """Return the convex hulls of each of several lists of geoms of an `mjModel`, None for a list of other geoms, and
    the positions of the vertices of all hulls, `[hulls, 3 * vertices]` (m), of which short ones are filled up with
    their first vertex."""
    is_mesh = [all(m.geom_type[g] == GeomType.MESH for g in geoms) for geoms in sides]
    meshes = sorted({int(m.geom_dataid[g]) for geoms, own in zip(sides, is_mesh, strict=True) if own for g in geoms})
    found = [_hull_of(m, mesh) for mesh in meshes]
    hulls = tuple(hull for hull, _ in found)
    most = max((len(vertices) for _, vertices in found), default=0)
    filled = [np.concatenate([x, np.repeat(x[:1], most - len(x), axis=0)]).ravel() for _, x in found]
    number = {mesh: k for k, mesh in enumerate(meshes)}
    structures: list[Hulls | None] = []
    for geoms, own in zip(sides, is_mesh, strict=True):
        structures.append(Hulls(hulls, tuple(number[int(m.geom_dataid[g])] for g in geoms)) if own else None)
    return structures, np.array(filled).reshape(len(found), 3 * most)


def _hull_of(m: Any, mesh: int) -> tuple[Hull, np.ndarray]:
    """The hull of a mesh, and its vertices `[n, 3]`."""
    first, count = int(m.mesh_vertadr[mesh]), int(m.mesh_vertnum[mesh])
    vertices = np.asarray(m.mesh_vert[first : first + count], float)
    start = int(m.mesh_polyadr[mesh])
    polygons = slice(start, start + int(m.mesh_polynum[mesh]))
    counts = np.asarray(m.mesh_polyvertnum[polygons], int)
    # The corners of faces stand one after the other, those of one mesh at a time.
    begin = int(m.mesh_polyvertadr[start])
    corners = m.mesh_polyvert[begin : begin + counts.sum()]
    # Also vertices that are corners of no face: the compiler merges triangles that are almost in one plane, and a
    # vertex in the middle of such a face stands out from it by some micrometers.
    used = np.union1d(corners, _vertices_of_hull(m, mesh))
    # All faces at once: hulls have thousands of them.
    return Hull.of(vertices[used], np.searchsorted(used, corners), counts, m.mesh_polynormal[polygons]), vertices[used]


def _vertices_of_hull(m: Any, mesh: int) -> np.ndarray:
    """Return the numbers of the vertices among which MuJoCo looks for the farthest one: those of the convex hull, or
    all of a mesh whose hull is not stored."""
    start = int(m.mesh_graphadr[mesh])
    if start < 0:
        return np.arange(int(m.mesh_vertnum[mesh]))
    # The graph begins with the numbers of vertices and faces, and where the edges of each vertex begin.
    count = int(m.mesh_graph[start])
    return m.mesh_graph[start + 2 + count : start + 2 + 2 * count]


def _grid_of(m: Any, geom: int, reach: float) -> tuple[Grid, np.ndarray]:
    field = int(m.geom_dataid[geom])
    rows, columns = int(m.hfield_nrow[field]), int(m.hfield_ncol[field])
    first = int(m.hfield_adr[field])
    elevations = np.asarray(m.hfield_data[first : first + rows * columns], float)
    size = np.asarray(m.hfield_size[field], float)
    return Grid.reached(geom, rows, columns, size[:2], reach), np.concatenate([size, elevations])
