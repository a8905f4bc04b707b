"""Searches for the zero of an increasing function between two points."""

from typing import Any

import jax.numpy as jnp


def following_point(at, newton, low, high, last) -> Any:
    """Return the next point of a search: Newton's, if it lies between `low` and `high` and its step is at most half of
    the last one, and the middle between them otherwise.

    So each step is at most half of the last one, or halves the interval. Newton's method alone may go back and forth
    forever between two points where the function's rate jumps, as with dry friction. Source: `rtsafe` of Press et al.,
    Numerical Recipes, section 9.4, which compares with the step before the last one.
    """
    inside = (newton >= low) & (newton <= high) & (jnp.abs(newton - at) <= 0.5 * last)
    return jnp.where(inside, newton, 0.5 * (low + high))
