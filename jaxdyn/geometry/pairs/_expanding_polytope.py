"""The search for the places at which two convex polytopes are nearest, or overlap least deeply.

The difference of all points of both is a convex polytope, too, which has the origin inside where both overlap. A
polytope that begins with four of its corners grows by the corner that is farthest towards the origin, or, once it has
the origin inside, beyond its nearest face (van den Bergen, Proximity queries and penetration depth computation on 3D
game objects, GDC 2001). It ends when nothing lies beyond. Only numbers of corners come out of it: distances and their
derivatives follow from these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

MOST_CORNERS = 68
"""The polytope has at most so many corners. MuJoCo makes 35 steps with four at first by default (`ccd_iterations`);
it ends at 1e-6 m, and this search at rounding, so that it takes a few more."""
MOST_FACES = 2 * MOST_CORNERS
"""A closed surface of triangles has fewer than twice as many of them as corners."""
SAME = 30.0
"""Progress counts as none where it is less than so many roundoffs of the size of both shapes."""
ROUND = 1e-10
"""The same for round shapes, as a part of their size: each step makes the rest about four times smaller. Steps of
Newton's method follow (`separation_near`)."""
THIN = 0.1
"""A triangle whose height is less than this many square roots of the roundoff has no normal that could be used: its
error would be of this size, too."""

BLOCK = 64
"""So many vertices are compared at once, so that hulls of few vertices in a table of large ones take little time."""

_PARTS_FIRST = np.array([sorted(range(3), key=lambda k: not x >> (2 - k) & 1) for x in range(8)])
"""The numbers of three parts, those that count first, by which ones count: the first one as 4, the last one as 1."""

type Support = Callable[[Any], tuple[Any, Any, Any]]
"""Returns the numbers of the corners of both shapes that are farthest along a direction `[3]`, and their difference."""


class Solid(NamedTuple):
    """A convex polytope at its place."""

    rotation: Any
    """`[3, 3]`"""
    position: Any
    """`[3]`"""
    vertices: Any
    """`[n, 3]`, in its own axes."""
    count: Any
    """The number of its vertices; those behind fill up to a common size."""
    columns: Any
    """`[3, n]`: the vertices, coordinate by coordinate."""

    def farthest(self, direction) -> tuple[Any, Any]:
        """The number of the vertex that is farthest along a direction, and its place."""
        number = farthest_vertex(self.columns, self.count, direction @ self.rotation)
        return number, self.place(number)

    def place(self, numbers) -> Any:
        """The places of vertices."""
        return self.vertices[numbers] @ self.rotation.T + self.position


def farthest_vertex(columns, count, direction) -> Any:
    """Return the number of the vertex of the first `count` ones of `[3, n]` that is farthest along a direction, the
    first one of equal ones."""
    size = columns.shape[1]
    if size <= BLOCK:
        return jnp.argmax(direction @ columns).astype(jnp.int32)

    def heights(start):
        # The last block begins earlier, where the table ends.
        return direction @ jax.lax.dynamic_slice_in_dim(columns, jnp.minimum(start, size - BLOCK), BLOCK, axis=1)

    def step(carried):
        # The largest height of a block is found with vectors, and the vertex in the block where it is.
        begin, height, best = carried
        new = jnp.max(heights(begin))
        higher = new > height
        return begin + BLOCK, jnp.where(higher, new, height), jnp.where(higher, begin, best)

    zero = jnp.zeros((), jnp.int32)
    begin = jnp.asarray(BLOCK, jnp.int32), jnp.max(heights(zero)), zero
    best = jax.lax.while_loop(lambda carried: carried[0] < count, step, begin)[2]
    return jnp.minimum(best, size - BLOCK) + jnp.argmax(heights(best)).astype(jnp.int32)


class Round(NamedTuple):
    """An ellipsoid or a cylinder at its place."""

    rotation: Any
    """`[3, 3]`"""
    position: Any
    """`[3]`"""
    sizes: Any
    """`[3]`: the semi-axes, of a cylinder twice the radius and half the length."""
    has_ends: bool
    """Whether it is a cylinder."""

    def farthest(self, direction) -> tuple[Any, Any]:
        """0, or 1 at the lower end of a cylinder, and the place that is farthest along a direction."""
        local = direction @ self.rotation
        if not self.has_ends:
            place = self.sizes * _unit(self.sizes * local)
            return jnp.zeros((), jnp.int32), self.rotation @ place + self.position
        rim = self.sizes[:2] * _unit(local * np.array([1.0, 1.0, 0.0]))[:2]
        up = local[2] >= 0
        place = jnp.stack([rim[0], rim[1], jnp.where(up, self.sizes[2], -self.sizes[2])])
        return jnp.where(up, 0, 1).astype(jnp.int32), self.rotation @ place + self.position


