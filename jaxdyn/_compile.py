"""The decorator of the public functions that run compiled, and a hint to the compiler."""

from collections.abc import Callable

import jax
from jax import lax


def compiled[**P, R](*static: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """`jax.jit` with static arguments by name, keeping the signature for type checkers and editors.

    The public functions are compiled by themselves, because a recursion run operation by operation is a thousand times
    slower; inside a user's own `jit` they are inlined.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        return jax.jit(function, static_argnames=static, inline=True)  # type: ignore[return-value]

    return decorate


def once[T](x: T) -> T:
    """`x`, computed once and kept: the compiler would rather compute it again in every loop that uses it.

    For what is expensive and used by many components, such as the sine of an angle in all nine of a rotation.
    """
    return lax.optimization_barrier(x)
