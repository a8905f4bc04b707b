"""Time the library beside others (Pinocchio, MuJoCo, Brax, frax, JaxSim, MJX) on one core, in one run.

    python -m experiments.benchmark [CONFIG] [--key value ...]

Every library runs in processes of its own; they take turns within each measurement, so that ratios are of the same
minutes. Results are appended to `measurements.jsonl` as they come; `report.md` and plots are made from that file.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tqdm import tqdm

from experiments import _benchmark_models as models
from experiments._benchmark_pool import Worker, WorkerGoneError
from experiments._benchmark_report import conditions, draw, print_verdicts, write_report
from experiments._benchmark_verdicts import JAX_PEERS, OURS, QUANTITIES, Key, judge, needed
from experiments._main import CONFIGS, experiment
from jaxdyn import DataError

DEFAULT_CONFIG = CONFIGS / "benchmark.toml"
NATIVE_PEERS = ("pinocchio", "pinocchio_parallel", "mujoco")
PEERS = (OURS, *NATIVE_PEERS, *JAX_PEERS)
OPERATIONS = {
    # Of all libraries, and of this one alone.
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
class Config:
    """Keys of the configuration file. Lists are names or numbers between commas; `all` stands for every one."""

    name: str
    """Of the folder below `results` that is written."""
    scope: Literal["claims", "all"] = "claims"
    """`claims`: what the table of claims needs, of the lists below; `all`: every combination of the lists."""
    robots: str = "panda,solo12,talos_reduced,chain8,chain32,chain128,chain512"
    """panda, solo12, talos_reduced, and chainN of N revolute joints."""
    operations: str = "all"
    batches: str = "1,64,256,1024,8192"
    rollout_batches: str = "1,64,256"
    """Those of `batches` at which roll-outs run."""
    dtypes: str = "float32,float64"
    peers: str = "all"
    steps: int = 1000
    """Of a roll-out."""
    rounds: int = 7
    """In each round every library has its turn."""
    budget: float = 0.15
    """CPU time that a library has in one round, about, s."""
    limit: float = 180.0
    """For compiling, and for one round, of one library, s; what takes longer is recorded as such."""
    memory: float = 4.0
    """What takes more temporary memory is not run, GiB."""
    time_budget: float = 0.0
    """No further measurement begins after this time, s; 0: no limit."""
    core: int = -1
    """The processor core of all measurements; -1: the last one that this process may use."""
    resume: bool = False
    """Whether what is in measurements.jsonl stays and is not measured again; otherwise that file is begun anew."""
    quick: bool = False
    """The first of the robots, the claims, short rounds, without JaxSim and MJX."""
    results: str = "results"
    """Directory of the results."""
    plot: bool = True
    """Whether to draw."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiment; the exit code is 2 for a mistake in what was given, with a message on stderr."""
    mistakes = (models.RobotError,)
    # Every library is timed in a process of its own, which sets its precision.
    return experiment(Config, run, arguments, DEFAULT_CONFIG, "benchmark", __doc__, x64=False, mistakes=mistakes)


def run(config: Config) -> list[dict]:
    """Measure, print the verdicts, and write `<results>/<name>/`; returns the measurements."""
    if config.quick:
        fast = "jaxdyn,pinocchio,pinocchio_parallel,mujoco,brax,frax"
        peers, robot = fast if config.peers == "all" else config.peers, config.robots.split(",")[0]
        config = dataclasses.replace(config, scope="claims", robots=robot, peers=peers, rounds=3, budget=0.05)
    keys = planned(config)
    core = config.core if config.core >= 0 else max(os.sched_getaffinity(0))
    if core not in os.sched_getaffinity(0):
        raise DataError(f"core is {core}, but this process may use {sorted(os.sched_getaffinity(0))}")
    folder = Path(config.results) / config.name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "measurements.jsonl"
    records = read_records(path) if config.resume and path.exists() else []
    there = {key_of(r) for r in records if r["kind"] == "measurement"}
    keys = [key for key in keys if key not in there]
    print(f"{len(keys)} measurements on core {core}" + (f", {len(there)} are there already" if there else ""))
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
            print("interrupted; what was measured is kept, and --resume goes on", file=sys.stderr)
    measured = {key_of(r): r for r in records if r["kind"] == "measurement"}
    judged = judge(measured)
    print_verdicts(judged, {key.robot for key in measured})
    write_report(folder / "report.md", [r for r in records if r["kind"] == "conditions"], measured, judged)
    print(f"wrote {path} and {folder / 'report.md'}")
    if config.plot:
        draw(folder, measured)
    return [r for r in records if r["kind"] == "measurement"]


def listed(text: str, known: Iterable[str], what: str) -> list[str]:
    """The names between commas in `text`. **Raises** `DataError` for one that is not known."""
    known = list(known)
    if text.strip() == "all":
        return known
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise DataError(f"{what} has {name!r}; known: {', '.join(known)}, or all")
    if not names:
        raise DataError(f"{what} is empty; known: {', '.join(known)}, or all")
    return names


