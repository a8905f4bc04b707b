"""Time steps of MuJoCo scenes, beside MuJoCo and MJX where they are installed.

    python -m experiments.benchmark_scenes [CONFIG] [--key value ...]

The scenes are the ant and the humanoid of Gymnasium, where it is installed; the quadruped of `benchmark_contact` on
four feet, with MuJoCo's law and (`quadruped_compliant`, of this library alone) with that of `ContactLaw`; and of a copy
of MuJoCo Menagerie (https://github.com/google-deepmind/mujoco_menagerie) the humanoid G1 with 29 joints (`g1`;
`g1_feet` with the contacts of its feet with the floor alone) and the arm Panda with a box on the floor (`panda_box`),
without their meshes, which do not touch. Each robot starts from a state that MuJoCo reaches in `settling` steps under
random controls, so that it touches the ground; then controls are those of the file's first keyframe, or zero. A
roll-out of `steps` steps is one program of this library and of MJX; MuJoCo steps one robot after the other in C. All
have the same law, integrator and time step; this library solves every step to its tolerance, the others as their
options in the file say, but that MJX and MuJoCo Warp solve with Newton's method where they lack the solver of the file,
as for the humanoid. Compilation is what the first call takes longer than later ones.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import importlib.resources
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from experiments import benchmark_contact
from experiments._benchmark_options import names_in, numbers_in
from experiments._benchmark_report import step_times, write_step_times
from experiments._main import CONFIGS, experiment
from jaxdyn import DataError, World, load_world, native
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


class Scene(NamedTuple):
    """A scene of MuJoCo and where it begins."""

    model: Any
    configuration: np.ndarray
    control: np.ndarray
    world: World | None = None
    """This library's world, where it is not that of the model."""


class Start(NamedTuple):
    """A scene, as MuJoCo's model and as this library's, with states to start from."""

    model: Any
    scene: World
    q: jax.Array
    v: jax.Array
    """MuJoCo's `qvel`."""
    control: jax.Array


def run(config: Config) -> list[dict[str, Any]]:
    """Measure, print, and write `<results>/<name>/report.md`; returns the measurements."""
    names, batches = names_in(config.libraries, LIBRARIES, "libraries"), numbers_in(config.batches, "batches")
    folder, records = config.make_folder(), []
    for scene in names_in(config.scenes, SCENES, "scenes"):
        for batch in batches:
            try:
                start = started(SCENES[scene](), config.settling, batch)
            except (ImportError, DataError) as error:
                print(f"{scene} is not measured: {error}", flush=True)
                continue
            for name in names:
                count = batch * (1 if name == "gradient" else config.steps)
                times = functools.partial(LIBRARIES[name], start, config)
                records.append(step_times(times, count, scene=scene, library=name, batch=batch))
    write_step_times(folder, "Steps of MuJoCo scenes", "", records, ("scene", "library", "batch"))
    return records


def _of_gymnasium(name: str) -> Callable[[], Scene]:
    def load() -> Scene:
        folder = importlib.resources.files(importlib.import_module("gymnasium"))
        path = folder / "envs" / "mujoco" / "assets" / f"{name}.xml"
        model = importlib.import_module("mujoco").MjModel.from_xml_path(str(path))
        return Scene(model, model.qpos0, np.zeros(model.nu))

    return load


def _quadruped(compliant: bool = False) -> Scene:
    config = benchmark_contact.Config("quadruped", iterations=0)
    robot = benchmark_contact.scene(config, 1)
    model = benchmark_contact.mujoco_model(robot, config)
    return Scene(model, np.asarray(robot.q[0]), np.zeros(model.nu), robot.world if compliant else None)


