"""Functions of an environment that are compiled once and called often."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def compiled_with(module: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function(module, ...)` as a compiled function of the other arguments.

    The arrays of the module are arguments of the program, so modules that differ in numbers share it. The module is
    flattened here, once: to flatten a world with its hundreds of arrays takes longer than to call a program.
    """
    leaves, tree = jax.tree.flatten(module)
    is_array = [isinstance(x, jax.Array | np.ndarray) for x in leaves]
    arrays = [x for x, yes in zip(leaves, is_array, strict=True) if yes]
    others = tuple(None if yes else x for x, yes in zip(leaves, is_array, strict=True))
    return functools.partial(_call, function, tree, others, arrays)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _call(function: Callable[..., Any], tree: Any, others: tuple, arrays: list, *arguments: Any) -> Any:
    found = iter(arrays)
    return function(tree.unflatten(next(found) if x is None else x for x in others), *arguments)
