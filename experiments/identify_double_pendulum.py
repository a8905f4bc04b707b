"""Identify a real double pendulum from roll-outs, by multiple shooting, and test the result on a held-out run.

    python -m experiments.identify_double_pendulum [CONFIG] [--key value ...]

The torques are measured as motor currents and are too inaccurate for a fit to them, so the motion is fitted. The fit
starts from the published parameters, changed by a given part; the inertia of both links and the friction of both joints
are free.

The encoders are set to zero where the pendulum came to rest before a run, and friction can hold it 0.1 rad off the
vertical, so the zeros are unknowns of every run.

The test rolls out the published robot, the robot from which the fit starts, and the identified one from the measured
states `q, v` of the held-out run, every `start_every` s, under that run's torques. The roll-outs start after the first
`calibrate` s. Every robot is tested twice: with the zeros of the held-out run that are estimated from those first
seconds, each time with the robot in question held fixed, and with the angles as they were read. Nothing else is
estimated from the held-out run. The error of a roll-out is the root mean square of both joints' position errors over
all samples after the start, up to the horizon; the printed figure is the median over all roll-outs.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from experiments._main import CONFIGS, experiment
from jaxdyn import DataError, Joint, Model, ModelBuilder, cli, sysid

DEFAULT_CONFIG = CONFIGS / "identify_double_pendulum.toml"
INTEGRATOR: Any = "semi_implicit_euler"
"""The integrator. With `SUBSTEPS` its error is far below the noise."""
SUBSTEPS = 2
type Errors = dict[str, sysid.RolloutErrors]
ESTIMATED, AS_READ = ", zeros estimated", ", angles as read"
"""Ends of the columns' names: with the zeros that the first seconds of the held-out run tell, and without."""

# Published for design C.1, model 1.0 (repository dfki-ric-underactuated-lab/double_pendulum): masses (kg), the length
# of the first link (m), centers of mass (m) and inertias (kg m^2) from the joints, the rotor's inertia (kg m^2), its
# gear ratio, viscous (N m s) and Coulomb friction (N m).
MASS = (0.52346, 0.62557)
LENGTH = 0.2
CENTER = (0.2, 0.25569)
INERTIA = (0.031887, 0.050870)
ROTOR, GEAR = 6.2872e-5, 6.0
DAMPING = (0.001, 0.001)
# The coefficients c of Coulomb friction, 0.16 and 0.12, belong to the law `c arctan(100 v)` of that repository
# (src/python/double_pendulum/model/plant.py, coulomb_vector), which tends to pi/2 c at high velocities. Here the law is
# `friction tanh(v / friction_velocity)`. With these numbers it has the same limit and the same slope at rest. Between
# them tanh rises faster: it is above the other law by up to 16 % of the limit, at 0.03 rad/s.
FRICTION = (0.16 * math.pi / 2, 0.12 * math.pi / 2)
FRICTION_VELOCITY = math.pi / 200
# That plant also couples the rotors with the links, by GEAR * ROTOR = 4e-4 kg m^2 beside the 0.05 kg m^2 of the second
# link. The published robot here leaves this out.


@dataclasses.dataclass(frozen=True)
class Config(cli.ProgramConfig):
    """Keys of the configuration file."""

    recordings: str
    """A folder with NumPy archives run_*.npz of t, q, v and torques, absolute or below $JAXDYN_DATA."""
    held_out: str
    """The held-out run, a file name without its ending; or `each`, which holds every run out in turn."""
    torque: Literal["tau_measured", "tau_commanded"]
    """The array that drives the roll-outs."""
    wrong: float
    """Part by which the start differs from the published parameters, up for one link and down for the other."""
    rate: float
    """Samples per second after resampling."""
    segment: float
    """Duration of a segment of multiple shooting, s."""
    position_noise: float
    """Standard deviation of the noise of positions, rad."""
    velocity_noise: float
    """The same for velocities, rad/s."""
    matching: float
    """Standard deviation of the defects between segments, in units of the noise."""
    prior_weight: float
    """Weight of the pull toward the start."""
    loss: Literal["squared", "huber", "cauchy"]
    """Loss of the residuals."""
    loss_scale: float
    """Residual beyond which the loss grows more slowly, in units of the noise."""
    friction_velocity: float
    """Velocity over which Coulomb friction changes its sign, rad/s."""
    zero_deviation: float
    """Standard deviation of the zeros of a run's encoders, rad; 0 for exact zeros."""
    calibrate: float
    """Length of the beginning of the held-out run from which its zeros are estimated, s; it is tested after it."""
    history: float
    """Time before the start of a roll-out from which its start state is estimated, s; 0 for the measured state."""
    horizon: float
    """Duration of the test's roll-outs, s; the error is also reported at half of it."""
    start_every: float
    """Time from the start of a roll-out to the next start, s."""
    max_iterations: int
    """Largest number of steps of each fit."""
    tolerance: float
    """Relative decrease of the cost below which a fit ends, as expected of a step."""
    plot: bool = True
    """Whether to draw roll-outs.png."""
    report: bool = True
    """Whether to write report-<held-out run>.html."""
    bootstrap: int = 200
    """Draws of the bootstrap, whose intervals the report shows beside the others; 0 for none."""


