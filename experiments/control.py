"""Model predictive control of a simulated robot that is not the controller's model.

    python -m experiments.control [CONFIG] [--key value ...]

Runs closed loops from random starts, each with a robot whose masses are wrong by a given part, and reports how many
succeed and how long a step takes. A payload that the controller does not know is identified from a recording, and the
loops run again with the identified model.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import jax
import numpy as np

from experiments import _job_files
from experiments._control_tasks import CONTROL_TASKS, ControlTask
from experiments._main import CONFIGS, experiment
from experiments._motion_pictures import draw_motion, film_motion
from experiments._motion_tasks import solver_options
from experiments._payload import identify_payload, with_cube
from experiments._plants import drive, plant_of, wrong_masses
from jaxdyn import DataError, Model, cli, trajopt

DEFAULT_CONFIG = CONFIGS / "control_cartpole.toml"


@dataclasses.dataclass(frozen=True)
class Config(cli.ProgramConfig):
    """Keys of the configuration file."""

    task: Literal["cartpole", "arm", "follow"]
    duration: float
    """Duration of a closed loop, s."""
    timestep: float
    """Period of the controller, s."""
    horizon: int
    """Number of periods that the controller looks ahead."""
    engine: Literal["mujoco", "jaxdyn"] = "mujoco"
    """Simulator of the robot, with finer steps than the controller."""
    solver: Literal["ddp", "mppi", "predictive_sampling"] = "ddp"
    iterations: int = 5
    """Largest number of iterations in a step."""
    samples: int = 128
    """Trajectories in an iteration of a sampling solver."""
    mass_error: float = 0.3
    """Every body of the robot is heavier or lighter by this part, at random."""
    disturbance_gain: float = 0.2
    """Gain of the disturbance estimate that corrects predictions; 0 for none."""
    payload: float = 0.0
    """Mass at the arm's flange, 5 cm off its axis, kg; the controller identifies it unless it is zero."""
    seeds: int = 20
    """Number of closed loops."""
    seed: int = 0
    """Seed of the first."""
    plot: bool = True
    """Whether to draw the plots of the first loop and of the latencies."""
    animation: bool = True
    """Whether to draw motion.gif of the first loop."""


class Loops:
    """The closed loops of all seeds with one controller."""

    def __init__(self, config: Config, name: str, believed: Model, nominal: Model):
        """`believed`: the controller's model; `nominal`: the robot before its masses are changed."""
        task_of_model, _ = CONTROL_TASKS[config.task]
        self.task: ControlTask = task_of_model(believed, config.timestep, config.horizon)
        mpc = trajopt.MPC(
            self.task.problem,
            solver_options(config.solver, config.iterations, config.samples, min(10, config.horizon)),
            at_time=self.task.at_time,
            disturbance_gain=config.disturbance_gain or None,
        )
        self.name, self.runs, self.errors = name, [], []
        steps = round(config.duration / config.timestep)
        last = round(min(1.0, config.duration) / config.timestep)
        seeds = range(config.seed, config.seed + config.seeds)
        for seed in cli.ProgressBar(seeds, desc=name, unit=" loops", mininterval=0.1):
            rng = np.random.default_rng(seed)
            x0, problem, us = self.task.start(rng)
            robot = wrong_masses(nominal, config.mass_error, rng) if config.mass_error else nominal
            plant = drive(plant_of(config.engine, robot, config.timestep), self.task.actuation)
            controller = eqx.tree_at(lambda m: m.problem, mpc, problem)
            plan = controller.start(x0, us, key=jax.random.key(seed))
            loop = trajopt.closed_loop(controller, plant, x0, steps, plan=plan)
            self.runs.append(loop)
            t = config.timestep * np.arange(steps + 1)
            self.errors.append(self.task.error(problem, loop.xs, t)[-last:])

    @property
    def success(self) -> np.ndarray:
        """For each seed: whether the whole last second is within the tolerance."""
        return np.array([e.max() < self.task.tolerance for e in self.errors])

    def summary(self) -> dict[str, Any]:
        """Return the success, errors and latencies over all loops."""
        seconds = np.concatenate([run.latency.seconds for run in self.runs])
        final = np.array([np.sqrt(np.mean(e**2)) for e in self.errors])
        return {
            "success": int(self.success.sum()),
            "of": len(self.runs),
            "error_rms_median": float(np.median(final)),
            "error_rms_largest": float(final.max()),
            "iterations_mean": float(np.mean([run.iterations.mean() for run in self.runs])),
            "latency_p50": float(np.percentile(seconds, 50)),
            "latency_p99": float(np.percentile(seconds, 99)),
            "compilations": int(sum(run.compilations for run in self.runs)),
            "diverged_steps": int(sum((run.status == 3).sum() for run in self.runs)),
        }


