"""The end of a program soon after Ctrl-C, also while compiled code runs that Python cannot interrupt."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

PATIENCE = 1.5
"""Seconds after Ctrl-C in which a program may end by itself."""


@contextlib.contextmanager
def ending_soon(code: int) -> Iterator[None]:
    """End the process with the exit code `code` at the latest `PATIENCE` after Ctrl-C.

    Python raises `KeyboardInterrupt` only after the call of compiled code returns in which it came, and a compilation
    or a long simulation takes many seconds; the end of the process then waits for what JAX still computes. Files are
    replaced as a whole (`write_durably`), and locks end with the process, so ending at once loses no more than the
    piece of work in progress. Notebooks and tests that call a program go on afterwards, so they are left alone.
    """
    if not _is_the_process() or threading.current_thread() is not threading.main_thread():
        yield
        return
    # The signal's number arrives here at once; the handler in Python has to wait.
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)

    def watch() -> None:
        while True:
            received = reader.recv(1)
            if not received:
                return
            if received[0] == signal.SIGINT:
                time.sleep(PATIENCE)
                os.write(2, b"\ninterrupted during compiled code; everything that was written is kept\n")
                os._exit(code)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    except KeyboardInterrupt as interruption:
        print(f"\n{str(interruption) or 'interrupted'}", file=sys.stderr)
        _flush()
        os._exit(code)
    finally:
        signal.set_wakeup_fd(before)
        writer.close()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        # The reader of the output may be gone.
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def _is_the_process() -> bool:
    """Whether this process runs a program of the library and nothing else: `jaxdyn`, or a module by `python -m`."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    name = spec.name if spec is not None else Path(sys.argv[0]).stem
    return name.partition(".")[0] in ("jaxdyn", "experiments")
