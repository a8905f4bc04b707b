"""Functions with loops that end depending on data, for the tests of native code."""

import jax.numpy as jnp
from jax import lax

from jaxdyn import native


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


def sums_over_lists(x, numbers, length=5):
    """Sums over the first `x[0]` of `length` rows of three numbers, in two loops of which the second needs what the
    first has of each row and of all, and a third in the rounds of another loop; and the numbers of the second loop."""
    count, y = x[0], x[1:]
    rows = numbers.reshape(length, 3, *numbers.shape[1:])

    def first(row):
        a = jnp.sin(row[0]) * y[0] + row[1] * y[1] * row[2]
        return (jnp.stack([a, a * y[0]]), jnp.exp(-a * a)), jnp.stack([a, row[0] * y[1], y[0] * y[1]])

    (both, total), made = native.each_row(first, count, rows)

    def second(pair):
        row, own = pair
        return own[0] * row[1] * both[0] + total * own[2], own[1] * own[0]

    # These rows stand nowhere yet.
    last, products = native.each_row(second, count, (rows, 2 * made + rows))
    return jnp.stack([*both, total, last]), jnp.concatenate([products, (made * rows).reshape(-1, *products.shape[1:])])


def rounds_over_lists(x, numbers, length=5):
    """The same with a loop over the rows in each of some rounds, whose number depends on data."""
    sums, products = sums_over_lists(x, numbers, length)
    rows = numbers.reshape(length, 3, *numbers.shape[1:])

    def going(state):
        return (state[1] < 3 + x[1]) & (state[1] < 6)

    def turn(state):
        z, k = state
        change, more = native.each_row(lambda row: (row[0] * jnp.tanh(z), row[1] + z), x[0], rows)
        squares, _ = native.each_row(lambda own: (own * own, ()), x[0], more)
        z = jnp.where(going(state), z + 0.1 * change + 1e-3 * squares, z)
        return z, jnp.where(going(state), k + 1, k)

    z, _ = lax.while_loop(lambda state: going(state).any(), turn, (sums[0], jnp.zeros_like(sums[0])))
    return jnp.concatenate([sums, z[None]]), products
