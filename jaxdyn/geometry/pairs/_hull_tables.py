"""The structure of convex hulls: their faces, and tables of those of many hulls."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxdyn._digests import digest_of_arrays
from jaxdyn._errors import ModelError
from jaxdyn.geometry.pairs._candidates import Placed

CORNERS = 4
"""A face has contacts at so many of its corners at most."""


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Hull:
    """The faces of a convex hull. Equal ones are known by a digest: hulls have up to ten thousand faces, and programs
    are looked up by those of their worlds."""

    corners: np.ndarray
    """`[n]`: the corners of one face after the other, as numbers of vertices: clockwise as they are seen from
    outside."""
    counts: np.ndarray
    """`[faces]`: how many corners each has."""
    around: np.ndarray
    """`[n, 3]`: a vertex, a face that has it, and the other end of an edge of this face, one vertex after the other.
    Several of equal ones follow MuJoCo's order."""
    normal_offsets: np.ndarray
    """`[faces, 3]`: the differences of MuJoCo's normals of the faces from those by the last three corners of each:
    MuJoCo computes normals from positions that are not yet rounded to single precision."""
    vertices: int
    """The number of vertices."""

    def __repr__(self) -> str:
        # JAX takes the text of what it compiles, which would be megabytes.
        return f"Hull(<{len(self.counts)} faces of {self.vertices} vertices>)"

    @functools.cached_property
    def _digest(self) -> str:
        return digest_of_arrays({field.name: getattr(self, field.name) for field in dataclasses.fields(self)})

    def __hash__(self) -> int:
        return hash(self._digest)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Hull) and self._digest == other._digest)

    @classmethod
    def of(cls, vertices: np.ndarray, corners: np.ndarray, counts: np.ndarray, normals: np.ndarray) -> Hull:
        """Return a hull of vertices `[n, 3]`, the numbers of those around one face after the other, counterclockwise as
        they are seen from outside, how many each face has, and the normals `[faces, 3]` of the faces."""
        faces, place = places_in(counts)
        starts = _starts(counts)
        clockwise = corners[(starts + counts - 1)[faces] - place]
        ends = clockwise[starts[faces] + (place + 1) % counts[faces]]
        around = np.stack([clockwise, faces, ends], axis=1)[np.argsort(clockwise, kind="stable")]
        last = clockwise[(starts + counts)[:, None] + np.arange(-3, 0)]
        return cls(clockwise, counts, around, normals - _normals(vertices[last]), len(vertices))


