"""Time forward dynamics with closed loops beside that of the same tree without them, on a CPU.

    python -m experiments.benchmark_loops [CONFIG] [--key value ...]

Each measurement has a process of its own, without JAX's cache of compiled programs, which has compiled another robot
before. Robots with loops and without take turns, and the least CPU time of all rounds counts.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments._benchmark_options import names_in
from experiments._benchmark_report import conditions, number, table
from experiments._main import CONFIGS, experiment
from experiments._timing import time_compilation
from jaxdyn import Model, aba, frame_pose, samples
from jaxdyn.cli import ProgramConfig

DEFAULT_CONFIG = CONFIGS / "benchmark_loops.toml"


@dataclasses.dataclass(frozen=True)
class Config(ProgramConfig):
    """Keys of the configuration file."""

    robots: str = "four_bar,quadruped"
    """Names between commas of four_bar, five_bar, quadruped (with two feet welded to the world) and
    stewart_platform."""
    batch: int = 1024
    rounds: int = 3
    """The number of processes for each figure."""
    calls: int = 200
    """The number of calls in a process."""


def run(config: Config) -> list[dict[str, Any]]:
    """Measure, print, and write `<results>/<name>/report.md`; returns the measurements."""
    names, folder, records = names_in(config.robots, ROBOTS, "robots"), config.make_folder(), []
    for name in names:
        least: dict[bool, tuple[float, ...]] = {}
        for _ in range(config.rounds):
            for loops in (False, True):
                own = _in_new_process(name, loops, config.batch, config.calls)
                least[loops] = tuple(map(min, own, least.get(loops, own)))
        (tree_compile, tree_call), (compile_s, call_s) = least[False], least[True]
        ratios = {"compile_ratio": compile_s / tree_compile, "call_ratio": call_s / tree_call}
        records.append({"robot": name, "compile_s": compile_s, "us": 1e6 * call_s / config.batch, **ratios})
        print(" | ".join(_row(records[-1])), flush=True)
    where = conditions(-1)
    text = [
        "# Forward dynamics with closed loops",
        "",
        f"{where['date']}: {where['cpu']}; float32, batch {config.batch}; CPU time to trace and compile, and of a call "
        "for each state, and their ratios to those of the tree without loops.",
        "",
        *table(("robot", "compile, s", "/ tree", "call, us", "/ tree"), [_row(x) for x in records]),
        "",
    ]
    (folder / "report.md").write_text("\n".join(text), encoding="utf-8")
    print(f"wrote {folder / 'report.md'}")
    return records


def _row(record: dict[str, Any]) -> list[str]:
    return [record["robot"], *(number(record[key]) for key in ("compile_s", "compile_ratio", "us", "call_ratio"))]


def standing_quadruped() -> Model:
    """Return the quadruped with two feet welded to the world where they are at the neutral configuration."""
    model = samples.quadruped()
    q = model.neutral()
    for foot in ("FL_FOOT", "HR_FOOT"):
        model = model.with_loop(foot, "weld", "world", foot, frame_pose(model, q, foot))
    return model


ROBOTS: dict[str, Callable[[], Model]] = {
    "four_bar": samples.four_bar,
    "five_bar": samples.five_bar,
    "quadruped": standing_quadruped,
    "stewart_platform": samples.stewart_platform,
}


def _in_new_process(name: str, loops: bool, batch: int, calls: int) -> tuple[float, float]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_measured, name, loops, batch, calls).result()


def _measured(name: str, loops: bool, batch: int, calls: int) -> tuple[float, float]:
    """Return the CPU time, s, to trace and compile `aba` of a robot, and that of a call."""
    jax.config.update("jax_enable_compilation_cache", False)
    model = ROBOTS[name]().astype(jnp.float32)
    model = model if loops else model.without_loops()
    q = jnp.broadcast_to(model.neutral(), (batch, model.nq))
    v, tau = jnp.asarray(np.random.default_rng(0).normal(size=(2, batch, model.nv)), jnp.float32)
    # The first program of a process takes longer, and is not measured.
    jax.block_until_ready(aba(samples.chain(2), *jnp.zeros((3, 2))))
    program = time_compilation(aba, (model, q, v, tau), time.process_time)
    seconds = []
    for _ in range(calls):
        began = time.process_time()
        jax.block_until_ready(program.call(model, q, v, tau))
        seconds.append(time.process_time() - began)
    return program.trace_s + program.compile_s, min(seconds)


main = experiment("benchmark_loops", Config, run, DEFAULT_CONFIG, __doc__, x64=False)

if __name__ == "__main__":
    sys.exit(main())
