"""Load every robot file below some folders, and compare robots with Pinocchio and scenes with MuJoCo.

    python -m experiments.model_zoo [CONFIG] [--folder PATH] [--key value ...]

URDF files are compared with Pinocchio, with fixed and with free base: mass matrix, bias (Coriolis, gravity, springs)
and forward dynamics at random states. MJCF files are compared with MuJoCo as `jaxdyn check --against mujoco` does, at
its states: accelerations, sensors, a time step, and a roll-out. Prints a line for each file when it is compared, then
the reasons of refusals by frequency, and writes all of it as a page of the documentation.
"""

# pyright: reportAttributeAccessIssue=false
# (MuJoCo is a compiled module without type stubs.)

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import gc
import importlib.metadata
import json
import os
import random
import re
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments._main import CONFIGS, experiment
from experiments._model_zoo_page import NOT_REACHED, OTHER_CONTACTS, counts, page, reasons
from experiments._worker import Worker
from jaxdyn import DataError, JaxdynError, Model, aba, cli, load_world
from jaxdyn.io import is_mjcf, load_urdf

DEFAULT_CONFIG = CONFIGS / "model_zoo.toml"

UNRESOLVED = 1e-3
"""The relative change of accelerations by rounding alone from which on equal ones say nothing."""
BAD = "DIFFERENT", "FAILED"
"""The verdicts that are mistakes of this library."""


@dataclasses.dataclass(frozen=True)
class Config(cli.ProgramConfig):
    """Keys of the configuration file."""

    folder: str
    """Folders with URDF and MJCF files, which are searched to any depth, separated by commas: paths, or
    `distribution:path` of an installed distribution."""
    only: str = ""
    """Text in the paths of the files that are compared."""
    seconds: float = 120.0
    """Longest time of a file, s; most of it is compilation. None for 0: then all are compared in this process."""
    limit: float = 0.0
    """Longest time of the run, s; none for 0. Files are then compared in random order, so that those compared are a
    sample of the others, which the page counts as not reached. A run with `resume` goes on with them. Longer
    than `seconds`, so that each run ends its first file."""
    resume: bool = False
    """Whether to keep the outcomes of an earlier run of this name, and to compare what it lacks or has not ended in
    time. The outcomes are those of the library and the settings of that run."""
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
    must be finite, too. It takes most of the time of a robot."""
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

    def __str__(self) -> str:
        return f"{self.package} {self.name}" + (", free base" if self.free_base else "")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of a case: `equal`, `other contacts` (equal if MuJoCo has those of the world), `DIFFERENT`, `refused`
    (by this library), `FAILED` (with an error that is no refusal), `not in time`, `no scene` (a part of one that MuJoCo
    does not compile by itself, or in which nothing moves), `not compared` (no reference), or `not reached` before the
    run ended."""

    case: Case
    verdict: str
    reasons: list[str] = dataclasses.field(default_factory=list)
    errors: dict[str, float] = dataclasses.field(default_factory=dict)
    condition: float = 0.0
    """The largest condition number of the mass matrix over the states."""
    nv: int = 0
    followers: int = 0
    rollout: str = ""
    """For how many steps the roll-out of a scene agrees with MuJoCo's."""
    apart_from_contacts: str = ""
    """The verdict on a refused scene whose contacts are disabled."""
    seconds: float = 0.0
    """CPU time of the whole case, s; most of it is compilation."""

    @property
    def worst(self) -> float:
        return max(self.errors.values())

    @property
    def bad(self) -> bool:
        return self.verdict in BAD or self.apart_from_contacts in BAD

    def __str__(self) -> str:
        facts = [f"{name} {error:.0e}" for name, error in self.errors.items()]
        facts += [f"roll-out {self.rollout}"] * bool(self.rollout)
        facts += [f"{self.apart_from_contacts} without contacts"] * bool(self.apart_from_contacts)
        return ", ".join([*facts, "; ".join(self.reasons)] if self.reasons else facts)


