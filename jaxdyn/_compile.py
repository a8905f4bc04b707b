"""The decorator of the public functions that run compiled, and a hint to the compiler."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import Tracer

from jaxdyn._errors import require_arguments, wrong_argument
from jaxdyn._signatures import look_at_configurations
from jaxdyn.native import tracing, wanted


def compiled[**P, R](*static: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """`jax.jit` with static arguments by name, keeping the signature for type checkers and editors.

    The public functions are compiled by themselves, because a recursion run operation by operation is a thousand times
    slower. While a user's own function is traced they are called as they are where some of their arguments are not
    traced: a model that is a constant of the user's program then stays one.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        # What is compiled with native code is not taken for what is compiled without.
        natively, otherwise = (jax.jit(_same(function), static_argnames=static, inline=True) for _ in range(2))
        directly = _same(function)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            look_at_configurations(function, args, kwargs)
            try:
                traced = [isinstance(x, Tracer) for x in jax.tree.leaves((args, kwargs))]
                if any(traced) and not all(traced) and tracing():
                    return directly(*args, **kwargs)
                return (natively if wanted() else otherwise)(*args, **kwargs)
            except Exception:
                problem = wrong_argument(function, args, kwargs)
                if problem is None:
                    raise
            raise problem from None

        return call

    return decorate


def _same[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Return another function that does the same, and refuses complex numbers for real ones."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if any(jnp.iscomplexobj(x) for x in jax.tree.leaves((args, kwargs)) if hasattr(x, "dtype")):
            require_arguments(function, args, kwargs)
        return function(*args, **kwargs)

    return call


def once[T](x: T) -> T:
    """`x`, computed once and kept: the compiler would rather compute it again in every loop that uses it.

    For what is expensive and used by many components, such as the sine of an angle in all nine of a rotation.
    """
    return lax.optimization_barrier(x)
