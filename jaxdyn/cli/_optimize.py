"""`jaxdyn optimize`: the motion of a robot, by differential dynamic programming or by samples.

Writes the trajectory, a plot and an animation.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from jaxdyn._errors import DataError
from jaxdyn.programs._application import double_precision, print_json
from jaxdyn.programs._config import parse_command
from jaxdyn.programs._files import write_durably, write_json, write_npz
from jaxdyn.programs._motion_pictures import animate, draw_trajectory
from jaxdyn.programs._motion_tasks import task_of
from jaxdyn.trajopt import (
    CEMOptions,
    DDPOptions,
    ModelDynamics,
    MPPIOptions,
    PredictiveSamplingOptions,
    Problem,
    Solution,
    Status,
    cem,
    ddp,
    mppi,
    predictive_sampling,
)

HELP = """Find the motion of a robot: swing-ups, an arm that reaches past an obstacle, a quadrotor.

The same problem is solved by differential dynamic programming or by samples. Writes trajectory.npz, summary.json,
motion.png and motion.gif into RESULTS/NAME."""
EXAMPLES = """
  jaxdyn optimize --name swing-up --task pendulum
  jaxdyn optimize --name flight --task quadrotor --no-animation --json
  jaxdyn optimize --name sampled --task pendulum --solver mppi --samples 512

  The same in a file, motion.toml, whose keys are the options:
    name = "reach"
    task = "arm"
    horizon = 100

    jaxdyn optimize motion.toml --iterations 500"""


@dataclasses.dataclass(frozen=True)
class Config:
    """Keys of the configuration file."""

    name: str
    """Of the folder below `results` that is written."""
    task: str
    """`pendulum`, `cartpole`, `acrobot`, `arm` or `quadrotor`."""
    solver: Literal["ddp", "mppi", "cem", "predictive_sampling"] = "ddp"
    horizon: int = 100
    """Number of controls; the duration is the task's."""
    iterations: int = 300
    """At most."""
    samples: int = 256
    """Trajectories in an iteration of a solver by samples."""
    knots: int = 20
    """Of the splines of controls that those solvers draw."""
    seed: int = 0
    """Of their random numbers."""
    results: str = "results"
    """Directory of the results."""
    plot: bool = True
    """Whether to draw motion.png."""
    animation: bool = True
    """Whether to draw motion.gif."""


def main(arguments: Sequence[str]) -> None:
    """The command with its arguments."""
    # Hard constraints and swing-ups want the digits.
    double_precision()
    config, wants_json = parse_command(Config, arguments, "jaxdyn optimize", HELP, EXAMPLES)
    if wants_json:
        print_json(lambda: {"folder": str(Path(config.results) / config.name), **run(config)})
    else:
        run(config)


def run(config: Config) -> dict[str, Any]:
    """Solve, print, and write `<results>/<name>/`; returns what `summary.json` holds."""
    if config.iterations < 1:
        raise DataError(f"iterations is {config.iterations}, but it must be positive")
    task = task_of(config.task, config.horizon)
    seconds = []
    for _ in range(2):
        # The first solve compiles.
        began = time.perf_counter()
        solution = jax.block_until_ready(solve(config, task.problem, task.us))
        seconds.append(time.perf_counter() - began)
    xs, us = np.asarray(solution.xs), np.asarray(solution.us)
    dynamics = task.problem.dynamics
    assert isinstance(dynamics, ModelDynamics)
    dt = float(dynamics.dt)
    out = {
        "config": dataclasses.asdict(config),
        "status": Status(int(solution.status)).name,
        "cost": float(solution.cost),
        "iterations": int(solution.iterations),
        "violation": float(solution.residuals.violation),
        "gap": float(solution.residuals.gap),
        "error_at_the_end": task.error(xs[-1]),
    }
    print(
        f"{config.task}, {config.solver}: {solution.message}\ncost {out['cost']:.6g} after {out['iterations']} "
        f"iterations, {seconds[1]:.2f} s (and {seconds[0] - seconds[1]:.1f} s of compilation)\n"
        f"violation of constraints {out['violation']:.1e}, gaps {out['gap']:.1e}; "
        f"at the end {out['error_at_the_end']:.2e} {task.unit} from the goal"
    )
    folder = Path(config.results) / config.name
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {"t": dt * np.arange(len(xs)), "xs": xs, "us": us}
    write_durably(folder / "trajectory.npz", lambda path: write_npz(path, arrays))
    write_json(folder / "summary.json", out)
    print(f"wrote {folder / 'trajectory.npz'}")
    if config.plot:
        title = f"{config.name}: cost {out['cost']:.4g}, {out['status'].lower().replace('_', ' ')}"
        draw_trajectory(folder / "motion.png", title, dynamics.model, task.drawing, dt, xs, us)
    if config.animation:
        animate(folder / "motion.gif", dynamics.model, task.drawing, dt, xs)
    return out


def solve(config: Config, problem: Problem, us) -> Solution:
    key = jax.random.key(config.seed)
    common: dict[str, Any] = {"samples": config.samples, "knots": config.knots}
    if config.solver == "mppi":
        return mppi(problem, us, key=key, options=MPPIOptions(iterations=config.iterations, **common))
    if config.solver == "cem":
        return cem(problem, us, key=key, options=CEMOptions(iterations=config.iterations, **common))
    if config.solver == "predictive_sampling":
        options = PredictiveSamplingOptions(iterations=config.iterations, **common)
        return predictive_sampling(problem, us, key=key, options=options)
    return ddp(problem, us, options=DDPOptions(max_iterations=config.iterations))
