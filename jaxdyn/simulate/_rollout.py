"""Steps and roll-outs."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax

from jaxdyn._compile import compiled
from jaxdyn._errors import ModelError, ShapeError, require_last_axes
from jaxdyn._types import Array, Float, Velocity
from jaxdyn.model import Model
from jaxdyn.simulate._runge_kutta import rk4_step
from jaxdyn.simulate._semi_implicit_euler import semi_implicit_euler_step
from jaxdyn.simulate._state import State, Trajectory

type Integrator = Literal["semi_implicit_euler", "rk4"]

_STEPS = {"semi_implicit_euler": semi_implicit_euler_step, "rk4": rk4_step}


@compiled("integrator")
def step(
    model: Model, state: State, tau: Velocity, dt: float, *, integrator: Integrator = "semi_implicit_euler"
) -> State:
    """The state after a time `dt` (s) under constant actuator torques `tau` `[*batch, nv]`.

    `integrator`: `"semi_implicit_euler"`, first order, or `"rk4"`, fourth order; both stay on the manifold.
    **Raises** `ModelError` for another name, `ShapeError` where a shape does not fit.
    """
    if integrator not in _STEPS:
        raise ModelError(f"no integrator named {integrator!r}; known: {', '.join(_STEPS)}")
    return _STEPS[integrator](model, state, tau, dt)


@compiled("integrator")
def rollout(
    model: Model,
    state: State,
    controls: Float[Array, "*batch steps nv"],
    dt: float,
    *,
    integrator: Integrator = "semi_implicit_euler",
) -> Trajectory:
    """The trajectory from `state` under `controls` `[*batch, steps, nv]`, actuator torques held for `dt` (s) each.

    One `lax.scan`; batch axes broadcast; differentiable in the state, the controls and every array of the model.
    **Returns** `steps + 1` samples, the first of them `state`.
    """
    controls = jnp.asarray(controls)
    if controls.ndim < 2:
        raise ShapeError(f"controls have shape {controls.shape}, but [..., steps, nv] is needed: one row a step")
    require_last_axes(controls, (model.nv,), "controls", f"[..., steps, nv] with nv = {model.nv}")
    q, v = jnp.asarray(state.q), jnp.asarray(state.v)
    batch = jnp.broadcast_shapes(q.shape[:-1], v.shape[:-1], controls.shape[:-2])
    dtype = jnp.result_type(model.dtype, q, v, controls)
    start = State(
        jnp.broadcast_to(q, (*batch, *q.shape[-1:])).astype(dtype),
        jnp.broadcast_to(v, (*batch, *v.shape[-1:])).astype(dtype),
    )

    def advance(state: State, tau):
        after = step(model, state, tau, dt, integrator=integrator)
        return after, after

    _, states = lax.scan(advance, start, jnp.moveaxis(controls, -2, 0))
    joined = jax.tree.map(lambda first, rest: jnp.moveaxis(jnp.concatenate([first[None], rest]), 0, -2), start, states)
    t = jnp.arange(controls.shape[-2] + 1, dtype=dtype) * dt
    return Trajectory(t, joined.q, joined.v)
