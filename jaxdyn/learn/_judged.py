"""Policies judged in MuJoCo's C code, of which training has used nothing."""

from __future__ import annotations

import copy
import os
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn import _printing as printing
from jaxdyn._errors import ModelError, naming_arguments, require_positive_integer
from jaxdyn._types import Array, Float
from jaxdyn.io import to_mjcf
from jaxdyn.io.mjcf import compile_mjcf, mujoco
from jaxdyn.learn._compiled_environment import compiled_with
from jaxdyn.learn._environment import AbstractEnvironment, Environment, EnvironmentState, Observation
from jaxdyn.simulate import State
from jaxdyn.worlds import World, load_world

type End = Literal["task", "time limit", "diverged"]


class PolicyJudgment(NamedTuple):
    """How a policy did in MuJoCo's C code, for each start."""

    returns: Float[np.ndarray, "starts"]
    """The sums of the rewards of the episodes."""
    lengths: np.ndarray
    """The steps of the episodes."""
    ends: tuple[End, ...]
    """The end of each: the task, as after a fall; the time limit; or numbers that MuJoCo calls bad, whose step is not
    counted."""
    metrics: dict[str, Float[np.ndarray, "starts"]]
    """The metrics of the task by name, each the mean over the steps of an episode."""

    def printed(self) -> printing.Facts:
        """The facts that `print` shows."""
        counts = Counter(self.ends)
        facts = {"return": printing.number(self.returns), "steps": printing.number(self.lengths)}
        facts["ended by"] = ", ".join(f"{what} {n}" for what, n in counts.items())
        facts |= {f"{name} (mean)": printing.number(x) for name, x in self.metrics.items()}
        return f"{len(self.ends)} starts, median return {np.median(self.returns):.6g}", facts

    __repr__, __str__, _repr_html_ = printing.one_line, printing.text, printing.table


@naming_arguments
def judge(
    policy: Callable[[Observation], Array],
    env: AbstractEnvironment,
    scene: str | os.PathLike | Any = None,
    *,
    starts: int = 100,
    steps: int | None = None,
    seed: int = 0,
) -> PolicyJudgment:
    """Run a policy in MuJoCo's C code (`mj_step`), and return the returns and ends of its episodes.

    The scene is that of the environment with the numbers that its world has now, starts are drawn by the task, and an
    action is held for as long as in training. Observations, rewards and ends are those of the task, in MuJoCo's states.
    The policy is called as `policy(obs)` for one environment, and returns the action `[nu]`. Wrappers of the
    environment, such as `Episodes`, have no part. MuJoCo's solver has the settings of the scene.

    **Arguments**

    - `scene`: the MJCF file, its text, or the `mujoco.MjModel` from which the world was loaded; by default
      `env.scene`.
    - `starts`: the number of episodes. `steps`: after which one is cut, by default the task's `episode_length`. `seed`:
      by which starts are drawn.

    **Raises** `ModelError` for an environment without a scene, such as one whose world is made of a model, and for a
    scene with other parts than the world's; as `to_mjcf` does for a world whose numbers MJCF cannot have; `ImportError`
    without MuJoCo.
    """
    env = env.unwrapped
    steps = env.task.episode_length if steps is None else steps
    require_positive_integer(starts, "starts")
    require_positive_integer(steps, "steps")
    m = _mujoco_model(env.world, env.scene if scene is None else scene)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return _run_episodes(policy, env, _MujocoRuns(m, starts, pool), jax.random.key(seed), steps)


def _run_episodes(policy: Any, env: Environment, simulation: _MujocoRuns, key: Array, steps: int) -> PolicyJudgment:
    starts = len(simulation.data)
    begin, follow = (compiled_with((env, policy), function) for function in (_begin, _follow))
    now, seen = begin(jax.random.split(key, starts))
    simulation.put(seen, now.data)
    returns, lengths = np.zeros(starts), np.zeros(starts, int)
    sums = {name: np.zeros(starts) for name in now.metrics if name != "diverged"}
    ends, running = np.full(starts, "time limit", object), np.ones(starts, bool)
    for _ in range(steps):
        rows, control = np.flatnonzero(running), np.asarray(seen.control)
        simulation.step(control, rows, env.n_substeps - 1)
        # Readings are taken at the start of the last time step.
        read = simulation.states() if env.task.reads() else None
        simulation.step(control, rows, 1)
        bad = simulation.diverged(rows)
        ends[bad], running[bad] = "diverged", False
        now, seen = follow(now, seen, read, simulation.states())
        simulation.disturb(seen)
        returns[running] += np.asarray(now.reward)[running]
        lengths[running] += 1
        for name, total in sums.items():
            total[running] += np.asarray(now.metrics[name])[running]
        done = running & (np.asarray(now.done) > 0)
        ends[done], running[done] = "task", False
        if not running.any():
            break
    means = {name: x / np.maximum(lengths, 1) for name, x in sums.items()}
    return PolicyJudgment(returns, lengths, tuple(ends.tolist()), means)


class _Seen(NamedTuple):
    """The actions of a policy in a state, each array with an axis of environments in front."""

    action: Any
    control: Any
    qpos: Any
    qvel: Any
    """The state in which the step begins, as MuJoCo has it."""
    disturbed: Any
    """Whether this is another one than that in which the step before ended."""


def _begin(judged: tuple[Environment, Any], keys: Any) -> tuple[EnvironmentState, _Seen]:
    env, policy = judged

    def one(key):
        return _acting(env, policy, env.reset(key))

    return jax.vmap(one)(keys)


