"""`jaxdyn identify`: a robot's inertias, friction and rotor inertias from recordings of its motion and torques.

Compares, on data that no fit sees: the parameters of the robot's file, ordinary least squares, and the physically
consistent fit. Writes parameters.json, torque.png, report.html and, on request, identified.urdf. What is interrupted
goes on where it was when the same command is given again.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import numpy as np
from tqdm import tqdm

from jaxdyn import samples
from jaxdyn._errors import DataError, look_up
from jaxdyn.io import load_urdf, to_urdf
from jaxdyn.model import Model
from jaxdyn.programs._application import double_precision, print_json
from jaxdyn.programs._config import parse_command
from jaxdyn.programs._files import data_path, write_durably, write_json
from jaxdyn.programs._fit_files import Kept
from jaxdyn.programs._simulated_recording import Simulated, Simulation, simulate
from jaxdyn.sysid import (
    InverseDynamicsFit,
    JointEffects,
    Recording,
    Step,
    bootstrap,
    check_recording,
    fit_inverse_dynamics,
    is_physical,
    load_csv,
    load_npz,
    nearest_physical,
    ordinary_least_squares,
    quality_table,
    write_report,
)
from jaxdyn.viz import plot_torques

SAVE_EVERY = 1.0
"""s of work that an interruption may cost: a step takes milliseconds."""
HELP = """Identify a robot's inertias, friction and rotor inertias from recordings of its motion and torques.