def numbers(text: str, what: str) -> list[int]:
    try:
        out = sorted({int(x) for x in text.split(",")})
    except ValueError:
        raise DataError(f"{what} is {text!r}, but whole numbers between commas are needed") from None
    if out[0] < 1:
        raise DataError(f"{what} has {out[0]}; batches begin at 1")
    return out


def planned(config: Config) -> list[Key]:
    """What to measure, in order: robot by robot, operation by operation, batch by batch."""
    robots = [name.strip() for name in config.robots.split(",") if name.strip()]
    for name in robots:
        if not models.known(name):
            raise DataError(f"robots has {name!r}; known: {', '.join(models.FILES)}, and chainN with N joints")
    operations = listed(config.operations, OPERATIONS, "operations")
    peers = listed(config.peers, PEERS, "peers")
    dtypes = listed(config.dtypes, ("float32", "float64"), "dtypes")
    batches = numbers(config.batches, "batches")
    rollout_batches = numbers(config.rollout_batches, "rollout_batches")

    def wanted(key: Key) -> bool:
        of_rollouts = not key.operation.startswith("rollout") or key.batch in rollout_batches
        dtype = key.dtype in dtypes or key.peer in NATIVE_PEERS
        return key.robot in robots and key.operation in operations and key.peer in peers and dtype and of_rollouts

    if config.scope == "claims":
        return [key for key in needed() if wanted(key) and key.batch in batches]
    out = []
    for robot in robots:
        for operation, shared in OPERATIONS.items():
            for batch in batches:
                for peer in PEERS if shared else (OURS,):
                    kinds = ("float64",) if peer in NATIVE_PEERS else ("float32", "float64")
                    out += [Key(robot, operation, batch, peer, dtype) for dtype in kinds]
    return [key for key in out if wanted(key)]


def read_records(path: Path) -> list[dict]:
    out = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            out.append(json.loads(line))
        except json.JSONDecodeError:
            # The last line of a run that was killed may be half a line.
            print(f"warning: {path}:{number} is no JSON and is left out", file=sys.stderr)
    return out


def key_of(record: dict) -> Key:
    return Key(*(record[field] for field in Key._fields))


def measure_all(config: Config, keys: Sequence[Key], core: int, records: list[dict], record: Any) -> None:
    """Every key; `record` keeps an entry for each."""
    began = time.monotonic()
    cases: dict[tuple[str, str, int], list[Key]] = {}
    for key in keys:
        cases.setdefault(key[:3], []).append(key)
    crew: Crew | None = None
    with tempfile.TemporaryDirectory() as folder, tqdm(total=len(keys), unit=" measurements") as bar:
        try:
            for (robot, operation, batch), members in cases.items():
                if config.time_budget and time.monotonic() - began > config.time_budget:
                    bar.write(f"the time budget of {config.time_budget:g} s is spent; --resume goes on")
                    break
                if crew is None or crew.robot != robot:
                    if crew is not None:
                        crew.close()
                    crew = Crew(robot, core, Path(folder))
                bar.set_postfix_str(f"{robot} {operation} {batch}")
                for entry in measure(config, crew, members, records):
                    record(entry)
                bar.update(len(members))
        finally:
            if crew is not None:
                crew.close()


class Crew:
    """The workers of one robot, one for each library and precision, started when first asked for."""

    def __init__(self, robot: str, core: int, folder: Path):
        self.robot, self.core, self.folder = robot, core, folder
        self.tree = folder / f"{robot}.json"
        models.save(models.load_tree(robot), self.tree)
        self._workers: dict[tuple[str, str], Worker] = {}

    def worker(self, key: Key) -> Worker:
        name = (key.peer, key.dtype)
        if name not in self._workers:
            self._workers[name] = Worker(key.peer, key.dtype, self.core, self.tree)
        return self._workers[name]

    def ask(self, key: Key, request: dict, limit: float) -> dict:
        """The answer, or the record of why there is none."""
        try:
            worker = self.worker(key)
            if worker.started["status"] != "ok":
                return worker.started
            return worker.ask(request, limit)
        except WorkerGoneError as gone:
            self._workers.pop((key.peer, key.dtype), None)
            return {"status": gone.status, "reason": gone.reason}

    def close(self) -> None:
        for worker in self._workers.values():
            worker.close()
        for path in self.folder.glob("*.npz"):
            path.unlink()


def measure(config: Config, crew: Crew, keys: Sequence[Key], records: Sequence[dict]) -> list[dict]:
    """The entries of one operation on one batch: all libraries prepare, then take turns."""
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
            # One run of something slow is long enough to be a measurement by itself.
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
    """Evaluations in one run."""
    return key.batch * (config.steps if key.operation.startswith("rollout") else 1)


def entry(key: Key, answer: dict, times: Sequence[float], error: dict) -> dict:
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
    """Why something need not be tried: it took too long on a smaller batch, or on a shorter chain."""
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
    return crew.folder / f"{'-'.join(str(x) for x in key)}.npz"


def error_of(crew: Crew, key: Key) -> dict:
    """The largest difference from a reference over the largest magnitude of it, state by state: the worst and the
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


if __name__ == "__main__":
    sys.exit(main())
