"""Steps of models with closed loops: one projection at the end of each."""

import jax
import jax.numpy as jnp

from jaxdyn.algorithms import configuration_correction, project_velocity
from jaxdyn.model import Model
from jaxdyn.simulate._state import State

CORRECTIONS = 2
"""Gauss-Newton steps of a configuration: the first leaves an error of the order of the square of the drift in a
step."""


def closed(model: Model, state: State) -> State:
    """The state with the loops and couplings of the model closed, by the least displacement and change of velocity in
    the metric of the mass matrix (Eich, Convergence results for a coordinate projection method applied to mechanical
    systems with algebraic constraints, SIAM Journal on Numerical Analysis 1993). A projection keeps the order of the
    step, and does not act on models without loops."""
    if not model.topology.has_loops:
        return state
    q = state.q
    for _ in range(CORRECTIONS):
        q = model.integrate(q, configuration_correction(model, q))
    return State(q, project_velocity(model, q, state.v))


def differentiated_step(step, model: Model, start: State, tau):
    """The derivatives `[*batch, 2 nv, 3 nv]` of `[displacement of q1, v1]` by `[displacement of q0, v0, tau]` of a
    function `step(state, tau)`, by JAX."""
    end, n = step(start, tau), model.nv

    def changed(x):
        moved = State(model.integrate(start.q, x[..., :n]), start.v + x[..., n : 2 * n])
        after = step(moved, tau + x[..., 2 * n :])
        return jnp.concatenate([model.difference(end.q, after.q), after.v - end.v], axis=-1)

    zero = jnp.zeros((*start.v.shape[:-1], 3 * n), start.v.dtype)
    along = jax.linearize(changed, zero)[1]
    return jax.vmap(lambda unit: along(jnp.broadcast_to(unit, zero.shape)), out_axes=-1)(
        jnp.eye(3 * n, dtype=start.v.dtype)
    )
