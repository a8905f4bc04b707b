"""Episodes: environments that start again where an episode ends."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from jaxdyn._errors import require_kind, require_positive_integer
from jaxdyn._types import Array, Float
from jaxdyn.learn._environment import AbstractEnvironment, Environment, EnvironmentState

_PARTS = 16
"""New starts are drawn for a sixteenth of a batch at once, as often as it takes: most steps end few episodes, and draws
for all elements cost as much as a time step of a small robot."""


class Episodes(AbstractEnvironment):
    """An environment whose episodes start again where they end: by the task, or by a time limit.

    `info["steps"]` counts the steps of an episode, `info["truncation"]` is 1 where only the time limit ended it, and
    `info["last_obs"]` is the observation at the end of the step, before the start of the next episode replaced it: a
    value is bootstrapped by it where an episode was cut. No derivative passes from an episode to the next one. Starts
    are drawn only for those elements of a batch whose episode ended, and nothing is simulated for them.

    `length` are the steps after which an episode is cut, by default the task's `episode_length`.
    """

    env: AbstractEnvironment
    length: int = eqx.field(static=True)

    def __init__(self, env: AbstractEnvironment, length: int | None = None):
        require_kind(env, AbstractEnvironment, "Episodes: `env`")
        length = env.unwrapped.task.episode_length if length is None else length
        require_positive_integer(length, "length")
        self.env, self.length = env, int(length)

    @property
    def unwrapped(self) -> Environment:
        """The environment without wrappers."""
        return self.env.unwrapped

    @property
    def episode_length(self) -> int:
        """The steps after which an episode is cut."""
        return self.length

    def reset(self, key: Array) -> EnvironmentState:
        """Return the start of an episode."""
        key, now = jax.random.split(key)
        state = self.env.reset(now)
        zero = jnp.zeros_like(state.reward)
        own = {"key": key, "steps": zero, "truncation": zero, "last_obs": state.obs}
        return state.replace(info={**state.info, **own})

    def step(self, state: EnvironmentState, action: Float[Array, "nu"]) -> EnvironmentState:
        """Return what follows an action; where the episode ended, the data and the observation are those of a start."""
        after = self.env.step(state, action)
        steps = state.info["steps"] + 1
        ended = (after.done > 0) | (steps >= self.length)
        done = ended.astype(after.done.dtype)
        fresh = lax.stop_gradient(starts_where(self.env, ended, state.info["key"]))
        memory = {name: after.info[name] for name in fresh[2]}
        old = after.data, after.obs, memory, state.info["key"]
        data, obs, memory, key = jax.tree.map(lambda x, y: jnp.where(ended, x, y), fresh, old)
        own = {"truncation": done * (1 - after.done), "last_obs": after.obs}
        info = {**after.info, **memory, **own, "key": key, "steps": jnp.where(ended, 0, steps)}
        return after.replace(data=data, obs=obs, done=done, info=info)


def _start(env: AbstractEnvironment, key: Array) -> tuple[Any, Any, Any, Array]:
    """Return the state of the world, the observation and the memory of a start, and the key of the next."""
    key, now = jax.random.split(key)
    state = env.reset(now)
    return state.data, state.obs, state.info, key


def starts_where(env: AbstractEnvironment, ended: Array, key: Array) -> Any:
    """Return what `_start` does where an episode ended, else zeros; in a batch for as few elements as possible."""
    arrays, static = eqx.partition(env, eqx.is_array)
    shapes = jax.eval_shape(lambda key: _start(env, key), key)

    def start(arrays, key):
        return _start(eqx.combine(arrays, static), key)

    def zeros(batch: tuple[int, ...] = ()):
        def filled(x):
            if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
                return jnp.broadcast_to(jax.random.key(0, impl=jax.random.key_impl(key)), (*batch, *x.shape))
            return jnp.zeros((*batch, *x.shape), x.dtype)

        return jax.tree.map(filled, shapes)

    @custom_vmap
    def starts(arrays, ended, key):
        return lax.cond(ended, lambda: start(arrays, key), zeros)

    @starts.def_vmap
    def of_batch(size, batched, arrays, ended, key):
        of_arrays, *others = batched
        pairs = zip((ended, key), others, strict=True)
        ended, key = (x if b else jnp.broadcast_to(x, (size, *x.shape)) for x, b in pairs)
        count = -(-size // _PARTS)
        rows = jnp.flatnonzero(ended, size=count * _PARTS, fill_value=size)

        def part(x):
            i, found = x
            # Rows beyond the batch are the last one when they are read, and are dropped when they are written.
            row = lax.dynamic_slice(rows, (i * count,), (count,))
            own = jax.tree.map(lambda x, b: x[row] if b else x, arrays, of_arrays)
            axes = jax.tree.map(lambda b: 0 if b else None, of_arrays)
            fresh = jax.vmap(start, in_axes=(axes, 0))(own, key[row])
            return i + 1, jax.tree.map(lambda x, y: x.at[row].set(y, mode="drop"), found, fresh)

        _, found = lax.while_loop(lambda x: x[0] * count < ended.sum(), part, (0, zeros((size,))))
        return found, jax.tree.map(lambda _: True, found)

    return starts(lax.stop_gradient(arrays), ended, key)
