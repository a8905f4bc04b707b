"""The end of a run with `--uncalled`: which public functions no test called."""

import inspect
import sys
from pathlib import Path
from types import CodeType

import pytest

from tests.public_names import public_functions

PACKAGE = str(Path(__file__).parents[1] / "jaxdyn")


def place_of(code: CodeType) -> str:
    return f"{code.co_filename}:{code.co_qualname}"


class CalledFunctions:
    """Records which functions of the library were called, also in workers of pytest-xdist, not in subprocesses.

    The interpreter reports the first call of each function, which takes no time that can be measured.
    """

    def __init__(self):
        self.called: set[str] = set()
        monitoring = sys.monitoring
        monitoring.use_tool_id(monitoring.COVERAGE_ID, "uncalled")
        monitoring.register_callback(monitoring.COVERAGE_ID, monitoring.events.PY_START, self._record)
        monitoring.set_events(monitoring.COVERAGE_ID, monitoring.events.PY_START)

    def _record(self, code: CodeType, _offset: int) -> object:
        if code.co_filename.startswith(PACKAGE):
            self.called.add(place_of(code))
        return sys.monitoring.DISABLE

    def pytest_sessionfinish(self, session):
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["called"] = sorted(self.called)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        self.called |= set(getattr(node, "workeroutput", {}).get("called", ()))

    def pytest_terminal_summary(self, terminalreporter):
        codes = {name: getattr(inspect.unwrap(f), "__code__", None) for name, f in public_functions().items()}
        places = {name: place_of(code) for name, code in codes.items() if code is not None}
        uncalled = [name for name, place in places.items() if place not in self.called]
        share = 1 - len(uncalled) / len(places)
        terminalreporter.write_sep("=", f"public functions called: {share:.1%} of {len(places)}")
        for name in uncalled:
            terminalreporter.write_line(f"not called: {name}")
