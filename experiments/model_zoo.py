"""Load every robot file of the packages at hand, and compare the dynamics with Pinocchio's and MuJoCo's.

    python -m experiments.model_zoo [CONFIG] [--key value ...]

URDF files against Pinocchio, with fixed and with free base; MJCF files against MuJoCo: mass matrix, bias (Coriolis,
gravity, springs) and forward dynamics at random states. Prints a table, and writes it as a page of the documentation.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import importlib.metadata
import json
import multiprocessing
import os
import re
import sys
import time
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
from tqdm import tqdm

from experiments._main import CONFIGS, experiment
from jaxdyn import DataError, JaxdynError
from jaxdyn.io import load_urdf
from jaxdyn.programs import _mujoco, _pinocchio
from jaxdyn.programs._compare import (
    allowed_errors,
    answers,
    condition,
    gradient_is_finite,
    largest_errors,
    random_states,
)

DEFAULT_CONFIG = CONFIGS / "model_zoo.toml"


GRADIENTS = (
    "The gradient of forward dynamics, by the state and by every array of the model, is finite wherever a model is",
    "called equal.",
)


@dataclasses.dataclass(frozen=True)
class Config:
    """Keys of the configuration file."""

    name: str
    """Of the folder below `results` that is written."""
    urdf: str
    """Folders with URDF files, separated by commas: paths, or `distribution:path` of an installed distribution."""
    mjcf: str
    """The same with MJCF files."""
    only: str = ""
    """Files whose paths contain this."""
    states: int = 5
    """Random states of each model."""
    tolerance: float = 1e-9
    """Of the largest error, relative to the largest number of each answer."""
    seed: int = 0
    gradients: bool = True
    """Whether the gradient of forward dynamics by the state and by every array of the model must be finite, too: most
    of the time."""
    processes: int = 1
    report: str = "docs/model-zoo.md"
    """The page that is written; none if empty, or if `only` leaves files out."""
    results: str = "results"
    """Directory of the results."""


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
    """What became of a case: `equal`, `DIFFERENT`, `refused` (by this library), or `not compared` (no reference)."""

    case: Case
    verdict: str
    reason: str = ""
    errors: dict[str, float] = dataclasses.field(default_factory=dict)
    condition: float = 0.0
    """Of the mass matrix, the largest of the states."""
    nv: int = 0
    followers: int = 0
    load_seconds: float = 0.0
    seconds: float = 0.0
    """Of CPU time, for all of it; most is compilation."""

    @property
    def worst(self) -> float:
        return max(self.errors.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiment; the exit code is 1 if a model differs, 2 for a mistake in what was given."""
    # The processes that compare set their precision themselves.
    return experiment(Config, run, arguments, DEFAULT_CONFIG, "model_zoo", __doc__, x64=False, status=any_different)


def any_different(outcomes: list[Outcome]) -> int:
    return int(any(outcome.verdict == "DIFFERENT" for outcome in outcomes))


def run(config: Config) -> list[Outcome]:
    """Compare, print, and write the page and `<results>/<name>/outcomes.json`."""
    for key in ("processes", "states"):
        if getattr(config, key) < 1:
            raise DataError(f"{key} is {getattr(config, key)}; at least one is needed")
    cases, missing = all_cases(config)
    for package in missing:
        print(f"{package} is not installed: its files are left out")
    if not cases:
        raise DataError(f"no files to compare below {config.urdf}, {config.mjcf} with {config.only!r} in their paths")
    outcomes = list(tqdm(results_of(cases, config), total=len(cases), desc="models", mininterval=1.0))
    lines = page(outcomes, config, missing)
    print("\n".join(lines))
    folder = Path(config.results) / config.name
    folder.mkdir(parents=True, exist_ok=True)
    record = [dataclasses.asdict(outcome) for outcome in outcomes]
    (folder / "outcomes.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {folder / 'outcomes.json'}")
    if config.report and not config.only:
        Path(config.report).write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"wrote {config.report}")
    return outcomes


# Which files.


def all_cases(config: Config) -> tuple[list[Case], list[str]]:
    """Every case, and the packages that are not installed."""
    cases, missing = [], []
    for kind, sources in (("urdf", config.urdf), ("mjcf", config.mjcf)):
        for source in filter(None, map(str.strip, sources.split(","))):
            package, folder = located(source)
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


def located(source: str) -> tuple[str, Path | None]:
    """What to call a source, and its folder; None if its distribution is not installed."""
    package, colon, inside = source.partition(":")
    if not colon or Path(source).is_dir():
        folder = Path(source).expanduser()
        if not folder.is_dir():
            raise DataError(f"{source} is no folder; give a path, or distribution:path")
        return folder.name, folder
    try:
        distribution = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return package, None
    return f"{package} {distribution.version}", Path(str(distribution.locate_file(inside)))


def files(folder: Path, kind: str) -> list[Path]:
    if kind == "urdf":
        return sorted(folder.rglob("*.urdf"))
    return [path for path in sorted(folder.rglob("*.xml")) if is_mjcf(path)]


