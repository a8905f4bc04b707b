"""Time the library beside others (Pinocchio, MuJoCo, Brax, frax, JaxSim, MJX) on one core, in one run.

    python -m experiments.benchmark [CONFIG] [--key value ...]
    python -m experiments.benchmark --against PATH     # this checkout beside another one, and nothing else

Every library runs in separate processes, which take turns within each measurement, so that ratios compare times of the
same minutes. Results are appended to `measurements.jsonl` at once; `report.md` and plots are made from that file.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from experiments import _benchmark_models as models
from experiments._benchmark_comparison import checkout, comparison, print_comparison
from experiments._benchmark_options import names_in, numbers_in, processor_core, robots_in
from experiments._benchmark_pool import ROOT, Worker, WorkerGoneError
from experiments._benchmark_report import conditions, draw, print_verdicts, write_report
from experiments._benchmark_verdicts import BASELINE, JAX_PEERS, OURS, QUANTITIES, Key, judge, needed
from experiments._main import CONFIGS, experiment
from jaxdyn.cli import ProgramConfig, ProgressBar

DEFAULT_CONFIG = CONFIGS / "benchmark.toml"
NATIVE_PEERS = ("pinocchio", "pinocchio_parallel", "mujoco")
PEERS = (OURS, *NATIVE_PEERS, *JAX_PEERS)
OPERATIONS = {
    # The value is True if other libraries are measured, too.
    "aba": True,
    "rnea": True,
    "crba": True,
    "aba_derivatives": True,
    "rnea_derivatives": True,
    **dict.fromkeys(QUANTITIES, True),
    "gradient": True,
    "parameter_gradient": True,
    "rollout": True,
    "rollout_gradient": True,
    "vmap_aba": False,
    "vmap_rnea": False,
    "aba_model_argument": False,
}


@dataclasses.dataclass(frozen=True)
class Config(ProgramConfig):
    """Keys of the configuration file. Lists are names or numbers between commas; `all` stands for every one."""

    scope: Literal["claims", "all"] = "claims"
    """`claims`: the measurements that the table of claims (or a comparison by `against`) needs, from the lists below;
    `all`: every combination of the lists."""
    against: str = ""
    """Folder of another checkout of this library: both are measured in turns and shown side by side, without other
    libraries and claims. The results go into the folder NAME_against."""
    robots: str = "panda,solo12,talos_reduced,chain8,chain32,chain128,chain512"
    """panda, solo12, talos_reduced, chainN of N revolute joints, and paths of URDF files, whose bases are fixed. Only
    with the scope `all` are files measured."""
    operations: str = "all"
    batches: str = "1,64,256,1024,8192"
    rollout_batches: str = "1,64,256"
    """The members of `batches` at which roll-outs run."""
    dtypes: str = "float32,float64"
    peers: str = "all"
    steps: int = 1000
    """Steps of a roll-out."""
    rounds: int = 7
    """Number of rounds, in each of which every library has its turn."""
    budget: float = 0.15
    """Approximate CPU time of a library in one round, s."""
    limit: float = 180.0
    """Longest time of one library for compiling and for one round, s; longer ones are recorded as timeouts."""
    memory: float = 4.0
    """Largest temporary memory of a program that is run, GiB."""
    time_budget: float = 0.0
    """Time after which no further measurement begins, s; 0 for no limit."""
    core: int = -1
    """Processor core of all measurements; -1 for the last one that this process may use."""
    resume: bool = False
    """Whether to add the missing measurements to measurements.jsonl; otherwise the file is replaced."""
    quick: bool = False
    """Whether to measure the claims for the first robot only, in short rounds, without JaxSim and MJX."""
    plot: bool = True
    """Whether to draw the plots."""


def run(config: Config) -> list[dict]:
    """Measure, print the verdicts, and write `<results>/<name>/`; returns the measurements."""
    if config.quick:
        fast = "jaxdyn,pinocchio,pinocchio_parallel,mujoco,brax,frax"
        peers, robot = fast if config.peers == "all" else config.peers, config.robots.split(",")[0]
        config = dataclasses.replace(config, scope="claims", robots=robot, peers=peers, rounds=3, budget=0.05)
    if config.against:
        config = dataclasses.replace(config, name=f"{config.name}_against", against=str(checkout(config.against)))
    keys = plan(config)
    core = processor_core(config.core)
    folder = config.make_folder()
    path = folder / "measurements.jsonl"
    records = read_records(path) if config.resume and path.exists() else []
    earlier = {key_of(r) for r in records if r["kind"] == "measurement"}
    keys = [key for key in keys if key not in earlier]
    print(f"{len(keys)} measurements on core {core}" + (f", besides {len(earlier)} earlier ones" if earlier else ""))
    with path.open("a" if config.resume else "w", encoding="utf-8") as file:
        begun = time.strftime("%Y-%m-%dT%H:%M:%S%z")

        def record(entry: dict) -> None:
            records.append({**entry, "run": begun})
            file.write(json.dumps(records[-1]) + "\n")
            file.flush()

        record({"kind": "conditions", "config": dataclasses.asdict(config), "core": core, **conditions(core)})
        try:
            measure_all(config, keys, core, records, record)
        except KeyboardInterrupt:
            print("interrupted; the measurements are kept, and --resume continues", file=sys.stderr)
    measured = {key_of(r): r for r in records if r["kind"] == "measurement"}
    if config.against:
        print_comparison(measured)
        print(f"wrote {path}")
        return [r for r in records if r["kind"] == "measurement"]
    judged = judge(measured)
    print_verdicts(judged, {key.robot for key in measured})
    write_report(folder / "report.md", [r for r in records if r["kind"] == "conditions"], measured, judged)
    print(f"wrote {path} and {folder / 'report.md'}")
    if config.plot:
        draw(folder, measured)
    return [r for r in records if r["kind"] == "measurement"]


def plan(config: Config) -> list[Key]:
    """Return the measurements in order: robot by robot, operation by operation, batch by batch."""
    robots = robots_in(config.robots)
    operations = names_in(config.operations, OPERATIONS, "operations")
    peers = [OURS, BASELINE] if config.against else names_in(config.peers, PEERS, "peers")
    dtypes = names_in(config.dtypes, ("float32", "float64"), "dtypes")
    batches = numbers_in(config.batches, "batches")
    rollout_batches = batches if config.against else numbers_in(config.rollout_batches, "rollout_batches")

    def is_listed(key: Key) -> bool:
        of_rollouts = not key.operation.startswith("rollout") or key.batch in rollout_batches
        dtype = key.dtype in dtypes or key.peer in NATIVE_PEERS
        return key.robot in robots and key.operation in operations and key.peer in peers and dtype and of_rollouts

    if config.scope == "claims":
        needs = comparison() if config.against else needed()
        return [key for key in needs if is_listed(key) and key.batch in batches]
    out = []
    for robot in robots:
        for operation, shared in OPERATIONS.items():
            for batch in batches:
                for peer in peers if shared or config.against else (OURS,):
                    kinds = ("float64",) if peer in NATIVE_PEERS else ("float32", "float64")
                    out += [Key(robot, operation, batch, peer, dtype) for dtype in kinds]
    return [key for key in out if is_listed(key)]


def read_records(path: Path) -> list[dict]:
    """Read the lines of a file of measurements; broken ones are left out, with a warning."""
    out = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            out.append(json.loads(line))
        except json.JSONDecodeError:
            # The last line of a run that was killed may be half a line.
            print(f"warning: {path}:{number} is not JSON and is left out", file=sys.stderr)
    return out


def key_of(record: dict) -> Key:
    """The key of a measurement."""
    return Key(*(record[field] for field in Key._fields))


def measure_all(config: Config, keys: Sequence[Key], core: int, records: list[dict], record: Any) -> None:
    """Measure every key and pass its entry to `record`."""
    began = time.monotonic()
    cases: dict[tuple[str, str, int], list[Key]] = {}
    for key in keys:
        cases.setdefault(key[:3], []).append(key)
    crew: Crew | None = None
    with tempfile.TemporaryDirectory() as folder, ProgressBar(total=len(keys), unit=" measurements") as bar:
        try:
            for (robot, operation, batch), members in cases.items():
                if config.time_budget and time.monotonic() - began > config.time_budget:
                    bar.write(f"the time budget of {config.time_budget:g} s is spent; --resume continues")
                    break
                if crew is None or crew.robot != robot:
                    if crew is not None:
                        crew.close()
                    crew = Crew(robot, core, Path(folder), Path(config.against or ROOT))
                bar.set_postfix_str(f"{robot} {operation} {batch}")
                for entry in measure(config, crew, members, records):
                    record(entry)
                bar.update(len(members))
        finally:
            if crew is not None:
                crew.close()


class Crew:
    """The workers of one robot, one for each library and precision, which start when they are first used."""

    def __init__(self, robot: str, core: int, folder: Path, baseline: Path):
        self.robot, self.core, self.folder, self.baseline = robot, core, folder, baseline
        self.tree = folder / f"{robot}.json"
        self.tree.write_text(models.tree_as_text(models.load_tree(robot)), encoding="utf-8")
        self._workers: dict[tuple[str, str], Worker] = {}

    def worker(self, key: Key) -> Worker:
        """Return the worker of a library and precision."""
        name = (key.peer, key.dtype)
        if name not in self._workers:
            folder = self.baseline if key.peer == BASELINE else ROOT
            self._workers[name] = Worker(key.peer, key.dtype, self.core, self.tree, folder)
        return self._workers[name]

    def ask(self, key: Key, request: dict, limit: float) -> dict:
        """Return the worker's answer, or a record with the reason for its absence."""
        try:
            worker = self.worker(key)
            if worker.started["status"] != "ok":
                return worker.started
            return worker.ask(request, limit)
        except WorkerGoneError as gone:
            self._workers.pop((key.peer, key.dtype), None)
            return {"status": gone.status, "reason": gone.reason}

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers.values():
            worker.close()
        for path in self.folder.glob("*.npz"):
            path.unlink()


