"""A function whose loops end depending on data, one in the other, for the tests of native code."""

import jax.numpy as jnp
from jax import lax


def logarithms(x):
    """The natural logarithms of numbers above 1, or `x` below: halved by square roots of Newton's method until the
    series converges. Each element takes as many turns as it needs."""

    def root(x):
        def turn(state):
            y, last, count = state
            following = 0.5 * (y + x / y)
            return jnp.where(jnp.abs(y - last) > 1e-4 * y, following, y), y, count + 1

        def going(state):
            return (jnp.abs(state[0] - state[1]) > 1e-4 * state[0]).any() & (state[2] < 40)

        return lax.while_loop(going, turn, (x, 0 * x, jnp.zeros((), x.dtype)))[0]

    def halve(state):
        y, factor = state
        large = y > 1.1
        return jnp.where(large, root(y), y), jnp.where(large, 2 * factor, factor)

    y, factor = lax.while_loop(lambda state: (state[0] > 1.1).any(), halve, (x, jnp.ones_like(x)))
    z = (y - 1) / (y + 1)
    return jnp.where(x > 1, 2 * factor * z * (1 + z * z * (1 / 3 + z * z / 5)), x)
