"""Searches end where Newton's method alone goes back and forth between two points."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._roots import following_point
from jaxdyn.laws import SoftFriction
from jaxdyn.solve import Line, first_guess, searcher

# Dry friction: the slope rises by 3.8 along the line, and by as much again in a short piece of it. Newton's method goes
# from each end to the other.
RISE, JUMP, STIFFNESS, MIDDLE = 3.8, 1.9, 10.0, 0.9 / 1.9
ZERO = 19 / 39.9


def slope(t):
    """Return the slope, and its rate."""

    def value(t):
        return RISE * t - JUMP - JUMP * jnp.clip(-STIFFNESS * JUMP * (t - MIDDLE), -1.0, 1.0)

    return jax.jvp(value, (t,), (jnp.ones_like(t),))


def newton(t):
    value, rate = slope(t)
    return t - value / rate


def test_newtons_method_alone_does_not_end():
    np.testing.assert_allclose([newton(jnp.array(0.0)), newton(jnp.array(1.0))], [1, 0], atol=1e-12)


def test_steps_or_the_interval_become_smaller_by_half():
    at, low, high, last = jnp.array(1.0), jnp.array(0.0), jnp.array(1.0), jnp.array(jnp.inf)
    for _ in range(12):
        value, _ = slope(at)
        low, high = jnp.where(value < 0, at, low), jnp.where(value < 0, high, at)
        after = following_point(at, newton(at), low, high, last)
        assert abs(after - at) <= 0.5 * last + 1e-15 or np.isclose(after, 0.5 * (low + high))
        at, last = after, jnp.abs(after - at)
    np.testing.assert_allclose(at, ZERO, rtol=1e-14)


def test_searches_along_lines():
    one = jnp.ones((1, 1))
    # The residual of a dry friction whose force is at most 1, along a line on which it goes by 1.9.
    law = SoftFriction(STIFFNESS * one, one)
    line = Line(one, (-0.9 * one,), (JUMP * one,), (), -JUMP * one, RISE * one, one, 0 * one)
    robot: Any = None  # Only lists of contacts need it.
    at, step = first_guess(line), jax.jit(searcher(robot, (law,), (None,), (), line))
    for _ in range(12):
        at = step(at)
    assert at.done == 1
    np.testing.assert_allclose(at.length, ZERO, rtol=1e-14)
    # A term whose residuals are velocities after a step of 0.1 has the same slope.
    law = SoftFriction(STIFFNESS / 0.1 * one, one)
    line = line._replace(residuals=(-0.09 * one,), shifts=(0.1 * JUMP * one,))
    at, step = first_guess(line), jax.jit(searcher(robot, (law,), (0.1 * one,), (), line))
    for _ in range(12):
        at = step(at)
    np.testing.assert_allclose(at.length, ZERO, rtol=1e-12)
