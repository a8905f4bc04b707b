"""Lines that say what a long identification does now."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

type ProgressReport = bool | Callable[[str], None]
"""True for lines on stderr, a function that gets each text, or False for silence."""

# A wait of so many s, from the call or from the last line, is long enough for a line.
_WAIT = 3.0


class Progress:
    """Called with what is done now, as often as there is something to say. A function of the caller gets each text; on
    stderr, there is a line every few seconds, and none for a job that takes less."""

    def __init__(self, report: ProgressReport, job: str):
        self._report, self._job, self._began = report, job, time.monotonic()
        self._last = self._began

    def __call__(self, doing: str) -> None:
        """Say what is done now."""
        if callable(self._report):
            self._report(doing)
        elif self._report and (now := time.monotonic()) - self._last >= _WAIT:
            self._last = now
            print(f"{self._job}, {now - self._began:.0f} s: {doing} ...", file=sys.stderr, flush=True)
