"""One robot in four ways: simulated under both laws of contact, identified, moved, and drawn.

    python -m experiments.four_ways [CONFIG] [--key value ...]

1. Many robots under a policy, on several CPU devices, under MuJoCo's law and that of Hunt and Crossley, with sensors,
   and the gradient of how far they get by the policy's gains, with segments of the roll-out computed again.
2. Damping, gears or gains, and friction from noisy recordings of MuJoCo's C code, and how many of the 95 % intervals
   hold the truth.
3. A motion found by samples, and then by `ddp`, whose controls are given to MuJoCo's C code.
4. A film of it, and the page of the viewer.

Prints, and writes `summary.json`, and with the extra `viz` `motion.gif` and `motion.html`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import sys
import time
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from experiments._benchmark_options import names_in
from experiments._four_ways_tasks import TASKS, Task
from experiments._main import CONFIGS, experiment
from jaxdyn import World, cli, trajopt
from jaxdyn.simulate import RolloutOptions
from jaxdyn.sysid import Parametrization, Recording, RolloutFitOptions, fit_rollouts

DEFAULT_CONFIG = CONFIGS / "four_ways.toml"
POSITION, VELOCITY = 1e-3, 1e-2
"""The noise of recordings, rad or m, and rad/s or m/s."""


@dataclasses.dataclass(frozen=True)
class Config(cli.ProgramConfig):
    """Keys of the configuration file."""

    task: Literal["half_cheetah", "quadruped", "gripper"]
    ways: str = "simulate,identify,move"
    """Those that are gone, between commas."""
    devices: int = 8
    """The number of devices into which the CPU is split."""
    batch: int = 16
    """Robots that are simulated at once."""
    steps: int = 100
    """Periods of the control that they are simulated for."""
    seeds: int = 2
    """Recordings, each identified on its own."""
    duration: float = 1.0
    """Their length, s."""
    fit_iterations: int = 400
    """The most iterations of a fit."""
    iterations: int = 60
    """The most iterations of either way to move."""
    samples: int = 64
    """Trajectories in an iteration of samples."""
    pictures: bool = True
    """Whether to draw."""


def run(config: Config) -> dict[str, Any]:
    """Do all four; returns what was measured."""
    with contextlib.suppress(RuntimeError):
        # A process that has computed something before keeps its devices.
        jax.config.update("jax_num_cpu_devices", config.devices)
    ways = names_in(config.ways, ("simulate", "identify", "move"), "ways")
    task, folder = TASKS[config.task](), config.make_folder()
    out: dict[str, Any] = {"config": dataclasses.asdict(config)}
    if "simulate" in ways:
        out["simulated"] = {name: simulated(config, task, world) for name, world in task.worlds.items()}
    if "identify" in ways:
        out["identified"] = identified(config, task)
    if "move" in ways:
        out["moved"], xs = moved(config, task)
        if config.pictures:
            _draw(folder, task, xs)
    cli.write_json(folder / "summary.json", out)
    return out


def simulated(config: Config, task: Task, world: World) -> dict[str, float]:
    """Return how far robots get under a random policy, and the error of a derivative of this."""
    # By axes of the default type, JAX takes gradients inside `jit` only.
    mesh = jax.make_mesh((jax.device_count(),), ("batch",), axis_types=(AxisType.Auto,))
    options = RolloutOptions(checkpoint="sqrt", sharding=NamedSharding(mesh, PartitionSpec("batch")))
    rng, shape = np.random.default_rng(0), (config.batch, world.model.nv)
    state = world.state(np.tile(task.start, (config.batch, 1)), 0.1 * rng.normal(size=shape))
    gains, change = 0.1 * rng.normal(size=(2, world.nu, world.model.nv))
    middle, read = jnp.asarray(task.middle), bool(world.parts.sensors.names)

    @jax.jit
    def progress(gains: Any) -> Any:
        def policy(carry: Any, state: Any, t: Any) -> Any:
            return carry, middle + task.reach * jnp.tanh(state.v @ gains.T)

        motion = world.rollout(state, policy, steps=config.steps, substeps=task.substeps, sensors=read, options=options)
        left = jax.vmap(lambda q, v: task.goal(q, v, 0.0)[0])(motion.q[:, -1], motion.v[:, -1])
        return left.mean(), (motion.q, motion.sensors)

    began = time.perf_counter()
    (value, (q, sensors)), gradient = jax.block_until_ready(jax.value_and_grad(progress, has_aux=True)(gains))
    ahead = jax.jvp(lambda x: progress(x)[0], (gains,), (change,))[1]
    along = float(jnp.vdot(gradient, change))
    assert np.isfinite(q).all()
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(sensors))
    error = abs(along - float(ahead)) / max(abs(float(ahead)), 1e-12)
    print(
        f"{config.task}, {type_of(world)}: {config.batch} robots on {jax.device_count()} devices get {float(value):.3f}"
        f" m far; reverse and forward mode differ by {error:.1e}; {time.perf_counter() - began:.1f} s with compilation",
        flush=True,
    )
    return {"progress": float(value), "derivative": along, "difference_of_modes": error}


def type_of(world: World) -> str:
    """Return the name of the law of contact."""
    parts = world.parts
    return "ContactLaw" if parts.touching is not None or parts.constraints.compliance is not None else "MujocoLaw"


def recorded(config: Config, task: Task, seed: int) -> Recording:
    """Return a noisy recording of MuJoCo's C code."""
    mujoco = importlib.import_module("mujoco")

    world, m, rng = task.worlds["MujocoLaw"], task.native, np.random.default_rng(seed)
    period = task.substeps * m.opt.timestep
    t = period * np.arange(round(config.duration / period) + 1)[:, None]
    rate, phase = rng.uniform(2, 12, (2, m.nu)), rng.uniform(0, 6, (2, m.nu))
    waves = np.clip(0.9 * np.sin(rate[0] * t + phase[0]) + 0.5 * np.sin(rate[1] * t + phase[1]), -1, 1)
    controls, d = task.middle + task.reach * waves, mujoco.MjData(m)
    d.qpos = task.start
    q, v = np.zeros((len(t), m.nq)), np.zeros((len(t), m.nv))
    for k, u in enumerate(controls):
        q[k], v[k], d.ctrl[:] = d.qpos, d.qvel, u
        mujoco.mj_step(m, d, task.substeps)
    v = np.asarray(world.from_qvel(q, v))
    moved = world.model.integrate(jnp.asarray(q), jnp.asarray(POSITION * rng.normal(size=v.shape)))
    return Recording(t[:, 0], np.asarray(moved), v + VELOCITY * rng.normal(size=v.shape), control=controls)


