"""Batches of problems: one after the other on a CPU, in lock step elsewhere; and results that
only some of a batch need."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jaxdyn.native import with_array_programs


def one_by_one_on_cpu(function: Callable, *, in_programs: bool = False) -> Callable:
    """The function of arrays, with a batching rule that on a CPU calls it for one element of a batch after the other.

    There a product of small matrices takes half as long as its share of a product of batches, and a solve ends when it
    has converged, not when the slowest of the batch has. Elsewhere the elements go in lock step.

    With `in_programs`, the operations of a single call are in native programs of arrays, which have no derivatives."""
    single = jax.custom_batching.custom_vmap(with_array_programs(function) if in_programs else function)

    @single.def_vmap
    def batching_rule(size, batched, *args):
        args = jax.tree.map(
            lambda x, has: x if has else jnp.broadcast_to(x, (size, *jnp.shape(x))), args, tuple(batched)
        )

        def one_by_one(*args):
            return lax.map(lambda problem: single(*problem), args)

        out = lax.platform_dependent(*args, cpu=one_by_one, default=jax.vmap(function))
        return out, jax.tree.map(lambda _: True, out)

    return single


def where_needed(condition, function: Callable, otherwise):
    """The result of the function where a condition is true, and `otherwise` elsewhere.

    In a batch in lock step the function is computed only if the condition is true for one of the batch; a `lax.cond`
    with a condition of each element's own would compute it always."""

    def needed():
        return jax.tree.map(lambda a, b: jnp.where(condition, a, b), function(), otherwise)

    return lax.cond(_any_of_batch(condition), needed, lambda: otherwise)


@jax.custom_batching.custom_vmap
def _any_of_batch(condition):
    """Whether a condition is true, for one of a batch at least."""
    return condition


@_any_of_batch.def_vmap
def _any_of_larger_batch(size, batched, condition):
    return _any_of_batch(condition.any(axis=0)), False
