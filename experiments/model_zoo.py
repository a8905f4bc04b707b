"""Load every robot file of some packages, and compare robots with Pinocchio and scenes with MuJoCo.

    python -m experiments.model_zoo [CONFIG] [--key value ...]

URDF files are compared with Pinocchio, with fixed and with free base: mass matrix, bias (Coriolis, gravity, springs)
and forward dynamics at random states. MJCF files are compared with MuJoCo as scenes, with contacts, actuators, tendons
and all: accelerations at states of several kinds, and a roll-out. Prints a table, and writes it as a page of the
documentation.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import importlib.metadata
import multiprocessing
import os
import re
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments._main import CONFIGS, experiment, version_of
from jaxdyn import DataError, JaxdynError, Model, aba, cli, load_world
from jaxdyn.io import is_mjcf, load_urdf

DEFAULT_CONFIG = CONFIGS / "model_zoo.toml"

FEW = 25
"""The cases that one process compares. Native programs stay in memory until it ends, and take places in the table of
its memory maps, whose length systems limit."""
GRADIENTS = (
    "For each model that counts as equal, the gradient of forward dynamics with respect to the state and every array",
    "of the model is finite.",
)


@dataclasses.dataclass(frozen=True)
class Config(cli.ProgramConfig):
    """Keys of the configuration file."""

    urdf: str
    """Folders with URDF files, separated by commas: paths, or `distribution:path` of an installed distribution."""
    mjcf: str
    """The same with MJCF files."""
    only: str = ""
    """Text in the paths of the files that are compared."""
    states: int = 5
    """Random states of each model."""
    tolerance: float = 1e-9
    """Largest relative error of equal answers of robots."""
    scene_tolerance: float = 1e-8
    """The same of the accelerations of scenes."""
    steps: int = 200
    """Time steps of the roll-out of each scene; none if 0."""
    seed: int = 0
    gradients: bool = True
    """Whether the gradient of the forward dynamics of a robot with respect to the state and every array of the model
    must be finite, too. It takes most of the time."""
    processes: int = 1
    report: str = "docs/model-zoo.md"
    """The page that is written; none if empty or if `only` leaves files out."""


@dataclasses.dataclass(frozen=True)
class Case:
    kind: str
    """`urdf` or `mjcf`."""
    package: str
    name: str
    """Path below the folder."""
    path: str
    free_base: bool = False


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of a case: `equal`, `DIFFERENT`, `refused` (by this library), or `not compared` (no reference, or no
    scene: a part of one that MuJoCo does not compile by itself, or in which nothing moves)."""

    case: Case
    verdict: str
    reason: str = ""
    errors: dict[str, float] = dataclasses.field(default_factory=dict)
    condition: float = 0.0
    """The largest condition number of the mass matrix over the states."""
    nv: int = 0
    followers: int = 0
    load_seconds: float = 0.0
    rollout: str = ""
    """For how many steps the roll-out of a scene agrees with MuJoCo's."""
    seconds: float = 0.0
    """CPU time of the whole case, s; most of it is compilation."""

    @property
    def worst(self) -> float:
        return max(self.errors.values())


def run(config: Config) -> list[Outcome]:
    """Compare, print, and write the page and `<results>/<name>/outcomes.json`."""
    cli.require_positive_keys(config, "processes", "states")
    cases, missing = all_cases(config)
    for package in missing:
        print(f"{package} is not installed: its files are left out")
    if not cases:
        raise DataError(f"no files to compare below {config.urdf}, {config.mjcf} with {config.only!r} in their paths")
    outcomes = list(cli.ProgressBar(results_of(cases, config), total=len(cases), desc="models", mininterval=1.0))
    lines = page(outcomes, config, missing)
    print("\n".join(lines))
    folder = config.make_folder()
    cli.write_json(folder / "outcomes.json", [dataclasses.asdict(x) for x in outcomes], announce=True)
    if config.report and not config.only:
        Path(config.report).write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"wrote {config.report}")
    return outcomes


# The files.


