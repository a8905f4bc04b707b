"""Functions of a squared angle that are entire, with every derivative finite at zero.

Each is written in `x = angle^2`, so that no square root meets zero: below a threshold the power series, above it the
closed form on an argument kept away from zero (both branches of a `where` are differentiated).
"""

import math

import jax.numpy as jnp

# Below this squared angle eight terms of the series are exact to double precision; above it the closed forms lose
# at most two digits to cancellation.
_SERIES_BELOW = 0.25


def _branch(x, coefficients: list[float], closed_form):
    x = jnp.asarray(x)
    small = x < _SERIES_BELOW
    near = jnp.where(small, x, 0)
    series = jnp.full_like(near, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        series = series * near + c
    far = jnp.where(small, 1, x)
    return jnp.where(small, series, closed_form(far, jnp.sqrt(far)))


def _alternating(first_factorial: int) -> list[float]:
    """The coefficients of `sum_k (-x)^k / (2k + first_factorial)!`."""
    return [(-1) ** k / math.factorial(2 * k + first_factorial) for k in range(9)]


def sinc(x):
    """`sin(t) / t` at `t^2 = x`."""
    return _branch(x, _alternating(1), lambda s, t: jnp.sin(t) / t)


def cosc(x):
    """`(1 - cos t) / t^2` at `t^2 = x`."""
    return _branch(x, _alternating(2), lambda s, t: (1 - jnp.cos(t)) / s)


def sincc(x):
    """`(t - sin t) / t^3` at `t^2 = x`."""
    return _branch(x, _alternating(3), lambda s, t: (t - jnp.sin(t)) / (s * t))


# (1 - (t/2) cot(t/2)) / t^2 = sum_k |B_2k| x^(k-1) / (2k)!, with these Bernoulli numbers |B_2k|.
_BERNOULLI = (1 / 6, 1 / 30, 1 / 42, 1 / 30, 5 / 66, 691 / 2730, 7 / 6, 3617 / 510, 43867 / 798)
_COTANGENT = [number / math.factorial(2 * k) for k, number in enumerate(_BERNOULLI, 1)]


def cotangent_deficit(x):
    """`(1 - (t/2) cot(t/2)) / t^2` at `t^2 = x`, for `0 <= t < 2 pi`; it stands in the inverses of left Jacobians."""
    return _branch(x, _COTANGENT, lambda s, t: (1 - 0.5 * t * jnp.cos(0.5 * t) / jnp.sin(0.5 * t)) / s)


# Their derivatives by `x`. Above the threshold the closed forms lose four digits of numbers below 0.05.


def _derivative(coefficients: list[float]) -> list[float]:
    return [k * c for k, c in enumerate(coefficients)][1:]


def cosc_slope(x):
    """The derivative of `cosc(x)` by `x`."""
    return _branch(x, _derivative(_alternating(2)), lambda s, t: (t * jnp.sin(t) - 2 * (1 - jnp.cos(t))) / (2 * s * s))


def sincc_slope(x):
    """The derivative of `sincc(x)` by `x`."""
    series = _derivative(_alternating(3))
    return _branch(x, series, lambda s, t: (t * (1 - jnp.cos(t)) - 3 * (t - jnp.sin(t))) / (2 * s * s * t))


def cotangent_deficit_slope(x):
    """The derivative of `cotangent_deficit(x)` by `x`."""

    def closed_form(s, t):
        ratio = 0.5 * t / jnp.sin(0.5 * t)
        return (ratio * (ratio + jnp.cos(0.5 * t)) - 2) / (2 * s * s)

    return _branch(x, _derivative(_COTANGENT), closed_form)
