"""The fit of critics to the TD(lambda) returns of a roll-out."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import lax

from jaxdyn._types import Array, Float
from jaxdyn.learn._algorithms import AbstractAlgorithm
from jaxdyn.learn._device_means import DeviceMeans
from jaxdyn.learn._networks import Critic, RunningNormalization, critic_sees


class CriticFit(NamedTuple):
    """Critics after a fit, and how it went."""

    critics: tuple[Critic, ...]
    targets: tuple[Critic, ...]
    moments: Any
    loss: Float[Array, ""]
    """The mean squared error of the last pass, summed over the critics, in units of the variance of the returns."""
    passes: Array


def least_value(critics: tuple[Critic, ...], seen: Array) -> Array:
    """Return the least of the critics' values for what they see of observations, with any batch axes."""
    flat = seen.reshape(-1, seen.shape[-1])
    return jnp.stack([jax.vmap(critic)(flat) for critic in critics]).min(0).reshape(seen.shape[:-1])


def lambda_returns(reward: Array, value: Array, done: Array, discount: Any, trace: Any) -> Array:
    """Return the TD(lambda) returns `[steps, ...]` of rewards. `value` `[steps, ...]` is that of the observation after
    each step, zero where the task ended; nothing after a step that is `done` counts but its value."""

    def backwards(following, x):
        reward, value, done = x
        returned = reward + discount * jnp.where(done, value, (1 - trace) * value + trace * following)
        return returned, returned

    return lax.scan(backwards, value[-1], (reward, value, done), reverse=True)[1]


def with_seen(normalization: RunningNormalization, obs: Array, means: DeviceMeans) -> RunningNormalization:
    """Return the normalization that has seen the observations `[rollout, actors, n]`, too."""
    n = means.total(jnp.ones(obs.shape[:2], obs.dtype))
    center = means.total(obs, (0, 1)) / n
    return normalization.seen(center, means.total((obs - center) ** 2, (0, 1)) / n, n)


class RecentSteps(NamedTuple):
    """The last roll-outs, to which critics are fitted: arrays `[actors, kept, rollout, ...]`. See
    `_policy_gradient.Steps`."""

    seen: Float[Array, "actors kept rollout n"]
    last_seen: Float[Array, "actors kept rollout n"]
    """The observations before and after the steps, as critics see them."""
    reward: Float[Array, "actors kept rollout"]
    ended: Array
    done: Array

    def with_steps(self, steps: Any, first: Array) -> RecentSteps:
        """Return the steps with a roll-out in place of the oldest one; the `first` one takes all places."""
        new = RecentSteps(critic_sees(steps.obs), critic_sees(steps.last_obs), steps.reward, steps.ended, steps.done)

        def renewed(old: Array, x: Array) -> Array:
            x = jnp.swapaxes(x, 0, 1)[:, None]
            return jnp.where(first, x, jnp.concatenate([old[:, 1:], x], axis=1))

        return jax.tree.map(renewed, self, new)


def fit_critics(
    algorithm: AbstractAlgorithm,
    optimizer: optax.GradientTransformation,
    before: tuple[tuple[Critic, ...], tuple[Critic, ...], Any],
    recent: RecentSteps,
    discount: Array,
    first: Array,
    key: Array,
    means: DeviceMeans,
) -> CriticFit:
    """Return the critics, their targets and the optimizer's moments after a fit to the last roll-outs; `before` has
    those before it. In the `first` update the values get their scale at once."""
    critics, targets, moments = before
    # The axis of actors comes last but for that of observations, and that of time first.
    recent = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 2), recent)
    values = jnp.where(recent.ended, 0, least_value(targets, recent.last_seen))
    of_roll_outs = jax.vmap(lambda_returns, (0, 0, 0, None, None))
    returns = of_roll_outs(recent.reward, values, recent.done, discount, algorithm.critic_lambda)
    # Where the task ended, critics learn that nothing follows: such a step is seen from its end, with the value zero.
    seen = jnp.where(recent.ended[..., None], recent.last_seen, recent.seen)
    returns = jnp.where(recent.ended, 0, returns)
    critics, targets = (_prepared(x, seen[-1], returns, first, means) for x in (critics, targets))
    seen, returns = (x.reshape(-1, *x.shape[2:]) for x in (seen, returns))
    wanted = (returns - critics[0].center) / critics[0].scale

    def loss(networks, seen, wanted):
        changed = eqx.tree_at(networks_of, critics, networks)
        return sum(jnp.mean((jax.vmap(critic.normalized)(seen) - wanted) ** 2) for critic in changed)

    def fit_batch(carry, batch):
        networks, moments = carry
        value, gradient = means.mean(jax.value_and_grad(loss)(networks, *batch))
        change, moments = optimizer.update(gradient, moments)
        return (optax.apply_updates(networks, change), moments), value

    def fit_pass(carry):
        i, fitted, _, now = carry
        # A batch has all environments at some of the times, so devices need no samples of each other.
        order = jax.random.permutation(jax.random.fold_in(key, i), len(wanted))
        count = algorithm.kept * algorithm.minibatches
        batches = [x[order].reshape(count, -1, *x.shape[2:]) for x in (seen, wanted)]
        fitted, losses = lax.scan(fit_batch, fitted, batches)
        return i + 1, fitted, now, jnp.mean(losses)

    def goes_on(carry):
        i, _, last, now = carry
        return (i < algorithm.critic_passes) & ~(now > (1 - algorithm.critic_tolerance) * last)

    far = jnp.full((), jnp.inf, returns.dtype)
    start = jnp.zeros((), jnp.int32), (networks_of(critics), moments), far, far
    if algorithm.until_converged:
        passes, (networks, moments), _, value = lax.while_loop(goes_on, fit_pass, start)
    else:
        whole = lax.fori_loop(0, algorithm.critic_passes, lambda _, carry: fit_pass(carry), start)
        passes, (networks, moments), _, value = whole
    critics = eqx.tree_at(networks_of, critics, networks)
    kept = algorithm.target_share
    targets = jax.tree.map(lambda old, new: kept * old + (1 - kept) * new, targets, critics)
    return CriticFit(critics, targets, moments, value, passes)


def _prepared(critics, seen, returns, first, means: DeviceMeans) -> tuple[Critic, ...]:
    """Return critics with the center and the scale of the returns, and the normalization of what is seen, moved towards
    those of a roll-out. The values of the critics stay what they were, but for the normalization."""
    center = means.mean_of(returns)
    spread = jnp.sqrt(means.mean_of((returns - center) ** 2))
    # One roll-out sees a part of an episode only: a tenth of the way gives the mean over ten. Returns that are all
    # alike leave no scale; a hundredth of their size then keeps their rounding from filling the network's range.
    share = jnp.where(first, 1, 0.1).astype(returns.dtype)
    spread = jnp.maximum(spread, 1e-2 * jnp.abs(center) + 1e-6)
    center = (1 - share) * critics[0].center + share * center
    scale = (1 - share) * critics[0].scale + share * spread
    normalization = with_seen(critics[0].normalization, seen, means)
    rescaled = (critic.rescaled(center, scale) for critic in critics)
    return tuple(eqx.tree_at(lambda c: c.normalization, critic, normalization) for critic in rescaled)


def networks_of(critics: tuple[Critic, ...]) -> tuple[Any, ...]:
    """Return the networks of critics, the part of them that an optimizer changes."""
    return tuple(critic.network for critic in critics)