def measure(config: Config, crew: Crew, keys: Sequence[Key], records: Sequence[dict]) -> list[dict]:
    """Return the entries of one operation on one batch: all libraries prepare, then take turns."""
    answers, times = {}, {}
    for key in keys:
        reason = hopeless(key, records)
        request = {
            "do": "prepare",
            "operation": key.operation,
            "batch": key.batch,
            "steps": config.steps,
            "memory": config.memory,
            "sample": str(sample_path(crew, key)),
        }
        sample_path(crew, key).unlink(missing_ok=True)
        answers[key] = {"status": "timeout", "reason": reason} if reason else crew.ask(key, request, config.limit)
        times[key] = []
    for turn in range(config.rounds):
        for key in keys:
            answer = answers[key]
            # A single long run is enough for a measurement.
            rounds = config.rounds if answer.get("first_run_s", 0.0) < 4 * config.budget else 2
            if answer["status"] != "ok" or turn >= rounds or (turn and times[key][0] * _runs(key, config) > 5e6):
                continue
            request = {"do": "time", "budget": config.budget, "repeats": 3}
            timed = crew.ask(key, request, config.limit)
            if "us" in timed:
                times[key] += timed["us"]
                answer["max_rss_mb"] = timed["max_rss_mb"]
            else:
                answers[key] = timed
    return [entry(key, answers[key], times[key], error_of(crew, key)) for key in keys]


