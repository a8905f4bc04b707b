"""The data of an identification: the robot, its recordings, and the parts that are fitted and held out."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from jaxdyn import samples
from jaxdyn._errors import DataError, ModelError, look_up, require_positive, require_positive_integer
from jaxdyn._printing import percent
from jaxdyn.cli._config import ProgramConfig
from jaxdyn.cli._progress import announce
from jaxdyn.cli._result_files import data_path
from jaxdyn.cli._simulated_recording import SimulatedRecording, Simulation, simulate_recording
from jaxdyn.io import load_urdf, patch_urdf, to_urdf
from jaxdyn.model import Model
from jaxdyn.sysid import (
    JointEffects,
    Plan,
    Recording,
    check_recording,
    load_csv,
    load_npz,
    nearest_physical_model,
    plan_identification,
    require_plausible,
)

SAMPLES = ("acrobot", "arm", "cartpole", "double_pendulum", "pendulum")


@dataclasses.dataclass(frozen=True)
class CsvColumns:
    """The columns of CSV files: names between commas, one name with a * for a number, or, in files without a line of
    names, numbers from 0 between commas and ranges of them, such as 1-7."""

    t: str = ""
    """Empty to guess by the names, like `q` and `tau`: `t` or `time`, `q1` or `position1`, `tau1`, `torque1` or
    `effort1`."""
    q: str = ""
    v: str = ""
    """Empty for none."""
    tau: str = ""
    current: str = ""
    """Motor currents in the place of torques, with `torque_gain`."""
    delimiter: str = ","
    """Text between columns; `tab`, or `space` for any white space."""
    decimal: str = "."
    """Sign before the decimals of a number, `.` or `,`."""
    header: Literal["auto", "yes", "no"] = "auto"
    """Whether the first line has names of columns."""
    skip_lines: tuple[int, ...] = ()
    """Numbers of broken lines to leave out, which the error about them names."""


@dataclasses.dataclass(frozen=True)
class UnitFactors:
    """Factors that convert the numbers in the files of recordings to SI units; negative ones turn signs."""

    t: float = 1.0
    """To s: 1e-3 for ms."""
    q: float = 1.0
    """To rad or m: 0.017453292519943295 for degrees."""
    v: float = 1.0
    """To rad/s or m/s."""
    tau: float = 1.0
    """To N m or N."""


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
    locked: dict[str, float] = dataclasses.field(default_factory=dict)
    """Joints that did not move and have no columns, with their positions, rad or m: `locked = {finger_joint1 = 0.0}`,
    or `--locked finger_joint1 0.0`."""
    torque_gain: tuple[float, ...] = ()
    """Torque for each ampere of motor current, with the gear, N m/A: one for each joint, or one for all. The recordings
    then have currents in the place of torques: `csv.current`, or an array `current`."""
    transmission: tuple[float, ...] = ()
    """The matrix from motors to joints, row by row, where the columns are those of motors that drive joints together
    (`jaxdyn.sysid.Recording.transmission`); empty where they are those of joints."""
    scale: UnitFactors = dataclasses.field(default_factory=UnitFactors)
    trim: float = 0.0
    """Time that is cut off at both ends of each recording, s. All other times count from the first sample left."""
    force: bool = False
    """Whether to go on if the checks find that a recording's torques, positions or times must be wrong."""
    rate: float = 0.0
    """Samples per second to which the recordings are interpolated first; 0 for their own rate."""
    cutoff: float = 0.0
    """Frequency below which torques are compared, Hz; 0 to have it chosen (`jaxdyn.sysid.plan_identification`)."""
    friction_velocity: float = 0.05
    """Velocity over which Coulomb friction changes its sign, rad/s."""
    joint_effects: tuple[str, ...] = ()
    """Effects that are identified at all joints besides inertias: fields of `jaxdyn.sysid.JointEffects`; none to have
    them chosen by cross-validation."""
    lengths: bool = False
    """Whether to identify where joints stand in the bodies before them, too."""
    prior_weight: float = 0.0
    """Weight of the pull toward the start; 0 to have it chosen by cross-validation."""
    rounds: int = 15
    """Largest number of rounds that re-weight the joints."""
    max_iterations: int = 200
    """Largest number of steps in each round."""
    plot: bool = True
    """Whether to draw torque.png."""
    report: bool = True
    """Whether to write report.html."""
    bootstrap: int = 0
    """Draws of the bootstrap, whose intervals the report shows beside the others, such as 200; 0 for none. Each is a
    fit."""
    urdf: bool = False
    """Whether to write identified.urdf: the robot's own file with the identified numbers."""
    csv: CsvColumns = dataclasses.field(default_factory=CsvColumns)
    simulation: Simulation = dataclasses.field(default_factory=Simulation)


