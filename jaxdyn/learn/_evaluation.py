"""Evaluation of policies, apart from training: whole episodes from starts of their own, without exploration."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdyn._types import Array, Float
from jaxdyn.learn._environment import AbstractEnvironment
from jaxdyn.simulate import State


class Episode(eqx.Module):
    """The results of whole episodes, one an element."""

    returned: Float[Array, "n"]
    """The sum of the rewards."""
    length: Float[Array, "n"]
    """The number of steps."""
    fell: Array
    """Whether the task ended it, and not the limit of time."""

    def facts(self) -> dict[str, float]:
        """The means and the range, as numbers that JSON can hold."""
        return {
            "return": float(self.returned.mean()),
            "return_std": float(self.returned.std()),
            "return_min": float(self.returned.min()),
            "return_max": float(self.returned.max()),
            "length": float(self.length.mean()),
            "falls": float(jnp.mean(self.fell)),
        }


@eqx.filter_jit
def evaluate(env: AbstractEnvironment, policy: Any, key: Array, *, episodes: int = 64, length: int = 1000) -> Episode:
    """Return what a policy achieves in `episodes` of at most `length` steps, by the actions that it takes without a
    key. One in which the simulation diverges counts as a fall."""
    start = jax.vmap(env.reset)(jax.random.split(key, episodes))
    zero = jnp.zeros(episodes, start.reward.dtype)

    def step(carry):
        i, state, going, returned, steps = carry
        after = jax.vmap(env.step)(state, jax.vmap(policy)(state.obs))
        returned = returned + jnp.where(going, after.reward, 0)
        return i + 1, after, going & (after.done == 0), returned, steps + going

    def goes_on(carry):
        # Where all have fallen, the rest would be wasted.
        return (carry[0] < length) & carry[2].any()

    carry = (jnp.zeros((), jnp.int32), start, zero == 0, zero, zero)
    _, _, going, returned, steps = lax.while_loop(goes_on, step, carry)
    return Episode(returned, steps, ~going)


def play(env: AbstractEnvironment, policy: Any, key: Array, *, length: int = 1000) -> tuple[State, float]:
    """Return the states `[n + 1]` of an episode of at most `length` steps, its start included, and its return; viewers
    and films take the states."""

    @eqx.filter_jit
    def episode(env, policy, key):
        def step(state, _):
            after = env.step(state, policy(state.obs))
            return after, (after.data, after.reward, after.done)

        start = env.reset(key)
        return start.data, lax.scan(step, start, length=length)[1]

    start, (states, rewards, done) = episode(env, policy, key)
    ends = np.flatnonzero(np.asarray(done))
    n = int(ends[0]) + 1 if len(ends) else length
    states = jax.tree.map(lambda x, y: np.concatenate([np.asarray(x)[None], np.asarray(y)[:n]]), start, states)
    return states, float(np.asarray(rewards)[:n].sum())
