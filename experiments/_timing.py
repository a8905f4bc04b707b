"""Compile time, run time and memory of a function, each by itself."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax


class Compiled(NamedTuple):
    """A compiled program with its times, s, in the clock that was used, and its memory; sizes are None where the
    backend does not report them."""

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

    def several(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count - 1):
            run()
        jax.block_until_ready(run())
        return (time.perf_counter() - began) / count

    several(1)
    inner = max(1, int(seconds / max(several(1), 1e-6)))
    return statistics.median(several(inner) for _ in range(repeats))