def all_cases(config: Config) -> tuple[list[Case], list[str]]:
    """Return every case, and the packages that are not installed."""
    cases, missing = [], []
    for kind, sources in (("urdf", config.urdf), ("mjcf", config.mjcf)):
        for source in filter(None, map(str.strip, sources.split(","))):
            package, folder = locate(source)
            if folder is None:
                missing.append(package)
                continue
            for path in files(folder, kind):
                name = path.relative_to(folder).as_posix()
                if config.only not in name:
                    continue
                for free_base in (False, True) if kind == "urdf" else (False,):
                    cases.append(Case(kind, package, name, str(path), free_base))
    return cases, missing


def locate(source: str) -> tuple[str, Path | None]:
    """Return the title of a source, and its folder, which is None if its distribution is not installed."""
    package, colon, inside = source.partition(":")
    if not colon or Path(source).is_dir():
        folder = Path(source).expanduser()
        if not folder.is_dir():
            raise DataError(f"{source} is not a folder; give a path, or distribution:path")
        return folder.name, folder
    try:
        distribution = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return package, None
    return f"{package} {distribution.version}", Path(str(distribution.locate_file(inside)))


def files(folder: Path, kind: str) -> list[Path]:
    """Return the robot files of a kind below a folder."""
    if kind == "urdf":
        return sorted(folder.rglob("*.urdf"))
    return [path for path in sorted(folder.rglob("*.xml")) if is_mjcf(path)]


# One case.


def results_of(cases: list[Case], config: Config) -> Iterator[Outcome]:
    """Yield the outcome of each case, in order."""
    arguments = [(case, config) for case in cases]
    if len(cases) <= FEW:
        prepare()
        yield from map(outcome_of, arguments)
        return
    # Threads of JAX do not survive a fork.
    context = multiprocessing.get_context("spawn")
    many = FEW * config.processes
    for first in range(0, len(cases), many):
        # The pool's own `max_tasks_per_child` can hang (Python's issue 115634).
        with concurrent.futures.ProcessPoolExecutor(config.processes, context, initializer=prepare) as pool:
            yield from pool.map(outcome_of, arguments[first : first + many])


def prepare() -> None:
    """Set up a process that compares."""
    # Equal means equal in double precision.
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_platforms", "cpu")
    warnings.simplefilter("ignore")


def outcome_of(arguments: tuple[Case, Config]) -> Outcome:
    """Compare a case and measure the time."""
    began = time.process_time()
    case, config = arguments
    outcome = compare_robot(case, config) if case.kind == "urdf" else compare_world(case, config)
    # Programs of XLA take places in the table of memory maps, too.
    jax.clear_caches()
    return dataclasses.replace(outcome, seconds=time.process_time() - began)


def compare_robot(case: Case, config: Config) -> Outcome:
    """Compare a URDF file with Pinocchio."""
    path = Path(case.path)
    began = time.process_time()
    try:
        model = load_urdf(path, free_base=case.free_base)
    except JaxdynError as error:
        return Outcome(case, "refused", without_folder(str(error), case))
    seconds = time.process_time() - began
    facts: dict[str, Any] = {"nv": model.nv, "followers": len(model.topology.mimics), "load_seconds": seconds}
    states = cli.random_states(model, config.states, config.seed)
    try:
        expected = cli.pinocchio_answers(model, cli.pinocchio_model(path, case.free_base), path, states)
    except (ImportError, ValueError, RuntimeError) as error:
        return Outcome(case, "not compared", without_folder(f"{type(error).__name__}: {error}", case), **facts)
    errors = cli.largest_errors(cli.dynamics(model, states), expected)
    if config.gradients:
        errors["gradient"] = 0.0 if gradient_is_finite(model, states) else float("inf")
    allowed = cli.allowed_errors(errors, expected["mass matrix"], config.tolerance)
    equal = all(error <= allowed[name] for name, error in errors.items())
    facts["condition"] = cli.largest_condition(expected["mass matrix"])
    return Outcome(case, "equal" if equal else "DIFFERENT", errors=errors, **facts)


