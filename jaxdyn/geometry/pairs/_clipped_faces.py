"""The faces and edges of two convex polytopes that lie on each other, and the corners of what they share
(mjc_multicontact of MuJoCo 4): as numbers of vertices, from which places and their derivatives follow."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.geometry.pairs._expanding_polytope import Nearest, Solid
from jaxdyn.geometry.pairs._faces import OPPOSITE, SLANT
from jaxdyn.geometry.pairs._hull_tables import CORNERS, HullTables, normals_of

NONE, FACES, FIRST_EDGE, SECOND_EDGE = 0, 1, 2, 3
"""The ways in which shapes lie on each other: not at all, face on face, an edge of the first shape on a face of the
second, or the reverse."""
VERTEX, CROSSING, BELOW = 0, 1, 2
"""Corners of a shared part: a vertex of the face that is cut, a place where one of its edges crosses the side of the
other face, and a place that lies below a vertex of the other face."""


class Shared(NamedTuple):
    """The part that two faces share, or a face and an edge."""

    how: Any
    """`NONE` and so on."""
    face: Any
    """The number of the face by whose sides the other one, or the edge, is cut: of the second shape for `FIRST_EDGE`
    only."""
    other: Any
    """The number of the face that is cut."""
    kinds: Any
    """`[4]`: `VERTEX` and so on, -1 for corners that there are not."""
    cut: Any
    """`[4, 2]`: the vertices of the edge that is cut."""
    sides: Any
    """`[4, 2]`: the vertices of the side of the other face."""
    places: Any
    """`[4, 3]`: where the corners are. Faces of meshes are flat to single precision or less, so those that lie below a
    vertex depend on all cuts before, and are not exactly in the plane of three vertices."""


class Sided(NamedTuple):
    """A solid with the tables of its hull."""

    solid: Solid
    tables: HullTables | None
    """None for a segment."""
    row: Any
    line: int | None = None
    """For a cylinder, whose numbers of vertices are those of its ends: the number of the upper vertex of the line on
    its side that is nearest to the other shape, before that of the lower one."""
    has_line: Any = True

    def start(self, numbers) -> Any:
        """The first vertex of edges of the first of three vertices."""
        return numbers[0] if self.line is None else self.line + numbers[0]

    def normals(self, faces) -> Any:
        """The normals `[n, 3]` of faces."""
        tables = self.tables
        assert tables is not None
        corners = self.solid.vertices[tables.last_corners(self.row, faces)]
        return normals_of(corners, tables.normal_offset(self.row, faces)) @ self.solid.rotation.T

    def around(self, numbers) -> tuple[Any, Any]:
        """The faces `[degree]` that have all of three vertices, and which of these there are: at most two around an
        edge, and one that three different vertices have."""
        tables = self.tables
        assert tables is not None
        faces = tables.around_vertex(self.row, numbers[0])[0]
        _, size = _dimension(numbers)
        others = jnp.where(numbers[1] != numbers[0], numbers[1:], numbers[:0:-1])
        exists = faces >= 0
        # Faces that the compiler has merged out of triangles may overlap, so that more than two have an edge. MuJoCo
        # takes the first ones (meshNormals of engine_collision_gjk.c).
        for other, most in zip(others, (2, 1), strict=True):
            has = exists & jnp.any(faces[:, None] == tables.around_vertex(self.row, other)[0][None], axis=1)
            exists = has & ((size == 1) | (jnp.cumsum(has) <= jnp.where(size == 2, 2, most)))
        return jnp.where(exists, faces, 0), exists

    def edges(self, numbers) -> tuple[Any, Any]:
        """The other ends `[degree]` of edges of the first of three vertices, and which of these there are: the edge to
        another of the three, or all that it has."""
        if self.tables is None:
            return 1 - numbers[:1], jnp.ones(1, bool)
        if self.line is not None:
            return self.line + 1 - numbers[:1], jnp.reshape(self.has_line, 1)
        _, size = _dimension(numbers)
        around, ends = self.tables.around_vertex(self.row, numbers[0])
        single = jnp.where(numbers[1] != numbers[0], numbers[1], numbers[2])
        alone = size > 1
        return jnp.where(alone, single, ends), jnp.where(alone, jnp.arange(len(ends)) < 1, around >= 0)


def _dimension(numbers) -> tuple[Any, Any]:
    """Whether three vertices are at most an edge, and how many they are."""
    a, b, c = numbers[0], numbers[1], numbers[2]
    size = 1 + (b != a).astype(int) + ((c != a) & (c != b)).astype(int)
    return size < 3, size


def shared_part(one: Sided, two: Sided, at: Nearest, shift: Any, margin: Any) -> Shared:
    """Return what lies on each other where two shapes are nearest. The vertices of the first shape count as moved by a
    `shift` `[3]`, and places as near up to the margin."""
    normal = at.normal
    faces2, has2 = two.around(at.second)
    normals2 = two.normals(faces2)
    up2 = has2 & (normals2 @ normal < -SLANT)
    small1, size1 = _dimension(at.first)
    small2, size2 = _dimension(at.second)
    if one.tables is None:
        small1, size1 = jnp.asarray(True), jnp.asarray(1)
        aligned, face1, face2, has_faces1 = jnp.asarray(False), jnp.asarray(0), jnp.asarray(0), jnp.asarray(False)
        ends2 = None
    else:
        faces1, has1 = one.around(at.first)
        normals1 = one.normals(faces1)
        up1 = has1 & (normals1 @ normal > SLANT)
        cosines = jnp.where(up1[:, None] & up2, normals1 @ normals2.T, 1.0).reshape(-1)
        best = jnp.argmin(cosines)
        aligned = cosines[best] < -OPPOSITE
        face1, face2 = faces1[best // len(faces2)], faces2[best % len(faces2)]
        has_faces1 = jnp.any(has1)
        ends2, on1, found2 = _edge_on_face(two, at.second, faces1, has1 & (normals1 @ normal > 0), normals1)
    ends1, on2, found1 = _edge_on_face(one, at.first, faces2, has2 & (normals2 @ normal < 0), normals2)
    tries1 = small1 & jnp.any(has2) & ((size1 <= size2) | ~has_faces1)
    how = jnp.where(tries1, jnp.where(found1, FIRST_EDGE, NONE), NONE)
    if ends2 is not None:
        # Where the first shape's edge is on no face, MuJoCo tries that of the second.
        how = jnp.where((how == NONE) & small2 & found2, SECOND_EDGE, how)
    how = jnp.where(aligned, FACES, how)
    # The face that cuts, and what is cut.
    cut = jnp.stack([one.start(at.first), ends1])
    face, other = jnp.where(how == FIRST_EDGE, on2, face1), face2
    if ends2 is not None:
        face = jnp.where(how == SECOND_EDGE, on1, face)
        cut = jnp.where(how == SECOND_EDGE, jnp.stack([at.second[0], ends2]), cut)
    return _clipped(one, two, how, face, other, cut, shift, margin)


def _edge_on_face(shape: Sided, numbers, faces, exists, normals) -> tuple[Any, Any, Any]:
    """The end of the first edge of a shape that lies along one of some faces, this face, and whether there is one."""
    ends, has = shape.edges(numbers)
    along = shape.solid.place(ends) - shape.solid.place(shape.start(numbers))
    length = jnp.linalg.norm(along, axis=1, keepdims=True)
    along = along / jnp.where(length > 0, length, 1)
    lies = (exists[:, None] & has[None] & (jnp.abs(normals @ along.T) < SLANT)).reshape(-1)
    first = jnp.argmax(lies)
    return ends[first % len(ends)], faces[first // len(ends)], jnp.any(lies)


class _Polygon(NamedTuple):
    places: Any
    """`[k, 3]`"""
    corners: Any
    """`[k, 3]`: the kind of each corner, the edge that is cut and the side that cuts it."""
    lines: Any
    """`[k]`: the edge after each corner: one that is cut, or a side that cuts, with the edges' number added."""
    count: Any