def run(config: Config) -> dict[str, Any]:
    """Fit, test, print, and write `<results>/<name>/`; returns the content of `summary.json`."""
    check(config)
    cli.announce("loading and resampling the recordings")
    runs = load_runs(config)
    held_out = list(runs) if config.held_out == "each" else [config.held_out]
    if held_out[0] not in runs:
        raise DataError(f"held_out is {config.held_out!r}; known: each, {', '.join(runs)}")
    if len(runs) < 2:
        raise DataError(f"{config.recordings} has one run only, and one is held out: give two at least")
    folder = config.make_folder()
    with cli.alone_in(folder):
        out: dict[str, Any] = {"config": dataclasses.asdict(config), "runs": {}}
        tested: dict[str, Errors] = {}
        for name in held_out:
            fit, seconds = fit_others(config, runs, name)
            out["runs"][name], tested[name] = test(config, fit, seconds, runs[name])
            show(config, name, out["runs"][name])
            if config.report:
                cli.announce("resampling the recordings, and writing the report")
                write_page(folder / f"report-{name}.html", config, fit, f"{name}, held out", tested[name])
        if len(held_out) > 1:
            out["all_runs"] = {"median_rmse": medians(config, list(tested.values()))}
            print("\nall runs, each held out in turn")
            show_errors(config, out["all_runs"]["median_rmse"])
        cli.write_json(folder / "summary.json", out, announce=True)
        if config.plot:
            draw(folder / "roll-outs.png", config, held_out[0], runs[held_out[0]], tested[held_out[0]])
    return out


def check(config: Config) -> None:
    """Raise `DataError` for settings without a meaning."""
    cli.require_positive_keys(config, "rate", "segment", "horizon", "start_every", "max_iterations", "tolerance")
    if not 0 <= config.wrong < 1:
        raise DataError(f"wrong is {config.wrong:g}, but it must be in 0 ... 1")
    for name in ("zero_deviation", "calibrate", "history"):
        if getattr(config, name) < 0:
            raise DataError(f"{name} is {getattr(config, name):g}; zero or more is needed")
    if config.zero_deviation and config.calibrate < config.segment:
        raise DataError(
            f"calibrate is {config.calibrate:g} s, but zeros are estimated from segments of {config.segment:g} s: make "
            "it longer, or zero_deviation 0"
        )


def test(
    config: Config, fit: sysid.RolloutFit, seconds: float, recording: sysid.Recording
) -> tuple[dict[str, Any], Errors]:
    """Return the entry of a held-out run in `summary.json`, and the errors of roll-outs by column."""
    cli.announce(f"rolling out three robots along {recording.name}")
    robots = {"published": robot(0.0, FRICTION_VELOCITY), "start": fit.before, "identified": fit.robot}
    judged = {key: judge(config, value, recording) for key, value in robots.items()}
    tested = {f"{key}{AS_READ}": value.errors_as_read for key, value in judged.items()}
    if config.zero_deviation:
        tested = {f"{key}{ESTIMATED}": value.errors for key, value in judged.items()} | tested
    entry = {
        "status": fit.status.name.lower(),
        "message": fit.message,
        "step_left": fit.step_left,
        "iterations": fit.iterations,
        "seconds": seconds,
        "cost": fit.cost,
        "zeros": {key: value.zeros.tolist() for key, value in judged.items()},
        "estimates": {key: value.status.name.lower() for key, value in judged.items()},
        "zeros_of_others": fit.zeros.tolist(),
        "median_rmse": medians(config, [tested]),
        "identified": intervals(fit),
    }
    return entry, tested


def judge(config: Config, robot: Model, recording: sysid.Recording) -> sysid.RolloutJudgment:
    """Roll out a robot along a held-out run."""
    return sysid.judge_rollouts(
        robot,
        recording,
        config.horizon,
        every=config.start_every,
        calibrate=config.calibrate,
        history=config.history,
        segment=config.segment,
        position_noise=config.position_noise,
        velocity_noise=config.velocity_noise,
        options=fit_options(config),
    )


