"""The progress of a long job on stderr."""

from __future__ import annotations

import sys
import time
from typing import Self

from tqdm import tqdm


class Progress:
    """Counts the steps of a long job, and reports the last one on stderr.

    In a terminal this is one line that is drawn anew. Elsewhere, such as in the log of a job, it is a plain line every
    `every` seconds, so that the log stays short; a job that takes less time writes none.
    """

    def __init__(self, name: str, every: float = 30.0):
        self._name, self._every = name, every
        self._steps, self._began = 0, time.monotonic()
        self._written = self._began

    def __enter__(self) -> Self:
        # Nothing is drawn where stderr is no terminal.
        self._bar = tqdm(desc=self._name, unit=" steps", mininterval=0.1, disable=None)
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def step(self, **facts: object) -> None:
        """Count a step, and show the facts, by name."""
        self._steps += 1
        self._bar.update()
        if not self._bar.disable:
            self._bar.set_postfix(facts)
        elif (now := time.monotonic()) - self._written >= self._every:
            self._written = now
            shown = "".join(f", {name} {value}" for name, value in facts.items())
            print(f"{self._name}: {self._steps} steps in {now - self._began:.0f} s{shown}", file=sys.stderr, flush=True)