def _clipped(one: Sided, two: Sided, how, face, other, edge, shift, margin) -> Shared:
    """The part of a face or an edge that is over a face."""
    by_second = how == FIRST_EDGE
    is_edge = how != FACES
    sides, side_count = _corners_of_either(one, two, by_second, face)
    cut, cut_count = _corners(two, other)
    most = max(len(sides), len(cut))
    sides, cut = (jnp.pad(x, (0, most - len(x))) for x in (sides, cut))
    cut = jnp.where(is_edge, jnp.pad(edge, (0, most - 2)), cut)
    cut_count = jnp.where(is_edge, 2, cut_count)
    of_sides = jnp.where(by_second, two.solid.place(sides), one.solid.place(sides))
    of_cut = jnp.where(by_second, one.solid.place(cut) + shift, two.solid.place(cut))
    normal = two.normals(face[None])[0]
    if one.tables is not None:
        normal = jnp.where(by_second, normal, one.normals(face[None])[0])
    polygon = _intersection(of_sides, side_count, normal, of_cut, cut_count)
    kept = (jnp.arange(len(polygon.lines)) < polygon.count) & ((polygon.places - of_sides[0]) @ normal <= margin)
    polygon = _compacted(polygon, kept)
    chosen = _chosen(polygon, cut_count == 2)
    # Numbers beyond all mean none.
    corners = polygon.corners[jnp.minimum(chosen, len(polygon.lines) - 1)]
    exists = (how != NONE) & (chosen < polygon.count)
    kinds = jnp.where(exists, corners[:, 0], -1)
    line, side = corners[:, 1], corners[:, 2]
    ends = jnp.stack([line, (line + 1) % cut_count], axis=1)
    around = jnp.stack([side, (side + 1) % side_count], axis=1)
    places = polygon.places[jnp.minimum(chosen, len(polygon.lines) - 1)]
    return Shared(jnp.where(jnp.any(exists), how, NONE), face, other, kinds, cut[ends], sides[around], places)