class IdentificationData(NamedTuple):
    """The parts of the recordings that are fitted and held out."""

    plan: Plan
    """The prepared recordings of the fit, and what was chosen."""
    held_out: Recording
    """A part of a recording that no fit sees, prepared as those of the fit."""
    raw: Recording
    """The same part with the torques as they were measured."""
    simulated: SimulatedRecording | None
    """The recording with its truth, where it was simulated."""


def load_data(config: IdentifyConfig, start: Model) -> IdentificationData:
    """Load or simulate the recordings, and prepare their parts. `start` is a physical model of the robot. **Raises**
    `DataError` for times in the wrong order and for recordings that do not fit the robot."""
    _require_numbers(config)
    effects = _joint_effects(config)
    stop = config.test_stop if not config.test_recording else np.inf
    if not config.fit_start < config.fit_stop < stop or config.test_stop <= config.fit_start:
        raise DataError(
            f"fit_start {config.fit_start:g} < fit_stop {config.fit_stop:g} < test_stop {config.test_stop:g} is needed"
        )
    recordings, simulated = _load_recordings(config, start)
    fitted, last = _split(recordings, config, start)
    announce("choosing what was not given (cutoff, friction, prior) by cross-validation")
    plan = plan_identification(
        start,
        fitted,
        joint_effects=effects,
        prior_weight=config.prior_weight or None,
        friction_velocity=config.friction_velocity,
        cutoff=config.cutoff or None,
        lengths=config.lengths,
    )
    held_out = plan.prepare(last)
    times = ", ".join(f"{x.t[0]:.2f} to {x.t[-1]:.2f} s" for x in plan.recordings)
    print(
        f"{sum(map(len, plan.recordings))} samples to fit ({times}), {len(held_out)} held out "
        f"({held_out.t[0]:.2f} to {held_out.t[-1]:.2f} s); torques are compared below {plan.cutoff:.3g} Hz"
    )
    for choice in plan.choices:
        print(
            f"{choice.name}: mean square on held-out parts {percent(abs(choice.improvement))} "
            f"{'lower' if choice.improvement > 0 else 'higher'} (standard error {percent(choice.standard_error)}), "
            f"{'taken' if choice.taken else 'not taken'}"
        )
    return IdentificationData(plan, held_out, plan.prepare(last, raw=True), simulated)


def _joint_effects(config: IdentifyConfig) -> JointEffects | None:
    """The effects that the configuration names, or None. **Raises** `UnknownNameError`."""
    names = [x.name for x in dataclasses.fields(JointEffects) if isinstance(x.default, bool)]
    for name in config.joint_effects:
        look_up(name, names, "joint effect")
    if "gain" in config.joint_effects:
        raise DataError(
            "joint_effects has gain, which ordinary least squares cannot tell from heavier links: use "
            "jaxdyn.sysid.identify, or scale the recorded torques"
        )
    chosen: dict[str, Any] = {name: name in config.joint_effects for name in names}
    return JointEffects(**chosen) if config.joint_effects else None


def load_robot(name: str, choices: Sequence[str] = SAMPLES, *, without: str = "") -> Model:
    """Load one of the sample robots in `choices`, or a URDF file: a path, or a path below $JAXDYN_DATA. `without` is a
    faulty text that is removed from the file before it is parsed; it must stand there once. **Raises** `DataError` for
    an unknown name."""
    if name in choices:
        return getattr(samples, name)()
    if not name.endswith(".urdf"):
        raise DataError(f"robot is {name!r}; known: {', '.join(choices)}, or a path that ends with .urdf")
    return load_urdf(_robot_source(name, without))


def _robot_source(name: str, without: str) -> Path | str:
    """Return the path of a URDF file, or its text without a faulty part."""
    path = data_path(name)
    if not without:
        return path
    text = path.read_text(encoding="utf-8")
    if text.count(without) != 1:
        raise DataError(f"{path}: robot_without, {without!r}, is in it {text.count(without)} times; once is needed")
    return text.replace(without, "")


def identified_urdf(config: IdentifyConfig, model: Model) -> str:
    """Return an identified robot as URDF: the file that it was loaded from with other numbers, so that meshes, comments
    and elements of simulators stay. A sample robot, and one with joints that were locked, is written anew."""
    if not config.robot.endswith(".urdf"):
        return to_urdf(model, config.name)
    try:
        text = patch_urdf(_robot_source(config.robot, config.robot_without), model)
    except ModelError as error:
        # Locked joints, for instance, are not in the file.
        print(f"identified.urdf is written anew, without meshes and comments: {error}")
        return to_urdf(model, config.name)
    # The text is written in UTF-8, whatever the encoding of the file was.
    return re.sub(r"""(<\?xml[^>]*\bencoding\s*=\s*["'])[^"']*""", r"\1utf-8", text, count=1)


