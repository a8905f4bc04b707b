"""The data of an identification: the robot, its recordings, and the parts that are fitted and held out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxdyn import samples
from jaxdyn._errors import DataError
from jaxdyn.io import load_urdf
from jaxdyn.model import Model
from jaxdyn.programs._config import ProgramConfig
from jaxdyn.programs._files import data_path
from jaxdyn.programs._simulated_recording import SimulatedRecording, Simulation, simulate_recording
from jaxdyn.sysid import Recording, check_recording, is_physical, load_csv, load_npz, nearest_physical

SAMPLES = ("acrobot", "arm", "cartpole", "double_pendulum", "pendulum")


@dataclasses.dataclass(frozen=True)
class Columns:
    """The names of the columns of CSV files, in SI units: names between commas, or one with a * for a number."""

    t: str = "t"
    q: str = "q*"
    v: str = ""
    """Empty for none."""
    tau: str = "tau*"


@dataclasses.dataclass(frozen=True)
class IdentifyConfig(ProgramConfig):
    """Keys of the configuration file."""

    robot: str
    """A sample robot (`arm`), or a URDF file: a path from here, or below $JAXDYN_DATA."""
    recording: str
    """`simulated`, or a NumPy archive of t, q, tau and perhaps v, or a CSV file, from here or below $JAXDYN_DATA."""
    fit_start: float
    """Start of the part that is fitted, s after the first sample of the recording, like all times below."""
    fit_stop: float
    """End of that part, s. The held-out part begins here, unless there is a `test_recording`."""
    test_stop: float
    """End of the held-out part, s."""
    more_recordings: tuple[str, ...] = ()
    """Recordings that are fitted together with the first one, each from `fit_start` to `fit_stop`."""
    test_recording: str = ""
    """A recording that is held out, from `fit_start` to `test_stop`, instead of the end of `recording`."""
    robot_without: str = ""
    """Faulty text to remove from the URDF file before parsing."""
    rate: float = 200.0
    """Samples per second after resampling."""
    cutoff: float = 10.0
    """Cutoff frequency of the zero-phase low-pass filter, Hz."""
    friction_velocity: float = 0.05
    """Velocity over which Coulomb friction changes its sign, rad/s."""
    joint_effects: tuple[str, ...] = ("armature", "viscous", "coulomb", "offset")
    """Effects that are identified at all joints besides inertias: fields of `jaxdyn.sysid.JointEffects`."""
    prior_weight: float = 0.1
    """Weight of the pull toward the start."""
    cross_validate: bool = False
    """Whether to choose that weight by cross-validation on the fitted data."""
    rounds: int = 15
    """Largest number of rounds that re-weight the joints."""
    max_iterations: int = 200
    """Largest number of steps in each round."""
    plot: bool = True
    """Whether to draw torque.png."""
    report: bool = True
    """Whether to write report.html."""
    bootstrap: int = 200
    """Draws of the bootstrap, whose intervals the report shows beside the others; 0 for none."""
    urdf: bool = False
    """Whether to write identified.urdf."""
    csv: Columns = dataclasses.field(default_factory=Columns)
    simulation: Simulation = dataclasses.field(default_factory=Simulation)


class PreparedRecording(NamedTuple):
    """A part of a recording, resampled, filtered and differentiated."""

    data: Recording
    raw_tau: np.ndarray
    """The torques before the filter, at the same times."""


class IdentificationData(NamedTuple):
    """The parts of the recordings that are fitted and held out."""

    fitted: list[Recording]
    held_out: PreparedRecording
    simulated: SimulatedRecording | None
    """The recording with its truth, where it was simulated."""


def load_data(config: IdentifyConfig, start: Model) -> IdentificationData:
    """Load or simulate the recordings, and prepare their parts. `start` is a physical model of the robot. **Raises**
    `DataError` for times in the wrong order and for recordings that do not fit the robot."""
    stop = config.test_stop if not config.test_recording else np.inf
    if not config.fit_start < config.fit_stop < stop or config.test_stop <= config.fit_start:
        raise DataError(
            f"fit_start {config.fit_start:g} < fit_stop {config.fit_stop:g} < test_stop {config.test_stop:g} is needed"
        )
    recordings, simulated = _load_recordings(config, start)
    # Split first: the filter and the differences look ahead, and must not see past the boundary.
    fitted = [_prepare(x, config.fit_start, config.fit_stop, config).data for x in recordings]
    if config.test_recording:
        last, begin = load_from_zero(config.test_recording, config.csv), config.fit_start
    else:
        last, begin = recordings[0], config.fit_stop
    held_out = _prepare(last, begin, config.test_stop, config)
    print(
        f"{sum(map(len, fitted))} samples at {config.rate:g} Hz to fit "
        f"({', '.join(f'{x.t[0]:.2f} to {x.t[-1]:.2f} s' for x in fitted)}), {len(held_out.data)} held out "
        f"({held_out.data.t[0]:.2f} to {held_out.data.t[-1]:.2f} s); low-pass {config.cutoff:g} Hz"
    )
    return IdentificationData(fitted, held_out, simulated)


def load_robot(name: str, choices: Sequence[str] = SAMPLES, *, without: str = "") -> Model:
    """Load one of the sample robots in `choices`, or a URDF file: a path, or a path below $JAXDYN_DATA. `without` is a
    faulty text that is removed from the file before it is parsed; it must stand there once. **Raises** `DataError` for
    an unknown name."""
    if name in choices:
        return getattr(samples, name)()
    if not name.endswith(".urdf"):
        raise DataError(f"robot is {name!r}; known: {', '.join(choices)}, or a path that ends with .urdf")
    path = data_path(name)
    if not without:
        return load_urdf(path)
    text = path.read_text(encoding="utf-8")
    if text.count(without) != 1:
        raise DataError(f"{path}: robot_without, {without!r}, is in it {text.count(without)} times; once is needed")
    return load_urdf(text.replace(without, ""))


def nearest_physical_model(model: Model) -> Model:
    """Return the model with the nearest physical inertias, and print the names of the links that this changes."""
    physical = np.asarray(is_physical(model.inertial_parameters))
    bad = [name for name, ok in zip(model.body_names, physical, strict=True) if not ok]
    if not bad:
        return model
    print(f"not physical in the robot's file, the fit starts from the nearest physical inertia: {', '.join(bad)}")
    projected = np.where(physical[:, None], model.inertial_parameters, nearest_physical(model.inertial_parameters))
    return dataclasses.replace(model, inertial_parameters=jnp.asarray(projected))


def load_from_zero(name: str, columns: Columns) -> Recording:
    """Load a recording, CSV or NumPy archive, and count its times from its first sample."""
    path = data_path(name)
    if path.suffix.lower() == ".csv":
        named = {key: names.split(",") for key, names in dataclasses.asdict(columns).items() if names}
        recording = load_csv(path, {key: names if len(names) > 1 else names[0] for key, names in named.items()})
    else:
        recording = load_npz(path)
    return dataclasses.replace(recording, t=recording.t - recording.t[0])


def _load_recordings(config: IdentifyConfig, start: Model) -> tuple[list[Recording], SimulatedRecording | None]:
    if config.recording != "simulated":
        recordings = [load_from_zero(x, config.csv) for x in (config.recording, *config.more_recordings)]
        for x in recordings:
            check_recording(x, start)
        return recordings, None
    if config.more_recordings or config.test_recording:
        raise DataError("more_recordings and test_recording do not go with a simulated recording")
    simulated = simulate_recording(start, config.simulation, config.friction_velocity)
    print(
        f"simulated by {simulated.engine}: {config.simulation.duration:g} s at {config.simulation.timestep:g} s, "
        f"seed {config.simulation.seed}, true masses {np.round(np.asarray(simulated.truth.mass), 2).tolist()} kg"
    )
    return [simulated.measured], simulated


def _prepare(recording: Recording, start: float, stop: float, config: IdentifyConfig) -> PreparedRecording:
    part = recording.between(start, stop).resampled(config.rate)
    data = part.filtered(config.cutoff).differentiated()
    first = int(np.argmin(np.abs(part.t - data.t[0])))
    return PreparedRecording(data, part.require("tau")[0][first : first + len(data)])
