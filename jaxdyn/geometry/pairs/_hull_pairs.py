"""Candidates of meshes, which are their convex hulls, with spheres, capsules, boxes and each other.

MuJoCo has its general routine for these. It looks for the direction in which both are farthest apart, and where both
have faces or edges that lie on each other there, for the places that these share: up to four, with the normal of a
face. Otherwise there is one contact, between the nearest places. A search without derivatives says which vertices these
are. Distances, normals and places follow from the vertices, so that derivatives are those of these places.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._array_programs import only_where
from jaxdyn.geometry._componentwise import SHORTEST
from jaxdyn.geometry._witness import FAR, Witness
from jaxdyn.geometry.pairs._bounds import boxes_are_near
from jaxdyn.geometry.pairs._candidates import Placed
from jaxdyn.geometry.pairs._clipped_faces import (
    BELOW,
    FACES,
    FIRST_EDGE,
    NONE,
    VERTEX,
    Shared,
    Sided,
    shared_part,
)
from jaxdyn.geometry.pairs._expanding_polytope import Nearest, Round, Solid, are_apart, nearest
from jaxdyn.geometry.pairs._faces import DISK_EDGES
from jaxdyn.geometry.pairs._hull_tables import CORNERS, HullTables, box_hull, cylinder_hull, hulls_of, tables_of
from jaxdyn.geometry.pairs._lanes import Side, as_rows, common_shape, flat_number, flat_vector, of_near, vec3
from jaxdyn.geometry.pairs._round_hulls import SIDEWAYS, line_of_side, single_of_round
from jaxdyn.spatial import Mat3, Pose


def sphere_mesh(sphere: Placed, mesh: Placed, margin) -> list[Witness]:
    return _contacts(_Lanes.of(sphere, mesh, margin, _along_z(0 * sphere.size(0))[:, None], None, sphere.size(0)), 1)


def capsule_mesh(capsule: Placed, mesh: Placed, margin) -> list[Witness]:
    """The contact of the nearest place of the axis; but for a capsule that lies along a face two contacts with it."""
    half = capsule.sizes[:, 1:2]
    ends = jnp.stack([_along_z(-half), _along_z(half)], axis=1)
    return _contacts(_Lanes.of(capsule, mesh, margin, ends, None, capsule.size(0)), 2)


def ellipsoid_mesh(ellipsoid: Placed, mesh: Placed, margin) -> list[Witness]:
    ends = jnp.eye(3, dtype=ellipsoid.sizes.dtype).reshape(1, 3, 3, *(1,) * (ellipsoid.sizes.ndim - 2))
    lanes = _Lanes.of(ellipsoid, mesh, margin, ellipsoid.sizes[:, None, :3] * ends, None, 0.0)
    sizes = [flat_number(ellipsoid.size(k), lanes.shape) for k in range(3)]
    return _contacts(lanes._replace(sizes=jnp.stack(sizes, axis=-1)), 1)


def cylinder_mesh(cylinder: Placed, mesh: Placed, margin) -> list[Witness]:
    """The contacts of the disk that lies on a face, of which MuJoCo has a polygon with 16 corners, or of the line on
    the side that does."""
    angles = 2 * np.pi * np.arange(DISK_EDGES) / DISK_EDGES
    rim = np.stack([np.cos(angles), np.sin(angles), np.ones(DISK_EDGES)], axis=-1)
    corners = np.concatenate([rim, rim * [1.0, 1.0, -1.0]])
    half = jnp.stack([cylinder.sizes[:, k] for k in (0, 0, 1)], axis=1)[:, None]
    corners = half * jnp.asarray(corners.reshape(1, -1, 3, *(1,) * (half.ndim - 3)), half.dtype)
    lanes = _Lanes.of(cylinder, mesh, margin, corners, tables_of((cylinder_hull(DISK_EDGES),)), 0.0)
    sizes = [flat_number(cylinder.size(k), lanes.shape) for k in (0, 0, 1)]
    return _contacts(lanes._replace(sizes=jnp.stack(sizes, axis=-1), has_ends=True), CORNERS)


def box_mesh(box: Placed, mesh: Placed, margin) -> list[Witness]:
    signs = np.array([[1.0 if v >> axis & 1 else -1.0 for axis in range(3)] for v in range(8)])
    half = box.sizes[:, None, :3]
    corners = half * jnp.asarray(signs.reshape(1, 8, 3, *(1,) * (half.ndim - 3)), half.dtype)
    return _contacts(_Lanes.of(box, mesh, margin, corners, tables_of((box_hull(),)), 0.0), CORNERS)


def mesh_mesh(one: Placed, two: Placed, margin) -> list[Witness]:
    return _contacts(_Lanes.of(one, two, margin, None, hulls_of(one).tables, 0.0), CORNERS)


def _along_z(length) -> Any:
    """Points `[n, 3, *batch]` on the z-axis, of lengths `[n, 1, *batch]`."""
    return jnp.concatenate([0 * length, 0 * length, length], axis=1)


class _Lanes(NamedTuple):
    """Pairs of shapes at all elements of a batch, one after the other."""

    one: Side
    two: Side
    radius: Any
    """`[lanes]`: what is added to the first shape."""
    margin: Any
    origin: Any
    """`[lanes, 3]`: the position of the first shape."""
    shape: tuple[int, ...]
    """The pairs and the batch axes."""
    sizes: Any = None
    """`[lanes, 3]`: those of first shapes that are round, see `Round`."""
    has_ends: bool = False
    """Whether these are cylinders."""
    near: Any = None
    """As in `ChosenHulls`."""

    @classmethod
    def of(cls, one: Placed, mesh: Placed, margin, vertices, tables: HullTables | None, radius) -> _Lanes:
        """Return pairs with a mesh second, and with vertices `[n, k, 3, *batch]` of the first shapes, or those of
        meshes."""
        shape = common_shape(one.pose, mesh.pose, margin, radius, one.sizes[:1, :1], mesh.sizes[:1, :1])
        origin = flat_vector(one.position, shape)
        first = Side.of(one, shape, jnp.zeros_like(origin), vertices, tables)
        second = Side.of(mesh, shape, flat_vector(mesh.position, shape) - origin)
        near = hulls_of(mesh).near
        return cls(first, second, flat_number(radius, shape), flat_number(margin, shape), origin, shape, near=near)


class _Found(NamedTuple):
    at: Nearest
    shared: Shared


def _search(lanes: _Lanes, several: bool) -> _Found:
    """The vertices at which all pairs touch, without derivatives."""
    arrays = jax.lax.stop_gradient((lanes.radius, lanes.margin, lanes.sizes))
    alone = lanes.near is True
    sides = (side.constant() for side in (lanes.one, lanes.two))
    return _searched(*sides, *arrays, None if alone else lanes.near, alone, lanes.has_ends, several)


# It is traced once for shapes of equal sizes, which takes seconds, and not again for each part of a program with it.
@functools.partial(jax.jit, static_argnums=(6, 7, 8))
def _searched(
    side1: Side, side2: Side, radius, margin, sizes, near, alone: bool, has_ends: bool, several: bool
) -> _Found:
    sides = side1, side2

    def of_lane(lane) -> _Found:
        solids = [side.solid(lane) for side in sides]
        first: Solid | Round = solids[0]
        if sizes is not None:
            first = Round(first.rotation, first.position, sizes[lane], has_ends)
        reach = margin[lane] + radius[lane]

        def touching() -> _Found:
            return where_nearest(solids, first, lane, reach)

        return only_where(~are_apart(first, solids[1], reach), touching)

    def where_nearest(solids, first, lane, reach) -> _Found:
        one, two = (
            Sided(solid, side.tables, jnp.asarray(side.hull)[lane]) for solid, side in zip(solids, sides, strict=True)
        )
        at = nearest(first, solids[1], reach)
        if not several:
            return _Found(at, _no_part())
        if isinstance(first, Round):
            along = first.rotation[:, 2]
            line = line_of_side(first.sizes[None], (at.normal @ first.rotation)[None])[0]
            solid = one.solid._replace(vertices=jnp.concatenate([one.solid.vertices, line]))
            one = Sided(solid, one.tables, one.row, 2 * DISK_EDGES, 1 - (at.normal @ along) ** 2 > SIDEWAYS**2)
        shift, within = 0.0, margin[lane]
        if one.tables is None:
            shift, within = _lifted(radius[lane], within, solids[0].rotation[:, 2], at.normal)
        return _Found(at, shared_part(one, two, at, shift, within))

    return of_near(of_lane, lambda: _near(*sides, sizes, radius + margin), near, alone)


def _near(side1: Side, side2: Side, sizes, reach) -> Any:
    """Whether boxes around both shapes are within a distance along each of their axes."""
    boxes = [side1.box() if sizes is None else (side1.position, sizes), side2.box()]
    poses = [
        Pose(Mat3(*(vec3(side.rotation[:, :, k]) for k in range(3))), vec3(middle))
        for side, (middle, _) in zip((side1, side2), boxes, strict=True)
    ]
    return boxes_are_near(poses[0], boxes[0][1].T, poses[1], boxes[1][1].T, reach)


def _no_part() -> Shared:
    no = jnp.asarray(0)
    edges = jnp.zeros((CORNERS, 2), int)
    return Shared(no, no, no, jnp.full(CORNERS, -1), edges, edges, jnp.zeros((CORNERS, 3)))


def _lifted(radius, margin, axis, normal) -> tuple[Any, Any]:
    """Return the vector by which MuJoCo moves the axis of a capsule, to its surface with half the margin, and half the
    margin."""
    across = normal - axis * jnp.sum(axis * normal, axis=-1, keepdims=True)
    return across * (radius + 0.5 * margin)[..., None], 0.5 * margin


def _contacts(lanes: _Lanes, most: int) -> list[Witness]:
    """Up to so many contacts of each pair."""
    found = _search(lanes, most > 1)
    if lanes.near is not True:
        return _witnesses(lanes, found, most)
    # A single pair, in a loop over pairs: most that are near each other do not touch.
    rows = only_where(found.at.touches[0], lambda: _witnesses(lanes, found, most), 1)
    return [x._replace(gap=jnp.where(found.at.touches, x.gap, FAR)) for x in rows]


def _witnesses(lanes: _Lanes, found: _Found, most: int) -> list[Witness]:
    if lanes.sizes is None:
        single = _single(lanes, found.at)
    else:
        single = Touch(*single_of_round(lanes.one.rotation, lanes.sizes, lanes.has_ends, lanes.two, found.at))
    if most > 1 and lanes.sizes is not None:
        side = lanes.one
        line = line_of_side(lanes.sizes, jnp.einsum("li,lij->lj", single.normal[:, 0], side.rotation))
        vertices = jnp.concatenate([side.vertices[side.row], line], axis=1)
        lanes = lanes._replace(one=side._replace(vertices=vertices, row=np.arange(len(line))))
    if most > 1:
        several = _several(lanes, found, single)
        use = (found.shared.how != NONE)[:, None]
        alone = jnp.arange(CORNERS) < 1
        gap = jnp.where(use, several.gap, jnp.where(alone, single.gap, FAR))
        normal, point = (
            jnp.where(use[..., None], a, b) for a, b in ((several.normal, single.normal), (several.point, single.point))
        )
    else:
        gap, normal, point = single
    gap = jnp.where(found.at.touches[:, None], gap, FAR)
    point = point + lanes.origin[:, None]
    rows = [jax.tree.map(lambda x, k=k: as_rows(x[:, k], lanes.shape), (gap, normal, point)) for k in range(most)]
    return [Witness(*each) for each in rows]


class Touch(NamedTuple):
    gap: Any
    """`[lanes, k]`"""
    normal: Any
    """`[lanes, k, 3]`"""
    point: Any
    """`[lanes, k, 3]`, from the first shape."""


def _dot(a, b) -> Any:
    return jnp.sum(a * b, axis=-1, keepdims=True)


def _part(x, whole) -> Any:
    """A quotient, zero where there is none."""
    exists = whole != 0
    return jnp.where(exists, x, 0) / jnp.where(exists, whole, 1)


def _single(lanes: _Lanes, at: Nearest) -> Touch:
    """The contact between the nearest places of the simplex that the search ended with."""
    places1, places2 = lanes.one.place(at.first), lanes.two.place(at.second)
    a, b, c = (places1[:, k] - places2[:, k] for k in range(3))
    is_point, is_edge = (at.distinct[:, None] == k for k in (1, 2))
    ab, ac = b - a, c - a
    across = jnp.cross(ab, ac)
    # The shares of the second and third corner in the place that is nearest to the origin.
    square = _dot(across, across)
    second = jnp.where(is_edge, _part(-_dot(a, ab), _dot(ab, ab)), _part(-_dot(jnp.cross(a, ac), across), square))
    third = jnp.where(is_edge, 0, _part(-_dot(jnp.cross(ab, a), across), square))
    second, third = jnp.where(is_point, 0, second), jnp.where(is_point, 0, third)
    shares = jnp.concatenate([1 - second - third, second, third], axis=1)[..., None]
    witness1, witness2 = jnp.sum(places1 * shares, axis=1), jnp.sum(places2 * shares, axis=1)
    between = witness2 - witness1
    squared = _dot(between, between)
    apart = squared > SHORTEST**2
    length = jnp.sqrt(jnp.where(apart, squared, 1))
    flat = ~is_point & ~is_edge & (square > 0)
    by_face = across * jnp.where(_dot(across, at.normal) < 0, -1, 1) / jnp.sqrt(jnp.where(flat, square, 1))
    by_place = jnp.where(apart, between / length, at.normal)
    normal = jnp.where(flat, by_face, by_place)
    gap = jnp.where(flat, -_dot(normal, a), jnp.where(apart, length, 0)) - lanes.radius[:, None]
    point = 0.5 * (witness1 + witness2 + normal * lanes.radius[:, None])
    return Touch(gap, normal[:, None], point[:, None])


def _several(lanes: _Lanes, found: _Found, single: Touch) -> Touch:
    """The contacts of faces and edges that lie on each other."""
    shared, dtype = found.shared, lanes.origin.dtype
    on_second = (shared.how == FIRST_EDGE)[:, None]
    is_faces = (shared.how == FACES)[:, None]
    half = 0.0 * lanes.margin
    shift = jnp.zeros_like(lanes.origin)
    if lanes.one.tables is None:
        shift, half = _lifted(lanes.radius, lanes.margin, lanes.one.rotation[:, :, 2], single.normal[:, 0])
    other = lanes.two.normal(shared.other)
    normal = lanes.two.normal(jnp.where(on_second[:, 0], shared.face, 0))
    if lanes.one.tables is not None:
        normal = jnp.where(on_second, normal, lanes.one.normal(jnp.where(on_second[:, 0], 0, shared.face)))
    places = {}
    for name, numbers, second in (("cut", shared.cut, ~on_second), ("sides", shared.sides, on_second)):
        first = lanes.one.place(numbers) + jnp.where(second, 0, shift)[:, None, None]
        places[name] = jnp.where(second[..., None, None], lanes.two.place(numbers), first)
    start, end, corner, next_corner = (places[name][:, :, k] for name in ("cut", "sides") for k in (0, 1))
    up, level = normal[:, None], jnp.where(is_faces, other, normal)[:, None]
    inward = jnp.cross(next_corner - corner, up)
    share = _part(_dot(inward, corner - start), _dot(inward, end - start))
    # A place on the face that is cut, below a vertex of the other one.
    on_cut = lanes.two.place(_first_corners(lanes.two, shared.other))[:, None]
    below = corner + up * _part(_dot(level, on_cut - corner), _dot(level, up))
    kinds = shared.kinds[..., None]
    place = jnp.where(kinds == VERTEX, start, jnp.where(kinds == BELOW, below, start + share * (end - start)))
    # The derivatives are those of the formulas.
    place = place + jax.lax.stop_gradient(jnp.where(kinds >= 0, shared.places - place, 0))
    height = _dot(place - _base(lanes, shared, on_second)[:, None], up)
    # Along the normal of the face that is cut, from the place on the other one.
    gap = jnp.where(is_faces[:, None], -height * _dot(up, level), height + half[:, None, None])
    foot = place - up * height
    towards = jnp.where(is_faces, -other, jnp.where(on_second, -normal, normal))[:, None]
    point = jnp.where(is_faces[:, None], foot - 0.5 * gap * level, foot + 0.5 * gap * up)
    gap = jnp.where(shared.kinds >= 0, gap[..., 0], FAR).astype(dtype)
    return Touch(gap, jnp.broadcast_to(towards, point.shape), point)


def _first_corners(side: Side, faces) -> Any:
    """The numbers `[lanes]` of the first corners of faces."""
    tables = side.tables
    assert tables is not None
    return tables.corner(jnp.asarray(side.hull), faces, 0)


def _base(lanes: _Lanes, shared: Shared, on_second) -> Any:
    """A place on the face whose sides cut."""
    second = lanes.two.place(_first_corners(lanes.two, jnp.where(on_second[:, 0], shared.face, 0)))
    if lanes.one.tables is None:
        return second
    first = lanes.one.place(_first_corners(lanes.one, jnp.where(on_second[:, 0], 0, shared.face)))
    return jnp.where(on_second, second, first)
