"""Between arrays with leading batch axes, as users have them, and batch-last rows, as the recursions have them."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np


def rows_of(x, rank: int):
    """From `[*batch, n]` to `[n, 1, ..., *batch]` with `rank` axes after the first, so that batches broadcast."""
    x = jnp.moveaxis(x, -1, 0)
    return x.reshape(x.shape[:1] + (1,) * (rank - (x.ndim - 1)) + x.shape[1:])


def packed_rows(x, rank: int):
    """From `[*batch, n, k]` to `[n, k, 1, ..., *batch]` with `rank` axes after the first two.

    Rows are selected from such a table in one operation, before `columns_of` takes it apart.
    """
    x = jnp.moveaxis(x, (-2, -1), (0, 1))
    return x.reshape(x.shape[:2] + (1,) * (rank - (x.ndim - 2)) + x.shape[2:])


def columns_of(table) -> list:
    """The `k` components, `[n, *batch]` each, of a packed table."""
    return [table[:, i] for i in range(table.shape[1])]


def static_column(values: np.ndarray, dtype, rank: int):
    """Constants `[n]` as `[n, 1, ..., 1]`."""
    return jnp.asarray(values, dtype).reshape((len(values),) + (1,) * rank)


def to_leading(x):
    """From `[n, *batch]` to `[*batch, n]`."""
    return jnp.moveaxis(x, 0, -1)


def matrix_to_leading(x):
    """From `[n, m, *batch]` to `[*batch, n, m]`."""
    return jnp.moveaxis(x, (0, 1), (-2, -1))