def physical_start(model: Model) -> Model:
    """Return the model with the nearest physical inertias, and print the names of the links that this changes."""
    start, bad = nearest_physical_model(model)
    if bad:
        print(f"not physical in the robot's file, the fit starts from the nearest physical inertia: {', '.join(bad)}")
    return start


def load_from_zero(name: str, columns: CsvColumns, *, currents: bool = False) -> Recording:
    """Load a recording, CSV or NumPy archive, and count its times from its first sample. `currents`: whether it has
    motor currents in the place of torques."""
    with _noting(_RECORDING):
        path = data_path(name)
        recording = _load_file(path, columns, currents)
    return dataclasses.replace(recording, t=recording.t - recording.t[0])


_RECORDING = (
    "(a recording is `simulated`, a NumPy archive with arrays t, q and tau, or a CSV file, whose columns the keys "
    "csv.t, csv.q and csv.tau choose, by name or by number, such as --csv.q 1-7 on the command line; the keys "
    "csv.header, yes or no, csv.decimal and csv.skip_lines say what the file cannot)"
)


def _load_file(path: Path, columns: CsvColumns, currents: bool) -> Recording:
    """Load a CSV file or a NumPy archive."""
    chosen = dataclasses.asdict(columns)
    if path.suffix.lower() == ".csv":
        if currents and not columns.current:
            raise DataError("torque_gain is given, but csv.current names no columns of motor currents")
        unused = ("delimiter", "decimal", "header", "skip_lines", "tau" if currents else "current")
        named = {
            key: _columns_of(key, text) if text else None
            for key, text in chosen.items()
            if key not in unused and (text or key in ("t", "q", "tau"))
        }
        delimiter = {"tab": "\t", "space": " "}.get(columns.delimiter, columns.delimiter)
        header = {"yes": True, "no": False}.get(columns.header)
        options = {"delimiter": delimiter, "decimal": columns.decimal, "skip_lines": columns.skip_lines}
        return load_csv(path, named, header=header, **options)
    torques = {"tau": None, "current": "current"} if currents else {}
    return load_npz(path, **torques)


def _columns_of(key: str, text: str) -> str | list[str | int]:
    """Return the columns that a text names; numbers, and ranges of numbers, are columns of a file without names."""
    out: list[str | int] = []
    for part in (x.strip() for x in text.split(",")):
        ends = [int(x) for x in part.split("-")] if re.fullmatch(r"[0-9]+(-[0-9]+)?", part) else []
        if not part or ends != sorted(ends):
            raise DataError(f"csv.{key} is {text!r}; names between commas, numbers from 0, or ranges as 1-7 are needed")
        out += range(ends[0], ends[-1] + 1) if ends else [part]
    return out


def _load(name: str, config: IdentifyConfig) -> Recording:
    """Load a recording with torques, in SI units and without its ends."""
    recording = load_from_zero(name, config.csv, currents=bool(config.torque_gain))
    scaled = {
        key: x * getattr(config.scale, key) for key in ("q", "v", "tau") if (x := getattr(recording, key)) is not None
    }
    recording = dataclasses.replace(recording, t=recording.t * config.scale.t, **scaled)
    if gains := list(config.torque_gain):
        recording = recording.torque_from_current(gains if len(gains) > 1 else gains[0])
    if config.transmission:
        n = recording.q.shape[1]
        if len(config.transmission) != n * n:
            raise DataError(
                f"transmission has {len(config.transmission)} numbers; {n} x {n} are needed for {n} motors and joints, "
                "row by row"
            )
        recording = dataclasses.replace(recording, transmission=np.reshape(config.transmission, (n, n)))
    if config.trim:
        recording = recording.trimmed(config.trim, config.trim)
    return dataclasses.replace(recording, t=recording.t - recording.t[0])