class Nearest(NamedTuple):
    """The corners of both shapes at which they are nearest, as numbers `[3]`, and the first one again in the place of
    what is not needed."""

    first: Any
    second: Any
    distinct: Any
    """How many of the three pairs there are."""
    normal: Any
    """From the first shape to the second."""
    place1: Any
    """`[3]`: the nearest place of the first shape."""
    place2: Any
    """`[3]`: the nearest place of the second shape."""
    touches: Any
    """Whether both are within the margin."""


class _Polytope(NamedTuple):
    corners: Any
    """`[corners, 3]`"""
    numbers: Any
    """`[corners, 2]`: the corners of both shapes."""
    count: Any
    faces: Any
    """`[faces, 3]`: counterclockwise as they are seen from outside."""
    exists: Any
    """`[faces]`"""
    ended: Any
    apart: Any
    """Whether a direction separates both by more than the margin."""


MOST_STEPS = 20
"""`are_apart` takes at most so many steps, each of which costs two searches for vertices. Most pairs that are apart are
seen to be in fewer than six; for others the answer is no, and the polytope decides."""


def are_apart(one: Solid | Round, two: Solid, margin: Any) -> Any:
    """Return whether a direction was found that separates two shapes by more than the margin.

    The search goes from triangle to triangle towards the origin (Gilbert, Johnson & Keerthi, A fast procedure for
    computing the distance between complex objects in three-dimensional space, IEEE J. Robotics and Automation 4, 1988),
    which takes a small part of the operations of growing a polytope. It says nothing of shapes that are near."""
    support = _support(one, two)
    corner = support(_unit(two.position - one.position))[2]

    def step(carried):
        triangle, nearest_place, count, _, _ = carried
        square = _square(nearest_place)
        direction = -_unit(nearest_place)
        corner = support(direction)[2]
        reach = direction @ corner
        apart = -reach > margin
        # The new corner in the place of each of the others.
        tried = jnp.where(jnp.eye(3, dtype=bool)[:, :, None], corner, triangle)
        places = jnp.sum(_weights(tried)[:, :, None] * tried, axis=1)
        best = jnp.argmin(_square(places))
        closer = _square(places[best]) < square * (1 - 100 * jnp.finfo(square.dtype).eps)
        going = ~apart & closer & (_square(places[best]) > jnp.maximum(margin, 0) ** 2) & (count < MOST_STEPS)
        return tried[best], places[best], count + 1, apart, going

    begin = jnp.stack([corner] * 3), corner, jnp.zeros((), jnp.int32), jnp.asarray(False), jnp.asarray(True)
    return jax.lax.while_loop(lambda carried: carried[4], step, begin)[3]


def _support(one: Solid | Round, two: Solid) -> Support:
    def support(direction):
        (i, a), (j, b) = one.farthest(direction), two.farthest(-direction)
        return i, j, a - b

    return support


def nearest(one: Solid | Round, two: Solid, margin: Any) -> Nearest:
    """Return where two shapes are nearest."""
    support = _support(one, two)
    first, size = _tetrahedron(support, two.position - one.position)
    eps = jnp.finfo(size.dtype).eps
    thin, same = THIN * jnp.sqrt(eps) * size, SAME * eps * size
    if isinstance(one, Round):
        same = jnp.maximum(same, ROUND * size)

    def step(polytope: _Polytope) -> _Polytope:
        _, _, direction, gap = _nearest_face(polytope, thin)
        i, j, corner = support(direction)
        reach = direction @ corner
        apart = -reach > margin
        ends = apart | (gap + reach <= same) | (polytope.count >= MOST_CORNERS)
        grown = _with_corner(polytope, corner, jnp.stack([i, j]), thin, same)
        kept = polytope._replace(ended=True | polytope.ended, apart=polytope.apart | apart)
        return jax.tree.map(lambda a, b: jnp.where(ends, a, b), kept, grown)

    polytope = jax.lax.while_loop(lambda polytope: ~polytope.ended, step, first)
    face, weights, normal, gap = _nearest_face(polytope, thin)
    corners, inside = polytope.faces[face], gap < 0
    places2 = two.place(polytope.numbers[corners, 1])
    place2 = weights @ places2
    place1 = place2 + weights @ polytope.corners[corners]
    # Next to the nearest place of a face that has the origin inside, all three corners say which face it is.
    counts = (weights > 0) | inside
    which = jnp.sum(jnp.where(counts, np.array([4, 2, 1]), 0))
    pairs = polytope.numbers[corners][jnp.asarray(_PARTS_FIRST)[which]]
    distinct = jnp.sum(counts)
    pairs = jnp.where((jnp.arange(3) < distinct)[:, None], pairs, pairs[:1])
    touches = ~polytope.apart & (gap <= margin)
    return Nearest(pairs[:, 0], pairs[:, 1], distinct, normal, place1, place2, touches)


