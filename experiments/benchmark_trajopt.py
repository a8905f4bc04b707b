"""Time trajectory optimization of a robot beside Crocoddyl: iterations, one problem and many, on one core, in one run.

    python -m experiments.benchmark_trajopt [CONFIG] [--key value ...]
    python -m experiments.benchmark_trajopt configs/benchmark_trajopt_gaits.toml --crocoddyl PYTHON

A frame of the robot, which may have a free base, reaches for a pose. The running cost is quadratic in pose, state and
control, the terminal cost in the pose, as in Crocoddyl's examples of manipulators. Both libraries read the same file,
minimize the same cost from the same guess (the costs of their solutions are printed), and take turns. With `rk4`,
Crocoddyl integrates the running cost by the same method, so that costs differ a little. Without Crocoddyl (`pip install
crocoddyl`) only this library is timed.

With `gaits`, the problems are Crocoddyl's examples of legged robots instead, transcribed from the numbers that they
have in another Python, `crocoddyl`, where Crocoddyl and example-robot-data are installed: the same contacts, impacts,
costs and guess.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from experiments._benchmark_models import FILES as ROBOTS
from experiments._benchmark_models import RobotError, model_of
from experiments._benchmark_options import processor_core
from experiments._benchmark_report import conditions, table
from experiments._main import CONFIGS, experiment
from experiments._optimal_control import Gait, gait_of
from experiments._timing import time_compilation
from jaxdyn import DataError, Model, cli, frame_pose, load_urdf, to_urdf
from jaxdyn.spatial import SE3
from jaxdyn.trajopt import (
    ControlResidual,
    DDPOptions,
    FramePoseResidual,
    ModelDynamics,
    Problem,
    QuadraticCost,
    StateResidual,
    ddp,
)

DEFAULT_CONFIG = CONFIGS / "benchmark_trajopt.toml"
_POSE, _STATE, _CONTROL, _END = 1.0, 0.1, 0.1, 1e3


@dataclasses.dataclass(frozen=True)
class Config(cli.ProgramConfig):
    """Keys of the configuration file."""

    robot: str = "panda"
    """panda, ur5, or with a free base hector, solo12 or talos_reduced (of example-robot-data), or the path of a URDF
    file with a fixed base."""
    frame: str = "panda_link8"
    """The frame that reaches the goal."""
    goal: tuple[float, float, float] = (0.4, 0.2, 0.4)
    """Position of the goal, m. The frame has the goal's rotation in the middle between the joints' limits."""
    horizon: int = 100
    dt: float = 0.01
    """Time step, s."""
    integrator: Literal["semi_implicit_euler", "rk4"] = "semi_implicit_euler"
    batch: int = 64
    """Number of problems at once, from slightly different starts."""
    spread: float = 0.1
    """Standard deviation of their positions, rad, and m for a free base."""
    iterations: int = 20
    """Largest number of iterations of a problem, as in model predictive control. A batch runs until its last problem
    has ended."""
    rounds: int = 5
    """Number of rounds, in each of which both libraries have their turn; the median counts."""
    gaits: tuple[str, ...] = ()
    """Crocoddyl's examples in place of a goal: a robot and a gait each, such as "anymal trotting"."""
    crocoddyl: str = "python"
    """The Python that has Crocoddyl for these."""
    core: int = -1
    """Processor core of all measurements; -1 for the last one that this process may use."""
    seed: int = 0


def run(config: Config) -> dict[str, Any]:
    """Measure, print, and write `<results>/<name>/summary.json`; returns its content."""
    cli.require_positive_keys(config, "horizon", "dt", "batch", "iterations", "rounds")
    core, allowed = processor_core(config.core), os.sched_getaffinity(0)
    if config.gaits:
        os.sched_setaffinity(0, {core})
        try:
            out = {"config": dataclasses.asdict(config), **conditions(core), "measurements": measure_gaits(config)}
        finally:
            os.sched_setaffinity(0, allowed)
        return _written(config, out)
    model = robot(config)
    rng = np.random.default_rng(config.seed)
    moves = config.spread * rng.normal(size=(config.batch - 1, model.nv))
    starts = np.zeros((config.batch, model.nq + model.nv))
    starts[:, : model.nq] = middle(model)
    starts[1:, : model.nq] = model.integrate(jnp.asarray(starts[1:, : model.nq]), jnp.asarray(moves))
    os.sched_setaffinity(0, {core})
    try:
        out = measure(config, model, starts, core)
    finally:
        os.sched_setaffinity(0, allowed)
    return _written(config, out)


