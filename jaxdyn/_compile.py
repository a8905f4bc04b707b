"""The decorator of the public functions that run compiled, and a hint to the compiler."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax


def compiled[**P, R](*static: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """`jax.jit` with static arguments by name, keeping the signature for type checkers and editors.

    The public functions are compiled by themselves, because a recursion run operation by operation is a thousand times
    slower. While a user's own function is traced they are called as they are where some of their arguments are not
    traced: a model that is a constant of the user's program then stays one.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        run = jax.jit(function, static_argnames=static, inline=True)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            traced = [isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((args, kwargs))]
            if any(traced) and not all(traced) and _tracing():
                return function(*args, **kwargs)
            return run(*args, **kwargs)

        call.lower, call._cache_size = run.lower, run._cache_size  # type: ignore[attr-defined]
        return call

    return decorate


def _tracing() -> bool:
    """Whether operations, also those on constants, are recorded for a program."""
    return isinstance(jnp.zeros(()), jax.core.Tracer)


def once[T](x: T) -> T:
    """`x`, computed once and kept: the compiler would rather compute it again in every loop that uses it.

    For what is expensive and used by many components, such as the sine of an angle in all nine of a rotation.
    """
    return lax.optimization_barrier(x)
