"""One update of a training: a roll-out, a step of the policy along its gradient, and the fit of the critics."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import lax

from jaxdyn._types import Array, Float
from jaxdyn.learn._algorithms import AbstractAlgorithm
from jaxdyn.learn._critic_fit import RecentSteps, fit_critics, networks_of, with_seen
from jaxdyn.learn._device_means import DeviceMeans
from jaxdyn.learn._environment import EnvironmentState
from jaxdyn.learn._episodes import Episodes
from jaxdyn.learn._networks import Critic, Policy, critic_sees, policy_sees
from jaxdyn.learn._policy_gradient import PolicyGradient, policy_gradient


class TrainingState(eqx.Module):
    """All that a training continues from. All leaves are arrays."""

    policy: Policy
    averaged: Policy
    """The mean of the policies of the last updates, which is evaluated and which a training returns."""
    critics: tuple[Critic, ...]
    targets: tuple[Critic, ...]
    policy_moments: Any
    critic_moments: Any
    environments: EnvironmentState
    recent: RecentSteps
    """The last roll-outs, to which critics are fitted."""
    actor: Array
    """The numbers `[actors]` of the environments, from which their random numbers are drawn."""
    returned: Float[Array, "actors"]
    """The rewards so far of the episodes in progress."""
    key: Array
    updates: Array
    usual_norm: Float[Array, ""]
    """The usual norm of the gradient with respect to a state; infinite before it is known."""
    horizon: Float[Array, ""]
    trace: Float[Array, ""]
    """The lambda of the policy's returns."""
    multiplier: Float[Array, ""]
    """The multiplier of the bound on the growth of gradients."""


def initial_state(episodes: Episodes, algorithm: AbstractAlgorithm, key: Array) -> TrainingState:
    """Return the state before the first update."""
    start, policy_key, critic_key, key = jax.random.split(key, 4)
    n = algorithm.actors
    environments = jax.vmap(episodes.reset)(jax.random.split(start, n))
    dtype = environments.reward.dtype
    # Time limits come one after the other. If all came at once, every update would see one part of an episode only.
    age = jnp.floor(jnp.arange(n) * (episodes.length / n)).astype(dtype)
    environments = environments.replace(info={**environments.info, "steps": age})
    size, judged = policy_sees(environments.obs).shape[-1], critic_sees(environments.obs).shape[-1]
    policy = Policy(size, episodes.action_size, widths=algorithm.policy_widths, dtype=dtype, key=policy_key)
    critics = tuple(
        Critic(judged, widths=algorithm.critic_widths, dtype=dtype, key=k)
        for k in jax.random.split(critic_key, algorithm.critics)
    )
    of_policy, of_critics = _optimizers(algorithm, 1)
    zero = jnp.zeros((), dtype)
    shape = n, algorithm.kept if critics else 0, algorithm.rollout
    seen, flags = jnp.zeros((*shape, judged), dtype), jnp.zeros(shape, bool)
    recent = RecentSteps(seen, seen, jnp.zeros(shape, dtype), flags, flags)
    return TrainingState(
        policy=policy,
        averaged=policy,
        critics=critics,
        targets=critics,
        policy_moments=of_policy.init(policy),
        critic_moments=of_critics.init(networks_of(critics)),
        environments=environments,
        recent=recent,
        actor=jnp.arange(n),
        returned=jnp.zeros(n, dtype),
        key=key,
        updates=jnp.zeros((), jnp.int32),
        usual_norm=zero + jnp.inf,
        horizon=zero + algorithm.horizon,
        trace=zero + algorithm.policy_lambda,
        multiplier=zero,
    )


def update(
    episodes: Episodes, algorithm: AbstractAlgorithm, updates: Any, state: TrainingState, axis: str | None = None
) -> tuple[TrainingState, dict[str, Array]]:
    """Return the state after an update, and numbers about it. `updates` is the length of the whole training. With
    `axis`, the state has the environments of one device, and means are taken over the axis of devices."""
    means = DeviceMeans(axis)
    key, order = jax.random.split(jax.random.fold_in(state.key, state.updates))
    keys = jax.vmap(lambda i: jax.random.split(jax.random.fold_in(key, i), algorithm.rollout))(state.actor)
    limit = algorithm.gradient_limit * state.usual_norm
    explorer = _explorer(algorithm, state, updates)
    found = policy_gradient(
        episodes, algorithm, explorer, state.critics, state.environments, keys, state.horizon, state.trace, limit
    )
    of_policy, of_critics = _optimizers(algorithm, updates)
    gradient = means.mean(found.gradient)
    norm = optax.tree.norm(gradient)
    fine = jnp.isfinite(norm)
    # The optimizer's mean of the gradients before has other random numbers, so noise agrees with it by chance only.
    agreement = _cosine(gradient, optax.tree.get(state.policy_moments, "mu"))
    change, moments = of_policy.update(gradient, state.policy_moments)
    old: Any = state.policy
    stepped = optax.apply_updates(old, change), moments
    policy, moments = jax.tree.map(lambda new, old: jnp.where(fine, new, old), stepped, (old, state.policy_moments))
    steps = found.steps
    normalization = with_seen(state.policy.normalization, policy_sees(steps.obs), means)
    policy = eqx.tree_at(lambda p: p.normalization, policy, normalization)
    horizon, about_norms = _horizon(algorithm, state, found, limit, means)
    episodes_now, returned = _episodes(steps, state.returned, means)
    averaged = _averaged(algorithm, state, policy)
    new = {
        "policy": policy,
        "averaged": averaged,
        "policy_moments": moments,
        "environments": found.environments,
        "returned": returned,
    }
    new |= {"updates": state.updates + 1, **horizon}
    numbers = {
        "reward": means.mean_of(steps.reward),
        "gradient_norm": norm,
        "agreement": agreement,
        "skipped": jnp.where(fine, 0, 1),
        "deviation": jnp.mean(jnp.exp(explorer.log_std)),
        "horizon": state.horizon,
        "lambda": state.trace,
        **about_norms,
        **episodes_now,
    }
    if algorithm.critics:
        before, first = (state.critics, state.targets, state.critic_moments), state.updates == 0
        recent = state.recent.with_steps(steps, first)
        discount = algorithm.discount(episodes).astype(steps.reward.dtype)
        fit = fit_critics(algorithm, of_critics, before, recent, discount, first, order, means)
        new |= {"recent": recent, "critics": fit.critics, "targets": fit.targets, "critic_moments": fit.moments}
        numbers |= {"critic_loss": fit.loss, "critic_passes": fit.passes, "value": fit.critics[0].center}
    return eqx.tree_at(lambda s: [getattr(s, name) for name in new], state, list(new.values())), numbers


