"""The classical Runge-Kutta step on the configuration manifold."""

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

    def rate(x, v):
        q = model.chart_point(q0, x)
        return model.chart_rate(q, x, v), aba(model, q, v, tau, f_ext)

    x0 = jnp.zeros_like(v0)
    dx1, dv1 = rate(x0, v0)
    dx2, dv2 = rate(x0 + 0.5 * dt * dx1, v0 + 0.5 * dt * dv1)
    dx3, dv3 = rate(x0 + 0.5 * dt * dx2, v0 + 0.5 * dt * dv2)
    dx4, dv4 = rate(x0 + dt * dx3, v0 + dt * dv3)
    x = (dt / 6) * (dx1 + 2 * dx2 + 2 * dx3 + dx4)
    v = v0 + (dt / 6) * (dv1 + 2 * dv2 + 2 * dv3 + dv4)
    return State(model.chart_point(q0, x), v)
