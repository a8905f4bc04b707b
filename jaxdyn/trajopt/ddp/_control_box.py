"""The linear-quadratic problem with bounds on controls, by a primal-dual active set."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from jaxdyn._types import Array, Float
from jaxdyn.trajopt.ddp._augmented_lagrangian import Expansion
from jaxdyn.trajopt.ddp._riccati import Held, Policy, backward

SWEEPS = 4
"""What is not settled after so many is left to the next iteration."""


class _State(NamedTuple):
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
    let go, until nothing changes, or for so many `sweeps`. Bounds at each state alone (Tassa, Mansard & Todorov, ICRA
    2014) would not count that the states before move, too. Curvatures need be positive in controls that are free only.
    """
    zero = jnp.zeros_like(lower)
    rounding = 10 * jnp.finfo(zero.dtype).eps * (1 + jnp.maximum(jnp.abs(lower), jnp.abs(upper)))
    rounding = jnp.where(jnp.isfinite(rounding), rounding, 0.0)

    def of_sets(low, high) -> Policy:
        step = jnp.where(low, lower, jnp.where(high, upper, zero))
        return backward(e, regularization, Held((~(low | high)).astype(zero.dtype), step))

    def sweep(s: _State) -> _State:
        policy = of_sets(s.low, s.high)
        dus, slopes = _linear_step(e, policy)
        free = ~(s.low | s.high)
        low = jnp.where(free, dus < lower - rounding, s.low & (slopes >= 0))
        high = jnp.where(free, dus > upper + rounding, s.high & (slopes <= 0))
        settled = ((low == s.low) & (high == s.high)).all() | ~policy.ok
        return _State(low, high, policy, settled, s.sweeps + 1)

    # Those at a bound are held first; equal bounds leave no choice.
    low, high = lower >= 0, (upper <= 0) & (lower < 0)
    none = Policy.zeros(len(lower), e.A.shape[-1], lower.shape[-1], lower.dtype)
    start = _State(low, high, none, jnp.array(False), jnp.zeros((), jnp.int32))
    return lax.while_loop(lambda s: ~s.settled & (s.sweeps < sweeps), sweep, start).policy


def _linear_step(e: Expansion, policy: Policy):
    """The step of the controls by the linear model, and the slopes of the cost to go by the controls after it."""

    def one(dx, at):
        A, B, gap, k, K, Qu, Qux, Quu = at
        du = k + K @ dx
        return A @ dx + B @ du + gap, (du, Qu + Qux @ dx + Quu @ du)

    stages = e.A, e.B, e.gaps[1:], policy.k, policy.K, policy.Qu, policy.Qux, policy.Quu
    return lax.scan(one, e.gaps[0], stages)[1]