def _written(config: Config, out: dict[str, Any]) -> dict[str, Any]:
    """Write the results into their folder, and return them."""
    folder = config.make_folder()
    with cli.alone_in(folder):
        cli.write_json(folder / "summary.json", out, announce=True)
    return out


def robot(config: Config) -> Model:
    """Load the robot. **Raises** `DataError` for a robot with ball joints, or free ones behind the base."""
    model = model_of(config.robot) if config.robot in ROBOTS else load_urdf(cli.data_path(config.robot))
    if model.nq != model.nv + has_free_base(model):
        raise DataError(
            f"{config.robot} has nq = {model.nq} and nv = {model.nv}; a robot is needed whose joints have one degree "
            "of freedom each, but for a free base"
        )
    # Crocoddyl's free forward dynamics have no friction.
    return model.with_joint_friction(damping=0.0, friction=0.0)


def has_free_base(model: Model) -> bool:
    """Tell whether the first joint is free."""
    return model.topology.joint_types[0] == "free"


def middle(model: Model) -> np.ndarray:
    """Return the middle between the limits of positions, the neutral position of joints without limits."""
    low, high = np.asarray(model.position_lower), np.asarray(model.position_upper)
    return np.where(np.isfinite(low) & np.isfinite(high), (low + high) / 2, model.neutral())


def goal_of(config: Config, model: Model) -> SE3:
    """Return the goal: the configured position with the rotation of the frame in the middle posture."""
    return SE3(frame_pose(model, jnp.asarray(middle(model)), config.frame).rotation, jnp.array(config.goal))


def problem_of(config: Config, model: Model, x0: np.ndarray) -> Problem:
    """Return the problem from the state `x0`."""
    goal = FramePoseResidual(config.frame, goal_of(config, model))
    dt = config.dt
    return Problem(
        ModelDynamics(model, dt, integrator=config.integrator),
        x0,
        config.horizon,
        stage_costs=[
            QuadraticCost(goal, _POSE * dt),
            QuadraticCost(StateResidual(x0), _STATE * dt),
            QuadraticCost(ControlResidual(), _CONTROL * dt),
        ],
        terminal_costs=[QuadraticCost(goal, _END)],
    )


class Ours:
    """This library's solver, compiled for one problem and for all of them, in one precision."""

    def __init__(self, config: Config, model: Model, starts: np.ndarray, dtype):
        problem = problem_of(config, model, starts[0])
        problem = jax.tree.map(lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, problem)

        options = DDPOptions(max_iterations=config.iterations)

        def solve(problem: Problem, x0):
            guess = jnp.broadcast_to(x0, (config.horizon + 1, x0.shape[0]))
            us = jnp.zeros((config.horizon, model.nv), x0.dtype)
            return ddp(problem.starting_at(x0), us, guess, options=options)

        self.arguments = {
            1: (problem, jnp.asarray(starts[0], dtype)),
            len(starts): (problem, jnp.asarray(starts, dtype)),
        }
        self.compiled = {
            n: time_compilation(solve if x0.ndim == 1 else jax.vmap(solve, (None, 0)), (p, x0), time.process_time)
            for n, (p, x0) in self.arguments.items()
        }
        self.seconds = {n: {"trace_and_lower_s": x.trace_s, "compile_s": x.compile_s} for n, x in self.compiled.items()}

    def __call__(self, n: int) -> dict[str, Any]:
        s = jax.block_until_ready(self.compiled[n].call(*self.arguments[n]))
        return {
            "iterations": int(np.sum(s.iterations)),
            "cost": np.atleast_1d(np.asarray(s.cost)).tolist(),
            "solved": int(np.sum(s.success)),
        }


