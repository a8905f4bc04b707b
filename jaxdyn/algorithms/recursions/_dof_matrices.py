"""Matrices over pairs of degrees of freedom: sums of products of rows, where one dof moves the other.

Two ways to hold them. Small ones have the batch last, as everything else, and are computed entry by entry along it. For
large ones the turn to `[*batch, nv, nv]` at the end would cost more than the matrix itself, so the rows are turned
instead, and multiplied as matrices with a short inner dimension.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdyn._compile import once
from jaxdyn.algorithms.recursions._algorithm import full
from jaxdyn.model import Model
from jaxdyn.tree._rows import matrix_to_leading

# Up to this many degrees of freedom matrices have the batch last: on a CPU, a product of small matrices costs about
# 0.7 us to call, and the mass matrix of 7 degrees of freedom takes 1.4 us in all with the batch last.
BATCH_LAST_LIMIT = 16


class Pairs:
    """The matrices of one model at one batch of states."""

    def __init__(self, model: Model, batch: tuple[int, ...]):
        self.ancestors = model.topology.dof_ancestors
        self.batch = batch
        self.batch_last = model.nv <= BATCH_LAST_LIMIT

    def _mask(self, mask):
        return jnp.asarray(mask.reshape((*mask.shape, *(1 for _ in self.batch))) if self.batch_last else mask)

    def transpose(self, x):
        return jnp.swapaxes(x, 0, 1) if self.batch_last else jnp.swapaxes(x, -1, -2)

    def products(self, left, right):
        """The sum over the components of `left[i] right[j]`; components are rows `[nv, *batch]`."""
        left, right = ([full(x, self.batch) for x in jax.tree.leaves(rows)] for rows in (left, right))
        if self.batch_last:
            return functools.reduce(jnp.add, (a[:, None] * b[None] for a, b in zip(left, right, strict=True)))
        a, b = (once(jnp.moveaxis(jnp.stack(rows, axis=1), (0, 1), (-2, -1))) for rows in (left, right))
        return self.multiply(a, self.transpose(b))

    def multiply(self, a, b):
        """The matrix product."""
        if self.batch_last:
            return functools.reduce(jnp.add, (a[:, k, None] * b[k] for k in range(a.shape[1])))
        return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)

    def scale_rows(self, x, a):
        """`diag(x) a` for rows `x` `[nv, *batch]`."""
        x = full(x, self.batch)
        return x[:, None] * a if self.batch_last else jnp.moveaxis(x, 0, -1)[..., None] * a

    def where(self, mask: np.ndarray, x):
        """`x[i, j]` where `mask[i, j]`, else 0."""
        return jnp.where(self._mask(mask), x, jnp.zeros((), x.dtype))

    def triangular(self, behind, before):
        """`behind[i, j]` where dof `j` moves dof `i` (dofs of one joint move each other), else `before[i, j]` where
        `i` moves `j`, else 0."""
        other = jnp.where(self._mask(self.ancestors.T), before, jnp.zeros((), before.dtype))
        return jnp.where(self._mask(self.ancestors), behind, other)

    def symmetric(self, lower):
        """From `lower[i, j]` where dof `j` moves dof `i`, the symmetric matrix, zero where neither moves the other."""
        upper = self.transpose(lower)
        lowest = self._mask(np.tril(np.ones_like(self.ancestors)))
        return self.triangular(jnp.where(lowest, lower, upper), upper)

    def diagonal(self, x):
        """From rows `[nv, *batch]`."""
        return self.scale_rows(x, self._mask(np.eye(len(self.ancestors))).astype(x.dtype))

    def inverse(self, a, value):
        """`value`, known to be the inverse of `a`, with the derivative that it has as such."""

        @jax.custom_jvp
        def known(a, value):
            return value

        @known.defjvp
        def _(primals, tangents):
            value = known(*primals)
            return value, -self.multiply(self.multiply(value, tangents[0]), value)

        return known(a, value)

    def of(self, x):
        """From `[nv, nv, *batch]`."""
        x = once(full(x, self.batch))
        return x if self.batch_last else matrix_to_leading(x)

    def result(self, x):
        """To `[*batch, nv, nv]`."""
        return matrix_to_leading(once(x)) if self.batch_last else x
