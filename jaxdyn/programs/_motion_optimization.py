"""Motions of robots by differential dynamic programming or by samples: trajectory, plot and animation."""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Literal

import jax
import numpy as np

from jaxdyn import trajopt
from jaxdyn.programs._application import require_positive_keys
from jaxdyn.programs._config import ProgramConfig
from jaxdyn.programs._files import write_json, write_npz
from jaxdyn.programs._motion_tasks import motion_task
from jaxdyn.programs._pictures import animate, draw_trajectory

_SAMPLING: dict[str, tuple[Any, Any]] = {
    "mppi": (trajopt.mppi, trajopt.MPPIOptions),
    "cem": (trajopt.cem, trajopt.CEMOptions),
    "predictive_sampling": (trajopt.predictive_sampling, trajopt.PredictiveSamplingOptions),
}


@dataclasses.dataclass(frozen=True)
class OptimizeConfig(ProgramConfig):
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


def optimize(config: OptimizeConfig) -> dict[str, Any]:
    """Solve, print, and write `<results>/<name>/`; returns the content of `summary.json`."""
    require_positive_keys(config, "iterations")
    task = motion_task(config.task, config.horizon)
    seconds = []
    for _ in range(2):
        # The first solve compiles.
        began = time.perf_counter()
        solution = jax.block_until_ready(_solve(config, task.problem, task.us))
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
    write_npz(folder / "trajectory.npz", {"t": dt * np.arange(len(xs)), "xs": xs, "us": us})
    write_json(folder / "summary.json", out)
    print(f"wrote {folder / 'trajectory.npz'}")
    if config.plot:
        title = f"{config.name}: cost {out['cost']:.4g}, {out['status'].lower().replace('_', ' ')}"
        draw_trajectory(folder / "motion.png", title, dynamics.model, task.figure, dt, xs, us)
    if config.animation:
        animate(folder / "motion.gif", dynamics.model, task.figure, dt, xs)
    return out


def _solve(config: OptimizeConfig, problem: trajopt.Problem, us) -> trajopt.Solution:
    if config.solver == "ddp":
        return trajopt.ddp(problem, us, options=trajopt.DDPOptions(max_iterations=config.iterations))
    solver, options = _SAMPLING[config.solver]
    options = options(max_iterations=config.iterations, samples=config.samples, knots=config.knots)
    return solver(problem, us, key=jax.random.key(config.seed), options=options)
