"""Environments as Gymnasium has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from jaxdyn._errors import ShapeError, require_choice, require_positive_integer
from jaxdyn.learn._compiled_environment import compiled_with
from jaxdyn.learn._environment import AbstractEnvironment, EnvironmentState
from jaxdyn.learn._episodes import Episodes, starts_where


class _Running(NamedTuple):
    """The arrays that environments carry from step to step, each with an axis of environments in front."""

    key: Any
    state: EnvironmentState
    steps: Any
    """The steps of the episode."""
    ended: Any
    """Whether the last step ended the episode."""


class _Outcome(NamedTuple):
    """The results of a step."""

    obs: Any
    reward: Any
    terminated: Any
    truncated: Any
    metrics: dict[str, Any]
    final: tuple[Any, dict[str, Any]]
    """The observation and the metrics before a new start in the same step."""


class _Rules(eqx.Module):
    """When episodes end and start again."""

    env: AbstractEnvironment
    limit: int | None = eqx.field(static=True)
    """The steps after which an episode is cut."""
    mode: AutoresetMode = eqx.field(static=True)


class _Batch:
    """Environments that run side by side."""

    def __init__(self, env: AbstractEnvironment, count: int, mode: AutoresetMode):
        env, limit = (env.env, env.length) if isinstance(env, Episodes) else (env, None)
        self.count, self.mode = count, mode
        self.running: _Running | None = None
        self._start, self._start_some = compiled_with(env, _start_all), compiled_with(env, _start_some)
        self._step = compiled_with(_Rules(env, limit, mode), _step)
        obs = jax.eval_shape(env.reset, jax.random.key(0)).obs
        self.observation_space = (
            gymnasium.spaces.Dict({name: _box(x) for name, x in obs.items()}) if isinstance(obs, dict) else _box(obs)
        )
        dtype = np.dtype(env.unwrapped.world.model.dtype)
        self.action_space = gymnasium.spaces.Box(-1, 1, (env.action_size,), dtype.type)

    def reset(self, seeds: Sequence[int | None], chosen: np.ndarray | None) -> tuple[Any, dict[str, Any]]:
        """Start episodes in all environments, or in those that are chosen; None goes on with an environment's key."""
        if self.running is None:
            keys = _keys([int(seeding.np_random(x)[0].integers(2**31)) for x in seeds])
        else:
            keys = self.running.key
            rows = [i for i, x in enumerate(seeds) if x is not None and (chosen is None or chosen[i])]
            if rows:
                new = _keys([int(seeding.np_random(seeds[i])[0].integers(2**31)) for i in rows])
                keys = keys.at[np.array(rows)].set(new)
        if chosen is None or self.running is None:
            running = self._start(keys)
        else:
            running = self._start_some(self.running._replace(key=keys), chosen)
        self.running = running
        obs, metrics = _copied((running.state.obs, running.state.metrics))
        return obs, metrics

    def step(self, action: Any) -> _Outcome:
        """Return what an action `[count, nu]` leads to."""
        if self.running is None:
            raise gymnasium.error.ResetNeeded("call reset before step")
        shape = (self.count, *self.action_space.shape)
        if np.shape(action) != shape:
            raise ShapeError(f"actions have shape {np.shape(action)}, but [num_envs, nu] = {list(shape)} is needed")
        if self.mode is AutoresetMode.DISABLED and (ended := np.asarray(self.running.ended)).any():
            rows = np.flatnonzero(ended).tolist()
            raise gymnasium.error.ResetNeeded(f"the episodes of environments {rows} have ended; reset them first")
        self.running, outcome = self._step(self.running, jnp.asarray(action, self.action_space.dtype))
        return _copied(outcome)


def _step(rules: _Rules, running: _Running, actions: Any) -> tuple[_Running, _Outcome]:
    return jax.vmap(lambda *x: _advance(rules, *x))(running, actions)


def _advance(rules: _Rules, running: _Running, action: Any) -> tuple[_Running, _Outcome]:
    after, steps = rules.env.step(running.state, action), running.steps + 1
    terminated = after.done > 0
    truncated = jnp.zeros((), bool) if rules.limit is None else ~terminated & (steps >= rules.limit)
    reward, again = after.reward, jnp.zeros((), bool)
    if rules.mode is AutoresetMode.NEXT_STEP:
        again = running.ended
        terminated, truncated, reward = ~again & terminated, ~again & truncated, jnp.where(again, 0, reward)
    elif rules.mode is AutoresetMode.SAME_STEP:
        again = terminated | truncated
    stepped = _Running(running.key, after, steps, terminated | truncated)
    if rules.mode is not AutoresetMode.DISABLED:
        data, obs, memory, key = starts_where(rules.env, again, running.key)
        none, done, metrics = jax.tree.map(jnp.zeros_like, (after.reward, after.done, after.metrics))
        fresh = _Running(
            key, EnvironmentState(data, obs, none, done, metrics, memory), jnp.zeros_like(steps), stepped.ended
        )
        stepped = _where(again, fresh, stepped)
    state, final = stepped.state, (after.obs, after.metrics)
    return stepped, _Outcome(state.obs, reward, terminated, truncated, state.metrics, final)