def _of_menagerie(file: str, pairs: str = "") -> Callable[[], Scene]:
    """Return the function that loads a scene at its first keyframe: without its meshes, and of the pairs of geoms only
    those with this end of their names."""

    def load() -> Scene:
        mujoco = importlib.import_module("mujoco")
        spec = mujoco.MjSpec.from_file(str(_menagerie(file)))
        dropped = [geom for geom in spec.geoms if geom.type == mujoco.mjtGeom.mjGEOM_MESH]
        dropped += [pair for pair in spec.pairs if not re.search(pairs, pair.name)]
        for item in (*dropped, *spec.meshes):
            spec.delete(item)
        model = spec.compile()
        return Scene(model, model.key_qpos[0], model.key_ctrl[0])

    return load


def _menagerie(file: str) -> Path:
    """Return a file's path where robot_descriptions keeps MuJoCo Menagerie, or in a copy of it in the working
    directory. **Raises** `DataError`."""
    cache = os.environ.get("ROBOT_DESCRIPTIONS_CACHE", "~/.cache/robot_descriptions")
    folders = [parent / "mujoco_menagerie" for parent in (Path(cache).expanduser(), Path())]
    for folder in folders:
        if (folder / file).is_file():
            return folder / file
    raise DataError(
        f"there is no {file} in {' or '.join(map(str, folders))}: clone "
        "https://github.com/google-deepmind/mujoco_menagerie into one of them, or say where it is with the environment "
        "variable ROBOT_DESCRIPTIONS_CACHE"
    )


SCENES: dict[str, Callable[[], Scene]] = {
    "ant": _of_gymnasium("ant"),
    "humanoid": _of_gymnasium("humanoid"),
    "quadruped": _quadruped,
    "quadruped_compliant": functools.partial(_quadruped, compliant=True),
    "g1": _of_menagerie("unitree_g1/scene_mjx.xml"),
    "g1_feet": _of_menagerie("unitree_g1/scene_mjx.xml", r"foot\d_floor$"),
    "panda_box": _of_menagerie("franka_emika_panda/mjx_single_cube.xml"),
}
"""Functions that return a scene."""


def started(scene: Scene, settling: int, batch: int) -> Start:
    """Return a scene with states in which its robot touches the ground, in single precision. Of more than 128 states,
    the first 128 are repeated."""
    mujoco, random, model = importlib.import_module("mujoco"), np.random.default_rng(0), scene.model
    data, q, v = mujoco.MjData(model), [], []
    for _ in range(min(batch, 128)):
        mujoco.mj_resetData(model, data)
        data.qpos, data.qvel = scene.configuration, 0.1 * random.normal(size=model.nv)
        data.ctrl = scene.control + 0.3 * random.normal(size=model.nu)
        mujoco.mj_step(model, data, settling)
        q.append(data.qpos.copy())
        v.append(data.qvel.copy())
    repeated = np.arange(batch) % len(q)
    world = load_world(model) if scene.world is None else scene.world
    arrays = (jnp.asarray(x, jnp.float32) for x in (np.stack(q)[repeated], np.stack(v)[repeated], scene.control))
    return Start(model, world.astype(jnp.float32), *arrays)


def time_steps(start: Start, config: Config) -> tuple[float, float]:
    scene = start.scene
    controls = jnp.broadcast_to(start.control, (config.steps, scene.nu))

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
        after = scene.step(scene.state(q, v), start.control)
        return (after.q**2).sum() + (after.v**2).sum()

    gradient = jax.jit(jax.grad(loss, (0, 1, 2)))
    return benchmark_contact.timed(gradient, (arrays, start.q, start.v), config)


def time_mujoco(start: Start, config: Config) -> tuple[float, float]:
    return benchmark_contact.timed_mujoco(start.model, start.q, start.v, config, np.asarray(start.control))


def time_mjx(start: Start, config: Config) -> tuple[float, float]:
    return benchmark_contact.timed_mjx(peers_model(start.model), start.q, start.v, config, start.control)


def peers_model(model: Any) -> Any:
    """Return MuJoCo's model with a solver that MJX and MuJoCo Warp have."""
    solver, model = importlib.import_module("mujoco").mjtSolver, copy.copy(model)
    if model.opt.solver not in (solver.mjSOL_CG, solver.mjSOL_NEWTON):
        model.opt.solver = solver.mjSOL_NEWTON
    return model


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
