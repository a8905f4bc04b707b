"""Time the library on a GPU in single precision: throughput, kernels, and the distance to what the device could do.

    python -m experiments.benchmark_gpu [CONFIG] [--key value ...]

Cases are measured in their order, each a robot or a scene of `benchmark_scenes`, an operation, batch sizes, and codes
(`humanoid/step/8192/native,mjx`):

- operations of robots: those of `benchmark`. A roll-out has `steps` steps, which are its evaluations.
- operations of scenes: `step`, a step of a roll-out of `steps` steps; `step_gradient`, a step and its reverse, by the
  state and the control; `control` and `control_gradient`, the same of as many steps as make a control period of 20 ms;
  `motion`, how far the motions of this device and of the processor in single precision are from those of the processor
  in double precision, over up to `steps` steps.
- codes: as kernels (`native`), compiled by XLA (`xla`), compiled by XLA with its loops in command buffers, which the
  device repeats without the host (`xla_loops`), and where they are installed other libraries for JAX and, for the steps
  of scenes, MuJoCo Warp (`warp`).

A process measures them, which is ended where a case takes longer than `case_seconds`. Writes `measurements.jsonl`, case
by case, and `report.md`. The floor is the time of the device for the program's operations at its peak rate, or for the
program's memory traffic at its bandwidth, whichever is longer.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from experiments import _benchmark_models as models
from experiments._benchmark_options import names_in, numbers_in, robots_in
from experiments._benchmark_pool import Process, WorkerGoneError
from experiments._benchmark_report import conditions, number, table
from experiments._benchmark_verdicts import JAX_PEERS
from experiments._main import CONFIGS, experiment
from experiments.benchmark_scenes import SCENES
from jaxdyn import DataError
from jaxdyn.cli import ProgramConfig

DEFAULT_CONFIG = CONFIGS / "benchmark_gpu.toml"
OPERATIONS = ("aba", "rnea", "crba", "aba_derivatives", "rnea_derivatives", "gradient", "parameter_gradient")
OPERATIONS += ("rollout",)
SCENE_OPERATIONS = ("step", "step_gradient", "control", "control_gradient", "motion")
CODES = ("native", "xla", "xla_loops", *JAX_PEERS)
SCENE_CODES = ("native", "xla", "xla_loops", "mjx", "warp")
_HEADER = (
    *("robot", "operation", "batch", "code", "evaluations/s", "ns each", "kernels", "launches", "GFLOP", "GB"),
    *(
        "x operations floor",
        "x bandwidth floor",
        "x arguments and results",
        "temporary MB",
        "trace + compile, s",
        "first call, s",
        "same bits again",
    ),
)
_MOTION_HEADER = ("scene", "batch", "code", "steps", "this device", "the processor in single precision")


@dataclasses.dataclass(frozen=True)
class Config(ProgramConfig):
    """Keys of the configuration file. Lists are names or numbers between commas."""

    peak: float
    """Rate of single-precision operations of the device, 1e12/s."""
    bandwidth: float
    """Bandwidth of the device's memory, 1e9 B/s."""
    cases: str
    """Cases between spaces, `ROBOT/OPERATIONS/BATCHES/CODES` each, which are names or numbers between commas."""
    steps: int = 100
    """Steps of a roll-out."""
    memory: float = 40.0
    """Largest memory of a program that is run, GiB."""
    seconds: float = 0.3
    """Approximate length of each repeat, s."""
    repeats: int = 5
    time_budget: float = 0.0
    """Time after which no further measurement begins, s; 0 for no limit."""
    case_seconds: float = 60.0
    """Time after which a case is given up, s."""
    device: Literal["gpu", "cpu"] = "gpu"
    """`cpu` runs the script without a GPU; its figures have no meaning."""


def run(config: Config) -> list[dict]:
    """Measure, print, and write `<results>/<name>/`; returns the measurements."""
    cases = cases_in(config.cases)
    worker = _worker(config)
    folder, kind = config.make_folder(), worker.started["device"]
    where = {"kind": "conditions", "device": kind, "config": dataclasses.asdict(config), **conditions(-1)}
    print(f"{kind}; peak {config.peak:g} TFLOP/s, bandwidth {config.bandwidth:g} GB/s, as given", flush=True)
    records, began = [], time.monotonic()
    with (folder / "measurements.jsonl").open("w", encoding="utf-8") as file:
        file.write(json.dumps(where) + "\n")
        for case in cases:
            left = config.time_budget - (time.monotonic() - began) if config.time_budget else config.case_seconds
            if left <= 0:
                print(f"the time budget of {config.time_budget:g} s was spent; the rest was not measured")
                break
            record, alive = {"kind": "measurement", **case}, True
            try:
                record |= worker.ask(case, min(left, config.case_seconds))
            except WorkerGoneError as gone:
                record |= {"status": gone.status, "reason": str(gone)}
                alive = False
            records.append(record)
            file.write(json.dumps(record) + "\n")
            file.flush()
            print(f"{time.monotonic() - began:5.0f} s | " + " | ".join(_printed(record)), flush=True)
            write_report(folder / "report.md", where, records)
            if not alive:
                worker = _worker(config)
    worker.close()
    print(f"wrote {folder / 'measurements.jsonl'} and {folder / 'report.md'}")
    return records


