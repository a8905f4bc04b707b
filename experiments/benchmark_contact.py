"""Time steps of a quadruped on four feet, beside MuJoCo and MJX where they are installed, on a CPU or a GPU.

    python -m experiments.benchmark_contact [CONFIG] [--key value ...]

The robots fall 5 mm onto a plane with random velocities. A roll-out of `steps` steps is one program of this library and
of MJX; MuJoCo steps one robot after the other in C. The laws of contact differ (MuJoCo's is a soft constraint with a
pyramid of friction, solved by as many iterations), so times are compared and motions are not.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from experiments._benchmark_options import names_in, numbers_in
from experiments._benchmark_report import step_times, write_step_times
from experiments._main import CONFIGS, experiment
from experiments._timing import wall_time
from jaxdyn import (
    ContactLaw,
    ContactShape,
    SolverOptions,
    Sphere,
    State,
    World,
    native,
    samples,
    to_mjcf,
)
from jaxdyn.cli import ProgramConfig
from jaxdyn.simulate import RolloutOptions

DEFAULT_CONFIG = CONFIGS / "benchmark_contact.toml"
FEET, RADIUS, FRICTION, TIMESTEP = ("FL_FOOT", "FR_FOOT", "HL_FOOT", "HR_FOOT"), 0.02, 0.8, 1e-3
LAW = ContactLaw(stiffness=1e4, dissipation=0.5, friction=FRICTION, stiction_velocity=1e-3)
HEIGHT = 0.345


@dataclasses.dataclass(frozen=True)
class Config(ProgramConfig):
    """Keys of the configuration file. Lists are names or numbers between commas."""

    batches: str = "256"
    libraries: str = "native,xla,gradient,mujoco,mjx"
    """`native` and `xla`: this library with native code and without; `gradient`: one step's by the state, the model and
    the contacts, at the states after half of the steps."""
    iterations: int = 4
    """Iterations of every step; 0 iterates to this library's tolerance."""
    steps: int = 100
    seconds: float = 0.5
    """Approximate length of each repeat, s."""
    repeats: int = 5


class Scene(NamedTuple):
    """The robots at their start."""

    world: World
    q: jax.Array
    v: jax.Array


def run(config: Config) -> list[dict[str, Any]]:
    """Measure, print, and write `<results>/<name>/report.md`; returns the measurements."""
    names, batches = names_in(config.libraries, LIBRARIES, "libraries"), numbers_in(config.batches, "batches")
    folder, records = config.make_folder(), []
    for name in names:
        for batch in batches:
            count = batch * (1 if name == "gradient" else config.steps)
            times = functools.partial(LIBRARIES[name], scene(config, batch), config)
            records.append(step_times(times, count, library=name, batch=batch))
    note = f"{config.iterations or 'as many as needed'} iterations a step; "
    write_step_times(folder, "Steps with contact", note, records, ("library", "batch"))
    return records


def scene(config: Config, batch: int) -> Scene:
    """Return the robots, in single precision."""
    model = samples.quadruped().astype(jnp.float32)
    options = SolverOptions(config.iterations, 0.0) if config.iterations else SolverOptions()
    shapes = [ContactShape(name, Sphere(RADIUS)) for name in FEET]
    world = World(model, shapes, law=LAW, options=options, timestep=TIMESTEP).astype(jnp.float32)
    q = jnp.broadcast_to(model.neutral().at[2].set(HEIGHT), (batch, model.nq))
    return Scene(world, q, 0.3 * jax.random.normal(jax.random.key(0), (batch, model.nv), jnp.float32))


def timed(function: Callable, arguments: tuple, config: Any) -> tuple[float, float]:
    """Return the time of a call, and of the first one, s."""
    began = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    first = time.perf_counter() - began
    return wall_time(lambda: function(*arguments), config.seconds, config.repeats), first


def rolled(robots: Scene, steps: int) -> Callable[[jax.Array, jax.Array], State]:
    """Return the function of a state that returns the one some steps later."""
    last = RolloutOptions(save_every=steps)
    return jax.jit(lambda q, v: robots.world.rollout(State(q, v), steps=steps, options=last).final)


def time_steps(robots: Scene, config: Config) -> tuple[float, float]:
    return timed(rolled(robots, config.steps), (robots.q, robots.v), config)


def time_steps_without_native_code(robots: Scene, config: Config) -> tuple[float, float]:
    with native.disabled():
        return time_steps(robots, config)


