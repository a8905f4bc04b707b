"""Operations on components `[n, count, *batch]` of possible contacts, without choices by an index, so that native code
has them; directions of vectors whose length may be zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxdyn._types import Array
from jaxdyn.spatial import Vec3

UP = Vec3(0.0, 0.0, 1.0)
"""The direction that stands for that of a vector of length zero."""
X_AXIS = Vec3(1.0, 0.0, 0.0)
"""The direction that MuJoCo gives to a vector without one."""
SHORTEST = 1e-15
"""A shorter vector has no direction in MuJoCo (mjMINVAL)."""
NOISE = 100.0
"""Numbers are equal where they differ by less than so many roundoffs of the lengths that they come from: what is
chosen of equal ones may then not depend on rounding, which differs between compiled programs."""


def length_and_direction(v: Vec3, otherwise: Vec3 = UP, shortest: float = 0.0) -> tuple[Any, Vec3]:
    """The length of a vector and its direction, with finite derivatives of every order.

    A vector that is shorter than `shortest`, or than the unit roundoff (2e-16 m or 1e-7 m), has the length zero and the
    direction `otherwise`.
    """
    square = jnp.asarray(v.squared_norm())
    apart = square > max(float(jnp.finfo(square.dtype).eps), shortest) ** 2
    length = jnp.sqrt(jnp.where(apart, square, 1))
    inverse = 1 / length
    direction = jax.tree.map(lambda a, b: jnp.where(apart, a * inverse, b), v, otherwise)
    return jnp.where(apart, length, 0), direction


def direction(v: Vec3, otherwise: Vec3 = X_AXIS) -> Vec3:
    """The direction of a vector, as MuJoCo has it for vectors of length zero as well."""
    return length_and_direction(v, otherwise, SHORTEST)[1]


def roundoff(like) -> float:
    """The relative difference up to which numbers of an array's precision are equal."""
    return NOISE * float(jnp.finfo(jnp.result_type(like)).eps)


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


def with_candidates(pose):
    """A pose, or another pytree of rows `[n, *batch]`, with an axis for the candidates of a shape after the first."""

    def expanded(x):
        x = jnp.asarray(x)
        return x[:, None] if x.ndim else x

    return jax.tree.map(expanded, pose)


def along_candidates(values, like: Array) -> Array:
    """Constants as `[1, count, 1, ...]`, with the rank and the dtype of an array `[n, k, *batch]`."""
    return jnp.asarray(values, like.dtype).reshape((1, len(values)) + (1,) * (like.ndim - 2))


def side_by_side(parts: Sequence[Any]) -> Any:
    """Return pytrees of numbers and components `[n, count, *batch]` one after the other along the second axis. The
    other axes of all of them broadcast."""
    structure = jax.tree.structure(parts[0])
    leaves = [[jnp.asarray(x) for x in jax.tree.leaves(part)] for part in parts]
    counts = [max([x.shape[1] for x in part if x.ndim], default=1) for part in leaves]
    n, _, *batch = jnp.broadcast_shapes((1, 1), *((len(x), 1, *x.shape[2:]) for part in leaves for x in part if x.ndim))
    filled = [
        [jnp.broadcast_to(x, (n, count, *batch)) for x in part] for count, part in zip(counts, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, [jnp.concatenate(column, axis=1) for column in zip(*filled, strict=True)])
