"""Runge-Kutta steps: of plain vectors, and the classical one on the configuration manifold."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxdyn.algorithms import aba
from jaxdyn.model import Model
from jaxdyn.simulate._state import State


def rk4_step(model: Model, state: State, tau, dt, f_ext=None) -> State:
    """The classical fourth-order Runge-Kutta step with `tau` held constant, four evaluations of the dynamics.

    It works in the chart around `state.q` (positions as they are, rotations by their exponential), where the equations
    are those of a vector space, and is of fourth order on free and ball joints too: Munthe-Kaas, High order Runge-Kutta
    methods on manifolds, 1999.

    `tau` `[*batch, nv]`, N m or N; `dt` a number, s; `f_ext` `[*batch, nb, 6]` as in `step`.
    """
    q0, v0 = state.q, state.v

    def rate(state, _):
        x, v = state
        q = model.chart_point(q0, x)
        return model.chart_rate(q, x, v), aba(model, q, v, tau, f_ext)

    x, v = rk4(rate, (jnp.zeros_like(v0), v0), 0.0, dt)
    return State(model.chart_point(q0, x), v)


def rk4(f, x, t, h):
    """The classical step from `x`, a pytree, with the rate `f(x, t)`."""

    def displaced(rate, h):
        return jax.tree.map(lambda x, rate: x + h * rate, x, rate)

    k1 = f(x, t)
    k2 = f(displaced(k1, 0.5 * h), t + 0.5 * h)
    k3 = f(displaced(k2, 0.5 * h), t + 0.5 * h)
    k4 = f(displaced(k3, h), t + h)
    return jax.tree.map(lambda x, a, b, c, d: x + (h / 6) * (a + 2 * b + 2 * c + d), x, k1, k2, k3, k4)


RUNGE_KUTTA_STEPS: dict[str, Callable] = {
    "euler": lambda f, x, t, h: x + h * f(x, t),
    "rk2": lambda f, x, t, h: x + h * f(x + 0.5 * h * f(x, t), t + 0.5 * h),
    "rk4": rk4,
}
"""Steps of length `h` from `x` with the rate `f(x, t)`."""
