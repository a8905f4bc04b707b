"""Identify a robot's inertias, friction and rotor inertias from a recording of its motion and torques.

    python -m experiments.identify [CONFIG] [--key value ...]

Compares, on a part of the recording that no fit sees: the parameters of the robot's file, ordinary least squares, and
the physically consistent fit.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
from tqdm import tqdm

import jaxdyn
from experiments._config import parse_arguments
from experiments._simulated_recording import Simulated, Simulation, simulate
from jaxdyn import DataError, JaxdynError, Model
from jaxdyn.io import load_urdf
from jaxdyn.sysid import (
    InverseDynamicsFit,
    Recording,
    Step,
    fit_inverse_dynamics,
    is_physical,
    load_npz,
    nearest_physical,
    ordinary_least_squares,
)

DEFAULT_CONFIG = Path(__file__).parent.parent / "configs" / "identify_embedded.toml"


@dataclasses.dataclass(frozen=True)
class Config:
    """Keys of the configuration file."""

    name: str
    """Of the folder below `results` that is written."""
    robot: str
    """A sample robot (`arm`), or a URDF file, absolute or below $JAXDYN_DATA."""
    recording: str
    """`simulated`, or a NumPy archive of t, q, tau and perhaps v, absolute or below $JAXDYN_DATA."""
    fit_start: float
    """s."""
    fit_stop: float
    """s; the part that is held out begins here."""
    test_stop: float
    """s."""
    rate: float = 200.0
    """Samples per second after resampling."""
    cutoff: float = 10.0
    """Of the zero-phase low-pass filter, Hz."""
    friction_velocity: float = 0.05
    """Velocity over which Coulomb friction changes its sign, rad/s."""
    prior_weight: float = 0.1
    """Pull towards the start."""
    rounds: int = 15
    """Of re-weighting the joints, at most."""
    max_steps: int = 200
    """In each round."""
    results: str = "results"
    """Directory of the results."""
    plot: bool = True
    """Whether to draw torque.png."""
    simulation: Simulation = dataclasses.field(default_factory=Simulation)


class Part(NamedTuple):
    """Part of a recording, prepared; and its torques before the filter, at the same times."""

    data: Recording
    raw_tau: np.ndarray


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiment; the exit code is 2 for a mistake in what was given, with a message on stderr."""
    # An application may choose: identification subtracts nearly equal sums, and single precision costs digits here.
    jax.config.update("jax_enable_x64", True)
    warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)
    try:
        arguments = sys.argv[1:] if arguments is None else arguments
        program = "python -m experiments.identify"
        run(parse_arguments(Config, arguments, DEFAULT_CONFIG, program, (__doc__ or "").splitlines()[0]))
    except (JaxdynError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def run(config: Config) -> dict:
    """Identify, print, and write `<results>/<name>/`; returns what `parameters.json` holds."""
    if not config.fit_start < config.fit_stop < config.test_stop:
        raise DataError(
            f"fit_start {config.fit_start:g} < fit_stop {config.fit_stop:g} < test_stop {config.test_stop:g} is needed"
        )
    model = load_robot(config.robot)
    start = physical_start(model)
    recording, simulated = load_recording(config, start)
    # Split first: the filter and the differences look ahead, and must not see past the boundary.
    train = prepared(recording, config.fit_start, config.fit_stop, config)
    test = prepared(recording, config.fit_stop, config.test_stop, config)
    print(
        f"{len(train.data)} samples at {config.rate:g} Hz to fit ({train.data.t[0]:.2f} to {train.data.t[-1]:.2f} s), "
        f"{len(test.data)} held out ({test.data.t[0]:.2f} to {test.data.t[-1]:.2f} s); low-pass {config.cutoff:g} Hz"
    )

    def fit(rounds: int, max_steps: int, report: Callable[[Step], None] | None = None) -> InverseDynamicsFit:
        return fit_inverse_dynamics(
            start,
            train.data,
            friction_velocity=config.friction_velocity,
            prior_weight=config.prior_weight,
            rounds=rounds,
            max_steps=max_steps,
            report=report,
        )

    # One step compiles all that the fit runs, which sets compilation apart from the work.
    began = time.perf_counter()
    fit(rounds=1, max_steps=1)
    compiling, began = time.perf_counter() - began, time.perf_counter()
    linear = ordinary_least_squares(model, train.data, friction_velocity=config.friction_velocity)
    linear_time, began = time.perf_counter() - began, time.perf_counter()
    with tqdm(desc="physical fit", unit=" steps", mininterval=0.1) as bar:

        def report(step: Step) -> None:
            bar.update()
            bar.set_postfix(
                round=step.round, cost=f"{step.cost:.6g}", expected_decrease=f"{step.expected_decrease:.1e}"
            )

        physical = fit(config.rounds, config.max_steps, report)
    fit_time = time.perf_counter() - began
    print(
        f"physical fit: {physical.status}, {physical.iterations} steps in {physical.rounds} rounds; least squares: "
        f"{linear.status}\nwall time: physical fit {fit_time:.1f} s, least squares {linear_time:.1f} s, compilation "
        f"before them {compiling:.1f} s"
    )
    zero = np.zeros(model.nv)
    before = InverseDynamicsFit(model, zero, zero, 0.0, 0, 0, "not fitted")
    predictions = {"before": before, "least squares": linear, "physical fit": physical}
    torques = {name: x.predict(test.data) for name, x in predictions.items()}
    errors = {
        "raw torque": {name: rms(x - test.raw_tau) for name, x in torques.items()},
        "filtered torque": {name: rms(x - test.data.tau) for name, x in torques.items()},
    }
    for kind, by_fit in errors.items():
        print_table(f"held-out RMSE against the {kind}, N m", model.joint_names, by_fit)
    if simulated is not None:
        keep = (simulated.exact.t >= config.fit_stop) & (simulated.exact.t < config.test_stop)
        exact = Recording(*(getattr(simulated.exact, x)[keep] for x in ("t", "q", "v", "a", "tau")))
        errors["noise-free torque"] = {name: rms(x.predict(exact) - exact.tau) for name, x in predictions.items()}
        print_table(
            "held-out RMSE against the noise-free torque on the noise-free motion, N m",
            model.joint_names,
            errors["noise-free torque"],
        )
    for name, x in (("least squares", linear), ("physical fit", physical)):
        bad = [body for body, ok in zip(model.body_names, x.physical, strict=True) if not ok]
        verdict = f"{len(bad)} of {model.nb} links not physical: {', '.join(bad)}" if bad else "every link is physical"
        print(f"{name}: {verdict}")
    folder = Path(config.results) / config.name
    folder.mkdir(parents=True, exist_ok=True)
    out = summary(config, model, predictions, errors, {"compilation": compiling, "physical fit": fit_time})
    write_atomically(folder / "parameters.json", lambda path: path.write_text(json.dumps(out, indent=1) + "\n"))
    print(f"wrote {folder / 'parameters.json'}")
    if config.plot:
        draw(folder / "torque.png", config, model, test, torques)
    return out


def data_path(name: str) -> Path:
    """A path as given, or below $JAXDYN_DATA."""
    path = Path(name).expanduser()
    if path.is_absolute():
        return path
    root = os.environ.get("JAXDYN_DATA")
    if not root:
        raise DataError(
            f"{name} lies below the directory of recorded data, and the environment variable JAXDYN_DATA, which names "
            "it, is not set; set it, or give an absolute path"
        )
    return Path(root).expanduser() / path


def load_robot(name: str) -> Model:
    if name.endswith(".urdf"):
        return load_urdf(data_path(name))
    if name == "arm":
        return jaxdyn.samples.arm()
    raise DataError(f"robot is {name!r}; known: 'arm', or a path that ends with .urdf")


def physical_start(model: Model) -> Model:
    """The model from which the physical fit starts; links that no mass distribution can have are changed, and named."""
    physical = np.asarray(is_physical(model.inertial_parameters))
    bad = [name for name, ok in zip(model.body_names, physical, strict=True) if not ok]
    if not bad:
        return model
    print(f"not physical in the robot's file, the fit starts from the nearest physical inertia: {', '.join(bad)}")
    projected = np.where(physical[:, None], model.inertial_parameters, nearest_physical(model.inertial_parameters))
    return eqx.tree_at(lambda m: m.inertial_parameters, model, jax.numpy.asarray(projected))


def load_recording(config: Config, start: Model) -> tuple[Recording, Simulated | None]:
    if config.recording != "simulated":
        return load_npz(data_path(config.recording)), None
    simulated = simulate(start, config.simulation, config.friction_velocity)
    print(
        f"simulated by {simulated.engine}: {config.simulation.duration:g} s at {config.simulation.timestep:g} s, "
        f"seed {config.simulation.seed}, true masses {np.round(np.asarray(simulated.truth.mass), 2).tolist()} kg"
    )
    return simulated.measured, simulated


def prepared(recording: Recording, start: float, stop: float, config: Config) -> Part:
    part = recording.between(start, stop).resampled(config.rate)
    data = part.filtered(config.cutoff).differentiated()
    first = int(np.argmin(np.abs(part.t - data.t[0])))
    return Part(data, part.tau[first : first + len(data)])


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


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Whoever reads the file finds the old one or the new one, never half of one."""
    temporary = path.with_name(f".{path.stem}-{os.getpid()}{path.suffix}")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def draw(path: Path, config: Config, model: Model, test: Part, torques: dict[str, np.ndarray]) -> None:
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        print("no plot: matplotlib is not installed (pip install 'jaxdyn[viz]')")
        return
    fig, axes = plt.subplots(model.nv, 1, figsize=(10, 1.7 * model.nv + 0.8), sharex=True, squeeze=False)
    for i, (axis, joint) in enumerate(zip(axes[:, 0], model.joint_names, strict=True)):
        axis.plot(test.data.t, test.raw_tau[:, i], color="0.75", lw=0.8, label="measured")
        axis.plot(test.data.t, test.data.tau[:, i], color="black", lw=1.2, label=f"measured, {config.cutoff:g} Hz")
        for name, color, style in (
            ("before", "tab:orange", ":"),
            ("least squares", "tab:blue", "--"),
            ("physical fit", "tab:red", "-"),
        ):
            axis.plot(test.data.t, torques[name][:, i], style, color=color, lw=1.0, label=name)
        # The parameters of a file may be far off; the scale is that of the measurement.
        low, high = test.raw_tau[:, i].min(), test.raw_tau[:, i].max()
        axis.set_ylim(low - 0.3 * (high - low), high + 0.3 * (high - low))
        axis.set_ylabel(f"{joint}\nN m", fontsize=8)
        axis.tick_params(labelsize=8)
    axes[-1, 0].set_xlabel("time, s")
    axes[0, 0].legend(ncol=5, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    fig.suptitle(f"{config.name}: joint torques on the held-out part")
    fig.tight_layout()
    write_atomically(path, lambda temporary: fig.savefig(temporary, dpi=110))
    plt.close(fig)
    print(f"wrote {path}")


if __name__ == "__main__":
    sys.exit(main())
