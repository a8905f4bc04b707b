"""The contacts of convex hulls in worlds that search for contacts.

All pairs of two classes of shapes are one call, of which the search for the places that touch is one native program
with a loop over the pairs whose bounds are near each other. What touches joins the lists of other contacts, so that
rows exist for these alone, and the native program of a step knows nothing of hulls.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero

from jaxdyn._array_programs import with_array_programs
from jaxdyn._batched_functions import Plain
from jaxdyn._batching import call
from jaxdyn.geometry import FAR, Hulls, ShapeKind, candidate_count, candidates
from jaxdyn.spatial import Mat3, Pose, Vec3


@dataclasses.dataclass(frozen=True)
class HullPairs:
    """The candidates of pairs of geoms of the same two classes of shapes, at least one of which is a mesh, as a
    function of arrays: the poses and sizes of all geoms, the distances within which contacts are reported, and the
    vertices of hulls `[hulls, k]`. Returns `[candidates, 10]`: distance, position, normal and first tangent."""

    types: tuple[ShapeKind, ShapeKind]
    structures: tuple[Hashable, Hashable]
    first: tuple[int, ...]
    second: tuple[int, ...]

    def candidates(self, poses, sizes, reach, vertices) -> Any:
        """Return the candidates `[*batch, n, 10]` for arrays with leading batch axes."""
        count = len(self.first) * candidate_count(*self.types, self.structures)
        return call(Plain(self, (1, 1, 1, 2), ((count, 10),)), poses, sizes, reach, vertices)[0]

    def __call__(self, *operands):
        return _in_programs(self, *operands)

    def plain(self, poses, sizes, reach, vertices):
        """Return the candidates by operations of JAX."""
        operands = [(poses, 1), (sizes, 1), (reach, 1), (vertices, 2)]
        rank = max(x.ndim - core for x, core in operands)

        def rows(x, core: int):
            return jnp.moveaxis(x.reshape((1,) * (rank + core - x.ndim) + x.shape), range(rank), range(-rank, 0))

        poses, sizes, reach, vertices = (rows(*x) for x in operands)
        poses, sizes = (x.reshape(-1, n, *x.shape[1:]) for x, n in ((poses, 12), (sizes, 3)))
        sides = []
        for which, structure in zip((self.first, self.second), self.structures, strict=True):
            own = vertices if isinstance(structure, Hulls) else sizes[np.array(which)]
            sides.append((own, pose_of(poses[np.array(which)])))
        (size1, pose1), (size2, pose2) = sides
        kind1, kind2 = self.types
        found = candidates(kind1, size1, pose1, kind2, size2, pose2, reach, self.structures)
        leaves = jax.tree.leaves((*found[:2], found.frame.x, found.frame.y))
        return jnp.moveaxis(jnp.stack(jnp.broadcast_arrays(*leaves), axis=1), (0, 1), (-2, -1))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _in_programs(pairs: HullPairs, *operands):
    """Return candidates by native programs of arrays, of which XLA's many short loops take longer to compile."""
    return with_array_programs(pairs.plain)(*operands)


@functools.partial(_in_programs.defjvp, symbolic_zeros=True)
def _in_programs_jvp(pairs: HullPairs, primals, tangents):
    moving = [k for k, dot in enumerate(tangents) if not isinstance(dot, SymbolicZero)]

    def again(*moved):
        operands = list(primals)
        for k, x in zip(moving, moved, strict=True):
            operands[k] = x
        return pairs.plain(*operands)

    return jax.jvp(again, [primals[k] for k in moving], [tangents[k] for k in moving])


def pose_of(x) -> Pose:
    """Return poses of arrays `[n, 12, *rest]`: the columns of rotations, and places."""
    columns = [Vec3(*(x[:, 3 * j + i] for i in range(3))) for j in range(4)]
    return Pose(Mat3(*columns[:3]), columns[3])


class FoundHulls(NamedTuple):
    """The candidates of hulls that belong to one list."""

    values: Any
    """`[*batch, n, width]`"""
    numbers: np.ndarray
    """`[n]`: their numbers in this list."""


def with_hulls(listed, found: Sequence[FoundHulls], room: int) -> Any:
    """Return a list `[*batch, 1 + room (width + 1)]`, as `Collection` describes it, with the candidates of hulls that
    touch behind what it has."""
    if not found:
        return listed
    batch = jnp.broadcast_shapes(listed.shape[:-1], *(x.values.shape[:-2] for x in found))
    values = jnp.concatenate([jnp.broadcast_to(x.values, (*batch, *x.values.shape[-2:])) for x in found], axis=-2)
    numbers = np.concatenate([x.numbers for x in found]).astype(values.dtype)
    listed = jnp.broadcast_to(listed, (*batch, listed.shape[-1]))
    rank = jnp.cumsum(lax.stop_gradient(values[..., 0]) < 0.5 * FAR, axis=-1)
    before = lax.stop_gradient(listed[..., :1]).astype(rank.dtype)
    slots = jnp.arange(room) - before
    # The candidate that is so many behind the first one that touches.
    place = (rank[..., None, :] <= slots[..., None]).sum(axis=-1)
    place = jnp.minimum(place, values.shape[-2] - 1)
    taken = jnp.take_along_axis(values, place[..., None], axis=-2)
    taken = jnp.concatenate([taken, jnp.asarray(numbers)[place][..., None]], axis=-1)
    own = ((slots >= 0) & (slots < rank[..., -1:]))[..., None]
    blocks = jnp.where(own, taken, listed[..., 1:].reshape(taken.shape))
    return jnp.concatenate([listed[..., :1] + rank[..., -1:], blocks.reshape(*batch, -1)], axis=-1)
