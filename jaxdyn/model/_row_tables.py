"""Arrays of a model as tables of rows: selecting, joining and changing them, in NumPy or JAX."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer


def numpy_unless_tracing[**P, R](*static: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """The decorator of functions of a model, arrays, and static arguments by name, which return arrays or a model.

    An edit happens once for each structure, so compiling it would take most of the time. NumPy computes it in double
    precision; while tracing, the same code runs on traced arrays.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        in_numpy: Callable[..., R] = function
        traced: Callable[..., R] = jax.jit(function, static_argnames=static, inline=True)

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            if any(isinstance(x, Tracer) for x in jax.tree.leaves((args, kwargs))):
                return traced(*args, **kwargs)
            dtype = args[0].dtype  # type: ignore[reportAttributeAccessIssue]
            arrays, options = jax.tree.map(_in_numpy, (args, kwargs))
            # Unlike `jax.numpy.asarray`, `device_put` compiles nothing.
            return jax.tree.map(lambda x: jax.device_put(np.asarray(x, dtype)), in_numpy(*arrays, **options))

        return wrapper

    return decorate


def _in_numpy(x):
    return np.asarray(x, np.float64) if isinstance(x, jax.Array | np.ndarray | np.generic) else x


def library(*arrays) -> Any:
    """NumPy if all arrays are its own, else `jax.numpy`."""
    return np if all(isinstance(x, np.ndarray | np.generic) for x in arrays) else jnp


def take(x, rows, core: int):
    """Rows of `[*batch, n]` (core 1) or `[*batch, n, k]` (core 2)."""
    rows = np.asarray(rows, int)
    first = int(rows[0]) if len(rows) else 0
    if np.array_equal(rows, np.arange(first, first + len(rows))):
        # A selection costs the compiler more than a slice does, most of all its derivative.
        rows = slice(first, first + len(rows))
    return x[..., rows] if core == 1 else x[..., rows, :]


def join(parts: Sequence[Any], core: int):
    """Concatenate tables; batch axes broadcast."""
    batch = jnp.broadcast_shapes(*(x.shape[: x.ndim - core] for x in parts))
    lib = library(*parts)
    return lib.concatenate([lib.broadcast_to(x, (*batch, *x.shape[x.ndim - core :])) for x in parts], axis=-core)


def append(table, row):
    """`[*batch, n + 1, k]` from `[*batch, n, k]` and `[*batch, k]`."""
    return join([table, row[..., None, :]], 2)


def add_rows(table, index: Sequence[int], rows):
    """`[*batch, n, k]` with `rows` `[*batch, m, k]` added at `index` `[m]` where that is not negative."""
    used = np.flatnonzero(np.asarray(index, int) >= 0)
    if not len(used):
        return table
    rows, to, lib = take(rows, used, 2), np.asarray(index, int)[used], library(table, rows)
    table = lib.broadcast_to(table, (*jnp.broadcast_shapes(table.shape[:-2], rows.shape[:-2]), *table.shape[-2:]))
    if lib is np:
        np.add.at(table := table.copy(), (..., to, slice(None)), rows)  # type: ignore[reportArgumentType]
        return table
    return table.at[..., to, :].add(rows)


def set_row(table, i: int, row):
    """`[*batch, n, k]` with row `i` replaced by `[*batch, k]`."""
    is_row = np.arange(table.shape[-2])[:, None] == i
    return library(table, row).where(is_row, row[..., None, :], table)


def constant(value: np.ndarray, like):
    """A static array in the library and with the dtype of another one."""
    return library(like).asarray(value, like.dtype)
