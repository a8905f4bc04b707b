"""Accelerations under constraints, by Lagrange multipliers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax


def project_accelerations(C, Y, a):
    """Return `a - Y l` with `C (a - Y l) = 0`, for rows `C` `[*batch, m, nv]`, `Y = M^-1 C^T` `[*batch, nv, m]` and
    accelerations `a` `[*batch, nv, k]`.

    The multipliers are `l = (C M^-1 C^T)^-1 C a` (Featherstone, Rigid Body Dynamics Algorithms, 2008, section 8.2).
    """

    def product(x, y):
        return jnp.matmul(x, y, precision=lax.Precision.HIGHEST)

    factor = jnp.linalg.cholesky(product(C, Y))
    return a - product(Y, jax.scipy.linalg.cho_solve((factor, True), product(C, a)))
