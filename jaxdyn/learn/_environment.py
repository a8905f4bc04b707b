"""Environments: a world, a task, and the time for which an action is held."""

from __future__ import annotations

import abc
import os
import types
from typing import TYPE_CHECKING, Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn import _printing as printing
from jaxdyn._errors import ModelError, ShapeError, require_kind, require_positive_integer
from jaxdyn._types import Array, Float
from jaxdyn.learn._held_action import held_action
from jaxdyn.simulate import State
from jaxdyn.worlds import World, no_readings

Observation = Any
"""An array `[n]`, or a dictionary of such arrays, such as `{"state": ..., "privileged_state": ...}`."""


class EnvironmentState(eqx.Module):
    """The state of an environment after a reset or a step. All leaves are arrays of one environment; `jax.vmap` of
    `reset` and `step` puts batch axes in front."""

    data: State
    """The state of the world."""
    obs: Observation
    reward: Float[Array, "*batch"]
    done: Float[Array, "*batch"]
    """1 where the task has ended, else 0. A time limit is no end of the task: see `Episodes`."""
    metrics: dict[str, Float[Array, "*batch"]]
    """Further numbers of the task, such as the parts of its reward; and `"diverged"`, 1 after a step that diverged."""
    info: dict[str, Any]
    """The memory of the task, such as a command, and what wrappers add."""

    @property
    def pipeline_state(self) -> State:
        """The state of the world, by the name that Brax has for it."""
        return self.data

    def replace(self, **changes: Any) -> Self:
        """Return the state with other fields. **Raises** `ModelError` for a field that it does not have."""
        if "pipeline_state" in changes:
            changes["data"] = changes.pop("pipeline_state")
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        unknown = set(changes) - set(fields)
        if unknown:
            raise ModelError(f"an EnvironmentState has no {', '.join(sorted(unknown))}; it has {', '.join(fields)}")
        return type(self)(**{**fields, **changes})

    def printed(self) -> printing.Facts:
        """The facts that `print` shows."""
        batch, done = np.shape(self.reward), np.asarray(self.done)
        parts = self.obs if isinstance(self.obs, dict) else {"obs": self.obs}
        sizes = ", ".join(f"{name} [{x.shape[-1]}]" for name, x in parts.items())
        facts = {name: printing.number(x) for name, x in parts.items()} | {"reward": printing.number(self.reward)}
        facts["done"] = f"{int(done.sum())} of {done.size}" if batch else str(bool(done))
        facts |= {name: printing.number(x) for name, x in self.metrics.items()}
        facts["info"] = printing.names(tuple(self.info)) or "nothing"
        return sizes + (f", batch {batch}" if batch else ""), facts

    __repr__, __str__, _repr_html_ = printing.one_line, printing.text, printing.table


class Transition(eqx.Module):
    """A step of an environment, as its task sees it."""

    before: State
    action: Float[Array, "nu"]
    control: Float[Array, "nu"]
    """The controls that the task made of the action."""
    after: State
    dt: Float[Array, ""]
    """The time for which the action was held, s."""
    readings: dict[str, Any]
    """Quantities that the task reads in the step (`AbstractTask.reads`)."""


class AbstractTask(eqx.Module):
    """The purpose of an environment: where it starts, what is seen, rewarded and ended. All functions are those of one
    environment without batch axes, and pure. `memory` is a dictionary of arrays, which keep their shapes and dtypes;
    it is `EnvironmentState.info`, so it also has what wrappers add, which functions leave alone."""

    episode_length = 1000
    """The steps after which `Episodes` cuts an episode by default; an attribute of the class, or a static field."""

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
        """Return what is remembered after a step; what is left out stays as it is. By default all stays."""
        return {}

    def disturb(self, world: World, state: State, memory: dict[str, Any]) -> State:
        """Return the state in which a step begins, such as one after a push. By default it is the same."""
        return state

    def reads(self) -> tuple[str, ...]:
        """Return the names of what `Transition.readings` has, such as `("sensors",)`: quantities of
        `World.step_and_read`. They come from the last solution of the constraints in the step, at the start of its last
        time step, or with RK4 at the last stage, and so need no further solution. By default there are none."""
        return ()

    def control(self, world: World, state: State, action: Float[Array, "nu"]) -> Float[Array, "nu"]:
        """Return the controls of the world for an action. By default -1 to 1 are the range of each control."""
        lower, upper = world.control_bounds
        return lower + (upper - lower) * (action + 1) / 2


