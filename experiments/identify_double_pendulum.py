"""Identify a real double pendulum from roll-outs, by multiple shooting, and test it on a run that the fit has not seen.

    python -m experiments.identify_double_pendulum [CONFIG] [--key value ...]

Its torques are measured as motor currents and are too poor to be fitted, so that its motion is. The fit starts from the
published parameters made wrong; free is the inertia of both links and the friction of both joints.

The encoders are set to zero where the pendulum came to rest before a run, and friction holds it up to 0.1 rad off the
vertical: the zeros are another unknown of every run. Those of the held-out run are found from its first `calibrate` s,
with the robot as it is, and the roll-outs that judge start after these.

It is judged by roll-outs from the measured states `q, v` of the held-out run, every `start_every` s, under that run's
torques. The error of one is the root mean square of both joints' position errors over all samples after the start, up
to the horizon; what is printed is the median over all roll-outs. An interrupted fit goes on where it stopped.
"""

from __future__ import annotations

import dataclasses
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.optimize import least_squares
from tqdm import tqdm

from experiments._main import CONFIGS, experiment
from jaxdyn import DataError, Joint, Model, ModelBuilder
from jaxdyn.programs._files import alone_in, data_path, read_json, require_same, write_durably, write_json, write_npz
from jaxdyn.sysid import (
    LogCholesky,
    Parametrization,
    Positive,
    Recording,
    RolloutErrors,
    RolloutFit,
    ShootingState,
    fit_rollouts,
    load_npz,
    rollout_errors,
    write_rollout_report,
)

DEFAULT_CONFIG = CONFIGS / "identify_double_pendulum.toml"
INTEGRATOR: Any = "semi_implicit_euler"
"""With as many substeps that the error is far below the noise."""
SUBSTEPS = 2

# Published for design C.1, model 1.0 (repository dfki-ric-underactuated-lab/double_pendulum): masses (kg), the length
# of the first link (m), centers of mass (m) and inertias (kg m^2) from the joints, the rotor's inertia (kg m^2), its
# gear ratio, viscous (N m s) and Coulomb friction (N m).
MASS = (0.52346, 0.62557)
LENGTH = 0.2
CENTER = (0.2, 0.25569)
INERTIA = (0.031887, 0.050870)
ROTOR, GEAR = 6.2872e-5, 6.0
DAMPING = (0.001, 0.001)
FRICTION = (0.16, 0.12)


@dataclasses.dataclass(frozen=True)
class Config:
    """Keys of the configuration file."""

    name: str
    """Of the folder below `results` that is written."""
    recordings: str
    """A folder with NumPy archives run_*.npz of t, q, v and torques, absolute or below $JAXDYN_DATA."""
    held_out: str
    """The run that no fit sees, without its ending; or `each`, for as many fits as there are runs."""
    torque: Literal["tau_measured", "tau_commanded"]
    """The array that drives the roll-outs."""
    wrong: float
    """Part by which the published parameters are changed at the start, up for one link and down for the other."""
    rate: float
    """Samples per second after resampling."""
    segment: float
    """s."""
    position_noise: float
    """rad."""
    velocity_noise: float
    """rad/s."""
    matching: float
    """Standard deviation of the defects between segments, in units of the noise."""
    prior_weight: float
    """Of the pull toward the start."""
    loss: Literal["squares", "pseudo_huber", "cauchy"]
    """Of residuals."""
    loss_scale: float
    """Beyond which they count less, in units of the noise."""
    friction_velocity: float
    """Over which Coulomb friction changes its sign, rad/s."""
    zero_deviation: float
    """By how much the zeros of a run's encoders are off, a standard deviation, rad; 0: they are not."""
    calibrate: float
    """How much of the held-out run, from its beginning, tells its zeros, s."""
    horizon: float
    """Of the roll-outs that judge, s; the error is also told at half of it."""
    start_every: float
    """s from the start of one of them to that of the next."""
    max_iterations: int
    """Of each fit."""
    tolerance: float
    """A fit ends where a step is expected to lower the cost by less than this part."""
    results: str = "results"
    """Directory of the results."""
    plot: bool = True
    """Whether to draw roll-outs.png."""
    report: bool = True
    """Whether to write report-<held-out run>.html."""
    bootstrap: int = 200
    """Draws of the bootstrap whose intervals the report has beside the others; 0: none."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiment; the exit code is 2 for a mistake in what was given, with a message on stderr."""
    # An application may choose: derivatives of roll-outs lose digits.
    return experiment(Config, run, arguments, DEFAULT_CONFIG, "identify_double_pendulum", __doc__)


