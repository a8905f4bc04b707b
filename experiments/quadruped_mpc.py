"""Model predictive control of a quadruped in MuJoCo by real-time iterations.

    python -m experiments.quadruped_mpc [CONFIG] [--key value ...]

Go2 trots, turns on the spot, and is pushed from random directions while it trots on the spot and while it stands, each
with its true state and with an estimate from an IMU and encoders. Prints what it withstood, how well it followed, and
how long a control takes.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from typing import Any, Literal

import jax
import numpy as np

from experiments._main import CONFIGS, experiment
from experiments._quadruped import (
    PERIOD,
    TIMESTEP,
    Controller,
    Estimator,
    Noise,
    Plant,
    SensedState,
    Trot,
    Weights,
    go2,
)
from jaxdyn import cli, trajopt
from jaxdyn.trajopt.mpc import count_compilations

DEFAULT_CONFIG = CONFIGS / "quadruped_mpc.toml"
STEPS_BEGIN = 0.15
"""Speed of a standing robot from which on it steps, m/s."""
AT_REST = 0.1
"""Speed below which a robot has withstood a push, m/s, on average over `LAST`."""
LAST = 0.5
"""s."""
SETTLING = 1.0
"""Time from which on speeds count, s."""
PUSHES = 0.7, 1.2
"""Earliest and latest time of a push, s."""
AFTER_PUSH = 1.2
"""Time that a robot has after the latest push, s."""


@dataclasses.dataclass(frozen=True)
class Config(cli.ProgramConfig):
    """Keys of the configuration file."""

    timestep: float
    """Length of a stage, and period of the controller, s."""
    horizon: int
    """Number of stages."""
    swing: int
    """Number of stages of a swing."""
    stance: int
    """Number of stages between two swings."""
    lift: float
    """Height of a swinging foot, m."""
    friction: float
    """Coefficient of the cones in which forces are kept."""
    speed: float
    """Commanded speed of the trot, m/s."""
    distance: float
    """Distance of the trot, m."""
    yaw_rate: float
    """Commanded rate of the turn, rad/s."""
    push: float
    """Change of the base's velocity by a push, m/s."""
    state: Literal["true", "estimated", "both"] = "both"
    """State that the controller sees."""
    seeds: int = 20
    """Number of pushes, of each kind and with each state."""
    seed: int = 0
    """Seed of the first."""


@dataclasses.dataclass(frozen=True)
class Run:
    """The record of a loop: a row for each control."""

    xs: np.ndarray
    """True states before controls."""
    errors: np.ndarray
    """See `SensedState.errors`."""
    prepare: np.ndarray
    """s."""
    feedback: np.ndarray
    """s."""
    fallen: bool


class Loop:
    """The controller, the plant and the estimator."""

    def __init__(self, config: Config, noise: Noise | None = None):
        self.config, self.noise, model = config, noise or Noise(), go2()
        gait = Trot(config.swing, config.stance, config.lift)
        self.controller = Controller(model, config.timestep, config.horizon, gait, Weights(), config.friction)
        self.plant, self.substeps = Plant(model), round(config.timestep / TIMESTEP)
        self.estimator = Estimator(model, TIMESTEP * PERIOD, self.noise)

    def run(
        self,
        duration: float,
        command: tuple[float, float, float] = (0.0, 0.0, 0.0),
        *,
        trots: bool = True,
        estimated: bool = False,
        push: tuple[float, np.ndarray] | None = None,
        seed: int = 0,
    ) -> Run:
        """Close the loop for a commanded velocity. `push`: its time, s, and the change of velocity, m/s."""
        controller, plant, mpc = self.controller, self.plant, self.controller.mpc
        plant.reset()
        sensed = SensedState(plant, self.estimator if estimated else None, self.noise, seed)
        plan, gait, rows, moves = controller.start, controller.gait, [], trots
        gait.begins, seen = 5, sensed.x
        for k in range(round(duration / self.config.timestep)):
            # What is prepared knows of the state at the last control only.
            if not moves and np.hypot(*seen[19:21]) > STEPS_BEGIN:
                moves, gait.begins = True, k + 1
            began = time.perf_counter()
            problem = controller.problem_at(k, seen, np.asarray(command), moves)
            prepared = jax.block_until_ready(mpc.prepare(plan, problem))
            ready = time.perf_counter()
            seen = sensed.x
            u, plan, solution = mpc.feedback(prepared, seen)
            u = np.asarray(u)
            sent = time.perf_counter()
            rows.append((plant.state, sensed.errors, ready - began, sent - ready))
            # A foot that has just landed may bounce.
            sensed.holds = gait.rows(np.array([k - 1, k]), moves)[0].all(axis=0)
            for i in range(self.substeps):
                u = u if i == 0 else np.asarray(mpc.track(solution, sensed.x, TIMESTEP * i))
                now = push is not None and k * self.substeps + i == round(push[0] / TIMESTEP)
                sensed.step(u, push[1] if push is not None and now else None)
            if plant.fallen:
                break
        xs, errors, prepare, feedback = map(np.array, zip(*rows, strict=True))
        return Run(xs, errors, prepare, feedback, plant.fallen)