def run(config: Config) -> dict[str, Any]:
    """Run the loops, print, and write `<results>/<name>/`; returns the content of `summary.json`."""
    cli.require_positive_keys(config, "duration", "timestep", "horizon", "iterations", "seeds")
    if config.payload and config.task == "cartpole":
        raise DataError("a payload is for the arm: take task arm or follow")
    nominal = CONTROL_TASKS[config.task][1]()
    out: dict[str, Any] = {"config": dataclasses.asdict(config)}
    if config.payload:
        robot = with_cube(nominal, config.payload)
        cli.announce("recording motions with and without the payload, and identifying it")
        payload = identify_payload(nominal, robot, config.engine, config.seed)
        print(payload.report)
        out["payload"] = payload.numbers
        models = {"without the payload": nominal, "identified": payload.model, "true payload": robot}
    else:
        robot, models = nominal, {"nominal": nominal}
    every = [Loops(config, name, model, robot) for name, model in models.items()]
    for loops in every:
        cli.announce(f"{loops.name}: compiling, and closing the loop from {config.seeds} starts")
        s = out[loops.name] = loops.summary()
        unit = loops.task.unit
        print(
            f"{loops.name}: {s['success']} of {s['of']} within {loops.task.tolerance:g} {unit} for the last second; "
            f"error there {s['error_rms_median']:.2e} {unit} (median), {s['error_rms_largest']:.2e} (largest)\n"
            f"  {s['iterations_mean']:.1f} iterations a step; latency p50 {1e3 * s['latency_p50']:.2f} ms, "
            f"p99 {1e3 * s['latency_p99']:.2f} ms; {s['compilations']} compilations after the first step"
        )
    folder = config.make_folder()
    cli.write_json(folder / "summary.json", out, announce=True)
    shown = every[min(1, len(every) - 1)]
    first: trajopt.ClosedLoop = shown.runs[0]
    arrays = {"t": config.timestep * np.arange(len(first.xs)), "xs": first.xs, "us": first.us}
    _job_files.write_npz(folder / "trajectory.npz", arrays)
    dynamics = shown.task.problem.dynamics
    assert isinstance(dynamics, trajopt.ModelDynamics)
    if config.plot:
        title = f"{config.name}: the first of {config.seeds} loops, {shown.name}"
        draw_motion(folder / "motion.png", title, dynamics, first.xs, first.us)
        draw_loops(folder / "loops.png", config, every)
    if config.animation:
        film_motion(folder / "motion.gif", dynamics, first.xs)
    return out


def draw_loops(path: Path, config: Config, every: Sequence[Loops]) -> None:
    """Draw the errors of all seeds in the last second, and the latencies of all steps."""
    plt = cli.pyplot()
    if plt is None:
        return
    fig, axes = plt.subplots(1, 2, figsize=(11, 4))
    for loops in every:
        largest = np.sort([e.max() for e in loops.errors])
        axes[0].plot(np.arange(1, len(largest) + 1), largest, "o-", ms=3, label=loops.name)
        seconds = np.sort(np.concatenate([run.latency.seconds for run in loops.runs]))
        axes[1].plot(1e3 * seconds, np.arange(1, len(seconds) + 1) / len(seconds), label=loops.name)
    axes[0].axhline(every[0].task.tolerance, color="0.6", ls="--", lw=0.8)
    axes[0].set(yscale="log", xlabel="loops, sorted", ylabel=f"largest error of the last second, {every[0].task.unit}")
    axes[1].set(xscale="log", xlabel="latency of a step, ms", ylabel="part of the steps")
    axes[0].legend(fontsize=8)
    fig.suptitle(config.name)
    fig.tight_layout()
    cli.save_figure(path, fig)


main = experiment("control", Config, run, DEFAULT_CONFIG, __doc__)

if __name__ == "__main__":
    sys.exit(main())