class Crocoddyl:
    """Crocoddyl's FDDP on one problem after the other."""

    def __init__(self, config: Config, model: Model, starts: np.ndarray):
        import crocoddyl  # pyright: ignore[reportMissingImports]
        import pinocchio

        pin: Any = pinocchio

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "robot.urdf"
            path.write_text(to_urdf(model), encoding="utf-8")
            free = [pin.JointModelFreeFlyer()] if has_free_base(model) else []
            robot = pin.buildModelFromUrdf(str(path), *free)
        if free:
            # Pinocchio's quaternions are x y z w.
            starts = starts[:, [0, 1, 2, 4, 5, 6, 3, *range(7, starts.shape[1])]]
        robot.gravity.linear = np.asarray(model.gravity)
        state = crocoddyl.StateMultibody(robot)
        actuation = crocoddyl.ActuationModelFull(state)
        pose = goal_of(config, model)
        goal = pin.SE3(np.asarray(pose.rotation), np.array(config.goal))
        frame = robot.getFrameId(config.frame)

        def costs(end: bool):
            out = crocoddyl.CostModelSum(state)
            pose = crocoddyl.ResidualModelFramePlacement(state, frame, goal)
            out.addCost("pose", crocoddyl.CostModelResidual(state, pose), _END if end else _POSE)
            if not end:
                of_state = crocoddyl.ResidualModelState(state, starts[0], robot.nv)
                out.addCost("state", crocoddyl.CostModelResidual(state, of_state), _STATE)
                control = crocoddyl.ResidualModelControl(state)
                out.addCost("control", crocoddyl.CostModelResidual(state, control), _CONTROL)
            return out

        def action(end: bool, dt: float):
            rate = crocoddyl.DifferentialActionModelFreeFwdDynamics(state, actuation, costs(end))
            if config.integrator == "rk4":
                return crocoddyl.IntegratedActionModelRK(rate, crocoddyl.RKType.four, dt)
            return crocoddyl.IntegratedActionModelEuler(rate, dt)

        self.config, self.starts, self.nu = config, starts, robot.nv
        self.solvers = []
        running, end = action(False, config.dt), action(True, 0.0)
        for x0 in starts:
            shooting = crocoddyl.ShootingProblem(x0, [running] * config.horizon, end)
            self.solvers.append(crocoddyl.SolverFDDP(shooting))

    def __call__(self, n: int) -> dict[str, Any]:
        iterations, cost, solved = 0, [], 0
        for solver, x0 in zip(self.solvers[:n], self.starts[:n], strict=True):
            horizon, most = self.config.horizon, self.config.iterations
            guess = [x0] * (horizon + 1), [np.zeros(self.nu)] * horizon
            solved += solver.solve(*guess, most, False)
            # `iter` counts from zero, and is beyond the last where the solver has not converged.
            iterations += min(solver.iter + 1, most)
            cost.append(float(solver.cost))
        return {"iterations": iterations, "cost": cost, "solved": solved}


def measure(config: Config, model: Model, starts: np.ndarray, core: int) -> dict[str, Any]:
    """Time all solvers in turns, print the table, and return the conditions and measurements."""
    out: dict[str, Any] = {"config": dataclasses.asdict(config), **conditions(core), "measurements": []}
    solvers: dict[str, Any] = {}
    for precision in ("float64", "float32"):
        print(f"compiling in {precision}")
        solvers[f"jaxdyn {precision}"] = Ours(config, model, starts, precision)
    if importlib.util.find_spec("crocoddyl"):
        solvers["crocoddyl"] = Crocoddyl(config, model, starts)
    else:
        print("Crocoddyl is not installed (pip install crocoddyl): only this library is timed")
    for n in dict.fromkeys((1, len(starts))):
        seconds: dict[str, list[float]] = {name: [] for name in solvers}
        results: dict[str, dict] = {}
        # The first turn of each is not counted.
        turns = [(i, name, solve) for i in range(config.rounds + 1) for name, solve in solvers.items()]
        with cli.ProgressBar(turns, desc=f"{n} problem{'s' if n > 1 else ''}") as bar:
            for i, name, solve in bar:
                bar.set_postfix_str(name)
                began = time.process_time()
                results[name] = solve(n)
                if i:
                    seconds[name].append(time.process_time() - began)
        for name, values in seconds.items():
            median = statistics.median(values)
            entry = {
                "solver": name,
                "problems": n,
                "seconds": values,
                "ms_per_iteration": 1e3 * median / results[name]["iterations"],
                **results[name],
                **getattr(solvers[name], "seconds", {}).get(n, {}),
            }
            out["measurements"].append(entry)
    show(out["measurements"])
    return out


