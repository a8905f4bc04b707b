"""Compile time, run time and memory of a function, apart."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax


class Compiled(NamedTuple):
    """A compiled program and what it took, s, in the clock that was given."""

    call: Any
    trace_s: float
    compile_s: float
    temporary_bytes: int | None
    """While it runs; None where the backend does not say. So the others."""
    argument_bytes: int | None
    output_bytes: int | None


def compiled(function: Callable, arguments: tuple | list, clock: Callable[[], float]) -> Compiled:
    """Trace and compile, anew whatever was compiled before; a cache on the disk would still be read."""
    jax.clear_caches()
    began = clock()
    lowered = jax.jit(function).lower(*arguments)
    traced = clock()
    program = lowered.compile()
    done = clock()
    memory = program.memory_analysis()
    sizes = (None, None, None)
    if memory is not None:
        sizes = (memory.temp_size_in_bytes, memory.argument_size_in_bytes, memory.output_size_in_bytes)
    return Compiled(program, traced - began, done - traced, *(None if x is None else int(x) for x in sizes))


def wall_time(run: Callable[[], Any], seconds: float, repeats: int) -> float:
    """Wall time of one run, s: the median of repeats of about `seconds`, in which runs follow each other without a
    pause."""
    jax.block_until_ready(run())
    began = time.perf_counter()
    jax.block_until_ready(run())
    inner = max(1, int(seconds / max(time.perf_counter() - began, 1e-6)))
    out = []
    for _ in range(repeats):
        began = time.perf_counter()
        for _ in range(inner - 1):
            run()
        jax.block_until_ready(run())
        out.append((time.perf_counter() - began) / inner)
    return statistics.median(out)