def _worker(config: Config) -> Process:
    """Return a process that measures. **Raises** `DataError` where it has no device."""
    arguments = (json.dumps(dataclasses.asdict(config)),)
    # MuJoCo Warp needs a part of the memory, which JAX would take as a whole.
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    try:
        worker = Process("experiments._benchmark_gpu_worker", *arguments, environment=environment)
    except WorkerGoneError as gone:
        raise DataError(f"the process that measures did not begin: {gone}") from None
    if worker.started["status"] != "ok":
        raise DataError(worker.started["reason"])
    return worker


def cases_in(text: str) -> list[dict]:
    """Return the cases in a text in their order. **Raises** `DataError` for unknown ones."""
    cases = []
    for group in text.split():
        parts = group.rsplit("/", 3)
        if len(parts) != 4:
            raise DataError(f"cases has {group!r}, but ROBOT/OPERATIONS/BATCHES/CODES are needed")
        robots = parts[0].split(",")
        scene = all(name in SCENES for name in robots)
        if not scene:
            robots = robots_in(parts[0], SCENES)
        operations = names_in(parts[1], SCENE_OPERATIONS if scene else OPERATIONS, f"operations of {group!r}")
        codes = names_in(parts[3], SCENE_CODES if scene else CODES, f"codes of {group!r}")
        names = ("robot", "operation", "batch", "code")
        product = itertools.product(robots, operations, numbers_in(parts[2], f"batches of {group!r}"), codes)
        cases += [dict(zip(names, case, strict=True)) for case in product]
    return cases


def _printed(r: dict) -> list[str]:
    return _motion_row(r) if "here" in r else _row(r)


def _row(r: dict) -> list[str]:
    start = [r["robot"], r["operation"], str(r["batch"]), r["code"]]
    if r["status"] != "ok":
        return [*start, f"{r['status']}: {r['reason']}".replace("|", "\\|"), *[""] * (len(_HEADER) - len(start) - 1)]
    unknown = "+" if r.get("unknown_loops") else ""
    return [
        *start,
        f"{r['evaluations_per_s']:.3g}" + ("" if r["finite"] else " (not finite)"),
        number(r["seconds"] / r["evaluations"] * 1e9),
        str(r.get("kernels", "")),
        f"{r.get('launches', '')}{unknown}",
        number(r["flops"] / 1e9 if "flops" in r else None),
        number(r["bytes"] / 1e9 if "bytes" in r else None),
        number(r.get("times_operations_floor")),
        number(r.get("times_bandwidth_floor")),
        number(r.get("times_arguments_and_results")),
        number(r["temporary_bytes"] / 2**20 if "temporary_bytes" in r else None),
        number(r["compile_s"]),
        number(r["first_call_s"]),
        "yes" if r["repeats"] else "no",
    ]


def _motion_row(r: dict) -> list[str]:
    errors = (", ".join(f"{x:.2g}" for x in r[name]) for name in ("here", "processor"))
    return [r["robot"], str(r["batch"]), r["code"], ", ".join(map(str, r["steps"])), *errors]


def write_report(path: Path, where: dict, records: Sequence[dict]) -> None:
    """Write the table of all measurements."""
    versions = ", ".join(f"{k} {where['versions'][k]}" for k in ("jaxdyn", "jax", "jaxlib", "numpy"))
    config = where["config"]
    out = [
        "# Benchmark on a GPU",
        "",
        f"Measured on {where['date']}: {where['device']}, {where['cpu']}, {where['system']}, Python {where['python']}, "
        f"{versions}. Single precision; states of robots are random, those of scenes on the ground; models are "
        "constants of the compiled programs.",
        "",
        "`native`: one kernel a call, unless the operation is too long for one; `xla`: compiled by XLA; `xla_loops`: "
        "compiled by XLA, loops in command buffers. Programs of an earlier case are not made again, and a process that "
        "begins anew makes them again.",
        "",
        "Wall time of runs that follow each other, arguments and results on the device. `kernels`: instructions of the "
        "compiled program that launch one; `launches`: with loops counted as often as they run (`+`: at least). "
        f"Floors: the operations that the compiler counts at {config['peak']:g} TFLOP/s, the bytes that it counts at "
        f"{config['bandwidth']:g} GB/s (every fusion's operands and results), and the arguments and results alone at "
        "the same bandwidth; a column says how many times longer the program took.",
        "",
        *table(_HEADER, [_row(r) for r in records if "here" not in r]),
        "",
    ]
    if motions := [_motion_row(r) for r in records if "here" in r]:
        title = "Largest differences of configurations from the processor's in double precision, after some steps:"
        out += [title, "", *table(_MOTION_HEADER, motions), ""]
    path.write_text("\n".join(out), encoding="utf-8")


main = experiment("benchmark_gpu", Config, run, DEFAULT_CONFIG, __doc__, x64=False, mistakes=(models.RobotError,))

if __name__ == "__main__":
    sys.exit(main())
