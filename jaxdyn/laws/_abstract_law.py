"""The interface of laws of forces."""

from __future__ import annotations

import abc
import functools
import operator
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp

type Curvature = list[list[Any]]
"""The symmetric matrix over the directions of a law, of which each element is an array `[n, *batch]`, or None for 0."""


class AbstractLaw(eqx.Module):
    """A law of forces with a convex potential, of which the force is minus the derivative by the residual.

    Residuals and forces are rows `[directions n, *batch]`: all elements in the first direction in which they push, then
    all in the second. Elements do not act on each other. Numbers of a law are rows `[n, *batch]`.
    """

    @abc.abstractmethod
    def force(self, x) -> Any:
        """Return the forces at these residuals."""

    @abc.abstractmethod
    def curvature(self, x) -> Curvature:
        """Return minus the derivative of the forces by the residuals."""

    def along(self, x, shift) -> Callable[[Any], tuple[Any, Any, Any]]:
        """Return the function of a length `l` that returns the power of the forces on `shift` at the residuals `x + l
        shift`, minus its derivative, and the size of the rounding errors in it, over the relative one of a number."""

        def at(length):
            y = x + length * shift
            force = self.force(y)
            change = times(self.curvature(y), shift)
            power = force * shift
            # Residuals near zero have the rounding errors of their terms.
            lost = jnp.abs(change) * (jnp.abs(x) + length * jnp.abs(shift))
            return power, change * shift, jnp.abs(power) + lost

        return at


def parts_of(x, directions: int) -> list:
    """Return the rows of each direction."""
    return jnp.split(x, directions)


def times(G: Curvature, x):
    """Return the product of a curvature with rows `[directions n, ..., *batch]`."""
    parts = jnp.split(x, len(G))

    def product(line: list):
        terms = [g.reshape(g.shape[:1] + (1,) * (r.ndim - g.ndim) + g.shape[1:]) * r for g, r in _pairs(line, parts)]
        return functools.reduce(operator.add, terms)

    return jnp.concatenate([product(line) for line in G])


def _pairs(line: list, parts: list):
    return ((g, r) for g, r in zip(line, parts, strict=True) if g is not None)
