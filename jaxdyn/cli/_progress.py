"""The progress of a long job on stderr."""

from __future__ import annotations

import sys
import time
from typing import Any

from tqdm import tqdm


def announce(text: str) -> None:
    """Say on stderr what is about to take a while."""
    print(f"{text} ...", file=sys.stderr, flush=True)


class ProgressBar(tqdm):
    """The bar of `tqdm` in a terminal; elsewhere, such as in the log of a job, a plain line on stderr every `every`
    seconds, and none for a job that takes less time. Arguments and methods are those of `tqdm`."""

    def __init__(self, *args: Any, every: float = 30.0, **kwargs: Any):
        self._plain, self._every = not sys.stderr.isatty(), every
        self._written = self._began = time.monotonic()
        super().__init__(*args, **(kwargs | ({"mininterval": every} if self._plain else {})))

    def display(self, msg: str | None = None, pos: int | None = None) -> bool:
        """Draw the bar, or write a line if the last one is long ago."""
        if not self._plain:
            return bool(super().display(msg, pos))
        now = time.monotonic()
        if now - self._written >= self._every:
            self._written = now
            name, total = f"{self.desc}: " if self.desc else "", f" of {self.total}" if self.total else ""
            facts = f", {self.postfix}" if self.postfix else ""
            line = f"{name}{self.n}{total} {self.unit.strip()} in {now - self._began:.0f} s{facts}"
            print(line, file=sys.stderr, flush=True)
        return True

    def close(self) -> None:
        """End the bar; a log does not get an empty line."""
        self.disable = self.disable or self._plain
        super().close()