def _tetrahedron(support: Support, offset) -> tuple[_Polytope, Any]:
    """Four corners that are not in a plane, as a polytope, and the size of both shapes."""
    along = _unit(offset)
    found = [support(along), support(-along)]
    edge = found[1][2] - found[0][2]
    axis = jnp.eye(3, dtype=edge.dtype)[jnp.argmin(jnp.abs(edge))]
    for across in (lambda: jnp.cross(edge, axis), lambda: jnp.cross(edge, found[2][2] - found[0][2])):
        direction = _unit(across())
        up, down = support(direction), support(-direction)
        rise, fall = (jnp.abs((x[2] - found[0][2]) @ direction) for x in (up, down))
        i, j, corner = (jnp.where(fall > rise, b, a) for a, b in zip(up, down, strict=True))
        found.append((i, j, corner))
    corners = jnp.stack([x[2] for x in found])
    numbers = jnp.stack([jnp.stack(x[:2]) for x in found])
    size = jnp.sum(jnp.linalg.norm(corners, axis=1)) + jnp.sum(jnp.linalg.norm(corners - corners[0], axis=1))
    # Outward faces of a tetrahedron whose last corner is above the others, which are counterclockwise from there.
    above = (corners[1] - corners[0]) @ jnp.cross(corners[2] - corners[0], corners[3] - corners[0]) > 0
    outward = np.array([[0, 2, 1], [0, 1, 3], [1, 2, 3], [2, 0, 3]], np.int32)
    faces = jnp.where(above, outward, outward[:, ::-1])
    polytope = _Polytope(
        jnp.pad(corners, ((0, MOST_CORNERS - 4), (0, 0))),
        jnp.pad(numbers, ((0, MOST_CORNERS - 4), (0, 0))),
        jnp.asarray(4, jnp.int32),
        jnp.pad(faces, ((0, MOST_FACES - 4), (0, 0))),
        jnp.arange(MOST_FACES) < 4,
        jnp.asarray(False),
        jnp.asarray(False),
    )
    return polytope, size


def _unit(v) -> Any:
    """The direction of a vector, the x-axis for none."""
    length = jnp.linalg.norm(v)
    return jnp.where(length > 0, v / jnp.where(length > 0, length, 1), jnp.eye(3, dtype=v.dtype)[0])


def _planes(polytope: _Polytope, thin) -> tuple[Any, Any, Any]:
    """The normals `[faces, 3]` of the faces and their distances from the origin; and which faces have normals."""
    a, b, c = (polytope.corners[polytope.faces[:, k]] for k in range(3))
    across = jnp.cross(b - a, c - a)
    double = jnp.linalg.norm(across, axis=1)
    longest = jnp.sqrt(jnp.maximum(jnp.maximum(*(jnp.sum(e * e, axis=1) for e in (b - a, c - a))), _square(c - b)))
    flat = polytope.exists & (double > thin * longest)
    normals = across / jnp.where(flat, double, 1)[:, None]
    return normals, jnp.sum(normals * a, axis=1), flat


def _square(v) -> Any:
    return jnp.sum(v * v, axis=-1)


