"""The linear-quadratic problem with bounds on controls, by a primal-dual active set."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from jaxdyn._types import Array, Float
from jaxdyn.trajopt.ddp._expansion import Expansion
from jaxdyn.trajopt.ddp._riccati import HeldControls, Policy, backward

SWEEPS = 4
"""Changes of the active set in one backward pass; the next iteration goes on with a set that still changes."""


class ActiveSetState(NamedTuple):
    """The state of the search for the controls that are held at their lower or upper bound."""

    low: Array
    high: Array
    policy: Policy
    settled: Array
    sweeps: Array


def backward_in_box(
    e: Expansion,
    regularization,
    lower: Float[Array, "horizon nu"],
    upper: Float[Array, "horizon nu"],
    sweeps: int = SWEEPS,
) -> Policy:
    """`backward` with bounds on the step of the controls, at the states that the step reaches.

    A semismooth Newton method (Hintermüller, Ito & Kunisch, The primal-dual active set strategy as a semismooth Newton
    method, SIAM J. Optim. 13, 2002) on the whole horizon: controls that are held at a bound make the problem one
    without bounds; in its solution those that leave the box are held next, and those that the cost pulls inwards are
    freed, until nothing changes or `sweeps` sweeps are done. Bounds at each state alone (Tassa, Mansard & Todorov, ICRA
    2014) would ignore that the states before move, too. Only the curvature in free controls must be positive.
    """
    zero = jnp.zeros_like(lower)
    rounding = 10 * jnp.finfo(zero.dtype).eps * (1 + jnp.maximum(jnp.abs(lower), jnp.abs(upper)))
    rounding = jnp.where(jnp.isfinite(rounding), rounding, 0.0)

    def sweep(s: ActiveSetState) -> ActiveSetState:
        step = jnp.where(s.low, lower, jnp.where(s.high, upper, zero))
        policy = backward(e, regularization, HeldControls((~(s.low | s.high)).astype(zero.dtype), step))
        dus, slopes = _linear_step(e, policy)
        free = ~(s.low | s.high)
        low = jnp.where(free, dus < lower - rounding, s.low & (slopes >= 0))
        high = jnp.where(free, dus > upper + rounding, s.high & (slopes <= 0))
        settled = ((low == s.low) & (high == s.high)).all() | ~policy.ok
        return ActiveSetState(low, high, policy, settled, s.sweeps + 1)

    # Those at a bound are held first; equal bounds leave no choice.
    low, high = lower >= 0, (upper <= 0) & (lower < 0)
    policy = Policy.zeros(len(lower), e.A.shape[-1], lower.shape[-1], lower.dtype)
    start = ActiveSetState(low, high, policy, jnp.array(False), jnp.zeros((), jnp.int32))
    return lax.while_loop(lambda s: ~s.settled & (s.sweeps < sweeps), sweep, start).policy


def _linear_step(e: Expansion, policy: Policy):
    """The step of the controls by the linear model, and the slopes of the cost to go by the controls after it."""

    def step(dx, stage):
        A, B, gap, k, K, Qu, Qux, Quu = stage
        du = k + K @ dx
        return A @ dx + B @ du + gap, (du, Qu + Qux @ dx + Quu @ du)

    stages = e.A, e.B, e.gaps[1:], policy.k, policy.K, policy.Qu, policy.Qux, policy.Quu
    return lax.scan(step, e.gaps[0], stages)[1]