def identified(config: Config, task: Task) -> dict[str, Any]:
    """Return how well numbers that are wrong by 20 to 30 % are found."""
    world = task.worlds["MujocoLaw"]
    p, inside, errors, left, costs = Parametrization(world, *task.free), [], [], [], []
    for seed in range(config.seeds):
        rng = np.random.default_rng(100 + seed)
        wrong = p.about(p.model(rng.choice([-1, 1], p.size) * rng.uniform(0.2, 0.3, p.size)))
        recording = recorded(config, task, seed)
        # Along impacts, segments of one period are the easiest to follow.
        period = recording.t[1] - recording.t[0]
        noise: dict[str, Any] = {"position_noise": POSITION, "velocity_noise": VELOCITY}
        options, began = RolloutFitOptions(max_iterations=config.fit_iterations), time.perf_counter()
        found = fit_rollouts(wrong, recording, segment=period, **noise, options=options)
        bounds, truth = found.intervals(), np.asarray(found.free_entries(world))
        inside.append((bounds.lower <= truth) & (truth <= bounds.upper))
        left.append(found.step_left)
        costs.append(found.cost)
        errors.append(np.abs(np.asarray(found.free_entries(found.robot)) / truth - 1))
        print(
            f"recording {seed}: {inside[-1].sum()} of {p.size} intervals hold the truth; {found.message}; "
            f"{found.iterations} iterations, {time.perf_counter() - began:.1f} s",
            flush=True,
        )
    share, error = float(np.mean(inside)), float(np.median(errors))
    print(f"{share:.1%} of the intervals hold the truth, of {p.size} numbers; median error {error:.2%}")
    return {"coverage": share, "median_error": error, "numbers": p.size, "steps_left": left, "costs": costs}


