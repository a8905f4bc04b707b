"""Environments: a world, a task, and the time for which an action is held."""

from __future__ import annotations

import abc
import os
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

from jaxdyn._errors import ModelError, ShapeError
from jaxdyn._types import Array, Float
from jaxdyn.simulate import State
from jaxdyn.worlds import World

Observation = Any
"""An array `[n]`, or a dictionary of such arrays, such as `{"state": ..., "privileged_state": ...}`."""


class EnvironmentState(eqx.Module):
    """What an environment knows after a reset or a step. All leaves are arrays of one environment; `jax.vmap` of
    `reset` and `step` puts batch axes in front."""

    data: State
    """The state of the world."""
    obs: Observation
    reward: Float[Array, ""]
    done: Float[Array, ""]
    """1 where the task has ended, else 0. A time limit is no end of the task: see `Episodes`."""
    metrics: dict[str, Float[Array, ""]]
    """Further numbers of the task, such as the parts of its reward."""
    info: dict[str, Any]
    """What the task remembers, such as a command, and what wrappers add."""

    @property
    def pipeline_state(self) -> State:
        """The state of the world, by the name that Brax has for it."""
        return self.data

    def replace(self, **changes: Any) -> Self:
        """Return the state with other fields."""
        if "pipeline_state" in changes:
            changes["data"] = changes.pop("pipeline_state")
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        unknown = set(changes) - set(fields)
        if unknown:
            raise ModelError(f"an EnvironmentState has no {sorted(unknown)}; it has {list(fields)}")
        return type(self)(**{**fields, **changes})


class Transition(eqx.Module):
    """A step of an environment, as its task sees it."""

    before: State
    action: Float[Array, "nu"]
    control: Float[Array, "nu"]
    """The controls that the task made of the action."""
    after: State
    dt: Float[Array, ""]
    """The time for which the action was held, s."""