def run(config: Config) -> dict[str, Any]:
    """Fit, test, print, and write `<results>/<name>/`; returns what `summary.json` holds."""
    for name in ("rate", "segment", "horizon", "start_every", "max_iterations", "tolerance"):
        if not getattr(config, name) > 0:
            raise DataError(f"{name} is {getattr(config, name):g}, but it must be positive")
    if not 0 <= config.wrong < 1:
        raise DataError(f"wrong is {config.wrong:g}, but it must be in 0 ... 1")
    if config.zero_deviation < 0 or (config.zero_deviation and config.calibrate <= 0.5 * config.horizon):
        raise DataError(
            f"zero_deviation is {config.zero_deviation:g} and calibrate {config.calibrate:g} s: zeros are found from "
            f"roll-outs of {0.5 * config.horizon:g} s, for which calibrate must be longer"
        )
    runs = load_runs(config)
    held_out = list(runs) if config.held_out == "each" else [config.held_out]
    if held_out[0] not in runs:
        raise DataError(f"held_out is {config.held_out!r}; known: each, {', '.join(runs)}")
    if len(runs) < 2:
        raise DataError(f"{config.recordings} has one run only, and one is held out: give two at least")
    folder = Path(config.results) / config.name
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder):
        begin(folder, config)
        out: dict[str, Any] = {"config": dataclasses.asdict(config), "runs": {}}
        judged: dict[str, dict[str, RolloutErrors]] = {}
        for name in held_out:
            fit, seconds = fitted(folder, config, runs, name)
            published, start = robot(config, 0.0), fit.before
            robots = {"published": published, "start": start, "identified": fit.robot}
            zeros = {key: zeros_of(config, value, runs[name]) for key, value in robots.items()}
            rest = runs[name].trimmed(config.calibrate if config.zero_deviation else 0.0, 0.0)
            judged[name] = {key: errors(config, value, read(rest, zeros[key])) for key, value in robots.items()}
            as_read = {key: medians(config, errors(config, value, rest)) for key, value in robots.items()}
            out["runs"][name] = {
                "status": fit.status,
                "iterations": fit.iterations,
                "seconds": seconds,
                "cost": fit.cost,
                "zeros": {key: value.tolist() for key, value in zeros.items()},
                "zeros_of_others": fit.zeros.tolist(),
                "median_rmse": {key: medians(config, value) for key, value in judged[name].items()},
                "median_rmse_as_read": as_read,
                "identified": described(fit),
            }
            show(config, name, out["runs"][name])
            if config.report:
                page = folder / f"report-{name}.html"
                write_page(page, config, fit, f"{name}, held out", judged[name])
        if len(held_out) > 1:
            pooled = {
                key: [
                    float(np.median(np.concatenate([judged[name][key].rmse(h) for name in held_out])))
                    for h in horizons(config)
                ]
                for key in ("published", "start", "identified")
            }
            out["all_runs"] = {"median_rmse": pooled}
            shown = ", ".join(f"{key} {' / '.join(f'{x:.4f}' for x in pooled[key])}" for key in pooled)
            print(f"all runs, each held out in turn, median RMSE in rad: {shown}")
        write_json(folder / "summary.json", out)
        print(f"wrote {folder / 'summary.json'}")
        if config.plot:
            draw(folder / "roll-outs.png", config, held_out[0], runs[held_out[0]], judged[held_out[0]])
    return out


def load_runs(config: Config) -> dict[str, Recording]:
    folder = data_path(config.recordings)
    files = sorted(folder.glob("run_*.npz"))
    if not files:
        raise DataError(f"{folder}: no files run_*.npz")
    return {x.stem: load_npz(x, tau=config.torque).resampled(config.rate, "linear") for x in files}


def robot(config: Config, wrong: float) -> Model:
    """The pendulum with the published parameters, those of the first link `wrong` too large and of the second too
    small; friction the other way round. It hangs along -z at `q = 0` and turns about y."""
    up, down = 1 + wrong, 1 - wrong
    builder, parent = ModelBuilder(), "world"
    for i, (name, factor) in enumerate((("upper", up), ("lower", down))):
        m, c, I = MASS[i], CENTER[i], INERTIA[i]
        # Only the moment about the axis is published, and only that matters; about the link a tenth of it is assumed.
        across = max(0.1 * (I - m * c * c), 1e-4)
        inertia = factor * np.array([m, 0, 0, -m * c, I, 0, I, 0, 0, across])
        joint = Joint(
            axis=(0, 1, 0),
            name=("shoulder", "elbow")[i],
            armature=GEAR**2 * ROTOR,
            damping=DAMPING[i] * (down, up)[i],
            friction=FRICTION[i] * (down, up)[i],
            friction_velocity=config.friction_velocity,
        )
        builder.add_body(name, parent, joint, (0, 0, -LENGTH if i else 0), inertia)
        parent = name
    return builder.build()