def places_in(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of its list and the place in it for each element of lists that stand one after the other."""
    lists = np.repeat(np.arange(len(counts)), counts)
    return lists, np.arange(len(lists)) - _starts(counts)[lists]


def _normals(corners: np.ndarray) -> np.ndarray:
    """The normals `[k, 3]` of three corners each `[k, 3, 3]`, clockwise as they are seen from outside."""
    normals = np.cross(corners[:, 1] - corners[:, 2], corners[:, 0] - corners[:, 2])
    return normals / np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), np.finfo(float).tiny)


@dataclasses.dataclass(frozen=True)
class Hulls:
    """Convex hulls, and which ones the shapes of some pairs have."""

    hulls: tuple[Hull, ...]
    members: tuple[int, ...]
    """The number of the hull of each shape."""

    @property
    def tables(self) -> HullTables:
        """The tables of all hulls."""
        return tables_of(self.hulls)


@dataclasses.dataclass(frozen=True, eq=False)
class ChosenHulls:
    """Convex hulls of which data say which ones the shapes of some pairs have."""

    hulls: Hulls
    members: Any
    """`[n]`: the number of the hull of each shape."""
    rows: Any
    """`[n]`: the row of its vertices."""
    near: Any = None
    """`[n]`: which shapes are near the other ones of their pairs, so that the search for places that touch is needed;
    True for a single pair that is, in a loop over pairs; None if it is not known."""
    columns: Any = None
    """`[rows, 3, vertices]`: the vertices, coordinate by coordinate, if they are at hand."""

    @property
    def tables(self) -> HullTables:
        return self.hulls.tables


class HullTables(NamedTuple):
    """Tables of hulls, one after the other: padded to the largest hull and face, those of a humanoid with meshes of
    9,282 faces would take 87 MB."""

    corners: np.ndarray
    """`[n]`: the corners of all faces."""
    starts: np.ndarray
    """`[faces]`: where those of each face begin."""
    counts: np.ndarray
    """`[faces]`: how many corners each has."""
    offsets: np.ndarray
    """`[faces, 3]`: see `Hull.normal_offsets`."""
    around: np.ndarray
    """`[n, 2]`: the faces around all vertices, and the other ends of their edges."""
    around_starts: np.ndarray
    """`[vertices]`: where those of each vertex begin."""
    around_counts: np.ndarray
    """`[vertices]`: how many each has."""
    first_face: np.ndarray
    """`[hulls]`: the number of faces before each hull."""
    first_vertex: np.ndarray
    """`[hulls]`: the number of vertices before each hull."""
    sizes: np.ndarray
    """`[hulls]`: the number of vertices of each."""
    places: np.ndarray
    """The numbers below that of the corners that a face has at most."""
    edges: np.ndarray
    """The numbers below that of the faces that are around a vertex at most."""

    def corner(self, row, face, place) -> Any:
        """The corners of faces at places, or the last ones."""
        face = jnp.asarray(self.first_face)[row] + face
        last = jnp.asarray(self.counts)[face] - 1
        return jnp.asarray(self.corners)[jnp.asarray(self.starts)[face] + jnp.minimum(place, last)]

    def count(self, row, face) -> Any:
        """How many corners faces have."""
        return jnp.asarray(self.counts)[jnp.asarray(self.first_face)[row] + face]

    def last_corners(self, row, faces) -> Any:
        """The last three corners `[*n, 3]` of faces, whose normals are theirs."""
        last = self.count(row, faces)[..., None] + np.arange(-3, 0)
        return self.corner(row[..., None] if jnp.ndim(row) else row, faces[..., None], last)

    def normal_offset(self, row, faces) -> Any:
        """The vectors `[*n, 3]` to add to the normals that the last corners of faces give."""
        return jnp.asarray(self.offsets)[jnp.asarray(self.first_face)[row] + faces]

    def around_vertex(self, row, vertex) -> tuple[Any, Any]:
        """The faces `[degree]` around a vertex, -1 for none, and the other ends of its edges."""
        vertex = jnp.asarray(self.first_vertex)[row] + vertex
        edges = jnp.asarray(self.edges)
        found = jnp.asarray(self.around)[jnp.asarray(self.around_starts)[vertex] + edges]
        there = edges < jnp.asarray(self.around_counts)[vertex]
        return jnp.where(there, found[:, 0], -1), jnp.where(there, found[:, 1], 0)


@functools.lru_cache(maxsize=64)
def tables_of(hulls: tuple[Hull, ...]) -> HullTables:
    """Return the tables of hulls."""
    counts = np.concatenate([hull.counts for hull in hulls])
    degrees = np.concatenate([np.bincount(hull.around[:, 0], minlength=hull.vertices) for hull in hulls])
    faces, sizes = (np.array(x) for x in zip(*((len(hull.counts), hull.vertices) for hull in hulls), strict=True))
    most, degree = counts.max(), degrees.max()
    # A vertex at the end reads beyond those around it.
    around = np.concatenate([*(hull.around[:, 1:] for hull in hulls), np.zeros((degree, 2))])
    whole = [
        *(np.concatenate([hull.corners for hull in hulls]), _starts(counts), counts),
        np.concatenate([hull.normal_offsets for hull in hulls]),
        *(around, _starts(degrees), degrees, _starts(faces), _starts(sizes), sizes, np.arange(most), np.arange(degree)),
    ]
    names = HullTables._fields
    return HullTables(*(x if k == "offsets" else x.astype(np.int32) for k, x in zip(names, whole, strict=True)))


def _starts(counts: np.ndarray) -> np.ndarray:
    return np.cumsum(counts) - counts


def hulls_of(shape: Placed) -> ChosenHulls:
    """Return the hulls of meshes. **Raises** `ModelError` for shapes without."""
    hulls = shape.structure
    if isinstance(hulls, ChosenHulls):
        return hulls
    if not isinstance(hulls, Hulls):
        raise ModelError("meshes need Hulls as their structure, and the positions of the hulls' vertices as sizes")
    members = np.array(hulls.members)
    return ChosenHulls(hulls, members, members)


@functools.cache
def box_hull() -> Hull:
    """Return the hull of a box, whose corners are numbered with the side along x as the lowest bit, then y, then z.

    The order of the corners of faces and of the edges of corners is MuJoCo's, by which it chooses of equal ones.
    """
    right, left = (7, 3, 1, 5), (2, 6, 4, 0)
    top, bottom = (2, 3, 7, 6), (4, 5, 1, 0)
    front, back = (6, 7, 5, 4), (3, 2, 0, 1)
    corners = np.array([right, left, top, bottom, front, back]).ravel()
    around = [(v, 2 * axis + (not v >> axis & 1), v ^ (1 << axis)) for v in range(8) for axis in range(3)]
    return Hull(corners, np.full(6, 4), np.array(around), np.zeros((6, 3)), 8)


@functools.cache
def cylinder_hull(edges: int) -> Hull:
    """Return the ends of a cylinder as polygons, the upper one with the first vertices. Numbers of its vertices are
    otherwise those of its ends: 0 and 1."""
    upper, lower = (0, *range(edges - 1, 0, -1)), range(edges, 2 * edges)
    corners, counts = np.array([*upper, *lower]), np.full(2, edges)
    return Hull(corners, counts, np.array([(0, 0, 1), (1, 1, 0)]), np.zeros((2, 3)), 2)


def normals_of(corners, offsets) -> Any:
    """The normals `[*n, 3]` of faces by their last corners `[*n, 3, 3]`, and what to add to these."""
    across = jnp.cross(corners[..., 1, :] - corners[..., 2, :], corners[..., 0, :] - corners[..., 2, :])
    square = jnp.sum(across * across, axis=-1, keepdims=True)
    exists = square > 0
    return jnp.where(exists, across, 0) / jnp.sqrt(jnp.where(exists, square, 1)) + offsets.astype(across.dtype)
