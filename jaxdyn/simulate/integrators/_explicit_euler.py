"""The explicit Euler step."""

from __future__ import annotations

from jaxdyn.algorithms import aba
from jaxdyn.model import Model
from jaxdyn.simulate._state import State


def euler_step(model: Model, state: State, tau, dt) -> State:
    """`v1 = v0 + dt a(q0, v0, tau)`, `q1 = q0 (+) dt v0`: first order, one evaluation of the dynamics.

    Gains energy on oscillations (Hairer, Lubich & Wanner, Geometric Numerical Integration, 2006, section I.1.2): there
    to compare with, and for where a single explicit step is what one wants to linearize.
    """
    v = state.v + dt * aba(model, state.q, state.v, tau)
    return State(model.integrate(state.q, dt * state.v), v)
