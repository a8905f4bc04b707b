"""Compile time, run time and memory of a function, each by itself."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax


class Compiled(NamedTuple):
    """A compiled program with its times, s, in the clock that was used, and its memory.

    Sizes are None where the backend does not report them.
    """

    call: Any
    trace_s: float
    compile_s: float
    temporary_bytes: int | None
    """Memory that the program takes while it runs, besides arguments and results."""
    argument_bytes: int | None
    output_bytes: int | None


def time_compilation(
    function: Callable, arguments: tuple | list, clock: Callable[[], float], options: dict | None = None
) -> Compiled:
    """Trace and compile a function with options of the compiler; earlier compilations of this process are not used, a
    cache on the disk is."""
    jax.clear_caches()
    began = clock()
    lowered = jax.jit(function).lower(*arguments)
    traced = clock()
    program = lowered.compile(compiler_options=options)
    done = clock()
    memory = program.memory_analysis()
    names = ("temp_size_in_bytes", "argument_size_in_bytes", "output_size_in_bytes")
    sizes = [None if memory is None else int(getattr(memory, name)) for name in names]
    return Compiled(program, traced - began, done - traced, *sizes)


def wall_time(run: Callable[[], Any], seconds: float, repeats: int) -> float:
    """Measure the wall time of one run, s: the median of repeats that take about `seconds` each, in which runs follow
    each other without a pause."""
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