def run(config: Config) -> list[Outcome]:
    """Compare, print, and write the page and `<results>/<name>/outcomes.jsonl`, a line for each case."""
    cli.require_positive_keys(config, "processes", "states")
    if 0 < config.limit <= config.seconds:
        raise DataError(f"limit is {config.limit:g} s, not longer than the {config.seconds:g} s of one file (seconds)")
    cases, missing = all_cases(config)
    for source in missing:
        print(f"{source} is not there: its files are left out")
    if not cases:
        absent = f"; not there: {', '.join(missing)}" * bool(missing)
        raise DataError(f"no files to compare below {config.folder} with {config.only!r} in their paths{absent}")
    path = config.make_folder() / "outcomes.jsonl"
    known = {str(x.case): x for x in earlier(path)} if config.resume else {}
    outcomes = {name: x for name, x in known.items() if x.verdict != "not in time" or x.seconds >= config.seconds}
    # A run that goes on has the same order.
    order = random.Random(config.seed).sample(cases, len(cases)) if config.limit else cases
    with path.open("w", encoding="utf-8") as file:
        for outcome in known.values():
            print(json.dumps(dataclasses.asdict(outcome)), file=file)
        for outcome in results_of([case for case in order if str(case) not in outcomes], config):
            outcomes[str(outcome.case)] = outcome
            if outcome.verdict == NOT_REACHED:
                continue
            print(f"{outcome.verdict:12} {outcome.case}: {outcome}", flush=True)
            # A run that is interrupted leaves all outcomes until then.
            print(json.dumps(dataclasses.asdict(outcome)), file=file, flush=True)
    ordered = [outcomes[str(case)] for case in cases]
    lines = page(ordered, config, missing)
    print("\n".join(["", *counts(ordered), "", *reasons(ordered)]))
    if config.report and not config.only:
        Path(config.report).write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"wrote {config.report}")
    return ordered


def earlier(path: Path) -> list[Outcome]:
    """Return the outcomes in a file; of several of a case the last one counts, and a line that an interruption has cut
    off does not."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        with contextlib.suppress(ValueError):
            fields = json.loads(line)
            found.append(Outcome(**fields | {"case": Case(**fields["case"])}))
    return found


def all_cases(config: Config) -> tuple[list[Case], list[str]]:
    """Return every case, and the distributions and folders that are not there."""
    cases, missing = [], []
    for source in filter(None, map(str.strip, config.folder.split(","))):
        package, folder = locate(source)
        if folder is None:
            missing.append(package)
            continue
        for path in sorted((*folder.rglob("*.urdf"), *folder.rglob("*.xml"))):
            name, kind = path.relative_to(folder).as_posix(), "mjcf" if is_mjcf(path) else "urdf"
            # Many other files are XML as well.
            if config.only not in name or (kind == "urdf" and path.suffix == ".xml"):
                continue
            bases = (False, True) if kind == "urdf" else (False,)
            cases += [Case(kind, package, name, str(path), free_base) for free_base in bases]
    return cases, missing


def locate(source: str) -> tuple[str, Path | None]:
    """Return the title of a source, and its folder, which is None if it is not there."""
    package, colon, inside = source.partition(":")
    if not colon or Path(source).is_dir():
        folder = Path(source).expanduser()
        return (folder.name, folder) if folder.is_dir() else (source, None)
    try:
        distribution = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return package, None
    return f"{package} {distribution.version}", Path(str(distribution.locate_file(inside)))


def results_of(cases: list[Case], config: Config) -> Iterator[Outcome]:
    """Yield the outcome of each case, in order."""
    compare = functools.partial(outcome_of, config=config)
    end = time.monotonic() + (config.limit or float("inf"))
    if not config.seconds:
        prepare()
        yield from (compare(x) if time.monotonic() < end else Outcome(x, NOT_REACHED) for x in cases)
        return
    of_thread, workers = threading.local(), []

    def compared(case: Case) -> Outcome:
        if not hasattr(of_thread, "worker"):
            of_thread.worker = Worker(compare, prepare)
            workers.append(of_thread.worker)
        left = end - time.monotonic()
        try:
            return of_thread.worker(case, min(left, config.seconds)) if left > 0 else Outcome(case, NOT_REACHED)
        except TimeoutError as error:
            if left < config.seconds:
                return Outcome(case, NOT_REACHED)
            return Outcome(case, "not in time", [str(error)], seconds=config.seconds)
        except ChildProcessError as error:
            return Outcome(case, "FAILED", [str(error)])

    pool = concurrent.futures.ThreadPoolExecutor(config.processes)
    try:
        yield from pool.map(compared, cases)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.end()


def prepare() -> None:
    """Set up a process that compares."""
    # While programs are traced, a third of the time would go to the search for cycles among their many nodes.
    gc.collect()
    gc.disable()
    # Equal means equal in double precision.
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_platforms", "cpu")
    warnings.simplefilter("ignore")


def outcome_of(case: Case, config: Config) -> Outcome:
    """Compare a case and measure the time."""
    began = time.process_time()
    try:
        outcome = compare_robot(case, config) if case.kind == "urdf" else compare_world(case, config)
    except Exception as error:
        # An error that is no refusal is an outcome, too.
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(f"{type(error).__name__}: {error}, in {place.name} of {Path(place.filename).name}".split())
        outcome = Outcome(case, "FAILED", [without_folder(text, case)])
    # Programs of XLA take places in the table of memory maps, too.
    jax.clear_caches()
    gc.collect()
    return dataclasses.replace(outcome, seconds=time.process_time() - began)


def compare_robot(case: Case, config: Config) -> Outcome:
    """Compare a URDF file with Pinocchio."""
    path = Path(case.path)
    try:
        model = load_urdf(path, free_base=case.free_base)
    except JaxdynError as error:
        return Outcome(case, "refused", [without_folder(str(error), case)])
    facts: dict[str, Any] = {"nv": model.nv, "followers": len(model.topology.mimics)}
    states = cli.random_states(model, config.states, config.seed)
    try:
        expected = cli.pinocchio_answers(model, cli.pinocchio_model(path, case.free_base), path, states)
    except (ImportError, ValueError, RuntimeError) as error:
        return Outcome(case, "not compared", [without_folder(f"{type(error).__name__}: {error}", case)], **facts)
    errors = cli.largest_errors(cli.dynamics(model, states), expected)
    if config.gradients:
        errors["gradient"] = 0.0 if gradient_is_finite(model, states) else float("inf")
    allowed = cli.allowed_errors(errors, expected["mass matrix"], config.tolerance)
    equal = all(error <= allowed[name] for name, error in errors.items())
    facts["condition"] = cli.largest_condition(expected["mass matrix"])
    if equal and allowed["acceleration"] > UNRESOLVED:
        reason = f"the mass matrix has the condition number {facts['condition']:.0e}: accelerations hang on rounding"
        return Outcome(case, "not compared", [reason], errors, **facts)
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


def compiled_or_why_not(path: str) -> Any:
    """Return the `mjModel` of an MJCF file, or why it is no world, in MuJoCo's words or because nothing in it moves."""
    mujoco = importlib.import_module("mujoco")
    try:
        m = mujoco.MjModel.from_xml_path(path)
    except ValueError as error:
        return " ".join(str(error).split())
    return m if m.nv else "nothing moves"