def load_runs(config: Config) -> dict[str, sysid.Recording]:
    """Return the runs of the folder, resampled, by name."""
    folder = cli.data_path(config.recordings)
    files = sorted(folder.glob("run_*.npz"))
    if not files:
        raise DataError(f"{folder}: no files run_*.npz")
    return {x.stem: sysid.load_npz(x, tau=config.torque).resampled(config.rate, "linear") for x in files}


def robot(wrong: float, friction_velocity: float) -> Model:
    """Return the pendulum with the published parameters, changed by the part `wrong`: the first link too heavy and the
    second too light; friction the other way round. It hangs along -z at `q = 0` and turns about y. Coulomb friction
    changes its sign over `friction_velocity`, rad/s."""
    up, down = 1 + wrong, 1 - wrong
    builder, parent = ModelBuilder(), "world"
    for i, (name, factor) in enumerate((("upper", up), ("lower", down))):
        m, c, I = MASS[i], CENTER[i], INERTIA[i]
        # Only the moment about the axis is published, and only it matters. The moment about the link is a tenth of it.
        across = max(0.1 * (I - m * c * c), 1e-4)
        inertia = factor * np.array([m, 0, 0, -m * c, I, 0, I, 0, 0, across])
        joint = Joint(
            axis=(0, 1, 0),
            name=("shoulder", "elbow")[i],
            armature=GEAR**2 * ROTOR,
            damping=DAMPING[i] * (down, up)[i],
            friction=FRICTION[i] * (down, up)[i],
            friction_velocity=friction_velocity,
        )
        builder.add_body(name, parent, joint, (0, 0, -LENGTH if i else 0), inertia)
        parent = name
    return builder.build()


def parametrization(config: Config) -> sysid.Parametrization:
    """The free parameters: inertias of both links, viscous and Coulomb friction of both joints."""
    return sysid.Parametrization(
        robot(config.wrong, config.friction_velocity),
        sysid.LogCholesky(),
        sysid.Positive("damping"),
        sysid.Positive("friction"),
    )


def fit_options(config: Config) -> sysid.RolloutFitOptions:
    """The options of the fits, and of the estimates from the held-out run."""
    return sysid.RolloutFitOptions(
        matching=config.matching,
        prior_weight=config.prior_weight,
        loss=config.loss,
        loss_scale=config.loss_scale,
        zero_deviation=config.zero_deviation or None,
        integrator=INTEGRATOR,
        substeps=SUBSTEPS,
        max_iterations=config.max_iterations,
        tolerance=config.tolerance,
    )


def fit_others(config: Config, runs: dict[str, sysid.Recording], held_out: str) -> tuple[sysid.RolloutFit, float]:
    """Fit all runs but one. Returns the fit and its time, compilation included, s."""
    used = [recording for name, recording in runs.items() if name != held_out]
    began = time.perf_counter()
    cli.announce(f"compiling, and fitting all runs but {held_out}")
    with cli.ProgressBar(desc=f"fit without {held_out}", unit=" steps") as bar:

        def report(step) -> None:
            bar.update()
            bar.set_postfix(cost=f"{step.cost:.6g}", expected_decrease=f"{step.expected_decrease:.1e}")

        out = sysid.fit_rollouts(
            parametrization(config),
            used,
            segment=config.segment,
            position_noise=config.position_noise,
            velocity_noise=config.velocity_noise,
            options=fit_options(config),
            report=report,
        )
    return out, time.perf_counter() - began


def horizons(config: Config) -> tuple[float, float]:
    """The times at which errors are reported, s."""
    return 0.5 * config.horizon, config.horizon


def medians(config: Config, runs: list[Errors]) -> dict[str, list[float]]:
    """Return the median error over the roll-outs of all runs at each of the horizons, rad, by column."""
    return {
        key: [float(np.median(np.concatenate([run[key].rmse(h) for run in runs]))) for h in horizons(config)]
        for key in runs[0]
    }


def combinations() -> dict[str, Callable[[Any], Any]]:
    """Return the combinations of parameters that planar motion determines: the lower link's mass counts with the upper
    link, as if it were at the elbow."""
    at_elbow = np.array([[LENGTH], [LENGTH**2]]) * [1.0, 0.0]
    return {
        "first moments, kg m": lambda m: at_elbow[0] * m.inertial_parameters[1, 0] - m.inertial_parameters[:, 3],
        "moments of inertia about the joints, kg m^2": lambda m: (
            at_elbow[1] * m.inertial_parameters[1, 0] + m.inertial_parameters[:, 6]
        ),
        "viscous friction, N m s": lambda m: m.damping,
        "Coulomb friction, N m": lambda m: m.friction,
    }


