"""Steps of models with closed loops."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import ModelError
from jaxdyn.algorithms import (
    aba,
    configuration_correction,
    constraint_error,
    loop_displacement,
    loop_opening,
    momentum_ahead,
    project_velocity,
    rnea,
)
from jaxdyn.model import Model
from jaxdyn.simulate._state import State
from jaxdyn.simulate.integrators._variational_midpoint import without_potential

CORRECTIONS = 2
"""Gauss-Newton steps of a configuration: the first leaves an error of the order of the square of the drift in a
step."""

CLOSED = 1e-3
"""The greatest opening (`loop_opening`) of states that steps and roll-outs begin at. Up to ten times as much, which the
stages of long steps have, dynamics are those of the closed mechanism up to the opening."""
OPEN_START = (
    "a step from there would jump: begin at a closed state, with q = project_configuration(model, q).q and v = "
    f"project_velocity(model, q, v). Loops may be open by {CLOSED:g} of the levers of their joints"
)


def symplectic_step(
    model: Model, state: State, tau, dt, f_ext=None, *, inertial: Model | None = None, gained=0.0
) -> State:
    """The symplectic step of first order of a model with loops, under the torques `tau`, which include joint friction.

    It makes the discrete action `dt (T(q, w) - V(q0))` stationary, with the mean velocity `w` in `q1 = q0 (+) dt w` and
    `q` in the middle: `M(q) w = M(q0) v0 + dt (Q(q0) + k / 2) - J(q0)^T l`, with the loops closed at `q1` by the
    impulses `l`, and `M(q1) v1 = M(q) w + dt k / 2 - J(q1)^T m` with `J(q1) v1 = 0`, for the derivative `k` of the
    kinetic energy by `q` (Marsden & West, Discrete mechanics and variational integrators, Acta Numerica 2001, section
    3.5; Hairer, Lubich & Wanner, Geometric Numerical Integration, 2006, section VII.1). The energy oscillates by
    `O(dt)` and does not drift while `dt |w|` is below about 0.1 rad. Explicit Coriolis forces cost a four-bar whose
    crank turns at 8 rad/s 55 % of its energy in 100 s of 1 ms, also with these impulses. For ball and free joints the
    action holds to second order in the turn of a step.

    `inertial` is the model whose inertias resist the motion, by default `model`; `gained` `[*batch, nv]` are
    accelerations by other forces, which the loops allow.
    """
    q0, still, inertial = state.q, jnp.zeros_like(state.v), model if inertial is None else inertial
    impulse = dt * dt * (tau - rnea(model, q0, still, still, f_ext, joint_friction=False))
    moved = loop_displacement(inertial, q0, dt * (state.v + dt * gained), impulse)
    q1 = model.integrate(q0, moved)
    # What the iterations leave is small beside their result.
    q1 = model.integrate(q1, configuration_correction(model, q1))
    momentum = momentum_ahead(model, q0, moved) / dt
    return State(q1, aba(without_potential(model), q1, still, momentum, joint_friction=False))


def require_closed(model: Model, state: State) -> None:
    """Raise `ModelError` for a state whose loops are open, by name, where it and the model have values."""
    if not isinstance(model, Model) or not model.topology.has_loops:
        return
    if any(isinstance(x, Tracer) for x in jax.tree.leaves((model, state))):
        return
    opening = np.asarray(loop_opening(model, state.q))
    if not (opening > CLOSED).any():
        return
    index = np.unravel_index(np.nanargmax(opening), opening.shape)
    errors, topology = np.abs(np.asarray(constraint_error(model, state.q)))[index], model.topology
    equations = zip(topology.loops, itertools.pairwise(topology.loop_starts), strict=True)
    names = [loop.name for loop, rows in equations for _ in range(*rows)]
    names += [coupling.name for coupling in topology.couplings]
    where = f" of element {tuple(map(int, index))} of the batch" if index else ""
    worst = int(np.argmax(errors))
    raise ModelError(f"state.q{where} has {names[worst]!r} open by {errors[worst]:.3g} (m or rad), and {OPEN_START}")


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