def withstands(config: Config, run: Run) -> bool:
    """Tell whether a robot is at rest at the end."""
    last = run.xs[-round(LAST / config.timestep) :, 19:21]
    return not run.fallen and bool(np.hypot(*last.mean(axis=0)) < AT_REST)


def speeds(config: Config, run: Run) -> tuple[float, float]:
    """Return the mean speed along the ground and the mean yaw rate, from start to end after `SETTLING`."""
    xs = run.xs[round(SETTLING / config.timestep) :]
    if len(xs) < 2:
        return np.nan, np.nan
    duration = config.timestep * (len(xs) - 1)
    w, x, y, z = xs[:, 3:7].T
    yaw = np.unwrap(np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z)))
    return float(np.hypot(*(xs[-1, :2] - xs[0, :2])) / duration), float((yaw[-1] - yaw[0]) / duration)


def run(config: Config) -> dict[str, Any]:
    """Run all loops, print, and write `summary.json`; returns its content."""
    cli.require_positive_keys(config, "timestep", "horizon", "swing", "seeds", "speed", "distance")
    loop, out = Loop(config), {"config": dataclasses.asdict(config)}
    for state in ("true", "estimated"):
        if config.state in (state, "both"):
            cli.announce(f"closing loops with the {state} state")
            out[state] = judge(loop, state == "estimated")
            print(json.dumps(out[state]))
    print(table(config, out))
    cli.write_json(config.make_folder() / "summary.json", out, announce=True)
    return out


def judge(loop: Loop, estimated: bool) -> dict[str, Any]:
    """Return the results of all loops with one state."""
    config, runs = loop.config, []
    loop.run(3 * config.timestep, estimated=estimated)
    with count_compilations() as compiled:
        trot = loop.run(SETTLING + config.distance / config.speed, (config.speed, 0.0, 0.0), estimated=estimated)
        turn = loop.run(4.0, (0.0, 0.0, config.yaw_rate), estimated=estimated)
        result: dict[str, Any] = {"speed": speeds(config, trot)[0], "yaw_rate": speeds(config, turn)[1]}
        result["fallen"] = trot.fallen or turn.fallen
        print(result, flush=True)
        for kind, trots in (("pushes_in_trot", True), ("pushes_of_stand", False)):
            seeds = cli.ProgressBar(range(config.seed, config.seed + config.seeds), desc=kind, unit=" pushes")
            pushed = [push_once(loop, seed, trots, estimated) for seed in seeds]
            result[kind] = sum(withstands(config, r) for r in pushed)
            print(kind, result[kind], [withstands(config, r) for r in pushed], flush=True)
            runs += pushed
    for name in ("prepare", "feedback"):
        result[name] = str(trajopt.Latency(np.concatenate([getattr(r, name) for r in (*runs, trot, turn)])))
    result["compilations"] = len(compiled)
    errors = np.concatenate([r.errors[:, 1:4] for r in (trot, turn)])
    return result | {"velocity_error": float(np.sqrt(np.mean(errors**2)))}


def push_once(loop: Loop, seed: int, trots: bool, estimated: bool) -> Run:
    """Return the run with the push of a seed."""
    rng = np.random.default_rng(seed)
    when, angle = rng.uniform(*PUSHES), rng.uniform(0, 2 * np.pi)
    push = loop.config.push * np.array([np.cos(angle), np.sin(angle), 0.0])
    return loop.run(PUSHES[1] + AFTER_PUSH, trots=trots, estimated=estimated, push=(when, push), seed=seed)


def table(config: Config, out: dict[str, Any]) -> str:
    """Return the results as a table."""
    push, of = f"pushes of {config.push:g} m/s", f" of {config.seeds}"
    lines = {
        f"{push} in the trot": lambda r: f"{r['pushes_in_trot']}{of}",
        f"{push} of a standing robot": lambda r: f"{r['pushes_of_stand']}{of}",
        f"speed over {config.distance:g} m, commanded {config.speed:g} m/s": lambda r: f"{r['speed']:.3f} m/s",
        f"yaw rate, commanded {config.yaw_rate:g} rad/s": lambda r: f"{r['yaw_rate']:.3f} rad/s",
        "error of the velocity, RMS": lambda r: f"{r['velocity_error']:.3f} m/s",
        "preparation": lambda r: r["prepare"],
        "feedback": lambda r: r["feedback"],
        "compilations after the first controls": lambda r: str(r["compilations"]),
    }
    states = [state for state in ("true", "estimated") if state in out]
    rows = [f"| {name} | {' | '.join(show(out[state]) for state in states)} |" for name, show in lines.items()]
    heads = [f"| | {' | '.join(f'{state} state' for state in states)} |", "|---" * (1 + len(states)) + "|"]
    return "\n".join([*heads, *rows])


main = experiment("quadruped_mpc", Config, run, DEFAULT_CONFIG, __doc__)

if __name__ == "__main__":
    sys.exit(main())
