"""Identify many robots at once, each from its recording, by one program over all of them.

    python -m experiments.identify_fleet [CONFIG] [--key value ...]

The links and the friction of every robot differ from the drawing; its recording is simulated, with noise. All fits
start from the drawing. Prints how many robots are identified in a second, and the errors of their parameters.

Robots are identified in blocks. `BLOCK` below lists the arrays of a block's file; `manifest.json` in the folder says
how they were made. An interrupted run continues after the last block, and ends with the same bytes as an uninterrupted
one. Several processes, on one or many hosts, may share the work: `--processes.count`, `--processes.id`.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from experiments._job_files import digest_of_arrays, read_npz
from experiments._main import CONFIGS, experiment
from experiments._resuming import Pieces, Processes, arrays_by_path, require_seed
from jaxdyn import DataError, Model, State, Status, rollout
from jaxdyn._errors import require_choice
from jaxdyn.cli import SAMPLES, ProgramConfig, ProgressBar, announce, load_robot, require_positive_keys, write_json
from jaxdyn.sysid import FleetFit, InertiaScale, Parametrization, Positive, RolloutFitOptions, fit_fleet

DEFAULT_CONFIG = CONFIGS / "identify_fleet.toml"
FORMAT = 1
BLOCK = {
    "robot": "[robots], number of each robot in the fleet",
    "true": "[robots, parameters], free numbers of the robots that were simulated; the drawing has zeros",
    "free": "[robots, parameters], those that were identified",
    "cost": "[robots], half of the sums of squares",
    "status": "[robots], integers of jaxdyn.Status",
    "iterations": "[robots]",
}


@dataclasses.dataclass(frozen=True)
class Config(ProgramConfig):
    """Keys of the configuration file."""

    robot: str
    """A sample robot: acrobot, arm, cartpole, double_pendulum, pendulum."""
    robots: int
    duration: float
    """Duration of each recording, s."""
    rate: float
    """Samples per second."""
    spread: float
    """Standard deviation of the logarithms of inertias and friction relative to the drawing."""
    damping: float
    """Viscous friction of every joint in the drawing, N m s/rad."""
    friction: float
    """Coulomb friction of every joint in the drawing, N m."""
    torque: float
    """Amplitude of the sines that drive each joint, N m."""
    position_noise: float
    """Standard deviation of the noise of positions, rad."""
    velocity_noise: float
    """The same for velocities, rad/s."""
    segment: float
    """Duration of a segment of multiple shooting, s."""
    chunk: int = 128
    """Robots that are fitted at a time."""
    block: int = 500
    """Robots in each file of results; an interruption costs at most one of these."""
    max_iterations: int = 30
    seed: int = 0
    processes: Processes = dataclasses.field(default_factory=Processes)


def run(config: Config) -> dict[str, Any]:
    """Simulate and fit the missing blocks, print, and write `<results>/<name>/`. Returns the content of
    `summary.json`."""
    positive = ("robots", "duration", "rate", "damping", "friction", "chunk", "block", "max_iterations")
    require_positive_keys(config, *positive)
    require_choice(config.robot, SAMPLES, "robot", error=DataError)
    require_seed(config.seed)
    share = config.processes.begin()
    drawing = load_robot(config.robot).with_joint_friction(config.damping, config.friction, 0.1)
    p = Parametrization(drawing, InertiaScale(), Positive("damping"), Positive("friction"))
    folder = config.make_folder()
    names = [block_name(i) for i in range(-(-config.robots // config.block))]
    blocks = Pieces(folder, "blocks", names, manifest(config, drawing), "its blocks would be of different fleets")
    missing = blocks.check(share, {"arrays": BLOCK})
    if len(missing) < len(names):
        print(f"{len(names) - len(missing)} of {len(names)} blocks are there already")
    work = fit_blocks(config, p, blocks, missing) if missing else Work()
    return summarize(folder, config, p, names, work)


class Work(NamedTuple):
    """The work of this process in this run."""

    robots: int = 0
    seconds: float = 0.0
    compiling: float = 0.0


def manifest(config: Config, drawing: Model) -> dict[str, Any]:
    """Return how the blocks are made. Runs with another manifest would make other ones."""
    content = {k: v for k, v in dataclasses.asdict(config).items() if k not in ("name", "results", "processes")}
    made_with = {
        "jax": jax.__version__,
        "numpy": np.__version__,
        "platform": jax.default_backend(),
        "robot": digest_of_arrays(arrays_by_path(drawing)),
    }
    return {"format": FORMAT, "config": content, "made_with": made_with}


def block_name(i: int) -> str:
    """The file name of a block."""
    return f"robots-{i:06d}.npz"


def fit_blocks(config: Config, p: Parametrization, blocks: Pieces, missing: list[int]) -> Work:
    """Simulate and fit the missing blocks."""
    fleet, work = draw_fleet(config, p), Work()

    def make(i: int) -> dict[str, Any]:
        nonlocal work
        rows = np.arange(i * config.block, min((i + 1) * config.block, config.robots))
        data, compiling = simulate(config, p, fleet, rows), work.compiling
        if not compiling:
            # One step of one chunk compiles all programs of the fit, which separates compilation from the work.
            announce("compiling the fit")
            began = time.perf_counter()
            fit(config, p, data, min(config.chunk, len(rows)), 1)
            compiling = time.perf_counter() - began
        began = time.perf_counter()
        with ProgressBar(total=len(rows), unit=" robots", leave=False) as bar:

            def report(done: int, steps: int) -> None:
                bar.n = done
                bar.set_postfix(steps=steps)

            out = fit(config, p, data, len(rows), config.max_iterations, report)
        work = Work(work.robots + len(rows), work.seconds + time.perf_counter() - began, compiling)
        true = fleet.true[rows]
        return {"robot": rows, "true": true, **{x: getattr(out, x) for x in ("free", "cost", "status", "iterations")}}

    blocks.make(
        missing, make, lambda x: f"converged={int((x['status'] == Status.CONVERGED).sum())} of {len(x['status'])}"
    )
    return work


def fit(config: Config, p: Parametrization, data, robots: int, max_iterations: int, report=None) -> FleetFit:
    """Fit the first robots of a block."""
    q, v, tau = (x[:robots] for x in data)
    return fit_fleet(
        p,
        q,
        v,
        tau,
        1 / config.rate,
        segment=config.segment,
        position_noise=config.position_noise,
        velocity_noise=config.velocity_noise,
        options=RolloutFitOptions(integrator="semi_implicit_euler", max_iterations=max_iterations),
        chunk=min(config.chunk, config.robots),
        report=report,
        # The processes share the blocks.
        share=False,
    )


def summarize(folder: Path, config: Config, p: Parametrization, names: list[str], work: Work) -> dict[str, Any]:
    """Print the errors of all robots, and write `summary.json`; returns its content."""
    content = [read_npz(folder / name) for name in names]
    blocks = {key: np.concatenate([x[key] for x in content]) for key in BLOCK}
    true, iterations = blocks["true"], blocks["iterations"]
    off = np.abs(blocks["free"] - true)
    rate = work.robots / work.seconds if work.robots else None
    summary = {
        "config": dataclasses.asdict(config),
        "device": jax.local_devices()[0].device_kind,
        "parameters": p.size,
        "converged": int((blocks["status"] == Status.CONVERGED).sum()),
        "iterations": {"median": float(np.median(iterations)), "largest": int(iterations.max())},
        "robots_fitted_here": work.robots,
        "seconds": {"fit": work.seconds, "compilation": work.compiling},
        "robots_per_second": rate,
        "median_relative_error": {
            "before": float(np.median(np.abs(true))),
            "after": float(np.median(off)),
            "after, worst parameter": float(np.median(off, axis=0).max()),
        },
    }
    write_json(folder / "summary.json", summary)
    errors = summary["median_relative_error"]
    speed = "" if rate is None else f" ({rate:.1f} robots/s)"
    print(
        f"{config.robots} robots with {p.size} free numbers each, {config.duration:g} s at {config.rate:g} Hz: "
        f"{summary['converged']} converged; {work.robots} fitted in {work.seconds:.1f} s{speed}, and "
        f"{work.compiling:.1f} s of compilation\nmedian relative error of the parameters: "
        f"{100 * errors['before']:.1f} % before, {100 * errors['after']:.2f} % after "
        f"({100 * errors['after, worst parameter']:.2f} % in the worst)\nwrote {folder / 'summary.json'}"
    )
    return summary


class Fleet(NamedTuple):
    """All random numbers of a fleet, which depend on the configuration alone; the first axis is `[robots]`."""

    true: np.ndarray
    """Free numbers of the robots."""
    frequency: np.ndarray
    """Angular frequencies of the torques, rad/s."""
    phase: np.ndarray
    start: np.ndarray
    """Configurations at the start."""
    q_noise: np.ndarray
    """Noise of the positions, in standard deviations."""
    v_noise: np.ndarray


def draw_fleet(config: Config, p: Parametrization) -> Fleet:
    """Draw the robots, their motions, and the noise of their recordings."""
    rng = np.random.default_rng(config.seed)
    model = p.model(p.zeros())
    robots, samples, nv = config.robots, round(config.duration * config.rate) + 1, model.nv
    return Fleet(
        true=config.spread * rng.standard_normal((robots, p.size)),
        frequency=2 * np.pi * rng.uniform(0.5, 2.0, (robots, 1, nv)),
        phase=rng.uniform(0, 2 * np.pi, (robots, 1, nv)),
        start=rng.uniform(-0.5, 0.5, (robots, model.nq)),
        q_noise=rng.standard_normal((robots, samples, model.nq)),
        v_noise=rng.standard_normal((robots, samples, nv)),
    )


def simulate(
    config: Config, p: Parametrization, fleet: Fleet, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the measured `q`, `v` and `tau` of some robots, `[robots, samples, n]`."""
    x = Fleet(*(array[rows] for array in fleet))
    t = np.arange(x.q_noise.shape[1]) / config.rate
    tau = config.torque * np.sin(x.frequency * t[:, None] + x.phase)
    start = State(jnp.asarray(x.start), jnp.zeros(x.frequency[:, 0].shape))
    means = jnp.asarray(0.5 * (tau[:, :-1] + tau[:, 1:]))
    exact = eqx.filter_jit(rollout)(p.model(jnp.asarray(x.true)), start, means, 1 / config.rate)
    q, v = np.asarray(exact.q), np.asarray(exact.v)
    if not np.isfinite(v).all():
        raise DataError("a simulated motion is not finite; take a higher rate or a smaller torque")
    return q + config.position_noise * x.q_noise, v + config.velocity_noise * x.v_noise, tau


main = experiment("identify_fleet", Config, run, DEFAULT_CONFIG, __doc__)

if __name__ == "__main__":
    sys.exit(main())
