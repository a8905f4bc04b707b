"""One warning for each long wait, by the logger `jaxdyn`. Python shows it on stderr unless the program says otherwise.
XLA warns of slow compilations in the same way, after minutes.

`saying` marks work of the library. JAX's monitoring reports compilations, also those that users' own `jax.jit` begins,
if a function of the library is a part of the program.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator

import jax

LOGGER = logging.getLogger("jaxdyn")
PATIENCE = 5.0
"""The wait, in s, after which the warning comes."""
_PAUSE = 0.5
"""Work that begins within these seconds after the end of other work belongs to the same wait: tracing, lowering and
compiling a program are three pieces of work."""
_COMPILATIONS = frozenset(
    f"/jax/core/compile/{phase}_duration" for phase in ("jaxpr_trace", "jaxpr_to_mlir_module", "backend_compile")
)


class _Wait:
    """The work of a thread, the outermost first, and since when it lasts without a pause."""

    def __init__(self):
        self.work: list[str] = []
        self.began = self.ended = -float("inf")
        self.ours = self.watched = self.told = False

    def begin(self, work: str, ours: bool) -> None:
        """Add a piece of work, and watch it unless the wait is watched or was told already."""
        now = time.monotonic()
        if not self.work and now - self.ended > _PAUSE:
            self.began, self.ours, self.told = now, False, False
        self.work.append(work)
        self.ours |= ours
        if not self.watched and not self.told:
            self.watched = True
            threading.Thread(target=self._watch, name="jaxdyn waits", daemon=True).start()

    def end(self) -> None:
        """Remove the last piece of work."""
        # Listeners may have been registered after its beginning.
        if self.work:
            self.work.pop()
        self.ended = time.monotonic()

    def _watch(self) -> None:
        # A new wait moves its beginning.
        while (rest := self.began + PATIENCE - time.monotonic()) > 0 or (self.work and not self.ours):
            time.sleep(max(rest, _PAUSE / 5))
        if work := self.work[:]:
            shown = f"{work[0]} ({work[1]})" if len(work) > 1 and not work[0].startswith("compiling") else work[0]
            LOGGER.warning("jaxdyn has been %s for %.0f s ...", shown, time.monotonic() - self.began)
            self.told = True
        self.watched = False


class _Threads(threading.local):
    def __init__(self):
        self.wait = _Wait()


_threads = _Threads()


@contextlib.contextmanager
def saying(work: str) -> Iterator[None]:
    """Say once what goes on, such as `"drawing a film"`, if it takes longer than `PATIENCE`; also a decorator."""
    wait = _threads.wait
    wait.begin(work, True)
    try:
        yield
    finally:
        wait.end()


def takes_part() -> None:
    """Note that the program that is being traced or lowered has a function of the library."""
    _threads.wait.ours = True


def _begins(event: str, value: float, **details) -> None:
    if event in _COMPILATIONS:
        name = str(details.get("fun_name", "a program")).removeprefix("jit_").removeprefix("jit(").removesuffix(")")
        _threads.wait.begin(f"compiling {name}", False)


def _ends(event: str, duration_secs: float, **details) -> None:
    if event in _COMPILATIONS:
        _threads.wait.end()


jax.monitoring.register_scalar_listener(_begins)
jax.monitoring.register_event_duration_secs_listener(_ends)
