"""Evaluation of policies, apart from training: whole episodes from starts of their own, without exploration."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

from jaxdyn._types import Array, Float
from jaxdyn.learn._environment import Environment


class Episode(eqx.Module):
    """What came of whole episodes, one an element."""

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
def evaluate(env: Environment, policy: Any, key: Array, *, episodes: int = 64, length: int = 1000) -> Episode:
    """Return what a policy achieves in `episodes` of at most `length` steps, by the actions that it takes without a
    key. An episode whose state is not finite ends as a fall, with what it had."""
    start = jax.vmap(env.reset)(jax.random.split(key, episodes))
    zero = jnp.zeros(episodes, start.reward.dtype)

    def step(carry):
        i, state, going, returned, steps = carry
        after = jax.vmap(env.step)(state, jax.vmap(policy)(state.obs))
        finite = jnp.isfinite(after.reward)
        counted = going & finite
        returned = returned + jnp.where(counted, after.reward, 0)
        return i + 1, after, counted & (after.done == 0), returned, steps + counted

    def goes_on(carry):
        # Where all have fallen, the rest would be wasted.
        return (carry[0] < length) & carry[2].any()

    carry = (jnp.zeros((), jnp.int32), start, zero == 0, zero, zero)
    _, _, going, returned, steps = lax.while_loop(goes_on, step, carry)
    return Episode(returned, steps, ~going)
