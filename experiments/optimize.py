"""Find the motion of a robot: swing-ups, an arm that reaches past an obstacle, a quadrotor.

    python -m experiments.optimize [CONFIG] [--key value ...]

The same problem is solved by differential dynamic programming or by samples. Writes the trajectory, a plot and an
animation.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from experiments._config import parse_arguments
from experiments._files import write_durably, write_json, write_npz
from experiments._motion_pictures import animate, draw_trajectory
from experiments._motion_tasks import task_of
from jaxdyn import DataError, JaxdynError
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

DEFAULT_CONFIG = Path(__file__).parent.parent / "configs" / "optimize_pendulum.toml"


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiment; the exit code is 2 for a mistake in what was given, with a message on stderr."""
    # An application may choose: hard constraints and swing-ups want the digits.
    jax.config.update("jax_enable_x64", True)
    try:
        arguments = sys.argv[1:] if arguments is None else arguments
        program = "python -m experiments.optimize"
        run(parse_arguments(Config, arguments, DEFAULT_CONFIG, program, (__doc__ or "").splitlines()[0]))
    except (JaxdynError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


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


if __name__ == "__main__":
    sys.exit(main())