def _follow(judged: tuple[Environment, Any], before: EnvironmentState, seen: _Seen, read: Any, reached: Any):
    """Return what follows when MuJoCo has reached a state, from that in which the task reads, or None."""
    env, policy = judged
    world, names = env.world, env.task.reads()

    def one(before, seen, read, reached):
        data = before.data
        readings = {}
        if read is not None:
            readings = world.step_and_read(_state(world, data, *read), seen.control, names=names)[1]
        now = env.outcome(before, seen.action, seen.control, _state(world, data, *reached), readings)
        return _acting(env, policy, now)

    return jax.vmap(one)(before, seen, read, reached)


def _state(world: World, like: State, *reached: Any) -> State:
    """Return the world's state for MuJoCo's `qpos`, `qvel`, `act`, `time`."""
    q, v, act, time = (jnp.asarray(x, like.q.dtype) for x in reached)
    return State(q, world.from_qvel(q, v), act, time, like.mocap, like.active)


def _acting(env: Environment, policy: Any, now: EnvironmentState) -> tuple[EnvironmentState, _Seen]:
    """Return the state in which the next step begins, and what the policy does in it."""
    world, task, old = env.world, env.task, now.data
    data = task.disturb(world, old, now.info)
    action = jnp.asarray(policy(now.obs), old.q.dtype)
    moved = (data.q != old.q).any() | (data.v != old.v).any()
    seen = _Seen(action, task.control(world, data, action), data.q, world.to_qvel(data.q, data.v), moved)
    return now.replace(data=data), seen


class _MujocoRuns:
    """Simulations by MuJoCo, side by side."""

    def __init__(self, m: Any, count: int, pool: ThreadPoolExecutor):
        # A simulation that diverges ends; MuJoCo would start it again.
        m.opt.disableflags |= int(mujoco().mjtDisableBit.mjDSBL_AUTORESET)
        self.m, self.pool = m, pool
        self.data = [mujoco().MjData(m) for _ in range(count)]
        kinds = mujoco().mjtWarning
        self.bad = [int(kinds.mjWARN_BADQPOS), int(kinds.mjWARN_BADQVEL), int(kinds.mjWARN_BADQACC)]

    def put(self, seen: _Seen, state: State) -> None:
        """Set all states."""
        rows = {"qpos": seen.qpos, "qvel": seen.qvel, "act": state.activation}
        rows |= {"eq_active": None if state.active is None else np.asarray(state.active) > 0}
        if state.mocap is not None:
            rows |= {"mocap_pos": state.mocap[..., :3], "mocap_quat": state.mocap[..., 3:]}
        arrays = {name: np.asarray(x) for name, x in rows.items() if x is not None}
        for i, d in enumerate(self.data):
            d.time = float(state.time[i])
            for name, x in arrays.items():
                getattr(d, name)[:] = x[i]

    def disturb(self, seen: _Seen) -> None:
        """Set the states of those that are disturbed."""
        for i in np.flatnonzero(np.asarray(seen.disturbed)):
            self.data[i].qpos[:], self.data[i].qvel[:] = np.asarray(seen.qpos)[i], np.asarray(seen.qvel)[i]

    def step(self, control: np.ndarray, rows: np.ndarray, count: int) -> None:
        """Hold controls `[starts, nu]` in the simulations `rows` for some time steps."""

        def steps(some):
            for i in some:
                self.data[i].ctrl[:] = control[i]
                mujoco().mj_step(self.m, self.data[i], count)

        if count:
            # `mj_step` runs without Python's lock.
            list(self.pool.map(steps, np.array_split(rows, os.cpu_count() or 1)))

    def diverged(self, rows: np.ndarray) -> np.ndarray:
        """Return those of the simulations `rows` in which MuJoCo found bad numbers."""
        return np.array([i for i in rows if any(self.data[i].warning[k].number for k in self.bad)], int)

    def states(self) -> list[np.ndarray]:
        """Return all `qpos`, `qvel`, `act`, `time`."""
        return [np.array([getattr(d, name) for d in self.data]) for name in ("qpos", "qvel", "act", "time")]


def _mujoco_model(world: World, scene: Any) -> Any:
    """Return MuJoCo's compiled model of a scene, with the numbers of the world. **Raises** `ModelError`."""
    advice = "Environment(load_world(file), task, scene=file) has a scene; for a model, file = to_mjcf(model, ...)"
    if scene is None:
        raise ModelError(f"judge: the environment does not say from which MJCF file its world was loaded; {advice}")
    with warnings.catch_warnings():
        # The world has been loaded before, and its user has seen them.
        warnings.simplefilter("ignore")
        m, source = compile_mjcf(scene)
        own = load_world(m).astype(world.model.dtype)
        if jax.tree.structure(_parts(own)) != jax.tree.structure(_parts(world)):
            raise ModelError(f"judge: the scene ({source}) has other parts than the world of the environment; {advice}")
        if _almost_equal(_parts(own), _parts(world)):
            return copy.copy(m)
        if isinstance(scene, mujoco().MjModel):
            raise ModelError("judge: the world has other numbers than the scene; give the scene as a file or its text")
        text = to_mjcf(world, template=scene)
        spec = mujoco().MjSpec.from_string(text)
        if os.path.exists(source):
            spec.modelfiledir = os.path.dirname(os.path.abspath(source))
        return spec.compile()


def _parts(world: World) -> Any:
    return world.model, world.parts, world.start


def _almost_equal(one: Any, other: Any) -> bool:
    """Return whether all arrays have equal shapes, and are equal to the rounding of the constants that loading makes
    of the file's numbers."""

    def equal(x, y):
        x, y = np.asarray(x), np.asarray(y)
        rounding = 32 * np.finfo(np.result_type(x, np.float16)).eps
        return x.shape == y.shape and np.allclose(x, y, rounding, rounding * np.abs(x).max(initial=0))

    return all(map(equal, jax.tree.leaves(one), jax.tree.leaves(other)))