def is_mjcf(path: Path) -> bool:
    """Whether the root element is `<mujoco>`."""
    try:
        return next(ET.iterparse(path, ["start"]))[1].tag == "mujoco"
    except (ET.ParseError, StopIteration, OSError):
        return False


# One case.


def results_of(cases: list[Case], config: Config) -> Iterator[Outcome]:
    arguments = [(case, config.states, config.seed, config.tolerance, config.gradients) for case in cases]
    if config.processes == 1:
        prepare()
        yield from map(outcome_of, arguments)
        return
    # Threads of JAX do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(config.processes, context, initializer=prepare) as pool:
        yield from pool.map(outcome_of, arguments)


def prepare() -> None:
    # An application may choose: equal means equal in double precision.
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_platforms", "cpu")
    warnings.simplefilter("ignore")


def outcome_of(arguments: tuple[Case, int, int, float, bool]) -> Outcome:
    began = time.process_time()
    outcome = compared(*arguments)
    return dataclasses.replace(outcome, seconds=time.process_time() - began)


def compared(case: Case, count: int, seed: int, tolerance: float, gradients: bool) -> Outcome:
    path = Path(case.path)
    began = time.process_time()
    try:
        model = load_urdf(path, free_base=case.free_base) if case.kind == "urdf" else load_mjcf_file(path)
    except JaxdynError as error:
        return Outcome(case, "refused", without_folder(str(error), case))
    seconds = time.process_time() - began
    said = {"nv": model.nv, "followers": len(model.topology.mimics), "load_seconds": seconds}
    states = random_states(model, count, seed)
    try:
        if case.kind == "urdf":
            other = _pinocchio.reference(path, case.free_base)
            expected = _pinocchio.expected(model, other, path, states)
        else:
            expected = _mujoco.expected(model, _mujoco.reference(path), states)
    except (ImportError, ValueError, RuntimeError) as error:
        return Outcome(case, "not compared", without_folder(f"{type(error).__name__}: {error}", case), **said)
    errors = largest_errors(answers(model, states), expected)
    if gradients:
        errors["gradient"] = 0.0 if gradient_is_finite(model, states) else float("inf")
    allowed = allowed_errors(errors, expected["mass matrix"], tolerance)
    equal = all(error <= allowed[name] for name, error in errors.items())
    said["condition"] = condition(expected["mass matrix"])
    return Outcome(case, "equal" if equal else "DIFFERENT", errors=errors, **said)


def without_folder(text: str, case: Case) -> str:
    """Where packages are installed is no matter."""
    return text.replace(case.path.removesuffix(case.name), "")


def load_mjcf_file(path: Path):
    # It needs MuJoCo; URDF files do not.
    from jaxdyn.io import load_mjcf

    return load_mjcf(path)


# The page.


def page(outcomes: list[Outcome], config: Config, missing: list[str]) -> list[str]:
    """The lines of the page, which are those on the terminal, too."""
    counts = {verdict: sum(o.verdict == verdict for o in outcomes) for verdict in ("equal", "DIFFERENT", "refused")}
    counts["not compared"] = len(outcomes) - sum(counts.values())
    versions = {name: version_of(name) for name in ("jax", "pin", "mujoco")}
    notes = Notes()
    lines = [
        "# Model zoo",
        "",
        "Robot files of other people, loaded and compared with Pinocchio (URDF) and MuJoCo (MJCF): mass matrix, bias",
        f"(Coriolis, gravity, springs) and forward dynamics at {config.states} random states, in double precision,",
        "without friction. A number is the largest of the three errors, each relative to the largest number of the",
        f"answer. Equal is up to {config.tolerance:g}; accelerations up to what rounding times the condition number of",
        "the mass matrix may do, which is given where it matters.",
        *(GRADIENTS if config.gradients else ()),
        "Joints that mimic others follow them; there,",
        "Pinocchio's independent joints are projected on the others, `G^T M G`.",
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
    if notes.texts:
        lines += ["", "## Notes", ""] + [f"{number}. {text}" for text, number in notes.texts.items()]
    return lines


class Notes:
    """Reasons, numbered in the order in which they come, each once."""

    def __init__(self):
        self.texts: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self.texts.setdefault(text, len(self.texts) + 1)


def cell(outcome: Outcome, tolerance: float, notes: Notes) -> str:
    if outcome.verdict == "equal":
        conditioned = f" (condition {outcome.condition:.0e})" if outcome.worst > tolerance else ""
        return f"{outcome.worst:.0e}{conditioned}"
    if outcome.verdict == "DIFFERENT":
        return "**DIFFERENT** " + ", ".join(f"{name} {error:.0e}" for name, error in outcome.errors.items())
    # The name stands in the row, the line in the record; the rest may be the same for many.
    reason = " ".join(
        outcome.reason.replace(f"{outcome.case.name}, ", "").replace(f"{outcome.case.name}: ", "").split()
    )
    reason = re.sub(r"^line \d+: ", "", reason)
    return f"{outcome.verdict} ({notes.number(reason)})"


def version_of(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


if __name__ == "__main__":
    # The processes are as many as were asked for, not as many threads more.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