def parametrization(config: Config) -> Parametrization:
    """Both links' inertias, viscous and Coulomb friction of both joints."""
    return Parametrization(robot(config, config.wrong), LogCholesky(), Positive("damping"), Positive("friction"))


def fitted(folder: Path, config: Config, runs: dict[str, Recording], held_out: str) -> tuple[RolloutFit, float]:
    """The fit to all runs but one, and how long it took in all, compilation included, s."""
    path = folder / f"state-{held_out}.npz"
    used = [recording for name, recording in runs.items() if name != held_out]
    p = parametrization(config)

    def fit(max_iterations: int, state=None, report=None) -> RolloutFit:
        return fit_rollouts(
            p,
            used,
            segment=config.segment,
            position_noise=config.position_noise,
            velocity_noise=config.velocity_noise,
            matching=config.matching,
            prior_weight=config.prior_weight,
            loss=config.loss,
            loss_scale=config.loss_scale,
            zero_deviation=config.zero_deviation or None,
            integrator=INTEGRATOR,
            substeps=SUBSTEPS,
            max_iterations=max_iterations,
            tolerance=config.tolerance,
            state=state,
            report=report,
        )

    began, before = time.perf_counter(), 0.0
    state = None
    if path.exists():
        state, before = saved_state(path)
        print(f"{held_out}: goes on after step {int(state.iteration)}")
    with tqdm(
        desc=f"fit without {held_out}", unit=" steps", initial=0 if state is None else int(state.iteration)
    ) as bar:

        def report(step) -> None:
            bar.update()
            bar.set_postfix(cost=f"{step.cost:.6g}", expected_decrease=f"{step.expected_decrease:.1e}")
            content = {**step.state.arrays(), "seconds": np.float64(before + time.perf_counter() - began)}
            write_durably(path, lambda temporary: write_npz(temporary, content))

        out = fit(config.max_iterations, state, report)
    return out, before + time.perf_counter() - began