def _cosine(x: Any, y: Any) -> Array:
    """Return the cosine of the angle between two trees of arrays, 0 where one of them is zero or not finite."""
    product, size = optax.tree.vdot(x, y), optax.tree.norm(x) * optax.tree.norm(y)
    return jnp.where(jnp.isfinite(size) & (size > 0), product / jnp.where(size > 0, size, 1), 0)


def _optimizers(algorithm: AbstractAlgorithm, updates: Any) -> tuple[Any, Any]:
    """Return the optimizers of the policy and of the critics, with rates that fall linearly over the updates, to almost
    nothing. The rates of the moments are SHAC's."""

    def adam(rate: Any, count: Any):
        falling = optax.scale_by_schedule(lambda k: -rate * jnp.maximum(1 - k / count, 5e-3))
        return optax.chain(optax.clip_by_global_norm(algorithm.clip), optax.scale_by_adam(b1=0.7, b2=0.95), falling)

    fits = max(1, algorithm.critic_passes * algorithm.kept * algorithm.minibatches)
    return adam(algorithm.policy_rate, updates), adam(algorithm.critic_rate, updates * fits)


def _explorer(algorithm: AbstractAlgorithm, state: TrainingState, updates: Any) -> Policy:
    """Return the policy with less exploration the later it is."""
    part = 1 - (1 - algorithm.last_exploration) * state.updates / updates
    log_std = state.policy.log_std + jnp.log(part).astype(state.policy.log_std.dtype)
    return eqx.tree_at(lambda p: p.log_std, state.policy, log_std)


def _averaged(algorithm: AbstractAlgorithm, state: TrainingState, policy: Policy) -> Policy:
    """Return the mean of the policies so far, in which older ones count less and less. At first it is the mean of all,
    so that the first policy, which has learned nothing, does not count more than others."""
    share = jnp.maximum(1 - algorithm.average, 1 / (state.updates + 1)).astype(state.horizon.dtype)
    return jax.tree.map(lambda mean, x: (1 - share) * mean + share * x, state.averaged, policy)


def _horizon(
    algorithm: AbstractAlgorithm, state: TrainingState, found: PolicyGradient, limit: Array, means: DeviceMeans
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the usual norm of a state's gradient, lambda, the horizon and its multiplier after a roll-out, and numbers
    about the norms."""
    norms, dtype = found.norms, state.horizon.dtype
    # The gradient is exactly zero where an episode ended, and after a step that diverged.
    useful = jnp.isfinite(norms) & (norms > 0)

    def mean_log(where):
        counted = useful & where[:, None]
        logs = jnp.where(counted, jnp.log(jnp.where(counted, norms, 1)), 0)
        return means.total(logs) / jnp.maximum(means.total(counted), 1)

    now = mean_log(jnp.ones_like(found.begins))
    # A mean over about ten updates: one roll-out sees a part of an episode only.
    known = jnp.isfinite(state.usual_norm)
    usual = jnp.exp(jnp.where(known, 0.9 * jnp.log(jnp.where(known, state.usual_norm, 1)) + 0.1 * now, now))
    closes = jnp.roll(found.begins, -1)
    growth = mean_log(found.begins) - mean_log(closes)
    off = growth - jnp.log(algorithm.growth_limit)
    multiplier = jnp.clip(state.multiplier + algorithm.horizon_rate * off, -1, 1)
    horizon = jnp.clip(state.horizon - multiplier * jnp.sign(algorithm.horizon_rate), 1, algorithm.rollout)
    least = jnp.minimum(algorithm.least_lambda, algorithm.policy_lambda)
    trace = jnp.clip(state.trace - algorithm.lambda_rate * off, least, algorithm.policy_lambda)
    after = {"trace": trace, "usual_norm": usual, "multiplier": multiplier, "horizon": horizon}
    numbers = {
        "growth": jnp.exp(growth),
        "limited": means.mean_of(norms > limit),
        "lost_gradients": means.mean_of(~jnp.isfinite(norms)),
    }
    return {name: x.astype(dtype) for name, x in after.items()}, numbers


def _episodes(steps: Any, returned: Array, means: DeviceMeans) -> tuple[dict[str, Array], Array]:
    """Return numbers about the episodes that ended in a roll-out, and the rewards so far of those in progress."""

    def count(so_far, x):
        reward, done = x
        so_far = so_far + reward
        return jnp.where(done, 0, so_far), jnp.where(done, so_far, 0)

    returned, finished = lax.scan(count, returned, (steps.reward, steps.done))
    numbers = {
        "episodes": means.total(steps.done),
        "episode_return_sum": means.total(finished),
        "ended": means.total(steps.ended),
        "diverged": means.total(steps.diverged),
    }
    return numbers, returned
