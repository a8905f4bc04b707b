"""Searches for the zero of an increasing function between two points."""

from typing import Any

import jax.numpy as jnp


def following_point(at, newton, low, high, last) -> Any:
    """Return the next point of a search: Newton's, if it lies between `low` and `high` and its step is at most half of
    the last one, and the middle between them otherwise.

    So steps become smaller by half at least. Newton's method alone may go back and forth for ever between two points
    where the function's rate jumps, as with dry friction. Source: Press et al., Numerical Recipes, section 9.4.
    """
    inside = (newton >= low) & (newton <= high) & (jnp.abs(newton - at) <= 0.5 * last)
    return jnp.where(inside, newton, 0.5 * (low + high))