def _corners(shape: Sided, face) -> tuple[Any, Any]:
    """The corners of a face, and how many there are."""
    tables = shape.tables
    assert tables is not None
    return tables.corner(shape.row, face, jnp.asarray(tables.places)), tables.count(shape.row, face)


def _corners_of_either(one: Sided, two: Sided, by_second, face) -> tuple[Any, Any]:
    """The corners of a face of the second shape, or of the first."""
    if one.tables is None:
        return _corners(two, face)
    both = [_corners(shape, face) for shape in (one, two)]
    most = max(len(corners) for corners, _ in both)
    first, second = ((jnp.pad(corners, (0, most - len(corners))), count) for corners, count in both)
    return jax.tree.map(lambda a, b: jnp.where(by_second, b, a), first, second)


def _intersection(sides, side_count, normal, cut, cut_count) -> _Polygon:
    """The polygon cut by one side of a face after the other (Sutherland & Hodgman, Reentrant polygon clipping, Comm.
    ACM 17, 1974), from places `[n, 3]`."""
    most = len(sides) + len(cut) + 4
    numbers = jnp.arange(most)
    corners = jnp.stack([jnp.full(most, VERTEX), numbers, jnp.zeros(most, int)], axis=1)
    places = jnp.pad(cut, ((0, most - len(cut)), (0, 0)))
    begin = _Polygon(places, corners, numbers, cut_count.astype(numbers.dtype))

    def cut_by(carried):
        polygon, e = carried
        start, end = sides[e], sides[(e + 1) % side_count]
        # The corners are clockwise as they are seen along the normal.
        inward = jnp.cross(end - start, normal)
        inward = inward / jnp.maximum(jnp.linalg.norm(inward), jnp.finfo(cut.dtype).tiny)
        heights = (polygon.places - start) @ inward
        inside = heights > -INSIDE
        following = jnp.where(numbers + 1 < polygon.count, numbers + 1, 0)
        there = numbers < polygon.count
        crosses = there & (inside != inside[following])
        share = heights / jnp.where(crosses, heights - heights[following], 1)
        crossing = polygon.places + (polygon.places[following] - polygon.places) * share[:, None]
        crosses = crosses & (share >= 0) & (share <= 1)
        line = polygon.lines
        below = line >= len(cut)
        before = line - len(cut)
        # The vertex of the face between two of its sides.
        vertex = jnp.where((before == 0) & (e == side_count - 1) & (side_count > 2), 0, e)
        corner = jnp.stack(
            [jnp.where(below, BELOW, CROSSING), jnp.where(below, 0, line), jnp.where(below, vertex, e)], axis=1
        )
        new = _Polygon(crossing, corner, jnp.where(inside, e + len(cut), line), polygon.count)
        old = jax.tree.map(lambda x: x[following] if x.ndim else x, polygon)
        both = jax.tree.map(
            lambda a, b: jnp.stack([a, b], axis=1).reshape(2 * most, *a.shape[1:]) if a.ndim else a, new, old
        )
        kept = jnp.stack([crosses, there & inside[following]], axis=1).reshape(-1)
        return jax.tree.map(lambda x: x[:most] if x.ndim else x, _compacted(both, kept)), e + 1

    return jax.lax.while_loop(lambda carried: carried[1] < side_count, cut_by, (begin, jnp.asarray(0)))[0]