def compare_world(case: Case, config: Config) -> Outcome:
    """Compare an MJCF file with MuJoCo; where pairs of geoms alone are refused, the scene without contacts as well."""
    # Compiled once: the hulls of large meshes take seconds.
    m = compiled_or_why_not(case.path)
    if isinstance(m, str):
        return Outcome(case, "no scene", [without_folder(m, case)])
    try:
        scene = load_world(m)
    except JaxdynError as error:
        refused = Outcome(case, "refused", [without_folder(x, case) for x in why_refused(error)])
        if not all("that can touch" in x for x in refused.reasons):
            return refused
        apart = compared_scene(case, without_contacts(case.path), None, config)
        found = {"nv": apart.nv, "errors": apart.errors, "rollout": apart.rollout}
        return dataclasses.replace(refused, apart_from_contacts=apart.verdict, **found)
    return compared_scene(case, m, scene, config)


def without_contacts(path: str) -> Any:
    """Return the `mjModel` of an MJCF file whose contacts are disabled."""
    import mujoco

    spec = mujoco.MjSpec.from_file(path)
    spec.option.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONTACT
    return spec.compile()


def compared_scene(case: Case, source: Any, scene: Any, config: Config) -> Outcome:
    """Compare a scene with MuJoCo at the states of `jaxdyn check`."""
    found = cli.compare_world(
        source,
        scene,
        states=config.states,
        steps=config.steps,
        tolerance=config.scene_tolerance,
        seed=config.seed,
    )
    facts: dict[str, Any] = {"nv": found.nv}
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
        facts["reasons"] = [f"{found.first.quantity}, from {found.first.where}, at the state {found.first.state!r}"]
    if found.equal and not found.comparable:
        return Outcome(case, "not compared", ["most states hang on rounding or are crowded with contacts"], **facts)
    states = found.accelerations.values()
    crowded = sum(x.crowded for x in states)
    if crowded:
        note = f"{crowded} of {sum(x.states for x in states)} states have more contacts than there is room for"
        facts["reasons"] = [*facts.get("reasons", []), note]
    verdict = "equal" if found.equal else OTHER_CONTACTS if found.equal_with_contacts else "DIFFERENT"
    if found.other_contacts:
        facts["reasons"] = [f"contacts of {'; '.join(found.other_contacts)}", *facts.get("reasons", [])]
    return Outcome(case, verdict, errors=errors, **facts)


def without_folder(text: str, case: Case) -> str:
    """Return a text without the folder in which the package is installed, and without the name of the file."""
    text = text.replace(case.path.removesuffix(case.name), "").replace(f"{case.name}, ", "")
    return re.sub(r"^(mujoco\.MjModel|line \d+): ", "", " ".join(text.replace(f"{case.name}: ", "").split()))


# The processes that compare set their precision themselves.
main = experiment(
    "model_zoo",
    Config,
    run,
    DEFAULT_CONFIG,
    __doc__,
    x64=False,
    status=lambda outcomes: any(x.bad for x in outcomes),
)

if __name__ == "__main__":
    # One thread in each of the processes.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
