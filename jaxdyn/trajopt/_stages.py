"""A function at every stage of the horizon."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import lax


def over_stages(function: Callable, *arrays: Any) -> Any:
    """`jax.vmap(function)(*arrays)`.

    On a CPU one stage after the other: a program for one stage compiles in half the time of one for all, and runs as
    fast within a third. Elements of a batch of problems stay side by side.
    """

    def one_by_one(*arrays):
        return lax.map(lambda at: function(*at), arrays)

    return lax.platform_dependent(*arrays, cpu=one_by_one, default=jax.vmap(function))
