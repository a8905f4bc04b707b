"""Friction cones: forces of contacts from residuals in all their directions, and the curvatures of the potentials.

The directions of a contact are the normal, and those in which it rubs. A pyramid has two edges for each of the latter,
`normal +- friction direction`, each a one-sided spring; as a law of directions it has the same force, and a matrix that
is zero between two directions of rubbing. An elliptic cone has three zones: the residual in the cone dual to it, where
there is no force; in its polar, where every direction is a spring; and the distance to the cone between them. Source:
MuJoCo's manual, chapter Computation, Friction cones and Primal problem.
"""

from __future__ import annotations

import functools
import operator
from typing import Any, NamedTuple

import jax.numpy as jnp


def pyramid_force(x: list, D: list, friction: list) -> list:
    """Return the force in each direction."""
    edges = [_edges(x[0], f, t) for f, t in zip(friction, x[1:], strict=True)]
    # Edges push only where their residual is negative.
    pushes = [(-D[0] * jnp.minimum(a, 0.0), -D[0] * jnp.minimum(b, 0.0)) for a, b in edges]
    normal = _total(a + b for a, b in pushes)
    return [normal, *(f * (a - b) for f, (a, b) in zip(friction, pushes, strict=True))]


def pyramid_curvature(x: list, D: list, friction: list) -> list[list[Any]]:
    """Return the matrix over the directions, None where it is zero."""
    zero = jnp.zeros((), D[0].dtype)
    stiff = [
        tuple(jnp.where(edge < 0, D[0], zero) for edge in _edges(x[0], f, t))
        for f, t in zip(friction, x[1:], strict=True)
    ]
    dim = len(x)
    G: list[list[Any]] = [[None] * dim for _ in range(dim)]
    G[0][0] = _total(a + b for a, b in stiff)
    for k, (f, (a, b)) in enumerate(zip(friction, stiff, strict=True), 1):
        G[0][k] = G[k][0] = f * (a - b)
        G[k][k] = f * f * (a + b)
    return G


def _edges(normal, friction, tangent):
    rubbing = friction * tangent
    return normal + rubbing, normal - rubbing


class _Zones(NamedTuple):
    """The zones of residuals in the scaled space in which the cone is round."""

    N: Any
    T: Any
    """The length of the tangential part, at least one where it is zero."""
    U: list
    between: Any
    below: Any
    stiffness: Any
    """The stiffness of the distance to the cone."""


def _zones(x: list, D: list, friction: list, mu) -> _Zones:
    N, U = x[0] * mu, [t * f for t, f in zip(x[1:], friction, strict=True)]
    square = _total(u * u for u in U)
    slides = square > 0
    T = jnp.sqrt(jnp.where(slides, square, 1.0))
    zero = jnp.zeros((), square.dtype)
    length = jnp.where(slides, T, zero)
    above = mu * length <= N
    below = (mu * N + length <= 0) & ~above
    return _Zones(N, T, U, ~above & ~below & slides, below, D[0] / (mu * mu * (1 + mu * mu)))


def elliptic_force(x: list, D: list, friction: list, mu) -> list:
    """Return the force in each direction."""
    at = _zones(x, D, friction, mu)
    zero = jnp.zeros((), D[0].dtype)
    normal = -at.stiffness * (at.N - mu * at.T) * mu
    rubbing = [-normal / at.T * u * f for u, f in zip(at.U, friction, strict=True)]
    return [
        jnp.where(at.between, push, jnp.where(at.below, -stiff * t, zero))
        for push, stiff, t in zip([normal, *rubbing], D, x, strict=True)
    ]


def elliptic_curvature(x: list, D: list, friction: list, mu) -> list[list[Any]]:
    """Return the matrix over the directions."""
    at = _zones(x, D, friction, mu)
    zero = jnp.zeros((), D[0].dtype)
    e = [u / at.T for u in at.U]
    ratio = mu * at.N / at.T
    # In the scaled space: (1, -mu e) for the normal; mu N/T e e^T + (mu^2 - mu N/T) 1 among the tangents.
    dim = len(x)
    scale = [mu, *friction]
    G: list[list[Any]] = [[None] * dim for _ in range(dim)]
    for i in range(dim):
        for j in range(i + 1):
            if i == 0:
                scaled = 1.0
            elif j == 0:
                scaled = -mu * e[i - 1]
            else:
                scaled = ratio * e[i - 1] * e[j - 1] + (mu * mu - ratio if i == j else 0.0)
            inside = D[i] if i == j else zero
            value = at.stiffness * scale[i] * scale[j] * scaled
            G[i][j] = G[j][i] = jnp.where(at.between, value, jnp.where(at.below, inside, zero))
    return G


def _total(terms):
    return functools.reduce(operator.add, terms)