class AbstractEnvironment(eqx.Module):
    """Pure functions `reset` and `step` of one environment, which `jax.vmap` makes those of a batch."""

    if not TYPE_CHECKING:

        def __getattribute__(self, name: str) -> Any:
            # `jax.jit(env.step)` takes functions that have a hash and can be compared: a method of Python's is known by
            # its object. That of an equinox module is a tree of arrays, which have no hash.
            found = super().__getattribute__(name)
            return types.MethodType(found.__func__, self) if hasattr(found, "__func__") else found

    @property
    @abc.abstractmethod
    def unwrapped(self) -> Environment:
        """The environment without wrappers."""

    @abc.abstractmethod
    def reset(self, key: Array) -> EnvironmentState:
        """Return the start of an episode."""

    @abc.abstractmethod
    def step(self, state: EnvironmentState, action: Float[Array, "nu"]) -> EnvironmentState:
        """Return what follows when an action is held for `dt`."""

    def printed(self) -> printing.Facts:
        """The facts that `print` shows."""
        dt = f"{printing.number(self.dt, 's')}, {self.unwrapped.n_substeps} time steps of the world"
        facts = {"actions": str(self.action_size), "observations": str(self.observation_size), "dt": dt}
        return type(self.unwrapped.task).__name__, {**facts, "episodes": f"{self.episode_length} steps"}

    __repr__, __str__, _repr_html_ = printing.one_line, printing.text, printing.table

    @property
    def episode_length(self) -> int:
        """The steps after which `Episodes` cut an episode."""
        return self.unwrapped.task.episode_length

    @property
    def action_size(self) -> int:
        """The number of actions."""
        return self.unwrapped.world.nu

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
        return self.unwrapped.world.timestep

    @property
    def dt(self) -> Any:
        """The time for which an action is held, s."""
        return self.sim_dt * self.unwrapped.n_substeps


