"""Matrices over pairs of degrees of freedom: sums of products of rows, where one degree of freedom moves the other.

There are two ways to hold them. Small ones have the batch last, as everything else, and are computed entry by entry
along it. For large ones the change to `[*batch, nv, nv]` at the end would cost more than the matrix itself, so the rows
are transposed instead, and multiplied as matrices with a short inner dimension.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdyn._compile import once
from jaxdyn.algorithms.recursions._robot import BatchFirst, Robot
from jaxdyn.tree import matrix_to_leading

# Up to this many degrees of freedom matrices have the batch last: on a CPU, a product of small matrices costs about
# 0.7 us to call, and the mass matrix of 7 degrees of freedom takes 1.4 us in all with the batch last.
BATCH_LAST_LIMIT = 16


class DofMatrices:
    """Makes the matrices of one robot at one batch of states, and computes with them."""

    def __init__(self, robot: Robot):
        self.robot = robot
        self.ancestors = robot.topology.dof_ancestors
        self.batch_last = robot.nv <= BATCH_LAST_LIMIT

    def _mask(self, mask):
        return jnp.asarray(mask.reshape((*mask.shape, *(1,) * self.robot.rank)) if self.batch_last else mask)

    def transpose(self, x):
        """Return the transposed matrix."""
        return jnp.swapaxes(x, 0, 1) if self.batch_last else jnp.swapaxes(x, -1, -2)

    def products(self, left, right):
        """Return the sum over the components of `left[i] right[j]`; components are rows `[nv, *batch]`."""
        left, right = ([self.robot.broadcast(x) for x in jax.tree.leaves(rows)] for rows in (left, right))
        if self.batch_last:
            return functools.reduce(jnp.add, (a[:, None] * b[None] for a, b in zip(left, right, strict=True)))
        a, b = (once(jnp.moveaxis(jnp.stack(rows, axis=1), (0, 1), (-2, -1))) for rows in (left, right))
        return self.multiply(a, self.transpose(b))

    def multiply(self, a, b):
        """Return the matrix product."""
        if self.batch_last:
            return functools.reduce(jnp.add, (a[:, k, None] * b[k] for k in range(a.shape[1])))
        return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)

    def scale_rows(self, x, a):
        """Return `diag(x) a` for rows `x` `[nv, *batch]`."""
        x = self.robot.broadcast(x)
        return x[:, None] * a if self.batch_last else jnp.moveaxis(x, 0, -1)[..., None] * a

    def where(self, mask: np.ndarray, x):
        """Return `x[i, j]` where `mask[i, j]`, else 0."""
        return jnp.where(self._mask(mask), x, jnp.zeros((), x.dtype))

    def triangular(self, behind, before):
        """Return `behind[i, j]` where degree of freedom `j` moves `i` (those of one joint move each other), else
        `before[i, j]` where `i` moves `j`, else 0."""
        upper = jnp.where(self._mask(self.ancestors.T), before, jnp.zeros((), before.dtype))
        return jnp.where(self._mask(self.ancestors), behind, upper)

    def symmetric(self, lower):
        """Return the symmetric matrix that equals `lower[i, j]` where degree of freedom `j` moves `i`, and zero where
        neither moves the other."""
        upper = self.transpose(lower)
        lowest = self._mask(np.tril(np.ones_like(self.ancestors)))
        return self.triangular(jnp.where(lowest, lower, upper), upper)

    def diagonal(self, x):
        """Return the diagonal matrix of rows `[nv, *batch]`."""
        return self.scale_rows(x, self._mask(np.eye(len(self.ancestors))).astype(x.dtype))

    def inverse(self, a, value):
        """Return `value`, the inverse of `a`, with the derivative `-a^-1 da a^-1` and not that of its computation."""

        @jax.custom_jvp
        def inverse(a, value):
            return value

        @inverse.defjvp
        def _(primals, tangents):
            value = inverse(*primals)
            return value, -self.multiply(self.multiply(value, tangents[0]), value)

        return inverse(a, value)

    def from_rows(self, x):
        """Return the matrix from `[nv, nv, *batch]`."""
        x = once(self.robot.broadcast(x))
        return x if self.batch_last else matrix_to_leading(x)

    def to_rows(self, x):
        """Return the matrix as `[nv, nv, *batch]`."""
        return x if self.batch_last else jnp.moveaxis(x, (-2, -1), (0, 1))

    def result(self, x) -> Any:
        """Return the matrix as a result of an algorithm."""
        return once(x) if self.batch_last else BatchFirst(x)
