"""Comparison of two checkouts of this library: the measurements of both, and the table of their times."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

from experiments._benchmark_report import number, print_columns
from experiments._benchmark_verdicts import BASELINE, OURS, ROBOTS, Key
from jaxdyn import DataError

OPERATIONS = ("aba", "rnea", "crba", "gradient", "aba_derivatives", "rnea_derivatives", "rollout")
BATCHES = (1, 1024)
_HEADER = (
    *("robot", "operation", "batch", "precision", "here, us", "there, us", "ratio", "of the least"),
    *("compiled here, s", "there, s", "difference"),
)


def checkout(path: str) -> Path:
    """Return the folder of another checkout. **Raises** `DataError` for a folder without the package `jaxdyn`."""
    folder = Path(path).expanduser().resolve()
    if not (folder / "jaxdyn" / "__init__.py").is_file():
        raise DataError(f"against is {path!r}, but {folder} has no package jaxdyn; give the root of a checkout")
    return folder


def comparison() -> list[Key]:
    """Return the measurements of a comparison; the two checkouts of each case follow each other."""
    cases = itertools.product(ROBOTS, OPERATIONS, BATCHES, ("float32", "float64"), (OURS, BASELINE))
    return [Key(robot, operation, batch, peer, dtype) for robot, operation, batch, dtype, peer in cases]


def print_comparison(measured: Mapping[Key, dict]) -> None:
    """Print a line for each case: CPU time of an evaluation, the ratio of the medians and of the least times of this
    checkout to the other, times of tracing and compiling, and the relative difference of their results."""
    rows = []
    for key, here in measured.items():
        there = measured.get(key._replace(peer=BASELINE))
        if key.peer != OURS or there is None:
            continue
        case = [key.robot, key.operation, str(key.batch), key.dtype]
        failed = [
            f"{name}: {r['status']}: {r.get('reason', '')}"
            for name, r in (("here", here), ("there", there))
            if r["status"] != "ok"
        ]
        if failed:
            rows.append([*case, "; ".join(failed)])
            continue
        times = [[r[field] for r in (here, there)] for field in ("us_per_evaluation", "us_min")]
        compilation = [number(r["trace_s"] + r["compile_s"]) for r in (here, there)]
        error = there.get("error", here.get("error"))
        rows.append(
            [
                *case,
                *map(number, times[0]),
                *(f"{a / b:.2f}" for a, b in times),
                *compilation,
                "" if error is None else f"{error:.0e}",
            ]
        )
    print_columns(_HEADER, rows)
