"""The policy's gradient, carried back through a roll-out over a horizon, beyond which a critic's value counts.

Every state hands its gradient back to the step before it through a gate, which multiplies it by discount and lambda.
So the gradient with respect to an action is that of the TD(lambda) return from there on: of its reward, and with the
weight `1 - lambda` of the value after it, with `lambda` of what comes later, and so on. With `lambda = 1` it is SHAC's,
up to a weight of `discount^k` that SHAC gives to the k-th action of a window.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

from jaxdyn._types import Array, Float
from jaxdyn.learn._algorithms import AbstractAlgorithm
from jaxdyn.learn._critic_fit import least_value
from jaxdyn.learn._environment import EnvironmentState
from jaxdyn.learn._episodes import Episodes
from jaxdyn.learn._gradient_gate import gradient_gate
from jaxdyn.learn._networks import Critic, Policy, critic_sees


class Steps(NamedTuple):
    """A roll-out: arrays `[rollout, actors, ...]`."""

    obs: Any
    last_obs: Any
    """The observations after the steps, before a new episode's start replaced them."""
    reward: Float[Array, "rollout actors"]
    ended: Array
    """True where the task ended."""
    done: Array
    """True where an episode ended, by the task or the time limit."""
    diverged: Array
    """True where the simulation diverged, which ended the episode."""


class PolicyGradient(NamedTuple):
    """The gradient of the policy and what else a roll-out gave."""

    gradient: Policy
    norms: Float[Array, "rollout actors"]
    """For each step, the norm of the gradient with respect to the state before it."""
    begins: Array
    """Whether a window, at which gradients end, begins with a step, `[rollout]`."""
    environments: EnvironmentState
    steps: Steps


def policy_gradient(
    episodes: Episodes,
    algorithm: AbstractAlgorithm,
    policy: Policy,
    critics: tuple[Critic, ...],
    environments: EnvironmentState,
    keys: Array,
    horizon: Array,
    trace: Array,
    limit: Array,
) -> PolicyGradient:
    """Roll out from `environments` with the random numbers of `keys` `[actors, rollout]`, and return the gradient of
    minus the objective with respect to the policy. `horizon` is the length of a window, `trace` the lambda, and
    `limit` the largest norm of a gradient that a state hands back."""
    length, dtype = algorithm.rollout, environments.reward.dtype
    number = jnp.arange(1, length + 1)
    closes = (number % jnp.floor(horizon).astype(jnp.int32) == 0) | (number == length)
    begins = jnp.concatenate([jnp.ones(1, bool), closes[:-1]])
    discount = algorithm.discount(episodes).astype(dtype)
    decay = jnp.asarray(discount * trace, dtype)
    factor = jnp.where(begins, 0, decay)

    # The start has a gradient, too, which nobody needs: a loop whose state gets one only on the way is traced, with the
    # whole simulation, until it is known which parts do.
    differentiable = eqx.tree_at(lambda s: s.data.time, jax.tree.map(eqx.is_inexact_array, environments), False)
    moving, fixed = eqx.partition(environments, differentiable)

    def objective(policy, probes, moving):
        environments = eqx.combine(moving, fixed)

        def run(start, keys, probes):
            return _roll_out(episodes, policy, start, keys, factor, limit, probes)

        after, steps = jax.vmap(run, in_axes=(0, 0, 1), out_axes=(0, 1))(environments, keys, probes)
        value = jnp.mean(steps.reward)
        if algorithm.critics:
            weight = jnp.where(closes[:, None] | steps.done, 1, 1 - trace)
            # The value counts after an end, too: critics learn that it is zero there, and its slope leads away from it.
            value = value + discount * jnp.mean(weight * least_value(critics, critic_sees(steps.last_obs)))
        return -value, (after, steps)

    probes = jnp.zeros((length, keys.shape[0]), dtype)
    (gradient, norms, _), (after, steps) = jax.grad(objective, (0, 1, 2), has_aux=True)(policy, probes, moving)
    return PolicyGradient(gradient, norms, begins, after, lax.stop_gradient(steps))


def _roll_out(episodes, policy, start, keys, factor, limit, probes) -> tuple[EnvironmentState, Steps]:
    """Roll out one environment; `factor` and `probes` are `[rollout]`."""

    def step(state, x):
        key, factor, probe = x
        now = state.data
        q, v, activation, obs = gradient_gate((now.q, now.v, now.activation, state.obs), factor, limit, probe)
        data = eqx.tree_at(lambda d: (d.q, d.v, d.activation), now, (q, v, activation))
        # The gradient of an action only has to be finite.
        free = jnp.ones_like(factor), jnp.full_like(limit, jnp.inf), jnp.zeros_like(probe)
        action = gradient_gate(policy(obs, key), *free)
        after = episodes.step(state.replace(data=data, obs=obs), action)
        done = after.done > 0
        ended = done & (after.info["truncation"] == 0)
        diverged = after.metrics["diverged"] > 0
        return after, Steps(obs, after.info["last_obs"], after.reward, ended, done, diverged)

    return lax.scan(step, start, (keys, factor, probes))