def time_gradient(robots: Scene, config: Config) -> tuple[float, float]:
    world = robots.world
    arrays, static = eqx.partition((world.model, world.parts.touching), eqx.is_inexact_array)
    # Half-way the feet are on the ground; the time of a step depends on what touches.
    middle = rolled(robots, max(1, config.steps // 2))(robots.q, robots.v)

    def loss(arrays, q, v):
        changed = eqx.tree_at(lambda w: (w.model, w.parts.touching), world, eqx.combine(arrays, static))
        after = changed.step(State(q, v))
        return (after.q**2).sum() + (after.v**2).sum()

    return timed(jax.jit(jax.grad(loss, (0, 1, 2))), (arrays, middle.q, middle.v), config)


def mujoco_model(robots: Scene, config: Config) -> Any:
    """Return the same robot for MuJoCo, with spheres at the feet and a plane."""
    mujoco, model = importlib.import_module("mujoco"), samples.quadruped()
    root = ET.fromstring(to_mjcf(model, TIMESTEP, limits=False, actuators=(), shapes=()))
    option = root.find("option")
    assert option is not None
    option.attrib |= {"iterations": str(config.iterations or 100), "cone": "pyramidal"}
    friction = f"{FRICTION} 0.005 0.0001"
    plane = {"type": "plane", "size": "0 0 1", "contype": "0", "conaffinity": "1", "friction": friction}
    ET.SubElement(root.findall("worldbody")[0], "geom", plane)
    bodies, frames = {x.get("name"): x for x in root.iter("body")}, model.topology.frame_names
    for name in FEET:
        number = frames.index(name)
        body = bodies[model.body_names[model.topology.frame_bodies[number]]]
        place = " ".join(map(str, np.asarray(model.frame_placement[number, :3])))
        foot = {"type": "sphere", "size": str(RADIUS), "pos": place, "mass": "0", "conaffinity": "0"}
        ET.SubElement(body, "geom", foot | {"friction": friction})
    return mujoco.MjModel.from_xml_string(ET.tostring(root, encoding="unicode"))


def time_mujoco(robots: Scene, config: Config) -> tuple[float, float]:
    return timed_mujoco(mujoco_model(robots, config), robots.q, robots.v, config)


def timed_mujoco(model: Any, q: Any, v: Any, config: Any, control: Any = 0.0) -> tuple[float, float]:
    """Return the time of `config.steps` steps of all states with a constant control, and of the first call, in C on one
    core."""
    mujoco = importlib.import_module("mujoco")
    data, starts = mujoco.MjData(model), list(zip(np.asarray(q), np.asarray(v), strict=True))

    def stepped() -> np.ndarray:
        for q, v in starts:
            mujoco.mj_resetData(model, data)
            data.qpos, data.qvel, data.ctrl = q, v, control
            # All steps in one call from Python.
            mujoco.mj_step(model, data, config.steps)
        return np.array(data.qpos)

    return timed(stepped, (), config)


def time_mjx(robots: Scene, config: Config) -> tuple[float, float]:
    return timed_mjx(mujoco_model(robots, config), robots.q, robots.v, config)


def timed_mjx(model: Any, q: Any, v: Any, config: Any, control: Any = 0.0) -> tuple[float, float]:
    """Return the time of `config.steps` steps of all states with a constant control, and of the first call, by MJX."""
    step = mjx_step(model)
    return timed(jax.jit(jax.vmap(lambda q, v: step(q, v, config.steps, control))), (q, v), config)


def mjx_step(model: Any) -> Callable[[jax.Array, jax.Array, int, Any], tuple[jax.Array, jax.Array]]:
    """Return the function of a state, a number of steps and a constant control that returns MJX's state after them."""
    mjx = importlib.import_module("mujoco.mjx")
    model = mjx.put_model(model)
    data = mjx.make_data(model)

    def stepped(q, v, steps, control):
        # With 64-bit numbers enabled, MJX computes with these.
        q, v, control = (jnp.asarray(x, data.qpos.dtype) for x in (q, v, control))
        start = data.replace(qpos=q, qvel=v, ctrl=jnp.broadcast_to(control, data.ctrl.shape))
        end = jax.lax.scan(lambda x, _: (mjx.step(model, x), None), start, length=steps)[0]
        return end.qpos, end.qvel

    return stepped


LIBRARIES: dict[str, Callable[[Scene, Config], tuple[float, float]]] = {
    "native": time_steps,
    "xla": time_steps_without_native_code,
    "gradient": time_gradient,
    "mujoco": time_mujoco,
    "mjx": time_mjx,
}
"""Functions that return the time of all steps, or of the gradient, and of the first call, s."""

main = experiment("benchmark_contact", Config, run, DEFAULT_CONFIG, __doc__, x64=False)

if __name__ == "__main__":
    sys.exit(main())
