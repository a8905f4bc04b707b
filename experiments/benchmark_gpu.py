"""Time the library on a GPU in single precision: throughput, kernels, and the distance to what the device could do.

Each operation is measured as one kernel (`native`), compiled by XLA (`xla`), compiled by XLA with its loops in command
buffers, which the device repeats without the host (`xla_loops`), and, where they are asked for and installed, by other
libraries for JAX (`--codes native,mjx,frax`). A roll-out has `steps` steps, which are its evaluations.

    python -m experiments.benchmark_gpu [CONFIG] [--key value ...]

Writes `measurements.jsonl` and `report.md`. The floor is the time of the device for the program's
operations at its peak rate, or for the program's memory traffic at its bandwidth, whichever is longer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax

from experiments import _benchmark_models as models
from experiments._benchmark_hlo import count_kernels
from experiments._benchmark_jax import LIBRARIES, Jaxdyn, JaxLibrary, operation
from experiments._benchmark_options import names_in, numbers_in, robots_in
from experiments._benchmark_report import conditions, number, table
from experiments._benchmark_verdicts import JAX_PEERS
from experiments._main import CONFIGS, experiment
from experiments._timing import time_compilation, wall_time
from jaxdyn import DataError, native
from jaxdyn.cli import ProgramConfig

DEFAULT_CONFIG = CONFIGS / "benchmark_gpu.toml"
OPERATIONS = ("aba", "rnea", "crba", "aba_derivatives", "rnea_derivatives", "gradient", "parameter_gradient")
OPERATIONS += ("rollout",)
CODES = ("native", "xla", "xla_loops", *JAX_PEERS)
# XLA's defaults, and loops.
_LOOPS = {"xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,WHILE"}
_HEADER = (
    *("robot", "operation", "batch", "code", "evaluations/s", "ns each", "kernels", "launches", "GFLOP", "GB"),
    *(
        "x operations floor",
        "x bandwidth floor",
        "x arguments and results",
        "temporary MB",
        "trace + compile, s",
        "first call, s",
    ),
)


@dataclasses.dataclass(frozen=True)
class Config(ProgramConfig):
    """Keys of the configuration file. Lists are names or numbers between commas."""

    peak: float
    """Rate of single-precision operations of the device, 1e12/s."""
    bandwidth: float
    """Bandwidth of the device's memory, 1e9 B/s."""
    robots: str = "panda,solo12,talos_reduced,chain128"
    operations: str = "aba,rnea,crba,aba_derivatives,gradient"
    batches: str = "4096,65536"
    codes: str = "native,xla,xla_loops"
    """Ways to compile an operation, see above. Those with too many operations for a kernel are compiled by XLA."""
    steps: int = 100
    """Steps of a roll-out."""
    memory: float = 40.0
    """Largest memory of a program that is run, GiB."""
    seconds: float = 0.3
    """Approximate length of each repeat, s."""
    repeats: int = 5
    time_budget: float = 0.0
    """Time after which no further measurement begins, s; 0 for no limit."""
    device: Literal["gpu", "cpu"] = "gpu"
    """`cpu` runs the script without a GPU; its figures have no meaning."""


def run(config: Config) -> list[dict]:
    """Measure, print, and write `<results>/<name>/`; returns the measurements."""
    device = find_device(config.device)
    robots, batches = robots_in(config.robots), numbers_in(config.batches, "batches")
    operations = names_in(config.operations, OPERATIONS, "operations")
    codes = names_in(config.codes, CODES, "codes")
    folder = config.make_folder()
    kind = f"{device.device_kind} ({device.platform})"
    where = {"kind": "conditions", "device": kind, "config": dataclasses.asdict(config), **conditions(-1)}
    print(f"{kind}; peak {config.peak:g} TFLOP/s, bandwidth {config.bandwidth:g} GB/s, as given")
    records, began = [], time.monotonic()
    with (folder / "measurements.jsonl").open("w", encoding="utf-8") as file, jax.default_device(device):
        file.write(json.dumps(where) + "\n")
        for robot in robots:
            tree = models.load_tree(robot)
            for name, batch, code in itertools.product(operations, batches, codes):
                if config.time_budget and time.monotonic() - began > config.time_budget:
                    break
                case = {"kind": "measurement", "robot": robot, "operation": name, "batch": batch, "code": code}
                with contextlib.nullcontext() if code == "native" else native.disabled():
                    records.append({**case, **attempt(tree, name, batch, code, config)})
                file.write(json.dumps(records[-1]) + "\n")
                file.flush()
                print(" | ".join(_row(records[-1])), flush=True)
    if config.time_budget and time.monotonic() - began > config.time_budget:
        print(f"the time budget of {config.time_budget:g} s was spent; the rest was not measured")
    write_report(folder / "report.md", where, records)
    print(f"wrote {folder / 'measurements.jsonl'} and {folder / 'report.md'}")
    return records


def find_device(kind: str) -> Any:
    """Return the first device of a kind. **Raises** `DataError` with the existing devices if there is none."""
    try:
        return jax.devices(kind)[0]
    except RuntimeError as error:
        devices = ", ".join(str(d) for d in jax.devices())
        raise DataError(
            f"no {kind.upper()} that JAX can use (it has: {devices}): {' '.join(str(error).split())[:300]}. This "
            "benchmark needs an NVIDIA GPU and a JAX for it, for instance pip install 'jax[cuda13]'; --device cpu "
            "runs the script without one"
        ) from None


