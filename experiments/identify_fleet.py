"""Identify many robots at once, each from its recording, by one program over all of them.

    python -m experiments.identify_fleet [CONFIG] [--key value ...]

The links and the friction of every robot differ from the drawing; its recording is simulated, with noise. All fits
start from the drawing. Prints how many robots are identified in a second, and the errors of their parameters.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from experiments._main import CONFIGS, experiment
from jaxdyn import DataError, Model, State, rollout
from jaxdyn._errors import require_choice
from jaxdyn.programs import SAMPLES, ProgramConfig, ProgressBar, announce, load_robot, require_positive_keys, write_json
from jaxdyn.sysid import InertiaScale, Parametrization, Positive, RolloutFitOptions, fit_fleet

DEFAULT_CONFIG = CONFIGS / "identify_fleet.toml"


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
    max_iterations: int = 30
    seed: int = 0


def run(config: Config) -> dict[str, Any]:
    """Simulate, fit, print, and write `<results>/<name>/summary.json`; returns its content."""
    require_positive_keys(config, "robots", "duration", "rate", "damping", "friction", "chunk", "max_iterations")
    require_choice(config.robot, SAMPLES, "robot", error=DataError)
    drawing = load_robot(config.robot).with_joint_friction(config.damping, config.friction, 0.1)
    p = Parametrization(drawing, InertiaScale(), Positive("damping"), Positive("friction"))
    rng = np.random.default_rng(config.seed)
    true = jnp.asarray(config.spread * rng.standard_normal((config.robots, p.size)))
    q, v, tau = simulate_fleet(config, p.model(true), rng)

    def fit(robots: int, max_iterations: int, report=None):
        return fit_fleet(
            p,
            q[:robots],
            v[:robots],
            tau[:robots],
            1 / config.rate,
            segment=config.segment,
            position_noise=config.position_noise,
            velocity_noise=config.velocity_noise,
            options=RolloutFitOptions(integrator="semi_implicit_euler", max_iterations=max_iterations),
            chunk=min(config.chunk, config.robots),
            report=report,
        )

    # One step of one chunk compiles all programs of the fit, which separates compilation from the work.
    announce("compiling the fit")
    began = time.perf_counter()
    fit(min(config.chunk, config.robots), 1)
    compiling, began = time.perf_counter() - began, time.perf_counter()
    with ProgressBar(total=config.robots, unit=" robots") as bar:

        def report(done: int, steps: int) -> None:
            bar.n = done
            bar.set_postfix(steps=steps)

        out = fit(config.robots, config.max_iterations, report)
    seconds = time.perf_counter() - began
    off = np.abs(out.free - np.asarray(true))
    summary = {
        "config": dataclasses.asdict(config),
        "device": jax.devices()[0].device_kind,
        "parameters": p.size,
        "converged": int(out.converged.sum()),
        "iterations": {"median": float(np.median(out.iterations)), "largest": int(out.iterations.max())},
        "seconds": {"fit": seconds, "compilation": compiling},
        "robots_per_second": config.robots / seconds,
        "median_relative_error": {
            "before": float(np.median(np.abs(np.asarray(true)))),
            "after": float(np.median(off)),
            "after, worst parameter": float(np.median(off, axis=0).max()),
        },
    }
    folder = config.make_folder()
    write_json(folder / "summary.json", summary)
    errors = summary["median_relative_error"]
    print(
        f"{config.robots} robots with {p.size} free numbers each, {config.duration:g} s at {config.rate:g} Hz: "
        f"{summary['converged']} converged, {seconds:.1f} s ({config.robots / seconds:.1f} robots/s), and "
        f"{compiling:.1f} s of compilation\nmedian relative error of the parameters: {100 * errors['before']:.1f} % "
        f"before, {100 * errors['after']:.2f} % after ({100 * errors['after, worst parameter']:.2f} % in the worst)\n"
        f"wrote {folder / 'summary.json'}"
    )
    return summary


def simulate_fleet(
    config: Config, models: Model, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the measured `q`, `v` and `tau` of all robots, `[robots, samples, n]`."""
    steps, nv = round(config.duration * config.rate), models.nv
    t = np.arange(steps + 1) / config.rate
    frequency = 2 * np.pi * rng.uniform(0.5, 2.0, (config.robots, 1, nv))
    tau = config.torque * np.sin(frequency * t[:, None] + rng.uniform(0, 2 * np.pi, (config.robots, 1, nv)))
    start = State(jnp.asarray(rng.uniform(-0.5, 0.5, (config.robots, models.nq))), jnp.zeros((config.robots, nv)))
    means = jnp.asarray(0.5 * (tau[:, :-1] + tau[:, 1:]))
    exact = eqx.filter_jit(rollout)(models, start, means, 1 / config.rate)
    q, v = np.asarray(exact.q), np.asarray(exact.v)
    if not np.isfinite(v).all():
        raise DataError("a simulated motion is not finite; take a higher rate or a smaller torque")
    q = q + config.position_noise * rng.standard_normal(q.shape)
    return q, v + config.velocity_noise * rng.standard_normal(v.shape), tau


main = experiment("identify_fleet", Config, run, DEFAULT_CONFIG, __doc__)

if __name__ == "__main__":
    sys.exit(main())