class AbstractTask(eqx.Module):
    """What an environment is for: where it starts, what is seen, rewarded and ended. All functions are of one
    environment without batch axes, and pure; `memory` is a dictionary of arrays, which keep their shapes and dtypes."""

    @abc.abstractmethod
    def start(self, world: World, key: Array) -> State:
        """Draw a state in which an episode starts."""

    @abc.abstractmethod
    def observe(self, world: World, state: State, memory: dict[str, Any]) -> Observation:
        """Return what a policy sees."""

    @abc.abstractmethod
    def reward(
        self, world: World, step: Transition, memory: dict[str, Any]
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """Return the reward of a step, and its parts by their names. `memory` is that before the step."""

    def ended(self, world: World, state: State, memory: dict[str, Any]) -> Array:
        """Return whether an episode ends in a state, as after a fall. By default none does."""
        return jnp.zeros((), bool)

    def remember(self, world: World, key: Array) -> dict[str, Any]:
        """Draw what an episode remembers, such as a command. By default it is nothing."""
        return {}

    def after_step(self, world: World, step: Transition, memory: dict[str, Any]) -> dict[str, Any]:
        """Return what is remembered after a step. By default it is the same."""
        return memory

    def control(self, world: World, state: State, action: Float[Array, "nu"]) -> Float[Array, "nu"]:
        """Return the controls of the world for an action. By default -1 to 1 are the range of each control."""
        lower, upper = world.control_bounds
        return lower + (upper - lower) * (action + 1) / 2


class Environment(eqx.Module):
    """A world, a task and the number of time steps for which an action is held: pure functions of one environment,
    which `jax.vmap` makes those of a batch."""

    world: World
    task: AbstractTask
    n_substeps: int = eqx.field(static=True)
    scene: str | None = eqx.field(static=True)
    """The path or the text of the MJCF file from which the world was loaded: `judge` runs policies in it."""

    # `jax.jit(env.step)` takes functions that have a hash. That of a module is made of its arrays, which have none.
    __hash__ = object.__hash__

    def __init__(self, world: World, task: AbstractTask, *, substeps: int = 1, scene: str | os.PathLike | None = None):
        self.world, self.task, self.n_substeps = world, task, substeps
        self.scene = None if scene is None else os.fspath(scene)

    @property
    def action_size(self) -> int:
        """The number of actions."""
        return self.world.nu

    @property
    def observation_size(self) -> Any:
        """The number of observations, or for a dictionary of observations those of its parts."""
        shapes = jax.eval_shape(self.reset, jax.random.key(0)).obs
        return {name: x.shape[-1] for name, x in shapes.items()} if isinstance(shapes, dict) else shapes.shape[-1]

    @property
    def backend(self) -> str:
        """The name of the simulator."""
        return "jaxdyn"

    @property
    def sim_dt(self) -> Any:
        """The time step of the world, s."""
        return self.world.timestep

    @property
    def dt(self) -> Any:
        """The time for which an action is held, s."""
        return self.world.timestep * self.n_substeps

    @property
    def unwrapped(self) -> Self:
        """The environment itself, without wrappers."""
        return self

    def reset(self, key: Array) -> EnvironmentState:
        """Return the start of an episode."""
        draw, remember = jax.random.split(key)
        memory = self.task.remember(self.world, remember)
        data = self.world.start_of(self.task.start(self.world, draw), {})
        obs, zero = self.task.observe(self.world, data, memory), jnp.zeros((), data.q.dtype)
        none = jnp.zeros(self.world.nu, data.q.dtype)
        step = Transition(data, none, none, data, self.dt)
        shapes = jax.eval_shape(lambda: self.task.reward(self.world, step, memory)[1])
        metrics = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return EnvironmentState(data, obs, zero, zero, metrics, dict(memory))

    def step(self, state: EnvironmentState, action: Float[Array, "nu"]) -> EnvironmentState:
        """Return what follows when an action is held for `dt`. What the task does not know in `info` stays as it is."""
        world, task, before = self.world, self.task, state.data
        if jnp.shape(action) != (world.nu,):
            raise ShapeError(f"action has shape {jnp.shape(action)}, but [nu] = [{world.nu}] is needed")
        action = jnp.asarray(action, before.q.dtype)
        control = task.control(world, before, action)
        after, _ = lax.scan(lambda data, _: (world.step(data, control), None), before, length=self.n_substeps)
        return self.outcome(state, action, control, after)

    def outcome(
        self, state: EnvironmentState, action: Float[Array, "nu"], control: Float[Array, "nu"], after: State
    ) -> EnvironmentState:
        """Return what the task makes of a step that led to the state `after`, by this or another simulator."""
        world, task = self.world, self.task
        step = Transition(state.data, action, control, after, self.dt)
        reward, metrics = task.reward(world, step, state.info)
        # What wrappers have added stays. The dictionaries are new ones, because wrappers of Brax write into those that
        # they are given.
        metrics = {**state.metrics, **metrics}
        memory = jax.tree.map(lambda x: x, {**state.info, **task.after_step(world, step, state.info)})
        done = task.ended(world, after, memory).astype(reward.dtype)
        return EnvironmentState(after, task.observe(world, after, memory), reward, done, metrics, memory)


class Episodes(eqx.Module):
    """An environment whose episodes start again where they end: by the task, or by a time limit.

    `info["steps"]` counts the steps of an episode, `info["truncation"]` is 1 where only the time limit ended it, and
    `info["last_obs"]` is the observation at the end of the step, before the start of the next episode replaced it: a
    value is bootstrapped by it where an episode was cut."""

    env: Environment
    length: int = eqx.field(static=True)
    """The steps after which an episode is cut."""

    __hash__ = object.__hash__  # As in `Environment`.

    def reset(self, key: Array) -> EnvironmentState:
        """Return the start of an episode."""
        key, now = jax.random.split(key)
        state = self.env.reset(now)
        zero = jnp.zeros((), state.reward.dtype)
        own = {"key": key, "steps": zero, "truncation": zero, "last_obs": state.obs}
        return state.replace(info={**state.info, **own})

    def step(self, state: EnvironmentState, action: Float[Array, "nu"]) -> EnvironmentState:
        """Return what follows an action; where the episode ended, the data and the observation are those of a start."""
        after = self.env.step(state, action)
        steps = state.info["steps"] + 1
        cut = steps >= self.length
        done = jnp.maximum(after.done, cut.astype(after.done.dtype))
        key, draw = jax.random.split(state.info["key"])
        own = {"truncation": done * (1 - after.done), "last_obs": after.obs}
        fresh = self.env.reset(draw)
        kept = {name: after.info[name] for name in fresh.info}

        def chosen(new, old):
            return jax.tree.map(lambda x, y: jnp.where(done > 0, x, y), new, old)

        data, obs, memory = chosen((fresh.data, fresh.obs, fresh.info), (after.data, after.obs, kept))
        info = {**after.info, **memory, **own, "key": key, "steps": jnp.where(done > 0, 0, steps)}
        return after.replace(data=data, obs=obs, done=done, info=info)
