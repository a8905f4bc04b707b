"""The semi-implicit (symplectic) Euler step."""

from __future__ import annotations

from jaxdyn.algorithms import aba
from jaxdyn.model import Model
from jaxdyn.simulate._state import State


def semi_implicit_euler_step(model: Model, state: State, tau, dt) -> State:
    """`v1 = v0 + dt a(q0, v0, tau)`, `q1 = q0 (+) dt v1`: first order, one evaluation of the dynamics.

    `tau` `[*batch, nv]`, N m or N; `dt` a number, s.
    """
    v = state.v + dt * aba(model, state.q, state.v, tau)
    return State(model.integrate(state.q, dt * v), v)
