"""Find the motion of a robot: swing-ups, an arm that reaches past an obstacle, a quadrotor.

    python -m experiments.optimize [CONFIG] [--key value ...]

The problem is solved by differential dynamic programming or by samples.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from typing import Any, Literal

import jax
import numpy as np

from experiments import _job_files
from experiments._main import CONFIGS, experiment
from experiments._motion_pictures import draw_motion, film_motion
from experiments._motion_tasks import motion_task, solver_options
from jaxdyn import cli, trajopt

DEFAULT_CONFIG = CONFIGS / "optimize_pendulum.toml"


@dataclasses.dataclass(frozen=True)
class Config(cli.ProgramConfig):
    """Keys of the configuration file."""

    task: str
    """`pendulum`, `cartpole`, `acrobot`, `arm` or `quadrotor`."""
    solver: Literal["ddp", "mppi", "cem", "predictive_sampling"] = "ddp"
    horizon: int = 100
    """Number of controls in the duration of the task."""
    iterations: int = 300
    """Largest number of iterations."""
    samples: int = 256
    """Trajectories in an iteration of a sampling solver."""
    knots: int = 20
    """Knots of the splines of controls that sampling solvers draw."""
    seed: int = 0
    """Seed of their random numbers."""
    plot: bool = True
    """Whether to draw motion.png."""
    animation: bool = True
    """Whether to draw motion.gif."""


def run(config: Config) -> dict[str, Any]:
    """Solve, print, and write `<results>/<name>/`; returns the content of `summary.json`."""
    cli.require_positive_keys(config, "iterations", "horizon", "samples", "knots")
    task = motion_task(config.task, config.horizon)
    settings: dict[str, Any] = {
        "options": solver_options(config.solver, config.iterations, config.samples, config.knots)
    }
    if config.solver != "ddp":
        settings["key"] = jax.random.key(config.seed)
    seconds = []
    for note in ("compiling and solving", "solving again, to time it without compilation"):
        cli.announce(f"{config.task}, {config.solver}: {note}")
        began = time.perf_counter()
        solution = jax.block_until_ready(getattr(trajopt, config.solver)(task.problem, task.us, **settings))
        seconds.append(time.perf_counter() - began)
    xs, us = np.asarray(solution.xs), np.asarray(solution.us)
    dynamics = task.problem.dynamics
    assert isinstance(dynamics, trajopt.ModelDynamics)
    dt = float(dynamics.dt)
    out = {
        "config": dataclasses.asdict(config),
        "status": trajopt.Status(int(solution.status)).name,
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
    folder = config.make_folder()
    _job_files.write_npz(folder / "trajectory.npz", {"t": dt * np.arange(len(xs)), "xs": xs, "us": us}, announce=True)
    cli.write_json(folder / "summary.json", out)
    if config.plot:
        title = f"{config.name}: cost {out['cost']:.4g}, {out['status'].lower().replace('_', ' ')}"
        draw_motion(folder / "motion.png", title, dynamics, xs, us)
    if config.animation:
        film_motion(folder / "motion.gif", dynamics, xs, task.world)
    return out


main = experiment("optimize", Config, run, DEFAULT_CONFIG, __doc__)

if __name__ == "__main__":
    sys.exit(main())