def _nearest_face(polytope: _Polytope, thin) -> tuple[Any, Any, Any, Any]:
    """The face that is nearest to the origin, the shares of its corners in the nearest place, the direction outward
    there, and the distance from there, negative while the origin is inside."""
    normals, offsets, flat = _planes(polytope, thin)
    beyond = flat & (offsets < 0)
    inside = ~jnp.any(beyond)
    weights = _weights(polytope.corners[polytope.faces])
    places = jnp.sum(weights[:, :, None] * polytope.corners[polytope.faces], axis=1)
    far = jnp.finfo(offsets.dtype).max
    outer = jnp.argmin(jnp.where(beyond, _square(places), far))
    face = jnp.where(inside, jnp.argmin(jnp.where(flat, offsets, far)), outer)
    length = jnp.linalg.norm(places[face])
    # Next to the surface only the normal of the face has a direction.
    tiny = jnp.finfo(offsets.dtype).eps * jnp.max(jnp.abs(polytope.corners))
    by_face = inside | (length <= tiny)
    direction = jnp.where(by_face, normals[face], -places[face] / jnp.where(by_face, 1, length))
    return face, weights[face], direction, jnp.where(by_face, -offsets[face], length)


def _weights(corners) -> Any:
    """The shares `[n, 3]` of the corners `[n, 3, 3]` of triangles in their places nearest to the origin (Ericson,
    Real-Time Collision Detection, 5.1.5)."""
    a, b, c = (corners[:, k] for k in range(3))
    ab, ac = b - a, c - a
    d1, d2, d3, d4, d5, d6 = (-jnp.sum(edge * corner, axis=1) for corner in (a, b, c) for edge in (ab, ac))
    at_c, at_b, at_a = d1 * d4 - d3 * d2, d5 * d2 - d1 * d6, d3 * d6 - d5 * d4
    zero, one = jnp.zeros_like(d1), jnp.ones_like(d1)

    def part(x, whole):
        return x / jnp.where(whole != 0, whole, 1)

    on_ab, on_ac, on_bc = part(d1, d1 - d3), part(d2, d2 - d6), part(d4 - d3, (d4 - d3) + (d5 - d6))
    whole = at_a + at_b + at_c
    cases = [
        ((d1 <= 0) & (d2 <= 0), (one, zero, zero)),
        ((d3 >= 0) & (d4 <= d3), (zero, one, zero)),
        ((d6 >= 0) & (d5 <= d6), (zero, zero, one)),
        ((at_c <= 0) & (d1 >= 0) & (d3 <= 0), (1 - on_ab, on_ab, zero)),
        ((at_b <= 0) & (d2 >= 0) & (d6 <= 0), (1 - on_ac, zero, on_ac)),
        ((at_a <= 0) & (d4 >= d3) & (d5 >= d6), (zero, 1 - on_bc, on_bc)),
    ]
    found = part(at_a, whole), part(at_b, whole), part(at_c, whole)
    for applies, weights in reversed(cases):
        found = tuple(jnp.where(applies, x, y) for x, y in zip(weights, found, strict=True))
    return jnp.stack(found, axis=1)


def _with_corner(polytope: _Polytope, corner, numbers, thin, same) -> _Polytope:
    """The polytope with one more corner: faces that it sees are replaced by those to the edges around them."""
    normals, offsets, flat = _planes(polytope, thin)
    sees = flat & (normals @ corner - offsets > same)
    start, end = polytope.faces, jnp.roll(polytope.faces, -1, axis=1)
    # Whether a face that is seen has an edge from one corner to another; edges of others have no place.
    edges = jnp.where(sees[:, None], start * MOST_CORNERS + end, MOST_CORNERS**2)
    seen = jnp.zeros(MOST_CORNERS**2, bool).at[edges].set(True, mode="drop")
    around = (sees[:, None] & ~seen[end * MOST_CORNERS + start]).reshape(-1)
    exists = polytope.exists & ~sees
    # The places of new faces are those of no others.
    numbers_of_free = jnp.where(exists, MOST_FACES, jnp.cumsum(~exists) - 1)
    free = jnp.full(MOST_FACES, MOST_FACES).at[numbers_of_free].set(jnp.arange(MOST_FACES), mode="drop")
    target = jnp.where(around, free[jnp.cumsum(around) - 1], MOST_FACES)
    tip = jnp.full(around.shape, polytope.count, polytope.faces.dtype)
    new = jnp.stack([start.reshape(-1), end.reshape(-1), tip], axis=1)
    return _Polytope(
        polytope.corners.at[polytope.count].set(corner, mode="drop"),
        polytope.numbers.at[polytope.count].set(numbers, mode="drop"),
        polytope.count + 1,
        polytope.faces.at[target].set(new, mode="drop"),
        exists.at[target].set(True, mode="drop"),
        # Nothing is seen: rounding ends the search.
        polytope.ended | ~jnp.any(sees),
        polytope.apart,
    )