class Environment(AbstractEnvironment):
    """A world, a task and the number of time steps for which an action is held: `substeps`.

    A step that diverges, whose state is not finite or beyond 1e10, ends the episode: `done` and
    `metrics["diverged"]` are 1, the reward is 0, and the state stays that before the step. Its derivatives are zero,
    so that one such element does not spoil the gradient of a batch.

    **Raises** `ModelError` where the default of `AbstractTask.control` needs ranges of controls that the world does not
    have, and at the first call of `reset` or `step` for a task whose functions return what does not fit.
    """

    world: World
    task: AbstractTask
    n_substeps: int = eqx.field(static=True)
    scene: str | None = eqx.field(static=True)
    """The path or the text of the MJCF file from which the world was loaded, if there is one: with it policies are
    judged in MuJoCo."""

    def __init__(self, world: World, task: AbstractTask, *, substeps: int = 1, scene: str | os.PathLike | None = None):
        require_kind(world, World, "Environment: `world`")
        require_kind(task, AbstractTask, "Environment: `task`")
        require_positive_integer(substeps, "substeps")
        if type(task).control is AbstractTask.control:
            _require_ranges(world)
        self.world, self.task, self.n_substeps = world, task, int(substeps)
        self.scene = None if scene is None else os.fspath(scene)

    @property
    def unwrapped(self) -> Self:
        """The environment itself."""
        return self

    def reset(self, key: Array) -> EnvironmentState:
        """Return the start of an episode. Nothing is simulated."""
        world, task = self.world, self.task
        draw, remember = jax.random.split(key)
        memory = _arrays(task.remember(world, remember), f"{_of(task)}.remember")
        data = world.start_of(task.start(world, draw), {})
        # The shapes of the metrics are those of a step that goes nowhere, which is not computed.
        shapes = jax.eval_shape(lambda: self._judged(self._nothing_done(data), memory)[1])
        metrics = {name: jnp.zeros(x.shape, x.dtype) for name, x in shapes.items()}
        zero = jnp.zeros((), data.q.dtype)
        return EnvironmentState(data, task.observe(world, data, memory), zero, zero, metrics, memory)

    def step(self, state: EnvironmentState, action: Float[Array, "nu"]) -> EnvironmentState:
        """Return what follows when an action is held for `dt`. What the task does not know in `info` stays as it is.

        **Raises** `ShapeError` for an action of another shape than `[action_size]`.
        """
        world, task = self.world, self.task
        if jnp.shape(action) != (world.nu,):
            advice = "jax.vmap(env.step) takes batches" if jnp.ndim(action) > 1 else "each control has one action"
            raise ShapeError(f"action has shape {jnp.shape(action)}, but [nu] = [{world.nu}] is needed; {advice}")
        before = task.disturb(world, state.data, state.info)
        action = jnp.asarray(action, before.q.dtype)
        control = task.control(world, before, action)
        after, readings, diverged = held_action(world, before, control, self.n_substeps, task.reads())
        found = self.outcome(state.replace(data=before), action, control, after, readings)
        # Before and after are the same where a step diverged, and the reward's derivative by them would be half of one.
        reward, metrics = jax.tree.map(lambda x: jnp.where(diverged, 0, x), (found.reward, found.metrics))
        metrics["diverged"] = diverged.astype(reward.dtype)
        return found.replace(reward=reward, metrics=metrics, done=jnp.maximum(found.done, metrics["diverged"]))

    def outcome(
        self,
        state: EnvironmentState,
        action: Float[Array, "nu"],
        control: Float[Array, "nu"],
        after: State,
        readings: dict[str, Any] | None = None,
    ) -> EnvironmentState:
        """Return what the task makes of a step that led to the state `after`, by this simulator or another one.

        `readings` are those of `AbstractTask.reads`; without them they are those in the state `after`, for which the
        constraints are solved once more. **Raises** `ShapeError` for a reward or an end of the task that is no scalar.
        """
        task, dtype = self.task, after.q.dtype
        readings = self._readings_at(after, control) if readings is None else readings
        step = Transition(state.data, action, control, after, jnp.asarray(self.dt, dtype), readings)
        reward, metrics = self._judged(step, state.info)
        # What wrappers have added stays. The dictionaries are new ones, because wrappers may write into them.
        memory = jax.tree.map(lambda x: x, {**state.info, **self._remembered(step, state.info)})
        ended = jnp.asarray(task.ended(self.world, after, memory))
        if ended.shape:
            raise ShapeError(f"{_of(task)}.ended returns the shape {ended.shape}; one truth value is needed")
        obs = task.observe(self.world, after, memory)
        return EnvironmentState(after, obs, reward, ended.astype(dtype), {**state.metrics, **metrics}, memory)

    def _readings_at(self, state: State, control: Any) -> dict[str, Any]:
        """Return what the task reads in a state."""
        names = self.task.reads()
        found = self.world.step_and_read(state, control, names=names)[1] if names else {}
        return {**found, **{name: getattr(state, name) for name in ("q", "v") if name in names}}

    def _nothing_done(self, data: State) -> Transition:
        """Return a step that goes nowhere."""
        none = jnp.zeros(self.world.nu, data.q.dtype)
        readings = no_readings(self.world, data, self.task.reads())
        return Transition(data, none, none, data, jnp.asarray(self.dt, data.q.dtype), readings)

    def _judged(self, step: Transition, memory: dict[str, Any]) -> tuple[Array, dict[str, Array]]:
        """Return the reward and the metrics of a step, which are scalars."""
        what, dtype = f"{_of(self.task)}.reward", step.after.q.dtype
        found = self.task.reward(self.world, step, memory)
        if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[1], dict):
            raise ModelError(f"{what} returns {type(found).__name__}; a pair is needed: the reward, and a dictionary")
        metrics = {"diverged": jnp.zeros((), dtype), **found[1]}
        for name, x in {"the reward": found[0], **{f"the part {name!r}": x for name, x in metrics.items()}}.items():
            if jnp.shape(x):
                raise ShapeError(f"{what}: {name} has the shape {jnp.shape(x)}; a scalar is needed, as of jnp.sum(...)")
        return jnp.asarray(found[0], dtype), {name: jnp.asarray(x, dtype) for name, x in metrics.items()}

    def _remembered(self, step: Transition, memory: dict[str, Any]) -> dict[str, Any]:
        """Return what the task remembers after a step."""
        what = f"{_of(self.task)}.after_step"
        found = _arrays(self.task.after_step(self.world, step, memory), what)
        for name, x in found.items():
            if name not in memory:
                has = ", ".join(memory) or "nothing"
                raise ModelError(f"{what}: {name!r} is new; remember must return it at the start, which has {has}")
            old, new = (jax.tree.map(lambda y: (jnp.shape(y), jnp.result_type(y).name), z) for z in (memory[name], x))
            if old != new:
                raise ShapeError(f"{what}: {name!r} changes its shape or dtype, from {old} to {new}; it must keep them")
        return found


def _of(task: AbstractTask) -> str:
    return type(task).__name__


def _arrays(memory: Any, what: str) -> dict[str, Any]:
    """Return what a task remembers as arrays."""
    if not isinstance(memory, dict):
        raise ModelError(f"{what} returns {type(memory).__name__}; a dictionary of arrays is needed")
    return jax.tree.map(jnp.asarray, memory)


def _require_ranges(world: World) -> None:
    """Raise `ModelError` where controls have no range, unless that is traced."""
    bounds = world.control_bounds
    if not all(printing.is_concrete(x) for x in bounds):
        return
    endless = ~np.isfinite(np.stack([np.asarray(x).reshape(-1, world.nu) for x in bounds])).all(axis=(0, 1))
    if endless.any():
        names = printing.names([name for name, x in zip(world.actuator_names, endless, strict=True) if x])
        advice = "give the actuators a control_range (ctrlrange in MJCF), or the task a method control of its own"
        raise ModelError(f"actions of -1 to 1 stand for the range of controls, which {names} do not have; {advice}")
