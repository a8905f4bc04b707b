"""The explicit Euler step."""

from jaxdyn.algorithms import aba
from jaxdyn.model import Model
from jaxdyn.simulate._state import State


def euler_step(model: Model, state: State, tau, dt, f_ext=None) -> State:
    """`v1 = v0 + dt a(q0, v0, tau)`, `q1 = q0 (+) dt v0`: first order, one evaluation of the dynamics.

    Oscillations gain energy (Hairer, Lubich & Wanner, Geometric Numerical Integration, 2006, section I.1.2). It serves
    for comparisons, and where a single explicit step should be linearized.
    """
    v = state.v + dt * aba(model, state.q, state.v, tau, f_ext)
    return State(model.integrate(state.q, dt * state.v), v)
