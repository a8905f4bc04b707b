"""Operations on matrices that have one form for programs of scalar operations and another for XLA."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdyn.native._specialize import specializing


def add_gram(M, A, B, entries: np.ndarray):
    """Return `M + A^T B` `[n, n, *batch]`, which is symmetric, and of which only the lower triangle is right.

    `A` and `B` are `[k, n, *batch]`, and `entries` `[k, n]` says which of their entries may be other than zero: a
    program of scalar operations goes over these, where XLA takes longer to compile the parts than the whole.
    """
    if not specializing():
        return M + jnp.einsum("ni...,nj...->ij...", A, B, precision=lax.Precision.HIGHEST)
    lines = []
    for i in range(M.shape[0]):
        rows, line = np.flatnonzero(entries[:, i]), M[i, : i + 1]
        if len(rows):
            line = line + (A[rows, i][:, None] * B[rows, : i + 1]).sum(axis=0)
        lines.append(jnp.concatenate([line, jnp.zeros((M.shape[0] - i - 1, *line.shape[1:]), line.dtype)]))
    return jnp.stack(lines)
