"""MuJoCo's muscles: gain and bias as functions of length and velocity, and the dynamics of their activation.

MuJoCo's documentation, chapter Modeling, section "Muscles"; `engine_util_misc.c` of MuJoCo 4.0 (`mju_muscleGain`,
`mju_muscleBias`, `mju_muscleDynamics`).
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxdyn.tree import columns_of
from jaxdyn.worlds._parts import SMALL


def _at_least_small(x):
    return jnp.maximum(x, SMALL)


def _normalized(length, length_range, acceleration, parameters) -> tuple[Any, Any, list]:
    """Return the length in optimal lengths, the optimal length, and the parameters, with the peak force in place."""
    low, high, force, scale, *others = columns_of(parameters)
    shortest, longest = columns_of(length_range)
    force = jnp.where(force < 0, scale / _at_least_small(acceleration), force)
    optimal = (longest - shortest) / _at_least_small(high - low)
    return low + (length - shortest) / _at_least_small(optimal), optimal, [force, *others]


def muscle_gain(length, velocity, length_range, acceleration, parameters) -> tuple[Any, Any]:
    """Return the gains of muscles, and their derivatives by the velocity; rows `[n]`, and tables of `length_range`
    `[n, 2]` and `parameters` `[n, 9]`."""
    ratio, optimal, (force, lmin, lmax, vmax, _, fvmax) = _normalized(length, length_range, acceleration, parameters)
    speed = _at_least_small(optimal * vmax)
    rate, y = velocity / speed, fvmax - 1
    shrinking, growing = (rate + 1) * (rate + 1), fvmax - (y - rate) * (y - rate) / _at_least_small(y)
    curve = jnp.where(rate <= -1, 0.0, jnp.where(rate <= 0, shrinking, jnp.where(rate <= y, growing, fvmax)))
    rising = 2 * (y - rate) / _at_least_small(y)
    slope = jnp.where(rate <= -1, 0.0, jnp.where(rate <= 0, 2 * rate + 2, jnp.where(rate <= y, rising, 0.0)))
    peak = -force * _active_length(ratio, lmin, lmax)
    return peak * curve, peak * slope / speed


def _active_length(ratio, lmin, lmax):
    """Return the active force at a length, over that at the optimal length."""
    a, b = 0.5 * (lmin + 1), 0.5 * (1 + lmax)
    first, second = (ratio - lmin) / _at_least_small(a - lmin), (1 - ratio) / _at_least_small(1 - a)
    third, fourth = (ratio - 1) / _at_least_small(b - 1), (lmax - ratio) / _at_least_small(lmax - b)
    above = jnp.where(ratio <= b, 1 - 0.5 * third * third, 0.5 * fourth * fourth)
    inside = jnp.where(ratio <= a, 0.5 * first * first, jnp.where(ratio <= 1, 1 - 0.5 * second * second, above))
    return jnp.where((ratio >= lmin) & (ratio <= lmax), inside, 0.0)


def muscle_bias(length, velocity, length_range, acceleration, parameters) -> Any:
    """Return the passive forces of muscles. The arguments are those of `muscle_gain`."""
    ratio, _, (force, _, lmax, _, fpmax, _) = _normalized(length, length_range, acceleration, parameters)
    b = 0.5 * (1 + lmax)
    x = (ratio - 1) / _at_least_small(b - 1)
    far = 0.5 + (ratio - b) / _at_least_small(b - 1)
    return -force * fpmax * jnp.where(ratio <= 1, 0.0, jnp.where(ratio <= b, 0.5 * x * x, far))


def activation_rate(control, activation, time) -> Any:
    """Return the rates of muscles' activations; `time` `[n, 3]`: the time constants up and down, and the width of the
    smooth change between them."""
    up, down, width = columns_of(time)
    factor = 0.5 + 1.5 * jnp.clip(activation, 0, 1)
    up, down = up * factor, down / factor
    excess = jnp.clip(control, 0, 1) - activation
    smooth = width >= SMALL
    x = jnp.clip(excess / jnp.where(smooth, width, 1) + 0.5, 0, 1)
    share = jnp.where(smooth, x * x * x * (x * (6 * x - 15) + 10), jnp.where(excess > 0, 1.0, 0.0))
    return excess / _at_least_small(down + (up - down) * share)
