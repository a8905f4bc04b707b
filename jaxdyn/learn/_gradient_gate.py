"""A gate for gradients between two steps of a roll-out."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


@jax.custom_vjp
def gradient_gate(tree: Any, factor: Any, limit: Any, probe: Any) -> Any:
    """Return the tree of arrays of one environment as it is. The gradient that comes back is multiplied by `factor`
    and by as much as leaves its norm at most `limit`, and it is zero where it is not finite. The gradient with respect
    to the scalar `probe`, which changes nothing, is the norm before that."""
    return tree


def _forward(tree, factor, limit, probe):
    return tree, (factor, limit)


def _backward(residuals, gradient):
    factor, limit = residuals
    norm = jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(gradient)))
    # A norm may overflow where its parts are finite. Such a gradient is as useless.
    finite = jnp.isfinite(norm)
    scale = factor * jnp.minimum(1, limit / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny))
    passed = jax.tree.map(lambda x: jnp.where(finite, scale * x, 0), gradient)
    return passed, jnp.zeros_like(factor), jnp.zeros_like(limit), norm


gradient_gate.defvjp(_forward, _backward)
