"""Signed distances of points from shapes, in the shape's own frame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxdyn._types import Array
from jaxdyn.geometry._shapes import AbstractShape, Box, Capsule, Cylinder, Sphere
from jaxdyn.geometry._witness import length_and_direction
from jaxdyn.spatial import Vec3

SIDEWAYS = Vec3(1.0, 0.0, 0.0)


def sphere_distance(sizes: Array, point: Vec3) -> tuple[Any, Vec3]:
    """The distance from a sphere and the outward normal, which is z at the center."""
    length, normal = length_and_direction(point)
    return length - sizes[:, :1], normal


def capsule_distance(sizes: Array, point: Vec3) -> tuple[Any, Vec3]:
    """The distance from a capsule and the outward normal, which is x on the axis."""
    radius, half = sizes[:, :1], sizes[:, 1:2]
    length, normal = length_and_direction(Vec3(point.x, point.y, point.z - clipped(point.z, half)), SIDEWAYS)
    return length - radius, normal


def box_distance(sizes: Array, point: Vec3) -> tuple[Any, Vec3]:
    """The distance from a box and the outward normal, which is that of the nearest face inside the box."""
    half = half_sizes(sizes)
    outside, away = length_and_direction(jax.tree.map(lambda x, h: x - clipped(x, h), point, half))
    over = jax.tree.map(lambda x, h: jnp.abs(x) - h, point, half)
    signs = jax.tree.map(sign, point)
    inside, nearest = largest_of(
        [
            (over.x, Vec3(signs.x, 0.0, 0.0)),
            (over.y, Vec3(0.0, signs.y, 0.0)),
            (over.z, Vec3(0.0, 0.0, signs.z)),
        ]
    )
    is_outside = outside > 0
    return jnp.where(is_outside, outside, inside), select(is_outside, away, nearest)


def cylinder_distance(sizes: Array, point: Vec3) -> tuple[Any, Vec3]:
    """The distance from a cylinder and the outward normal: x on the axis, and inside that of the nearest surface."""
    radius, half = sizes[:, :1], sizes[:, 1:2]
    across, radial = length_and_direction(Vec3(point.x, point.y, 0.0), SIDEWAYS)
    end = Vec3(0.0, 0.0, sign(point.z))
    beside, above = across - radius, jnp.abs(point.z) - half
    outside, away = length_and_direction(Vec3(jnp.maximum(beside, 0), jnp.maximum(above, 0), 0.0), SIDEWAYS)
    inside, nearest = largest_of([(beside, radial), (above, end)])
    is_outside = outside > 0
    return jnp.where(is_outside, outside, inside), select(is_outside, radial * away.x + end * away.y, nearest)


DISTANCES: dict[type[AbstractShape], Callable[[Array, Vec3], tuple[Any, Vec3]]] = {
    Sphere: sphere_distance,
    Capsule: capsule_distance,
    Box: box_distance,
    Cylinder: cylinder_distance,
}
"""The shapes that others can touch everywhere. Sizes are `[n, k, *batch]`, coordinates of points
`[n, count, *batch]`."""


def half_sizes(sizes: Array) -> Vec3:
    """The half sizes of boxes, `[n, 1, *batch]`."""
    return Vec3(sizes[:, :1], sizes[:, 1:2], sizes[:, 2:3])


def clipped(x, half):
    """`x` within `-half` and `half`."""
    return jnp.minimum(jnp.maximum(x, -half), half)


def sign(x):
    """1, or -1 for negative numbers; it has no derivative."""
    return jnp.where(x < 0, -1.0, 1.0).astype(jnp.result_type(x))


def select(condition, a, b):
    """`a` where the condition holds, else `b`; pytrees of one structure."""
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), a, b)


def largest_of(cases: list[tuple[Any, Any]], noise: Any = None) -> tuple[Any, Any]:
    """The largest of some numbers and the pytree beside it; the first of equal ones, which may differ by `noise`."""
    best, chosen = cases[0]
    for value, other in cases[1:]:
        larger = value > (best if noise is None else best + noise)
        best, chosen = jnp.where(larger, value, best), select(larger, other, chosen)
    return best, chosen


def slab(x, slope, half, limit) -> tuple[Any, Any]:
    """The ends of the interval of `s` in `[-limit, limit]` in which `|x + slope s| <= half`.

    Where `slope` vanishes, the whole interval. Where there are none, ends in the wrong order, or both at one limit.
    """
    tiny = float(jnp.finfo(jnp.result_type(slope)).eps) ** 0.5
    steep = jnp.abs(slope) > tiny
    size = jnp.where(steep, jnp.abs(slope), 1)
    low, high = (clipped((way * half - sign(slope) * x) / size, limit) for way in (-1, 1))
    return jnp.where(steep, low, -limit), jnp.where(steep, high, limit)
