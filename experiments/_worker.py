"""A process that computes one thing after the other, each in a limited time."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from typing import Any

FEW = 25
"""The calls that one process serves. Native cli stay in memory until it ends, and take places in the table of its
memory maps, whose length systems limit."""
START = 120.0
"""The longest time in which a process starts, s: imports take a few seconds, and more where the disk is busy."""


class Worker:
    """A function that another process computes. The process is ended where a call takes too long, because a compilation
    cannot be interrupted, and another one serves the next call."""

    def __init__(self, function: Callable[[Any], Any], prepare: Callable[[], None]):
        """`function` and `prepare`, which a process calls first, can be pickled."""
        self._function, self._prepare = function, prepare
        self._process: Any = None
        self._connection: Any = None
        self._served = 0

    def __call__(self, argument: Any, seconds: float) -> Any:
        """Return the result of the function. **Raises** `TimeoutError` if it takes longer than `seconds`, and
        `ChildProcessError` if the process ends."""
        if self._process is None or self._served >= FEW:
            self.end()
            self._start()
        self._served += 1
        try:
            self._connection.send(argument)
            # In parts, so that the time in which the run is stopped does not count.
            for part in _parts(seconds):
                if self._connection.poll(part):
                    return self._connection.recv()
        except (EOFError, OSError):
            self.end()
            raise ChildProcessError("the process has ended") from None
        self.end()
        raise TimeoutError(f"not ended in {seconds:g} s")

    def _start(self) -> None:
        # Threads of JAX do not survive a fork.
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        arguments = other, self._function, self._prepare
        self._process, self._served = context.Process(target=_serve, args=arguments, daemon=True), 0
        self._process.start()
        other.close()
        try:
            if self._connection.poll(START):
                self._connection.recv()
                return
        except (EOFError, OSError):
            pass
        self.end()
        raise ChildProcessError(f"no process has started in {START:g} s")

    def end(self) -> None:
        """End the process; a later call starts another one."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


def _parts(seconds: float) -> Iterator[float]:
    """Yield parts of a time, at most 1 s each."""
    while seconds > 0:
        yield min(seconds, 1.0)
        seconds -= 1.0


def _serve(connection: Any, function: Callable[[Any], Any], prepare: Callable[[], None]) -> None:
    """Send the result of each call that comes, until the process is ended."""
    prepare()
    connection.send(None)
    while True:
        connection.send(function(connection.recv()))