def saved_state(path: Path) -> tuple[ShootingState, float]:
    """**Raises** `DataError` for a file that is no state of a fit."""
    try:
        with np.load(path) as file:
            content = {name: file[name] for name in file.files}
        return ShootingState.from_arrays(content), float(content["seconds"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: no state of a fit ({error}); delete it to start anew") from None


def begin(folder: Path, config: Config) -> None:
    """Write down what is fitted. **Raises** `DataError` if something else was begun here."""
    other = (
        "name",
        "results",
        "plot",
        "report",
        "bootstrap",
        "held_out",
        "horizon",
        "start_every",
        "max_iterations",
        "calibrate",
    )
    manifest = {"config": {k: v for k, v in dataclasses.asdict(config).items() if k not in other}}
    path = folder / "manifest.json"
    if path.exists():
        allowed = "Give what it was begun with, another name, or delete the folder"
        require_same(path, read_json(path), manifest, "a fit that goes on would be that of neither", allowed)
    else:
        write_json(path, manifest)


def errors(config: Config, robot: Model, recording: Recording) -> RolloutErrors:
    return rollout_errors(
        robot, recording, config.horizon, every=config.start_every, integrator=INTEGRATOR, substeps=SUBSTEPS
    )


def read(recording: Recording, zeros: np.ndarray) -> Recording:
    """The recording by encoders with the right zeros."""
    return dataclasses.replace(recording, q=recording.q - zeros)


def zeros_of(config: Config, robot: Model, recording: Recording) -> np.ndarray:
    """What the encoders of a recording read more than the angles are: with it, roll-outs of this robot from measured
    states depart least from the first `calibrate` s."""
    if not config.zero_deviation:
        return np.zeros(robot.nv)
    first = recording.between(float(recording.t[0]), float(recording.t[0]) + config.calibrate)
    horizon = horizons(config)[0]

    def misfit(zeros: np.ndarray) -> np.ndarray:
        e = rollout_errors(
            robot, read(first, zeros), horizon, every=0.1 * horizon, integrator=INTEGRATOR, substeps=SUBSTEPS
        )
        return np.append(e.position[:, 1:] / config.position_noise, zeros / config.zero_deviation)

    # As in the fit, errors count linearly where they are beyond the noise.
    found = least_squares(misfit, np.zeros(robot.nv), loss="soft_l1", f_scale=config.loss_scale)
    return found.x


def horizons(config: Config) -> tuple[float, float]:
    return 0.5 * config.horizon, config.horizon


def medians(config: Config, errors: RolloutErrors) -> list[float]:
    return [float(np.median(errors.rmse(h))) for h in horizons(config)]


def combinations() -> dict[str, Callable[[Any], Any]]:
    """Those of the parameters that planar motion shows: the lower link's mass counts with the upper link, as if it were
    at the elbow."""
    at_elbow = np.array([[LENGTH], [LENGTH**2]]) * [1.0, 0.0]
    return {
        "first moments, kg m": lambda m: at_elbow[0] * m.inertial_parameters[1, 0] - m.inertial_parameters[:, 3],
        "moments of inertia about the joints, kg m^2": lambda m: (
            at_elbow[1] * m.inertial_parameters[1, 0] + m.inertial_parameters[:, 6]
        ),
        "viscous friction, N m s": lambda m: m.damping,
        "Coulomb friction, N m": lambda m: m.friction,
    }


def described(fit: RolloutFit) -> dict[str, Any]:
    """What is identified, with 95 % intervals."""
    return {
        name: dict(zip(("value", "lower", "upper"), (x.tolist() for x in fit.interval(f, clustered=True)), strict=True))
        for name, f in combinations().items()
    }


def write_page(path: Path, config: Config, fit: RolloutFit, data: str, judged: dict[str, RolloutErrors]) -> None:
    drawn = fit.bootstrap(draws=config.bootstrap) if config.bootstrap else None
    title = f"Double pendulum: {data}"
    write_durably(
        path,
        lambda temporary: write_rollout_report(
            temporary, fit, {data: judged}, quantities=combinations(), bootstrap=drawn, title=title
        ),
    )
    print(f"wrote {path}")


def show(config: Config, name: str, out: dict[str, Any]) -> None:
    first, second = horizons(config)
    print(
        f"\n{name} held out: {out['status']} after {out['iterations']} steps in {out['seconds']:.0f} s (compilation "
        f"included)\nmedian RMSE of roll-outs from measured states, rad{'':14}{first:g} s{'':6}{second:g} s"
    )
    for key, (a, b) in out["median_rmse"].items():
        print(f"  {key:55}{a:8.4f}  {b:8.4f}")
    if any(x != 0 for x in out["zeros"]["identified"]):
        a, b = out["median_rmse_as_read"]["identified"]
        print(f"  {'identified, by the angles as they were read':55}{a:8.4f}  {b:8.4f}")
        print(f"  {'zeros of the angles, rad':46}{', '.join(f'{x:.4f}' for x in out['zeros']['identified'])}")
    for quantity, x in out["identified"].items():
        shown = ", ".join(
            f"{v:.4f} ({a:.4f} ... {b:.4f})" for v, a, b in zip(x["value"], x["lower"], x["upper"], strict=True)
        )
        print(f"  {quantity:46}{shown}")


def draw(path: Path, config: Config, name: str, recording: Recording, judged: dict[str, RolloutErrors]) -> None:
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        print("no plot: matplotlib is not installed (pip install 'jaxdyn[viz]')")
        return
    colors = {"published": "tab:blue", "start": "tab:orange", "identified": "tab:red"}
    fig, axes = plt.subplots(3, 1, figsize=(11, 9))
    for joint, axis in enumerate(axes[:2]):
        axis.plot(recording.t, recording.q[:, joint], color="black", lw=1.2, label="measured")
        for key, e in judged.items():
            # Roll-outs that do not overlap.
            step = max(1, round(config.horizon / config.start_every))
            for i in range(0, len(e.start), step):
                t = e.start[i] + e.horizon
                q = np.interp(t, recording.t, recording.q[:, joint]) + e.position[i, :, joint]
                axis.plot(t, q, color=colors[key], lw=0.8, label=key if i == 0 else None)
        reach = np.abs(recording.q[:, joint]).max()
        axis.set_ylim(-1.5 * reach, 1.5 * reach)
        axis.set_ylabel(f"{('shoulder', 'elbow')[joint]}, rad")
    axes[0].legend(ncol=4, fontsize=8, loc="upper right")
    axes[1].set_xlabel("time, s")
    for key, e in judged.items():
        upto = e.horizon[1:]
        curves = np.sqrt(np.cumsum((e.position[:, 1:] ** 2).mean(axis=2), axis=1) / np.arange(1, len(upto) + 1))
        low, middle, high = np.percentile(curves, [25, 50, 75], axis=0)
        axes[2].plot(upto, middle, color=colors[key], label=key)
        axes[2].fill_between(upto, low, high, color=colors[key], alpha=0.2, lw=0)
    axes[2].set(xlabel="horizon, s", ylabel="RMSE, rad: median, quartiles", yscale="log")
    axes[2].legend(fontsize=8)
    fig.suptitle(f"{name}, held out: roll-outs of {config.horizon:g} s from measured states")
    fig.tight_layout()
    write_durably(path, lambda temporary: fig.savefig(temporary, dpi=110))
    plt.close(fig)
    print(f"wrote {path}")


if __name__ == "__main__":
    sys.exit(main())