def intervals(fit: sysid.RolloutFit) -> dict[str, Any]:
    """Return the identified combinations with 95 % intervals."""
    return {
        name: dict(zip(("value", "lower", "upper"), (x.tolist() for x in fit.interval(f, clustered=True)), strict=True))
        for name, f in combinations().items()
    }


def write_page(path: Path, config: Config, fit: sysid.RolloutFit, data: str, tested: Errors) -> None:
    """Write the report of a fit."""
    draws = fit.bootstrap(draws=config.bootstrap) if config.bootstrap else None
    options: dict[str, Any] = {"quantities": combinations(), "bootstrap": draws, "title": f"Double pendulum: {data}"}
    report = functools.partial(sysid.write_rollout_report, fit=fit, errors={data: tested}, **options)
    cli.write_durably(path, report, announce=True)


def show(config: Config, name: str, out: dict[str, Any]) -> None:
    """Print the errors and the identified parameters of a held-out run."""
    print(f"\n{name} held out: {out['message']}; {out['iterations']} steps, {out['seconds']:.0f} s with compilation")
    show_errors(config, out["median_rmse"])
    if config.zero_deviation:
        for key, zeros in out["zeros"].items():
            print(f"  {f'zeros of the angles, {key}, rad':46}{', '.join(f'{x:.4f}' for x in zeros)}")
    for key, status in out["estimates"].items():
        if status != "converged":
            print(f"  The estimates of zeros or start states with the {key} robot did not converge: {status}")
    for quantity, x in out["identified"].items():
        shown = ", ".join(
            f"{v:.4f} ({a:.4f} ... {b:.4f})" for v, a, b in zip(x["value"], x["lower"], x["upper"], strict=True)
        )
        print(f"  {quantity:46}{shown}")


def start_states(config: Config) -> str:
    """Say where the start states of the roll-outs are from."""
    return f"the {config.history:g} s before" if config.history else "measured states"


def show_errors(config: Config, median_rmse: dict[str, list[float]]) -> None:
    """Print the median errors."""
    head = f"median RMSE of roll-outs from {start_states(config)}, rad"
    print(f"{head:62}{''.join(f'{h:8g} s' for h in horizons(config))}")
    for key, values in median_rmse.items():
        print(f"  {key:60}{''.join(f'{x:10.4f}' for x in values)}")
    if config.zero_deviation:
        print(f"  (zeros estimated from the first {config.calibrate:g} s of a held-out run, with each robot fixed)")


def draw(path: Path, config: Config, name: str, recording: sysid.Recording, tested: Errors) -> None:
    """Draw the roll-outs over the measured motion, and their errors over the horizon."""
    plt = cli.pyplot()
    if plt is None:
        return
    # Without estimated zeros, the other columns are all there is.
    tested = {key: errors for key, errors in tested.items() if key.endswith(ESTIMATED)} or tested
    colors = {"published": "tab:blue", "start": "tab:orange", "identified": "tab:red"}
    fig, axes = plt.subplots(3, 1, figsize=(11, 9))
    for joint, axis in enumerate(axes[:2]):
        axis.plot(recording.t, recording.q[:, joint], color="black", lw=1.2, label="measured")
        for key, e in tested.items():
            # These roll-outs do not overlap.
            step = max(1, round(config.horizon / config.start_every))
            for i in range(0, len(e.start), step):
                t = e.start[i] + e.horizon
                q = np.interp(t, recording.t, recording.q[:, joint]) + e.position[i, :, joint]
                who = key.split(",")[0]
                axis.plot(t, q, color=colors[who], lw=0.8, label=who if i == 0 else None)
        reach = np.abs(recording.q[:, joint]).max()
        axis.set_ylim(-1.5 * reach, 1.5 * reach)
        axis.set_ylabel(f"{('shoulder', 'elbow')[joint]}, rad")
    axes[0].legend(ncol=4, fontsize=8, loc="upper right")
    axes[1].set_xlabel("time, s")
    for key, e in tested.items():
        upto = e.horizon[1:]
        low, middle, high = np.percentile(e.curves(), [25, 50, 75], axis=0)
        color = colors[key.split(",")[0]]
        axes[2].plot(upto, middle, color=color, label=key)
        axes[2].fill_between(upto, low, high, color=color, alpha=0.2, lw=0)
    axes[2].set(xlabel="horizon, s", ylabel="RMSE, rad: median, quartiles", yscale="log")
    axes[2].legend(fontsize=8)
    fig.suptitle(f"{name}, held out: roll-outs of {config.horizon:g} s from {start_states(config)}")
    fig.tight_layout()
    cli.save_figure(path, fig, dpi=110)


main = experiment("identify_double_pendulum", Config, run, DEFAULT_CONFIG, __doc__)

if __name__ == "__main__":
    sys.exit(main())