def attempt(tree: models.Tree, name: str, batch: int, code: str, config: Config) -> dict:
    """Return the measurement of one operation, or a record with the reason for its absence."""
    try:
        return measure(LIBRARIES.get(code, Jaxdyn)(tree, "float32"), name, batch, code, config)
    except models.UnsupportedError as reason:
        return {"status": "unsupported", "reason": str(reason)}
    except Exception as error:
        return {"status": "failed", "reason": " ".join(f"{type(error).__name__}: {error}".split())[:500]}


def measure(library: JaxLibrary, name: str, batch: int, code: str, config: Config) -> dict:
    """Compile and run one operation, count its kernels, and compare its time with the floors."""
    function, letters = operation(library, name, batch, config.steps)
    states = models.rollout_states if name == "rollout" else models.states
    arrays: dict[str, Any] = dict(zip("qvta", library.states(states(library.tree, batch)), strict=True))
    arrays = {k: jax.numpy.asarray(x, library.dtype) for k, x in arrays.items()}
    if "m" in letters:
        arrays["m"] = library.parameters()[0]
    arguments = [arrays[letter] for letter in letters]
    program, trace_s, compile_s, temporary, inputs, outputs = time_compilation(
        function, arguments, time.process_time, _LOOPS if code == "xla_loops" else None
    )
    out: dict[str, Any] = {"status": "ok", "compile_s": trace_s + compile_s}
    traffic = None
    if temporary is not None and inputs is not None and outputs is not None:
        out["temporary_bytes"] = temporary
        traffic = inputs + outputs
        needed = (traffic + out["temporary_bytes"]) / 2**30
        if needed > config.memory:
            raise MemoryError(f"it would take {needed:.1f} GiB, and the limit is {config.memory:g}")
    kernels = count_kernels(program.as_text() or "")
    out |= {"kernels": kernels.instructions, "launches": kernels.launches, "unknown_loops": kernels.unknown_loops}
    # The driver compiles kernels at the first call.
    began = time.perf_counter()
    jax.block_until_ready(program(*arguments))
    out["first_call_s"] = time.perf_counter() - began
    seconds = wall_time(lambda: program(*arguments), config.seconds, config.repeats)
    evaluations = batch * (config.steps if name == "rollout" else 1)
    out |= {
        "evaluations": evaluations,
        "evaluations_per_s": evaluations / seconds,
        "seconds": seconds,
        "finite": all(bool(jax.numpy.isfinite(x).all()) for x in jax.tree.leaves(program(*arguments))),
    }
    cost = program.cost_analysis()
    cost = (cost[0] if cost else {}) if isinstance(cost, list) else cost or {}
    # The compiler counts the operands and results of every fusion as traffic, whether cached or not.
    flops, moved = cost.get("flops"), cost.get("bytes accessed")
    if flops and flops > 0:
        out |= {"flops": flops, "times_operations_floor": seconds / (flops / (config.peak * 1e12))}
    if moved and moved > 0:
        out |= {"bytes": moved, "times_bandwidth_floor": seconds / (moved / (config.bandwidth * 1e9))}
    if traffic:
        out["times_arguments_and_results"] = seconds / (traffic / (config.bandwidth * 1e9))
    return out


def _row(r: dict) -> list[str]:
    start = [r["robot"], r["operation"], str(r["batch"]), r["code"]]
    if r["status"] != "ok":
        return [*start, f"{r['status']}: {r['reason']}".replace("|", "\\|"), *[""] * (len(_HEADER) - len(start) - 1)]
    unknown = "+" if r["unknown_loops"] else ""
    return [
        *start,
        f"{r['evaluations_per_s']:.3g}",
        number(r["seconds"] / r["evaluations"] * 1e9),
        str(r["kernels"]),
        f"{r['launches']}{unknown}",
        number(r["flops"] / 1e9 if "flops" in r else None),
        number(r["bytes"] / 1e9 if "bytes" in r else None),
        number(r.get("times_operations_floor")),
        number(r.get("times_bandwidth_floor")),
        number(r.get("times_arguments_and_results")),
        number(r["temporary_bytes"] / 2**20 if "temporary_bytes" in r else None),
        number(r["compile_s"]),
        number(r["first_call_s"]),
    ]


def write_report(path: Path, where: dict, records: Sequence[dict]) -> None:
    """Write the table of all measurements."""
    versions = ", ".join(f"{k} {where['versions'][k]}" for k in ("jaxdyn", "jax", "jaxlib", "numpy"))
    config = where["config"]
    out = [
        "# Benchmark on a GPU",
        "",
        f"Measured on {where['date']}: {where['device']}, {where['cpu']}, {where['system']}, Python {where['python']}, "
        f"{versions}. Single precision; states are random; models are constants of the compiled programs.",
        "",
        "`native`: one kernel a call, unless the operation is too long for one; `xla`: compiled by XLA; `xla_loops`: "
        "compiled by XLA, loops in command buffers.",
        "",
        "Wall time of runs that follow each other, arguments and results on the device. `kernels`: instructions of the "
        "compiled program that launch one; `launches`: with loops counted as often as they run (`+`: at least). "
        f"Floors: the operations that the compiler counts at {config['peak']:g} TFLOP/s, the bytes that it counts at "
        f"{config['bandwidth']:g} GB/s (every fusion's operands and results), and the arguments and results alone at "
        "the same bandwidth; a column says how many times longer the program took.",
        "",
        *table(_HEADER, [_row(r) for r in records]),
        "",
    ]
    path.write_text("\n".join(out), encoding="utf-8")


main = experiment("benchmark_gpu", Config, run, DEFAULT_CONFIG, __doc__, x64=False, mistakes=(models.RobotError,))

if __name__ == "__main__":
    sys.exit(main())
