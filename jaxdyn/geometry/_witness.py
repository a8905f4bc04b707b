"""Possible contacts."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdyn.spatial import Vec3

FAR = 1e10
"""The distance of a candidate that MuJoCo does not report, m."""


class Witness(NamedTuple):
    """Possible contacts, one a row: arrays `[n, *batch]` with the contact first and the batch axes last."""

    gap: Any
    """The distance (m), negative where the two overlap, and `FAR` for a contact that there is not."""
    normal: Vec3
    """The unit normal, from the surface, or from the first shape of a pair, towards the other one."""
    point: Vec3
    """The place at which the force acts (m): on the shape's own surface against a surface of the world, and halfway
    between the two nearest surface points in a pair."""
    tangent: Vec3 | None = None
    """The direction that the first tangent has as far as it can; None where the choice of tangents does not matter."""


def inactive_unless(condition, found: Witness) -> Witness:
    """The witnesses, where a condition holds; elsewhere ones with the gap `FAR`."""
    return found._replace(gap=jnp.where(condition, found.gap, FAR))


def witness_rows(gap, normal: Vec3, point: Vec3) -> Witness:
    """The witnesses, ordered shape by shape, of arrays `[n, count, *batch]`, which broadcast."""
    arrays = jnp.broadcast_arrays(gap, *jax.tree.leaves((normal, point)))
    gap, *rest = (x.reshape(-1, *x.shape[2:]) for x in arrays)
    return Witness(gap, Vec3(*rest[:3]), Vec3(*rest[3:]))