def _runs(key: Key, config: Config) -> int:
    """The number of evaluations in one run."""
    return key.batch * (config.steps if key.operation.startswith("rollout") else 1)


def entry(key: Key, answer: dict, times: Sequence[float], error: dict) -> dict:
    """Return the record of a measurement."""
    out = {"kind": "measurement", **key._asdict(), **answer}
    if answer["status"] == "ok":
        out |= {
            "us_per_evaluation": statistics.median(times),
            "us_min": min(times),
            "us_max": max(times),
            "repeats": len(times),
            **error,
        }
    return out


def hopeless(key: Key, records: Sequence[dict]) -> str:
    """Return the reason to skip a measurement, or "": a smaller batch or a shorter chain took too long."""
    for r in records:
        if r["kind"] != "measurement" or r["status"] != "timeout":
            continue
        if (r["operation"], r["peer"], r["dtype"]) != (key.operation, key.peer, key.dtype):
            continue
        if r["robot"] == key.robot and r["batch"] < key.batch:
            return f"not tried: it took too long at batch {r['batch']}"
        chains = r["robot"].startswith("chain") and key.robot.startswith("chain")
        if chains and int(r["robot"][5:]) < int(key.robot[5:]) and r["batch"] <= key.batch:
            return f"not tried: it took too long on {r['robot']}"
    return ""


def sample_path(crew: Crew, key: Key) -> Path:
    """The file for results of a measurement, which are compared with those of other libraries."""
    return crew.folder / f"{'-'.join(str(x) for x in key)}.npz"


def error_of(crew: Crew, key: Key) -> dict:
    """Return the largest difference from a reference relative to its largest number, for the worst state and as the
    median of the states."""
    operation = key.operation.removeprefix("vmap_").removesuffix("_model_argument")
    candidates = [key._replace(operation=operation, peer=OURS, dtype="float64")]
    candidates += [key._replace(operation=operation, peer=peer, dtype="float64") for peer in NATIVE_PEERS]
    path = sample_path(crew, key)
    reference = next((x for x in candidates if x != key and sample_path(crew, x).exists()), None)
    if reference is None or not path.exists():
        return {}
    with np.load(path) as values, np.load(sample_path(crew, reference)) as expected:
        pairs = [(values[name], expected[name]) for name in expected.files if name in values.files]
    worst, medians = [], []
    for value, right in pairs:
        n = min(len(value), len(right))
        value, right = value[:n].reshape(n, -1), right[:n].reshape(n, -1)
        if value.shape == right.shape and n:
            error = np.abs(value - right).max(axis=1) / np.maximum(np.abs(right).max(axis=1), 1e-12)
            worst.append(float(error.max()))
            medians.append(float(np.median(error)))
    if not worst:
        return {}
    return {"error": max(worst), "error_median": max(medians), "error_against": f"{reference.peer} float64"}


# Every library is timed in a separate process, which sets its precision.
main = experiment("benchmark", Config, run, DEFAULT_CONFIG, __doc__, x64=False, mistakes=(models.RobotError,))

if __name__ == "__main__":
    sys.exit(main())
