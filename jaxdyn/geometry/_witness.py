"""Possible contacts, and the directions of vectors whose length may be zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdyn.spatial import Vec3

UP = Vec3(0.0, 0.0, 1.0)
"""The direction that stands for that of a vector of length zero."""


class Witness(NamedTuple):
    """Possible contacts, one a row: arrays `[n, *batch]` with the contact first and the batch axes last."""

    gap: Any
    """The distance (m), negative where the two overlap."""
    normal: Vec3
    """The unit normal, from the surface, or from the first shape of a pair, towards the other one."""
    point: Vec3
    """The place at which the force acts (m): on the shape's own surface against a surface of the world, and halfway
    between the two nearest surface points in a pair."""


def witness_rows(gap, normal: Vec3, point: Vec3) -> Witness:
    """The witnesses, ordered shape by shape, of arrays `[n, count, *batch]`, which broadcast."""
    arrays = jnp.broadcast_arrays(gap, *jax.tree.leaves((normal, point)))
    gap, *rest = (x.reshape(-1, *x.shape[2:]) for x in arrays)
    return Witness(gap, Vec3(*rest[:3]), Vec3(*rest[3:]))


def with_candidates(pose):
    """A pose, or another pytree of rows `[n, *batch]`, with an axis for the candidates of a shape after the first."""

    def expanded(x):
        x = jnp.asarray(x)
        return x[:, None] if x.ndim else x

    return jax.tree.map(expanded, pose)


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