Compares, on a part of the data that no fit sees, the robot's file, ordinary least squares, and a fit whose every link
is physical. Writes parameters.json, torque.png and report.html into RESULTS/NAME. What is interrupted goes on where it
was when the same command is given again."""
EXAMPLES = """
  A simulated arm, which needs no file:
    jaxdyn identify --name try --robot arm --recording simulated --fit-start 0 --fit-stop 14 --test-stop 20

  A robot: a URDF file, and a recording with the columns t, q1, ..., tau1, ... (or a NumPy archive of t, q, tau).
  arm.toml:
    name = "arm"
    robot = "arm.urdf"
    recording = "run.csv"
    fit_start = 0.0    # s; fitted from here
    fit_stop = 14.0    # to here;
    test_stop = 20.0   # what lies between this and fit_stop is held out

    jaxdyn identify arm.toml
    jaxdyn identify arm.toml --cutoff 8 --urdf --json"""


@dataclasses.dataclass(frozen=True)
class Columns:
    """What the columns of CSV files are called, in SI units: names between commas, or one with a * for a number."""

    t: str = "t"
    q: str = "q*"
    v: str = ""
    """Empty for none."""
    tau: str = "tau*"


@dataclasses.dataclass(frozen=True)
class Config:
    """Keys of the configuration file."""

    name: str
    """Of the folder below `results` that is written."""
    robot: str
    """A sample robot (`arm`), or a URDF file: a path from here, or below $JAXDYN_DATA."""
    recording: str
    """`simulated`, or a NumPy archive of t, q, tau and perhaps v, or a CSV file, found as the robot is."""
    fit_start: float
    """s, from the first sample of the recording; so all times below."""
    fit_stop: float
    """s; the part that is held out begins here, unless there is a `test_recording`."""
    test_stop: float
    """s."""
    more_recordings: tuple[str, ...] = ()
    """Further ones, fitted together with the first, each from `fit_start` to `fit_stop`."""
    test_recording: str = ""
    """One that is held out, from `fit_start` to `test_stop`, instead of the end of `recording`."""
    robot_without: str = ""
    """Text that is taken out of the URDF file before it is read, where that is faulty."""
    rate: float = 200.0
    """Samples per second after resampling."""
    cutoff: float = 10.0
    """Of the zero-phase low-pass filter, Hz."""
    friction_velocity: float = 0.05
    """Velocity over which Coulomb friction changes its sign, rad/s."""
    joint_effects: tuple[str, ...] = ("armature", "viscous", "coulomb", "offset")
    """What is identified at all joints besides inertias: fields of `jaxdyn.sysid.JointEffects`."""
    prior_weight: float = 0.1
    """Pull toward the start."""
    cross_validate: bool = False
    """Whether to choose the pull by cross-validation on the data of the fit instead."""
    rounds: int = 15
    """Of re-weighting the joints, at most."""
    max_iterations: int = 200
    """In each round."""
    results: str = "results"
    """Directory of the results."""
    plot: bool = True
    """Whether to draw torque.png."""
    report: bool = True
    """Whether to write report.html."""
    bootstrap: int = 200
    """Draws of the bootstrap whose intervals the report has beside the others; 0: none."""
    urdf: bool = False
    """Whether to write identified.urdf."""
    csv: Columns = dataclasses.field(default_factory=Columns)
    simulation: Simulation = dataclasses.field(default_factory=Simulation)


class Part(NamedTuple):
    """Part of a recording, prepared; and its torques before the filter, at the same times."""

    data: Recording
    raw_tau: np.ndarray


def main(arguments: Sequence[str]) -> None:
    """The command with its arguments."""
    # Identification subtracts nearly equal sums, and single precision costs digits here.
    double_precision()
    config, wants_json = parse_command(Config, arguments, "jaxdyn identify", HELP, EXAMPLES)
    if wants_json:
        print_json(lambda: _shortened(run(config)))
    else:
        run(config)


def _shortened(out: dict[str, Any]) -> dict[str, Any]:
    """The summary for other programs: what became of the fits, without their parameters, which a file has."""
    return {
        "folder": str(Path(out["config"]["results"]) / out["config"]["name"]),
        "fits": {
            name: {
                "status": fit["status"],
                "links_not_physical": [b for b, ok in zip(out["bodies"], fit["physical"], strict=True) if not ok],
            }
            for name, fit in out["fits"].items()
        },
        **{key: out[key] for key in ("held_out_relative", "held_out_rmse", "seconds")},
    }


def run(config: Config) -> dict:
    """Identify, print, and write `<results>/<name>/`; returns what `parameters.json` holds."""
    try:
        return _run(config)
    except KeyboardInterrupt:
        message = "interrupted; the same command goes on from where it was"
        raise KeyboardInterrupt(message) from None


def _run(config: Config) -> dict:
    stop = config.test_stop if not config.test_recording else np.inf
    if not config.fit_start < config.fit_stop < stop or config.test_stop <= config.fit_start:
        raise DataError(
            f"fit_start {config.fit_start:g} < fit_stop {config.fit_stop:g} < test_stop {config.test_stop:g} is needed"
        )
    model = load_robot(config.robot, config.robot_without)
    start = physical_start(model)
    recordings, simulated = load_recordings(config, start)
    # Split first: the filter and the differences look ahead, and must not see past the boundary.
    train = [prepared(x, config.fit_start, config.fit_stop, config) for x in recordings]
    if config.test_recording:
        test = prepared(load_from_zero(config.test_recording, config.csv), config.fit_start, config.test_stop, config)
    else:
        test = prepared(recordings[0], config.fit_stop, config.test_stop, config)
    fitted = [x.data for x in train]
    print(
        f"{sum(map(len, fitted))} samples at {config.rate:g} Hz to fit "
        f"({', '.join(f'{x.t[0]:.2f} to {x.t[-1]:.2f} s' for x in fitted)}), "
        f"{len(test.data)} held out ({test.data.t[0]:.2f} to {test.data.t[-1]:.2f} s); low-pass {config.cutoff:g} Hz"
    )
    folder = Path(config.results) / config.name
    folder.mkdir(parents=True, exist_ok=True)
    # Where results go, and what is drawn of them, may change between an interruption and going on.
    own = {
        k: v
        for k, v in dataclasses.asdict(config).items()
        if k not in ("results", "plot", "report", "bootstrap", "urdf")
    }
    kept = Kept(folder / "unfinished", own, fitted)
    effects = joint_effects(config)
    weight: float | Literal["cross-validated"] = "cross-validated" if config.cross_validate else config.prior_weight

    times = {}
    linear = kept.load("least squares", model, effects)
    if linear is None:
        began = time.perf_counter()
        linear = ordinary_least_squares(
            model, fitted, joint_effects=effects, friction_velocity=config.friction_velocity
        )
        times["least squares"] = time.perf_counter() - began
        kept.save("least squares", linear)
    physical = kept.load("physical fit", start, effects)
    if physical is None:
        began, state = time.perf_counter(), kept.load_state("physical fit")
        if state is not None:
            print(f"physical fit: goes on in round {state.round} at step {state.step}")
        with tqdm(desc="physical fit", unit=" steps", mininterval=0.1) as bar:
            saved = -np.inf

            def report(step: Step) -> None:
                nonlocal saved
                bar.update()
                bar.set_postfix(
                    round=step.round, cost=f"{step.cost:.6g}", expected_decrease=f"{step.expected_decrease:.1e}"
                )
                if time.perf_counter() - saved >= SAVE_EVERY:
                    kept.save_state("physical fit", step.state)
                    saved = time.perf_counter()

            physical = fit_inverse_dynamics(
                start,
                fitted,
                joint_effects=effects,
                friction_velocity=config.friction_velocity,
                prior_weight=weight,
                rounds=config.rounds,
                max_iterations=config.max_iterations,
                report=report,
                state=state,
            )
        times["physical fit"] = time.perf_counter() - began
        kept.save("physical fit", physical)
    print(
        f"physical fit: {physical.status}, {physical.iterations} steps in {physical.rounds} rounds; least squares: "
        f"{linear.status}\nwall time, compilation included: "
        + (", ".join(f"{name} {x:.1f} s" for name, x in times.items()) or "none, all fits were finished before")
    )
    predictions = {"before": InverseDynamicsFit.unfitted(model), "least squares": linear, "physical fit": physical}
    torques = {name: x.predict(test.data) for name, x in predictions.items()}
    errors = {
        "raw torque": {name: rms(x - test.raw_tau) for name, x in torques.items()},
        "filtered torque": {name: rms(x - test.data.require("tau")[0]) for name, x in torques.items()},
    }
    for kind, by_fit in errors.items():
        print_table(f"held-out RMSE against the {kind}, N m", model.joint_names, by_fit)
    print(quality_table(predictions, fitted, "RMSE on the data of the fit, N m") + "\n")
    if simulated is not None:
        keep = (simulated.exact.t >= config.fit_stop) & (simulated.exact.t < config.test_stop)
        exact = Recording(*(getattr(simulated.exact, x)[keep] for x in ("t", "q", "v", "a", "tau")))
        errors["noise-free torque"] = {name: x.evaluate(exact).rms_error for name, x in predictions.items()}
        print_table(
            "held-out RMSE against the noise-free torque on the noise-free motion, N m",
            model.joint_names,
            errors["noise-free torque"],
        )
    relative = {name: x.evaluate(test.data).relative for name, x in predictions.items()}
    print("held-out error over the torque's norm: " + ", ".join(f"{name} {x:.2%}" for name, x in relative.items()))
    for name, x in (("least squares", linear), ("physical fit", physical)):
        bad = [body for body, ok in zip(model.body_names, x.physical, strict=True) if not ok]
        verdict = f"{len(bad)} of {model.nb} links not physical: {', '.join(bad)}" if bad else "every link is physical"
        print(f"{name}: {verdict}")
    out = summary(config, model, predictions, errors, times) | {"held_out_relative": relative}
    write_json(folder / "parameters.json", out)
    print(f"wrote {folder / 'parameters.json'}")
    if config.urdf:
        text = to_urdf(physical.model, config.name)
        write_durably(folder / "identified.urdf", lambda path: path.write_text(text, encoding="utf-8"))
        print(f"wrote {folder / 'identified.urdf'}")
    if config.report:
        notes = [
            f"Robot {config.robot}; recordings {', '.join(x.name for x in fitted)}, resampled to {config.rate:g} Hz, "
            f"low-passed at {config.cutoff:g} Hz; held out {test.data.name}, {test.data.t[0]:.2f} to "
            f"{test.data.t[-1]:.2f} s."
        ]
        title = f"Identification: {config.name}"
        drawn = bootstrap(physical, fitted, draws=config.bootstrap) if config.bootstrap else None
        write_durably(
            folder / "report.html",
            lambda path: write_report(path, predictions, fitted, test.data, title=title, notes=notes, bootstrap=drawn),
        )
        print(f"wrote {folder / 'report.html'}")
    if config.plot:
        draw(folder / "torque.png", config, model, test, torques)
    kept.remove()
    return out


def load_robot(name: str, without: str = "") -> Model:
    if name.endswith(".urdf"):
        path = data_path(name)
        if not without:
            return load_urdf(path)
        text = path.read_text(encoding="utf-8")
        if text.count(without) != 1:
            raise DataError(f"{path}: robot_without, {without!r}, is in it {text.count(without)} times; once is needed")
        return load_urdf(text.replace(without, ""))
    if name == "arm":
        return samples.arm()
    raise DataError(f"robot is {name!r}; known: 'arm', or a path that ends with .urdf")


def joint_effects(config: Config) -> JointEffects:
    names = [x.name for x in dataclasses.fields(JointEffects)]
    for name in config.joint_effects:
        look_up(name, names, "joint effect")
    return JointEffects(**{name: name in config.joint_effects for name in names})


def physical_start(model: Model) -> Model:
    """The model from which the physical fit starts; links that no mass distribution can have are changed, and named."""
    physical = np.asarray(is_physical(model.inertial_parameters))
    bad = [name for name, ok in zip(model.body_names, physical, strict=True) if not ok]
    if not bad:
        return model
    print(f"not physical in the robot's file, the fit starts from the nearest physical inertia: {', '.join(bad)}")
    projected = np.where(physical[:, None], model.inertial_parameters, nearest_physical(model.inertial_parameters))
    return eqx.tree_at(lambda m: m.inertial_parameters, model, jax.numpy.asarray(projected))


def load_recordings(config: Config, start: Model) -> tuple[list[Recording], Simulated | None]:
    if config.recording != "simulated":
        recordings = [load_from_zero(x, config.csv) for x in (config.recording, *config.more_recordings)]
        for x in recordings:
            check_recording(x, start)
        return recordings, None
    if config.more_recordings or config.test_recording:
        raise DataError("more_recordings and test_recording do not go with a simulated recording")
    simulated = simulate(start, config.simulation, config.friction_velocity)
    print(
        f"simulated by {simulated.engine}: {config.simulation.duration:g} s at {config.simulation.timestep:g} s, "
        f"seed {config.simulation.seed}, true masses {np.round(np.asarray(simulated.truth.mass), 2).tolist()} kg"
    )
    return [simulated.measured], simulated


def load_from_zero(name: str, columns: Columns) -> Recording:
    path = data_path(name)
    if path.suffix.lower() == ".csv":
        named = {key: names.split(",") for key, names in dataclasses.asdict(columns).items() if names}
        recording = load_csv(path, {key: names if len(names) > 1 else names[0] for key, names in named.items()})
    else:
        recording = load_npz(path)
    return dataclasses.replace(recording, t=recording.t - recording.t[0])


def prepared(recording: Recording, start: float, stop: float, config: Config) -> Part:
    part = recording.between(start, stop).resampled(config.rate)
    data = part.filtered(config.cutoff).differentiated()
    first = int(np.argmin(np.abs(part.t - data.t[0])))
    return Part(data, part.require("tau")[0][first : first + len(data)])


def rms(x: np.ndarray) -> np.ndarray:
    return np.sqrt(np.mean(x**2, axis=0))


def overall(by_joint: np.ndarray) -> float:
    return float(np.sqrt(np.mean(by_joint**2)))


def print_table(title: str, joints: Sequence[str], by_fit: dict[str, np.ndarray]) -> None:
    width = max(len("all joints"), *(len(name) for name in joints)) + 2
    print(f"\n{title}\n{'joint':{width}}" + "".join(f"{x:>15}" for x in (*by_fit, "physical / ls")))
    totals = {name: np.append(values, overall(values)) for name, values in by_fit.items()}
    for i, joint in enumerate((*joints, "all joints")):
        values = [x[i] for x in totals.values()]
        ratio = totals["physical fit"][i] / totals["least squares"][i]
        print(f"{joint:{width}}" + "".join(f"{x:15.4f}" for x in values) + f"{ratio:15.3f}")
    print()


def summary(config: Config, model: Model, predictions, errors, times) -> dict:
    def described(fit: InverseDynamicsFit) -> dict:
        leaves = ("inertial_parameters", "armature", "damping", "friction", "friction_velocity")
        return {
            **{name: np.asarray(getattr(fit.model, name)).tolist() for name in leaves},
            "offset": fit.offset.tolist(),
            "sigma": fit.sigma.tolist(),
            "physical": fit.physical.tolist(),
            "status": fit.status,
            "cost": fit.cost,
            "iterations": fit.iterations,
        }

    return {
        "config": dataclasses.asdict(config),
        "bodies": list(model.body_names),
        "joints": list(model.joint_names),
        "order": "m, mcx, mcy, mcz, Ixx, Ixy, Iyy, Ixz, Iyz, Izz about the origin of the body's frame; SI",
        "fits": {name: described(fit) for name, fit in predictions.items()},
        "held_out_rmse": {
            kind: {name: {"joints": x.tolist(), "all": overall(x)} for name, x in by_fit.items()}
            for kind, by_fit in errors.items()
        },
        "seconds": times,
    }


def draw(path: Path, config: Config, model: Model, test: Part, torques: dict[str, np.ndarray]) -> None:
    try:
        figure = plot_torques(
            model,
            test.data.t,
            test.data.require("tau")[0],
            torques,
            raw=test.raw_tau,
            title=f"{config.name}: torques held out, low-passed at {config.cutoff:g} Hz",
        )
    except ImportError:
        print("no plot: matplotlib is not installed (pip install 'jaxdyn[viz]')")
        return
    write_durably(path, lambda temporary: figure.savefig(temporary, dpi=110))
    print(f"wrote {path}")