def measure_gaits(config: Config) -> list[dict[str, Any]]:
    """Solve Crocoddyl's examples by both libraries, print the table, and return the measurements."""
    entries: list[dict[str, Any]] = []
    for name in config.gaits:
        robot, _, kind = name.partition(" ")
        gait = gait_of(config.crocoddyl, robot, kind, config.iterations, config.rounds)
        peer = {**gait.peer["rounds"][-1], "seconds": [each["seconds"] for each in gait.peer["rounds"]]}
        entries += [_solved_gait(config, name, gait), {"solver": "crocoddyl", "gait": name, **peer}]
    rows = []
    for e in entries:
        solve, first = 1e3 * statistics.median(e["seconds"]), e.get("compile_s", 0.0) + e.get("trace_and_lower_s", 0.0)
        early = 1e3 * statistics.median(e.get("first_seconds", e["seconds"])) / e.get("first", e["iterations"])
        cells = [e["gait"], e["solver"], str(e["iterations"]), f"{e['cost']:.9g}", "yes" if e["solved"] else "no"]
        rows.append([*cells, f"{early:.1f}", f"{solve:.0f}", f"{first:.1f}" if first else ""])
    print("CPU time of one core; an iteration is one of the first five, or the mean of Crocoddyl's")
    header = "gait", "solver", "iterations", "cost", "solved", "ms an iteration", "ms in all", "compilation, s"
    print("\n".join(table(header, rows)))
    return entries


def _solved_gait(config: Config, name: str, gait: Gait) -> dict[str, Any]:
    """Time the solve of a gait, and its first five iterations, which have no second derivatives of the dynamics."""
    problem, first = gait.problem, min(5, config.iterations)
    xs = jnp.broadcast_to(problem.x0, (problem.horizon + 1, problem.dynamics.nx))

    def solve(problem: Problem, us, xs, count):
        return ddp(problem, us, xs, options=DDPOptions(max_iterations=count))

    arguments = problem, jnp.asarray(gait.us), xs, jnp.asarray(config.iterations)
    compiled = time_compilation(solve, arguments, time.process_time)
    seconds: dict[int, list[float]] = {}
    for count in (first, config.iterations):
        # The first turn is not counted.
        for turn in range(config.rounds + 1):
            began = time.process_time()
            found = jax.block_until_ready(compiled.call(*arguments[:-1], jnp.asarray(count)))
            if turn:
                seconds.setdefault(count, []).append(time.process_time() - began)
    return {
        "solver": "jaxdyn float64",
        "gait": name,
        "iterations": int(found.iterations),
        "cost": float(found.cost),
        "solved": bool(found.success),
        "seconds": seconds[config.iterations],
        "first": first,
        "first_seconds": seconds[first],
        "trace_and_lower_s": compiled.trace_s,
        "compile_s": compiled.compile_s,
    }


def show(entries: list[dict[str, Any]]) -> None:
    """Print the measurements as a table."""
    peers = {e["problems"]: e for e in entries if e["solver"] == "crocoddyl"}
    rows = []
    for e in entries:
        peer = peers.get(e["problems"])
        ratio = f"{e['ms_per_iteration'] / peer['ms_per_iteration']:.2f}" if peer else ""
        solve = statistics.median(e["seconds"])
        of_solve = f"{solve / statistics.median(peer['seconds']):.2f}" if peer else ""
        compilation = f"{e['trace_and_lower_s']:.1f} + {e['compile_s']:.1f}" if "compile_s" in e else ""
        mean = f"{np.mean(e['cost']):.6g}"
        solved = f"{e['solved']} of {e['problems']}"
        cells = [e["solver"], str(e["problems"]), f"{e['ms_per_iteration']:.3f}", ratio, f"{1e3 * solve:.2f}", of_solve]
        rows.append([*cells, str(e["iterations"]), solved, mean, compilation])
    header = "solver", "problems", "ms an iteration", "of Crocoddyl's", "ms in all", "of Crocoddyl's"
    header = *header, "iterations", "solved", "mean cost"
    print("CPU time of one core")
    print("\n".join(table((*header, "trace and lower + compile, s"), rows)))


main = experiment("benchmark_trajopt", Config, run, DEFAULT_CONFIG, __doc__, mistakes=(RobotError,))

if __name__ == "__main__":
    sys.exit(main())