def _start(env: AbstractEnvironment, key: Any) -> _Running:
    key, draw = jax.random.split(key)
    return _Running(key, env.reset(draw), jnp.zeros((), jnp.int32), jnp.zeros((), bool))


def _start_all(env: AbstractEnvironment, keys: Any) -> _Running:
    return jax.vmap(lambda key: _start(env, key))(keys)


def _start_some(env: AbstractEnvironment, running: _Running, chosen: Any) -> _Running:
    return jax.vmap(_where)(chosen, _start_all(env, running.key), running)


def _where(condition: Any, new: Any, old: Any) -> Any:
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), new, old)


def _keys(seeds: list[int]) -> Any:
    return jax.vmap(jax.random.key)(np.array(seeds, np.uint32))


def _copied(tree: Any) -> Any:
    # Users keep and change what they are given, and a NumPy view of an array of JAX is read-only.
    return jax.tree.map(np.array, tree)


def _box(x: Any) -> gymnasium.spaces.Box:
    return gymnasium.spaces.Box(-np.inf, np.inf, x.shape, np.dtype(x.dtype).type)


class GymnasiumEnvironment(gymnasium.Env):
    """One environment for Gymnasium; see `as_gymnasium`."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own annotation

    def __init__(self, env: AbstractEnvironment):
        self._batch = _Batch(env, 1, AutoresetMode.DISABLED)
        self.observation_space, self.action_space = self._batch.observation_space, self._batch.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        return jax.tree.map(lambda x: x[0], self._batch.reset([seed], None))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Return the observation, the reward, whether the task has ended, whether the time is over, and metrics."""
        outcome = jax.tree.map(lambda x: x[0], self._batch.step(np.asarray(action)[None]))
        reward, ends = float(outcome.reward), (bool(outcome.terminated), bool(outcome.truncated))
        return outcome.obs, reward, *ends, outcome.metrics


class GymnasiumVectorEnvironment(gymnasium.vector.VectorEnv):
    """Environments side by side for Gymnasium; see `as_gymnasium`."""

    def __init__(self, env: AbstractEnvironment, num_envs: int, autoreset_mode: str | AutoresetMode):
        require_positive_integer(num_envs, "num_envs")
        if not isinstance(autoreset_mode, AutoresetMode):
            require_choice(autoreset_mode, [x.value for x in AutoresetMode], "autoreset_mode")
        mode = AutoresetMode(autoreset_mode)
        self.num_envs, self._batch = num_envs, _Batch(env, num_envs, mode)
        self.metadata = {"render_modes": [], "autoreset_mode": mode}
        self.single_observation_space = self._batch.observation_space
        self.single_action_space = self._batch.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start episodes in all environments, or in those of `options["reset_mask"]`."""
        super().reset(seed=seed if isinstance(seed, int) else None)
        n = self.num_envs
        seeds = [seed + i for i in range(n)] if isinstance(seed, int) else [None] * n if seed is None else list(seed)
        mask = (options or {}).get("reset_mask")
        for what, x in (("seed", seeds), ("reset_mask", mask)):
            if x is not None and np.asarray(x, object).shape != (n,):
                raise ShapeError(f"{what} has shape {np.asarray(x, object).shape}, but [num_envs] = [{n}] is needed")
        obs, metrics = self._batch.reset(seeds, None if mask is None else np.asarray(mask, bool))
        return obs, _with_masks(metrics, np.ones(n, bool) if mask is None else np.array(mask, bool))

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Return observations, rewards, whether tasks have ended, whether times are over, and metrics."""
        x = self._batch.step(actions)
        infos = _with_masks(x.metrics, np.ones(self.num_envs, bool))
        ended = x.terminated | x.truncated
        if self._batch.mode is AutoresetMode.SAME_STEP and ended.any():
            infos |= _final_infos(*x.final, ended)
        return x.obs, x.reward.astype(np.float64), x.terminated, x.truncated, infos


def _with_masks(infos: dict[str, Any], mask: np.ndarray) -> dict[str, Any]:
    """Return infos, zero where the mask is False, and for each the mask, as Gymnasium has them."""
    zeroed = {name: np.where(mask.reshape(-1, *[1] * (x.ndim - 1)), x, 0) for name, x in infos.items()}
    return zeroed | {f"_{name}": mask.copy() for name in infos}


def _final_infos(obs: Any, metrics: dict[str, Any], ended: np.ndarray) -> dict[str, Any]:
    final = np.full(len(ended), None, object)
    for i in np.flatnonzero(ended):
        final[i] = jax.tree.map(lambda x, i=i: x[i], obs)
    return _with_final({"final_obs": final, "final_info": _with_masks(metrics, ended)}, ended)


def _with_final(infos: dict[str, Any], ended: np.ndarray) -> dict[str, Any]:
    return infos | {f"_{name}": ended.copy() for name in infos}