def moved(config: Config, task: Task) -> tuple[dict[str, Any], np.ndarray]:
    """Return what samples and `ddp` find, and the states of the latter."""
    world = task.worlds["MujocoLaw"]
    dynamics, nq, nv = trajopt.WorldDynamics(world, substeps=task.substeps), world.model.nq, world.model.nv

    def at_end(x: Any, u: Any, t: Any, distance: Any) -> Any:
        return task.goal(x[:nq], x[nq : nq + nv], distance)

    end = trajopt.FunctionResidual(at_end, task.distance, of_state=True)
    effort = trajopt.ControlResidual(task.middle)
    problem = trajopt.Problem(
        dynamics,
        dynamics.join(world.state(task.start)),
        task.periods,
        stage_costs=[trajopt.QuadraticCost(effort, 1e-2)],
        terminal_costs=[trajopt.QuadraticCost(end, 100.0)],
    ).with_model_limits()
    guess = np.tile(task.middle, (task.periods, 1))
    options = trajopt.PredictiveSamplingOptions(samples=config.samples, max_iterations=config.iterations)
    began = time.perf_counter()
    sampled = trajopt.predictive_sampling(problem, guess, key=jax.random.key(0), options=options)
    print(f"samples took {time.perf_counter() - began:.1f} s with compilation", flush=True)
    began = time.perf_counter()
    refined = trajopt.ddp(problem, sampled.us, options=trajopt.DDPOptions(max_iterations=config.iterations))
    print(f"ddp took {time.perf_counter() - began:.1f} s with compilation", flush=True)
    out = {}
    for name, solution in (("samples", sampled), ("ddp", refined)):
        motion = world.rollout(world.state(task.start), solution.us, steps=task.periods, substeps=task.substeps)
        # Where `ddp` has not converged, its states may have gaps, which the motion under its controls does not have.
        ends = solution.xs[-1, :nq], motion.q[-1], replayed(task, np.asarray(solution.us))
        left = [float(task.goal(jnp.asarray(q), jnp.zeros(nv), task.distance)[0]) for q in ends]
        keys = "left", "left_in_rollout", "left_in_mujoco"
        out[name] = {"cost": float(solution.cost), **dict(zip(keys, left, strict=True))}
        print(
            f"{name}: cost {float(solution.cost):.4g}, {solution.message}; {left[0]:.4f} m are left of "
            f"{task.distance} m, {left[1]:.4f} m in a roll-out of the controls, and {left[2]:.4f} m with them in "
            "MuJoCo's C code",
            flush=True,
        )
    return out, np.asarray(refined.xs)


def replayed(task: Task, us: np.ndarray) -> np.ndarray:
    """Return the last configuration of MuJoCo's C code under controls."""
    mujoco = importlib.import_module("mujoco")

    m = task.native
    d = mujoco.MjData(m)
    d.qpos = task.start
    for u in us:
        d.ctrl[:] = u
        mujoco.mj_step(m, d, task.substeps)
    return d.qpos.copy()


def _draw(folder: Any, task: Task, xs: np.ndarray) -> None:
    """Write a film and the page of the viewer."""
    from jaxdyn.viz import save_html, save_video

    world = task.drawn or task.worlds["MujocoLaw"]
    t = task.substeps * float(world.timestep) * np.arange(len(xs))
    q = xs[:, : world.model.nq]
    save_html(folder / "motion.html", world, t, q)
    save_video(folder / "motion.gif", world, t, q, frames_per_second=20.0, width=480, height=360)
    print(f"wrote {folder / 'motion.html'} and {folder / 'motion.gif'}")


main = experiment("four_ways", Config, run, DEFAULT_CONFIG, __doc__)

if __name__ == "__main__":
    sys.exit(main())