def gradient_is_finite(model: Model, states: cli.States) -> bool:
    """Tell whether the derivatives of forward dynamics with respect to `q`, `v`, `tau` and every array of the model are
    finite, joint friction included."""
    gradient = cli.evaluate_once(jax.grad(lambda arguments: aba(*arguments).sum()), (model, *states))
    return all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))


def why_refused(error: Exception) -> list[str]:
    """Return the reasons in the message of a refused world; all of it where it has none."""
    lines = [line.removeprefix("- ") for line in str(error).splitlines() if line.startswith("- ")]
    return lines or [" ".join(str(error).split())]


def why_no_world(path: str) -> str | None:
    """Return why an MJCF file is no world, in MuJoCo's words, or because nothing in it moves; None if it is one."""
    mujoco = importlib.import_module("mujoco")
    try:
        m = mujoco.MjModel.from_xml_path(path)
    except ValueError as error:
        return " ".join(str(error).split())
    return None if m.nv else "nothing moves"


def compare_world(case: Case, config: Config) -> Outcome:
    """Compare an MJCF file with MuJoCo."""
    reason = why_no_world(case.path)
    if reason:
        return Outcome(case, "not compared", without_folder(reason, case))
    began = time.process_time()
    try:
        scene = load_world(case.path)
    except JaxdynError as error:
        return Outcome(case, "refused", without_folder("; ".join(why_refused(error)), case))
    facts: dict[str, Any] = {"nv": scene.model.nv, "load_seconds": time.process_time() - began}
    found = cli.compare_world(
        case.path,
        scene,
        states=config.states,
        steps=config.steps,
        tolerance=config.scene_tolerance,
        seed=config.seed,
    )
    names = {"acceleration": "error", "step": "step_error", "sensors": "sensor_error"}
    errors = {name: max(getattr(x, e) for x in found.accelerations.values()) for name, e in names.items()}
    if found.rollout is not None:
        errors["roll-out"] = found.rollout.error
        facts["rollout"] = f"{found.rollout.agree} of {found.rollout.steps} steps"
        if found.rollout.own_agree < found.rollout.steps:
            facts["rollout"] += f", MuJoCo itself {found.rollout.own_agree}"
        if found.margin_change:
            facts["rollout"] += f", margins changed by {found.margin_change:g}"
    if found.first is not None:
        facts["reason"] = f"{found.first.quantity}, from {found.first.where}"
    if found.equal and not found.comparable:
        return Outcome(case, "not compared", "most states hang on rounding: bodies only just touch", **facts)
    return Outcome(case, "equal" if found.equal else "DIFFERENT", errors=errors, **facts)


def without_folder(text: str, case: Case) -> str:
    """Return a text without the folder in which the package is installed."""
    return text.replace(case.path.removesuffix(case.name), "")


# The page.


