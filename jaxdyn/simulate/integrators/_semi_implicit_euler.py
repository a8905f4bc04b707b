"""The semi-implicit (symplectic) Euler step."""

from jaxdyn.algorithms import aba
from jaxdyn.model import Model
from jaxdyn.simulate._state import State


def semi_implicit_euler_step(model: Model, state: State, tau, dt, f_ext=None) -> State:
    """`v1 = v0 + dt a(q0, v0, tau)`, `q1 = q0 (+) dt v1`: first order, one evaluation of the dynamics.

    `tau` `[*batch, nv]`, N m or N; `dt` a number, s; `f_ext` `[*batch, nb, 6]` as in `step`.
    """
    v = state.v + dt * aba(model, state.q, state.v, tau, f_ext)
    return State(model.integrate(state.q, dt * v), v)
