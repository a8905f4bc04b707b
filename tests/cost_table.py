"""A table at the end of a run: how long each test file took, and how much of that was compilation."""

import collections
import os
import time

import jax
import pytest

LINES = 25
COMPILATION = "/jax/core/compile/backend_compile_duration"
CACHE_HIT = "/jax/compilation_cache/compile_time_saved_sec"
COLUMNS = ("wall", "cpu", "compile", "programs", "cached", "saved")


def cpu_seconds() -> float:
    """The CPU seconds of this process and of those that it started and that have ended."""
    return sum(os.times()[:4])


class CostTable:
    """Counts the seconds and the compiled programs of every file, also of files that workers of pytest-xdist ran.

    The columns are seconds on the clock, seconds of CPU time (both include collection and ended subprocesses), seconds
    of XLA's compilation, requested programs, programs that came from the cache, and the seconds of compilation that
    the cache saved. Without the cache a file takes `wall + saved` seconds.
    """

    def __init__(self):
        self.costs = collections.defaultdict(lambda: dict.fromkeys(COLUMNS, 0.0))
        self.file = "(outside of tests)"
        jax.monitoring.register_event_duration_secs_listener(self._count)

    def _count(self, event: str, duration: float, **_) -> None:
        cost = self.costs[self.file]
        if event == COMPILATION:
            cost["compile"] += duration
            cost["programs"] += 1
        elif event == CACHE_HIT:
            cost["cached"] += 1
            # The saving is negative if reading a small program took longer than compiling it.
            cost["saved"] += duration

    def _timed(self, file: str):
        before, self.file = self.file, file
        clock, process = time.perf_counter(), cpu_seconds()
        result = yield
        self.costs[file]["wall"] += time.perf_counter() - clock
        self.costs[file]["cpu"] += cpu_seconds() - process
        self.file = before
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        return (yield from self._timed(item.location[0]))

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector):
        if not isinstance(collector, pytest.Module):
            return (yield)
        return (yield from self._timed(collector.nodeid))

    def pytest_sessionfinish(self, session):
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["costs"] = dict(self.costs)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        for file, cost in getattr(node, "workeroutput", {}).get("costs", {}).items():
            for column in COLUMNS:
                self.costs[file][column] += cost[column]

    def pytest_terminal_summary(self, terminalreporter):
        if not self.costs:
            return
        names = sorted(self.costs, key=lambda name: -self.costs[name]["wall"] - self.costs[name]["saved"])
        total = {column: sum(cost[column] for cost in self.costs.values()) for column in COLUMNS}
        terminalreporter.write_sep("=", "where the time went (s)")
        terminalreporter.write_line("".join(f"{column:>9}" for column in COLUMNS) + "  file")
        for name, cost in [*((name, self.costs[name]) for name in names[:LINES]), (f"all {len(names)} files", total)]:
            terminalreporter.write_line(
                "".join(f"{cost[x]:>9.{0 if x in ('programs', 'cached') else 1}f}" for x in COLUMNS) + f"  {name}"
            )
