"""The decorator of the public functions that run compiled."""

from collections.abc import Callable

import jax


def compiled[**P, R](*static: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """`jax.jit` with static arguments by name, keeping the signature for type checkers and editors.

    The public functions are compiled by themselves, because a recursion run operation by operation is a thousand times
    slower; inside a user's own `jit` they are inlined.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        return jax.jit(function, static_argnames=static, inline=True)  # type: ignore[return-value]

    return decorate
