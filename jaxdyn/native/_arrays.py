"""Arrays of a program while it is specialized: static ones, NumPy arrays of numbers, and arrays of nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from jaxdyn.native._graph import Node


class UnsupportedError(Exception):
    """A function has an operation, or an index that depends on data, that a straight-line program does not have."""

    def __init__(self, message: str, operation: str | None = None):
        super().__init__(message)
        self.operation = operation
        """The primitive that has no rule, if that is the reason."""


def objects(values: list, shape) -> np.ndarray:
    out = np.empty(len(values), object)
    out[:] = values
    return out.reshape(shape)


def single(x) -> np.ndarray:
    """Return a node, or a number, as an array without axes."""
    if type(x) is not Node:
        return np.asarray(x)
    out = np.empty((), object)
    out[()] = x
    return out


def is_static(x: np.ndarray) -> bool:
    return x.dtype != object


def static_again(x) -> np.ndarray:
    """Return an array without nodes as numbers."""
    x = np.asarray(x)
    if x.dtype != object or any(type(e) is Node for e in x.flat):
        return x
    values = x.ravel().tolist()
    return np.array(values).reshape(x.shape) if values else np.zeros(x.shape)


def common(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return all arrays static, or all of objects."""
    if all(map(is_static, arrays)):
        return list(arrays)
    return [x.astype(object) if is_static(x) else x for x in arrays]


def mapped(function: Callable, operands: int) -> Callable[..., np.ndarray]:
    """Return a function of scalars as one of arrays that broadcast."""
    over = np.frompyfunc(function, operands, 1)
    return lambda *xs: np.asarray(over(*xs))


def constant(x) -> np.ndarray:
    x = np.asarray(x)
    return x.astype(np.float64) if x.dtype.kind == "f" else x
