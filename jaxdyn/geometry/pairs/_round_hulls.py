"""The nearest places of ellipsoids and cylinders, and of the hulls of meshes: where the search for them has found the
vertex, the edge or the face of a mesh, Newton's method for this one finds them to rounding, with derivatives."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxdyn.geometry._componentwise import SHORTEST
from jaxdyn.geometry.pairs._expanding_polytope import Nearest
from jaxdyn.geometry.pairs._lanes import Side
from jaxdyn.geometry.pairs._separation import Shape, separation_near
from jaxdyn.spatial import Vec3

SIDEWAYS = 1e-5
"""The sine of the angle between a normal and a cylinder's axis below which no line on its side is the nearest one, as
for other pairs of cylinders."""
TURN = 5e-5
"""One minus the cosine of the angle, 0.01 rad, by which Newton's method may turn the direction that was searched to a
part 1e-10 of the size: it is off by about the square root of that. A larger turn leaves the feature of the mesh."""


def line_of_side(sizes, direction) -> Any:
    """The upper and the lower end `[lanes, 2, 3]` of the line on the side of cylinders that is farthest along
    directions `[lanes, 3]`, in their axes."""
    across = direction[:, :2]
    square = jnp.sum(across**2, axis=1, keepdims=True)
    exists = square > SHORTEST**2
    rim = sizes[:, :2] * jnp.where(exists, across, 0) / jnp.sqrt(jnp.where(exists, square, 1))
    return jnp.stack([jnp.concatenate([rim, way * sizes[:, 2:]], axis=1) for way in (1, -1)], axis=1)


def single_of_round(rotation, sizes, has_ends: bool, mesh: Side, at: Nearest) -> tuple[Any, Any, Any]:
    """The gap `[lanes, 1]`, the normal and the point `[lanes, 1, 3]` of round shapes, whose centers are the origin, and
    meshes."""
    places, numbers = mesh.place(at.second), at.second
    is_edge = jnp.any(numbers[:, 1:] != numbers[:, :1], axis=1)
    is_face = (numbers[:, 1] != numbers[:, 0]) & (numbers[:, 2] != numbers[:, 0]) & (numbers[:, 2] != numbers[:, 1])
    other = jnp.where((numbers[:, 1] != numbers[:, 0])[:, None], places[:, 1], places[:, 2])
    half = jnp.where((is_edge & ~is_face)[:, None], 0.5 * (other - places[:, 0]), 0.0)
    center = places[:, 0] + half
    axes = rotation * sizes[:, None, :]
    one = _summands(axes, has_ends)
    coordinates = jnp.einsum("lji,lj->li", rotation, at.place1) / sizes
    along = jnp.sum((center - at.place2) * half, axis=1) / jnp.maximum(jnp.sum(half**2, axis=1), SHORTEST**2)
    inner = [[coordinates[:, k] for k in part] for part in _parts(has_ends)] + [[jnp.clip(along, -1, 1)]]
    apart = separation_near(_vector(center), one, ((_vector(half),),), _vector(at.normal), inner)
    found = [(apart.distance, _array(apart.normal), _array(apart.place1), center + _array(apart.place2))]
    found.append(_on_face(places, axes, sizes, has_ends, at.normal))
    found.append(_held(rotation, mesh, at))
    is_near = jnp.sum(found[0][1] * at.normal, axis=1) > 1 - TURN
    gap, normal, place1, place2 = (
        jnp.where(_like(is_face, c), b, jnp.where(_like(is_near, c), a, c)) for a, b, c in zip(*found, strict=True)
    )
    return gap[:, None], normal[:, None], (0.5 * (place1 + place2))[:, None]


def _like(condition, x) -> Any:
    return condition.reshape(-1, *(1,) * (x.ndim - 1))


def _vector(a) -> Vec3:
    return Vec3(a[:, 0], a[:, 1], a[:, 2])


def _array(v: Vec3) -> Any:
    return jnp.stack([v.x, v.y, v.z], axis=-1)


def _parts(has_ends: bool) -> tuple[tuple[int, ...], ...]:
    """The axes of each summand."""
    return ((0, 1), (2,)) if has_ends else ((0, 1, 2),)


def _summands(axes, has_ends: bool) -> Shape:
    return tuple(tuple(_vector(axes[:, :, k]) for k in part) for part in _parts(has_ends))


def _on_face(places, axes, sizes, has_ends: bool, towards) -> tuple[Any, Any, Any, Any]:
    """The distance from a face, its normal and both places."""
    across = jnp.cross(places[:, 1] - places[:, 0], places[:, 2] - places[:, 0])
    square = jnp.sum(across**2, axis=1, keepdims=True)
    exists = square > 0
    normal = jnp.where(exists, across, 0) / jnp.sqrt(jnp.where(exists, square, 1))
    normal = normal * jnp.where(jnp.sum(normal * towards, axis=1, keepdims=True) < 0, -1, 1)
    along = jnp.einsum("lj,ljk->lk", normal, axes)
    # A disk that lies flat to rounding has its middle as the nearest place.
    tiny = jnp.finfo(along.dtype).eps * jnp.max(sizes, axis=1)
    place = 0.0
    for part in _parts(has_ends):
        square = sum(along[:, k] ** 2 for k in part)
        tilted = square > (100 * tiny) ** 2
        length = jnp.sqrt(jnp.where(tilted, square, 1))
        for k in part:
            place = place + axes[:, :, k] * jnp.where(tilted, along[:, k] / length, 0)[:, None]
    gap = jnp.sum(normal * (places[:, 0] - place), axis=1)
    return gap, normal, place, place + normal * gap[:, None]


def _held(rotation, mesh: Side, at: Nearest) -> tuple[Any, Any, Any, Any]:
    """The places as they were searched, which move with their bodies."""
    local1 = jnp.einsum("lji,lj->li", jax.lax.stop_gradient(rotation), at.place1)
    other = jax.lax.stop_gradient((mesh.rotation, mesh.position))
    local2 = jnp.einsum("lji,lj->li", other[0], at.place2 - other[1])
    place1 = jnp.einsum("lij,lj->li", rotation, local1)
    place2 = jnp.einsum("lij,lj->li", mesh.rotation, local2) + mesh.position
    return jnp.sum(at.normal * (place2 - place1), axis=1), at.normal, place1, place2
