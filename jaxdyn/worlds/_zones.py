"""Volumes of sites and geoms: whether points are inside, and where rays meet them.

`engine_ray.c` and `engine_util_misc.c` of MuJoCo 4.0 (`mju_rayGeom`, `mju_insideGeom`).
"""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp

from jaxdyn.spatial import Vec3

ZONES = ("sphere", "capsule", "ellipsoid", "cylinder", "box")
"""The types of sites that have a volume here."""


def is_inside(kind: str, size: Vec3, point: Vec3) -> Any:
    """Return whether points, in the axes and from the center of a site of this type, are inside."""
    if kind == "box":
        return (abs(point.x) <= size.x) & (abs(point.y) <= size.y) & (abs(point.z) <= size.z)
    if kind == "cylinder":
        return (point.x**2 + point.y**2 <= size.x**2) & (abs(point.z) <= size.y)
    if kind == "capsule":
        beyond = point.z - jnp.clip(point.z, -size.y, size.y)
        return point.x**2 + point.y**2 + beyond**2 <= size.x**2
    scaled = _scaled(kind, size, point)
    return scaled.squared_norm() <= 1


def is_met(kind: str, size: Vec3, point: Vec3, direction: Vec3) -> Any:
    """Return whether rays from points, in the axes and from the center of a site of this type, meet it; those from
    inside do."""
    first, last = span(kind, size, point, direction)
    return (last >= first) & (last >= 0)


def distance(kind: str, size: Vec3, point: Vec3, direction: Vec3) -> Any:
    """Return how far rays go, in lengths of their directions, until they meet the surface of a geom or site of this
    type, from outside or inside; `FAR` for those that do not."""
    if kind == "plane":
        return _to_plane(size, point, direction)
    first, last = span(kind, size, point, direction)
    ahead = jnp.where(first >= 0, first, last)
    return jnp.where((last >= first) & (last >= 0), ahead, FAR)


def span(kind: str, size: Vec3, point: Vec3, direction: Vec3) -> tuple[Any, Any]:
    """Return between which multiples of their directions lines are in a convex shape; the first is larger than the
    second for those that miss it."""
    if kind == "box":
        return _common(*(_slab(p, d, s) for p, d, s in zip(*map(_parts, (point, direction, size)), strict=True)))
    if kind in ("cylinder", "capsule"):
        across, axial = (point.x, point.y), (direction.x, direction.y)
        tube = _ball(across, axial, size.x)
        side = _common(tube, _slab(point.z, direction.z, size.y))
        if kind == "cylinder":
            return side
        caps = (_ball((*across, point.z + end), (*axial, direction.z), size.x) for end in (size.y, -size.y))
        # The pieces overlap, and the whole is convex.
        pieces = [_or_nothing(*piece) for piece in (side, *caps)]
        firsts, lasts = zip(*pieces, strict=True)
        return functools.reduce(jnp.minimum, firsts), functools.reduce(jnp.maximum, lasts)
    start, along = (_parts(_scaled(kind, size, x)) for x in (point, direction))
    return _ball(start, along, 1.0)


def _to_plane(size: Vec3, point: Vec3, direction: Vec3) -> Any:
    """Return the distance to a plane's front, which ends where `size` is not zero."""
    faces = direction.z < 0
    along = -point.z / jnp.where(faces, direction.z, 1)
    hits = faces & (along >= 0)
    for x, d, half in ((point.x, direction.x, size.x), (point.y, direction.y, size.y)):
        hits = hits & ((half <= 0) | (abs(x + along * d) <= half))
    return jnp.where(hits, along, FAR)


def _or_nothing(first, last) -> tuple[Any, Any]:
    there = last >= first
    return jnp.where(there, first, FAR), jnp.where(there, last, -FAR)


def _parts(x: Vec3) -> tuple:
    return x.x, x.y, x.z


def _scaled(kind: str, size: Vec3, x: Vec3) -> Vec3:
    """Return vectors in the space where the site is a unit ball."""
    if kind == "sphere":
        return x * (1 / size.x)
    return Vec3(x.x / size.x, x.y / size.y, x.z / size.z)


FAR = 1e10
"""Beyond any site or geom, in lengths of a ray's direction."""


def _slab(point, direction, half) -> tuple[Any, Any]:
    """Return between which multiples of its direction a ray is within `half` of a plane."""
    moves = direction != 0
    safe = jnp.where(moves, direction, 1)
    a, b = (-half - point) / safe, (half - point) / safe
    inside = abs(point) <= half
    first = jnp.where(moves, jnp.minimum(a, b), jnp.where(inside, -FAR, FAR))
    last = jnp.where(moves, jnp.maximum(a, b), jnp.where(inside, FAR, -FAR))
    return first, last


def _ball(point: tuple, direction: tuple, radius) -> tuple[Any, Any]:
    """Return the same for a ball, or for a tube where points have two components."""
    a, b, c = (sum(x * y for x, y in zip(*pair, strict=True)) for pair in _squares(point, direction))
    c = c - radius * radius
    moves, square = a != 0, b * b - a * c
    hits = jnp.where(moves, square >= 0, c <= 0)
    safe, root = jnp.where(moves, a, 1), jnp.sqrt(jnp.where(square > 0, square, 1)) * (square > 0)
    first = jnp.where(moves, (-b - root) / safe, -FAR)
    last = jnp.where(moves, (-b + root) / safe, FAR)
    return jnp.where(hits, first, FAR), jnp.where(hits, last, -FAR)


def _squares(point: tuple, direction: tuple) -> tuple:
    return (direction, direction), (point, direction), (point, point)


def _common(*spans: tuple[Any, Any]) -> tuple[Any, Any]:
    first, last = spans[0]
    for a, b in spans[1:]:
        first, last = jnp.maximum(first, a), jnp.minimum(last, b)
    return first, last
