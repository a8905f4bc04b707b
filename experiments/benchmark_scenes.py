"""Time steps of MuJoCo scenes, beside MuJoCo and MJX where they are installed.

    python -m experiments.benchmark_scenes [CONFIG] [--key value ...]

The scenes are the ant and the humanoid of Gymnasium, where it is installed, and the quadruped of `benchmark_contact` on
four feet. Each robot starts from a state that MuJoCo reaches in `settling` steps under random controls, so that it
touches the ground; then controls are zero. A roll-out of `steps` steps is one program of this library and of MJX;
MuJoCo steps one robot after the other in C. All three have the same law, integrator and time step; this library solves
every step to its tolerance, the others as their options in the file say, but that MJX solves with Newton's method where
it lacks the solver of the file, as for the humanoid. Compilation is what the first call takes longer than later ones.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import importlib.resources
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from experiments import benchmark_contact
from experiments._benchmark_options import names_in, numbers_in
from experiments._benchmark_report import step_times, write_step_times
from experiments._main import CONFIGS, experiment
from jaxdyn import World, load_world, native
from jaxdyn.cli import ProgramConfig

DEFAULT_CONFIG = CONFIGS / "benchmark_scenes.toml"


@dataclasses.dataclass(frozen=True)
class Config(ProgramConfig):
    """Keys of the configuration file. Lists are names or numbers between commas."""

    scenes: str = "ant,humanoid,quadruped"
    batches: str = "256"
    libraries: str = "native,xla,gradient,mujoco,mjx"
    """`native` and `xla`: this library with native code and without; `gradient`: one step's by the state and all
    numbers of the scene."""
    settling: int = 200
    """Steps of MuJoCo before the start."""
    steps: int = 100
    seconds: float = 0.5
    """Approximate length of each repeat, s."""
    repeats: int = 5


class Start(NamedTuple):
    """A scene, as MuJoCo's model and as this library's, with states to start from."""

    model: Any
    scene: World
    q: jax.Array
    v: jax.Array
    """MuJoCo's `qvel`."""


def run(config: Config) -> list[dict[str, Any]]:
    """Measure, print, and write `<results>/<name>/report.md`; returns the measurements."""
    names, batches = names_in(config.libraries, LIBRARIES, "libraries"), numbers_in(config.batches, "batches")
    folder, records = config.make_folder(), []
    for scene in names_in(config.scenes, SCENES, "scenes"):
        for batch in batches:
            try:
                start = started(*SCENES[scene](), config, batch)
            except ImportError as error:
                print(f"{scene} is not measured: {error}", flush=True)
                continue
            for name in names:
                count = batch * (1 if name == "gradient" else config.steps)
                times = functools.partial(LIBRARIES[name], start, config)
                records.append(step_times(times, count, scene=scene, library=name, batch=batch))
    write_step_times(folder, "Steps of MuJoCo scenes", "", records, ("scene", "library", "batch"))
    return records


def _of_gymnasium(name: str) -> Callable[[], tuple[Any, np.ndarray]]:
    def load() -> tuple[Any, np.ndarray]:
        folder = importlib.resources.files(importlib.import_module("gymnasium"))
        path = folder / "envs" / "mujoco" / "assets" / f"{name}.xml"
        model = importlib.import_module("mujoco").MjModel.from_xml_path(str(path))
        return model, model.qpos0

    return load


def _quadruped() -> tuple[Any, np.ndarray]:
    config = benchmark_contact.Config("quadruped", iterations=0)
    robot = benchmark_contact.scene(config, 1)
    return benchmark_contact.mujoco_model(robot, config), np.asarray(robot.q[0])


SCENES: dict[str, Callable[[], tuple[Any, np.ndarray]]] = {
    "ant": _of_gymnasium("ant"),
    "humanoid": _of_gymnasium("humanoid"),
    "quadruped": _quadruped,
}
"""Functions that return MuJoCo's model of a scene, and a configuration."""


def started(model: Any, configuration: np.ndarray, config: Config, batch: int) -> Start:
    """Return a scene with states in which its robot touches the ground, in single precision."""
    mujoco, random = importlib.import_module("mujoco"), np.random.default_rng(0)
    data, q, v = mujoco.MjData(model), [], []
    for _ in range(batch):
        mujoco.mj_resetData(model, data)
        data.qpos, data.qvel = configuration, 0.1 * random.normal(size=model.nv)
        data.ctrl = 0.3 * random.normal(size=model.nu)
        mujoco.mj_step(model, data, config.settling)
        q.append(data.qpos.copy())
        v.append(data.qvel.copy())
    states = (jnp.asarray(np.stack(x), jnp.float32) for x in (q, v))
    return Start(model, load_world(model).astype(jnp.float32), *states)


def time_steps(start: Start, config: Config) -> tuple[float, float]:
    scene = start.scene
    controls = jnp.zeros((config.steps, scene.nu), start.q.dtype)

    @jax.jit
    def rolled(q, v):
        states = scene.rollout(scene.state(q, scene.from_qvel(q, v)), controls)
        return states.q[..., -1, :]

    return benchmark_contact.timed(rolled, (start.q, start.v), config)


def time_steps_without_native_code(start: Start, config: Config) -> tuple[float, float]:
    with native.disabled():
        return time_steps(start, config)


def time_gradient(start: Start, config: Config) -> tuple[float, float]:
    arrays, static = eqx.partition(start.scene, eqx.is_inexact_array)

    def loss(arrays, q, v):
        scene = eqx.combine(arrays, static)
        after = scene.step(scene.state(q, v))
        return (after.q**2).sum() + (after.v**2).sum()

    gradient = jax.jit(jax.grad(loss, (0, 1, 2)))
    return benchmark_contact.timed(gradient, (arrays, start.q, start.v), config)


def time_mujoco(start: Start, config: Config) -> tuple[float, float]:
    return benchmark_contact.timed_mujoco(start.model, start.q, start.v, config)


def time_mjx(start: Start, config: Config) -> tuple[float, float]:
    solver, model = importlib.import_module("mujoco").mjtSolver, copy.copy(start.model)
    if model.opt.solver not in (solver.mjSOL_CG, solver.mjSOL_NEWTON):
        model.opt.solver = solver.mjSOL_NEWTON
    return benchmark_contact.timed_mjx(model, start.q, start.v, config)


LIBRARIES: dict[str, Callable[[Start, Config], tuple[float, float]]] = {
    "native": time_steps,
    "xla": time_steps_without_native_code,
    "gradient": time_gradient,
    "mujoco": time_mujoco,
    "mjx": time_mjx,
}
"""Functions that return the time of all steps, or of the gradient, and of the first call, s."""

main = experiment("benchmark_scenes", Config, run, DEFAULT_CONFIG, __doc__, x64=False)

if __name__ == "__main__":
    sys.exit(main())