def _load_recordings(config: IdentifyConfig, start: Model) -> tuple[list[Recording], SimulatedRecording | None]:
    """Return the recordings, of which the last is the `test_recording` if there is one. **Raises** `DataError` for
    grave findings, unless `force` is given."""
    _require_units(config)
    if config.recording != "simulated":
        names = [config.recording, *config.more_recordings, *filter(None, [config.test_recording])]
        recordings = [_load(x, config) for x in names]
        with _noting("The key locked does it: locked = {joint = 0.0} in the file, --locked joint 0.0 as an option"):
            for x in recordings:
                x.require_columns(start)
        # The checks of torques take seconds, so options that cannot be are refused before.
        try:
            parts, last = _split(recordings, config, start)
            for x in (*parts, last):
                rate = x.rate or 1 / float(np.median(np.diff(x.t)))
                x.prepared(config.cutoff or min(10.0, 0.1 * rate), model=start)
        except DataError as error:
            # Times in another unit may be the reason, which these checks need no torques to see.
            clocks = [y for x in recordings for y in check_recording(x, warn=False) if y.kind == "clock"]
            for finding in clocks[:1]:
                error.add_note(finding.message)
            raise
        with _noting("The keys csv and scale choose columns, units and signs; --force, or force = true, goes on"):
            require_plausible(recordings, start, force=config.force)
        return recordings, None
    if config.more_recordings or config.test_recording or config.transmission:
        raise DataError("more_recordings, test_recording and transmission do not go with a simulated recording")
    _require_end("simulation.duration", config.simulation.duration, config)
    simulated = simulate_recording(start, config.simulation, config.friction_velocity)
    print(
        f"simulated by {simulated.engine}: {config.simulation.duration:g} s at {config.simulation.timestep:g} s, "
        f"seed {config.simulation.seed}, true masses {np.round(np.asarray(simulated.truth.mass), 2).tolist()} kg"
    )
    return [simulated.measured], simulated


@contextlib.contextmanager
def _noting(note: str) -> Iterator[None]:
    """Add what the program offers to the message of a `DataError`."""
    try:
        yield
    except DataError as error:
        error.add_note(note)
        raise


def _require_numbers(config: IdentifyConfig) -> None:
    """Raise `DataError` for numbers that no step of the program takes, before the first one."""
    for key in ("rounds", "max_iterations"):
        require_positive_integer(getattr(config, key), key, error=DataError)
    require_positive(config.friction_velocity, "friction_velocity", error=DataError)
    for key in ("prior_weight", "cutoff", "rate", "trim"):
        if getattr(config, key) < 0:
            raise DataError(f"{key} is {getattr(config, key):g}; it must be positive, or 0 to leave it out")
    if config.bootstrap < 0 or config.bootstrap == 1:
        raise DataError(f"bootstrap is {config.bootstrap}; at least two draws, or 0 for none, are needed")


def _require_units(config: IdentifyConfig) -> None:
    """Raise `DataError` for scales and gains that no unit has, and for currents without a gain."""
    require_positive(config.scale.t, "scale.t", error=DataError)
    for key in ("q", "v", "tau"):
        require_positive(abs(getattr(config.scale, key)), f"the size of scale.{key}", error=DataError)
    for gain in config.torque_gain:
        require_positive(abs(gain), "the size of torque_gain", error=DataError)
    if config.torque_gain and config.scale.tau != 1.0:
        raise DataError("scale.tau does not go with torque_gain, which converts currents to N m; change the gain")
    if config.csv.current and not config.torque_gain:
        raise DataError(
            "csv.current names currents; give torque_gain, N m/A with the gear, to compute torques from them"
        )
    if not config.csv.delimiter:
        raise DataError("csv.delimiter is empty; give the text between columns, tab, or space for any white space")


def _split(recordings: Sequence[Recording], config: IdentifyConfig, model: Model) -> tuple[list[Recording], Recording]:
    """The parts that are fitted, and the one that is held out. **Raises** `DataError` where a recording ends before."""
    fitted = recordings[:-1] if config.test_recording else recordings
    for x in fitted:
        _require_end(x.name, x.t[-1], config, slack=2 * float(np.median(np.diff(x.t))))
    begin = config.fit_start if config.test_recording else config.fit_stop

    def part(recording: Recording, start: float, stop: float) -> Recording:
        # Split first: the filter and the differences look ahead, and must not see past the boundary.
        out = recording.between(start, stop)
        return out.resampled(config.rate, model=model) if config.rate else out

    last = part(recordings[-1] if config.test_recording else recordings[0], begin, config.test_stop)
    return [part(x, config.fit_start, config.fit_stop) for x in fitted], last


def _require_end(name: str, end: float, config: IdentifyConfig, *, slack: float = 0.0) -> None:
    """Raise `DataError` if the part that is fitted ends more than `slack` after the end of its recording, s."""
    if config.fit_stop > end + slack:
        raise DataError(
            f"fit_stop is {config.fit_stop:g} s, but {name} ends after {end:g} s, counted from its first sample; the "
            "part from fit_start to fit_stop is fitted, and that from fit_stop to test_stop, or another recording "
            "(test_recording), is held out"
        )