INSIDE = 1e-15
"""How far a corner may be beyond a side, m: what MuJoCo counts as zero."""


def _compacted(polygon: _Polygon, kept) -> _Polygon:
    """The corners that are kept, one after the other."""
    size = len(kept)
    target = jnp.where(kept, jnp.cumsum(kept) - 1, size)
    moved = jax.tree.map(lambda x: jnp.zeros_like(x).at[target].set(x, mode="drop") if x.ndim else x, polygon)
    return moved._replace(count=jnp.sum(kept).astype(polygon.count.dtype))


def _chosen(polygon: _Polygon, is_edge) -> Any:
    """The numbers of up to four corners, beyond all where there are fewer: both ends of an edge that are farthest from
    each other, and four corners of a polygon that span much of its area."""
    none = len(polygon.lines)
    numbers = jnp.arange(CORNERS)
    some = jnp.where(numbers < polygon.count, numbers, none)
    ends = polygon.places[:6]
    squares = jnp.sum((ends[:, None] - ends[None]) ** 2, axis=-1)
    exists = jnp.arange(len(ends)) < polygon.count
    squares = jnp.where(
        exists[:, None] & exists & (np.arange(len(ends))[:, None] < np.arange(len(ends))), squares, -1.0
    )
    best = jnp.argmax(squares)
    pair = jnp.where(numbers < 2, jnp.stack([best // len(ends), best % len(ends)])[numbers % 2], none)
    found = jnp.where(is_edge & (polygon.count > 2), pair, some)
    many = ~is_edge & (polygon.count > CORNERS)
    last = jnp.where(many, polygon.count - 1, -1)
    return jnp.where(many, quadrilateral(polygon.places, polygon.count, 0, last, CLIPPED), found)


class Moves(NamedTuple):
    """How four corners of a polygon are moved on: what follows after a move by which their area grows, and after one by
    which it does not, of the fourth, the third and the second corner; -1 for the end."""

    success: tuple[int, int, int]
    failure: tuple[int, int, int]


CLIPPED = Moves((1, 1, 2), (-1, 2, 0))
"""The moves of MuJoCo for a part that two faces share."""
LOWEST = Moves((1, 2, 2), (-1, 0, 1))
"""The moves of MuJoCo for a face on a plane."""


def quadrilateral(places, count, first, last, by: Moves) -> Any:
    """Return the numbers of four corners of polygons `[k, 3]`, which span much of its area: each is moved on while the
    area of all four grows, from the `first` one, and from each following one up to the `last` one."""
    count = jnp.maximum(count, 1)

    def area(q):
        a, b, c, d = (places[q[k] % count] for k in range(CORNERS))
        return jnp.linalg.norm(jnp.cross(a - c, b - d))

    moves, success, failure = (jnp.asarray(x) for x in ([3, 2, 1], by.success, by.failure))

    def step(carried):
        now, stage, largest, best = carried
        tried = now.at[moves[stage]].set((now[moves[stage]] + 1) % count)
        size = area(tried)
        grows = size > largest
        now = jnp.where(grows, tried, now)
        best = jnp.where(grows, now, best)
        following = jnp.where(grows, success[stage], failure[stage])
        # The others move on where the first one has come to them.
        moved, meets = [now[0]], jnp.asarray(True)
        for k in range(1, CORNERS):
            meets = meets & (now[k] == moved[-1])
            moved.append(jnp.where(meets, (now[k] + 1) % count, now[k]))
        moved[0] = now[0] + 1
        now = jnp.where(following < 0, jnp.stack(moved), now)
        return now, jnp.maximum(following, 0), jnp.maximum(largest, size), best

    start = (first + jnp.arange(CORNERS)) % count
    begin = start, jnp.asarray(0), area(start), start
    return jax.lax.while_loop(lambda carried: carried[0][0] <= last, step, begin)[3]
