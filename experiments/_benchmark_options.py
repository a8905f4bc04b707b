"""Options that the benchmarks share: lists in configurations, and the processor core of the measurements."""

from __future__ import annotations

import os
from collections.abc import Iterable

from experiments import _benchmark_models as models
from jaxdyn import DataError


def names_in(text: str, choices: Iterable[str], what: str) -> list[str]:
    """Return the names between commas in `text`; `all` stands for every one. **Raises** `DataError` for others."""
    choices = list(choices)
    names = choices if text.strip() == "all" else _split(text)
    wrong = [repr(name) for name in names if name not in choices]
    if wrong or not names:
        content = f"has {', '.join(wrong)}" if wrong else "is empty"
        raise DataError(f"{what} {content}; known: {', '.join(choices)}, or all")
    return names


def numbers_in(text: str, what: str) -> list[int]:
    """Return the batch sizes between commas in `text`, sorted. **Raises** `DataError`."""
    try:
        out = sorted({int(x) for x in text.split(",")})
    except ValueError:
        raise DataError(f"{what} is {text!r}, but whole numbers between commas are needed") from None
    if out[0] < 1:
        raise DataError(f"{what} has {out[0]}; batches begin at 1")
    return out


def robots_in(text: str, more: Iterable[str] = ()) -> list[str]:
    """Return the robots between commas in `text`. **Raises** `DataError` for unknown ones, with the names of `more`."""
    for name in (robots := _split(text)):
        if not models.is_robot(name):
            known = ", ".join((*models.FILES, *more))
            raise DataError(f"robots has {name!r}; known: {known}, chainN with N joints, and paths of URDF files")
    return robots


def processor_core(core: int) -> int:
    """Return the core to measure on, the last one of this process for -1. **Raises** `DataError` for another's core."""
    allowed = os.sched_getaffinity(0)
    core = max(allowed) if core < 0 else core
    if core not in allowed:
        raise DataError(f"core is {core}, but this process may use {sorted(allowed)}")
    return core


def _split(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