def page(outcomes: list[Outcome], config: Config, missing: list[str]) -> list[str]:
    """Return the lines of the page and of the output on the terminal."""
    counts = {verdict: sum(o.verdict == verdict for o in outcomes) for verdict in ("equal", "DIFFERENT", "refused")}
    counts["not compared"] = len(outcomes) - sum(counts.values())
    versions = {name: version_of(name) for name in ("jax", "pin", "mujoco")}
    # Different reasons, numbered in the order of their appearance.
    notes: dict[str, int] = {}
    lines = [
        "# Model zoo",
        "",
        "This page compares robot files of other projects with Pinocchio (URDF) and scenes with MuJoCo (MJCF), in",
        "double precision.",
        "",
        f"Of URDF files mass matrix, bias (Coriolis, gravity, springs) and forward dynamics at {config.states} random",
        "states are compared, without friction. A number is the largest of the three errors, each relative to the",
        f"largest number of the answer. Answers are equal if they differ by at most {config.tolerance:g}.",
        "Accelerations may differ by more if the mass matrix is badly conditioned, up to the effect of rounding; the",
        "table then gives its condition number.",
        *(GRADIENTS if config.gradients else ()),
        "Joints that mimic others follow their leader. Pinocchio's joints are independent, and are projected on their",
        "leaders for the comparison, `G^T M G`.",
        "",
        "MJCF files are compared as whole scenes (`jaxdyn check scene.xml --against mujoco`): accelerations, sensors",
        f"and a time step at the initial state, keyframes, {config.states} random states, {config.states} of a motion",
        f"and {config.states} at limits (of joints, controls and activations, with violated equalities), and a",
        f"roll-out of {config.steps} steps. The number is the largest error of accelerations, relative to the largest",
        "of a state",
        f"and to at least 1; equal is at most {config.scene_tolerance:g}, or ten times what changes in MuJoCo if the",
        "state changes by 1e-12, and a roll-out that stays within 1e-5 for as long as MuJoCo's own, so changed, stay",
        "within 1e-7. Where bodies only just touch in most states, rounding says whether there is a contact; there",
        "margins of contacts and limits are made larger and smaller by 1e-6 for the comparison. Parts of scenes, which",
        "MuJoCo does not compile by themselves or in which nothing moves, are not compared.",
        "",
        "    python -m experiments.model_zoo",
        "",
        f"{', '.join(f'{name} {version}' for name, version in versions.items() if version)}; "
        f"{sum(o.seconds for o in outcomes) / 60:.1f} min of CPU time, most of it compilation. "
        + ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count or verdict == "DIFFERENT")
        + f" of {len(outcomes)} cases (file and base)."
        + (f" Not installed, left out: {', '.join(missing)}." if missing else ""),
    ]
    for package in dict.fromkeys(o.case.package for o in outcomes):
        of_package = [o for o in outcomes if o.case.package == package]
        urdf = of_package[0].case.kind == "urdf"
        columns = ("fixed base", "free base") if urdf else ("outcome",)
        lines += ["", f"## {package}", "", f"| file | nv | {' | '.join(columns)} | loading, ms |"]
        lines.append("|---" * (len(columns) + 3) + "|")
        for name in dict.fromkeys(o.case.name for o in of_package):
            row = [o for o in of_package if o.case.name == name]
            loaded = [o for o in row if o.nv]
            nv = " / ".join(str(o.nv) for o in loaded)
            follow = f" ({loaded[0].followers} more follow)" if loaded and loaded[0].followers else ""
            milliseconds = " / ".join(f"{1000 * o.load_seconds:.0f}" for o in loaded)
            cells = [cell(o, config.tolerance, notes) for o in row]
            lines.append(f"| {name} | {nv}{follow} | {' | '.join(cells)} | {milliseconds} |")
    if notes:
        lines += ["", "## Notes", ""] + [f"{number}. {text}" for text, number in notes.items()]
    return lines


def cell(outcome: Outcome, tolerance: float, notes: dict[str, int]) -> str:
    """Return the cell of an outcome in the table; `notes` gets the reason for its absence."""
    if outcome.verdict == "equal":
        if outcome.case.kind == "mjcf":
            return f"{outcome.errors['acceleration']:.0e}" + (f" ({outcome.rollout})" if outcome.rollout else "")
        conditioned = f" (condition {outcome.condition:.0e})" if outcome.worst > tolerance else ""
        return f"{outcome.worst:.0e}{conditioned}"
    if outcome.verdict == "DIFFERENT":
        errors = ", ".join(f"{name} {error:.0e}" for name, error in outcome.errors.items())
        return f"**DIFFERENT** {errors}" + (f": {outcome.reason}" if outcome.reason else "")
    # Without the name, which is in the row, and the line, many cases may have the same reason.
    reason = " ".join(
        outcome.reason.replace(f"{outcome.case.name}, ", "").replace(f"{outcome.case.name}: ", "").split()
    )
    reason = re.sub(r"^line \d+: ", "", reason)
    return f"{outcome.verdict} ({notes.setdefault(reason, len(notes) + 1)})"


# The processes that compare set their precision themselves.
main = experiment(
    "model_zoo",
    Config,
    run,
    DEFAULT_CONFIG,
    __doc__,
    x64=False,
    status=lambda outcomes: any(x.verdict == "DIFFERENT" for x in outcomes),
)

if __name__ == "__main__":
    # One thread in each of the processes.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
