"""Files that are whole or absent, and that are held by one process at a time. Nothing about what is in them."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock

# The names of files in the making: `.<stem>.<process>-<random>.partial<suffix>`. Earlier versions had no number.
_PARTIAL = r"(\.\d+-[0-9a-f]+)?\.partial"


_ADVICE = {
    errno.ENOSPC: "the disk is full; free some space on it, or give a path on another disk",
    errno.EDQUOT: "the quota for this user is used up; delete files on this disk, or give a path on another one",
    errno.EFBIG: "a limit on the size of files is reached; raise it (ulimit -f), or give a path on another disk",
    errno.EROFS: "this disk can only be read; give a path on another one",
}
"""Advice for errors of the operating system that are about the disk, and not about what is written."""


def with_advice(error: OSError, path: Path | None = None) -> OSError:
    """Return an error of the operating system with an advice where it is about the disk, else the error itself."""
    advice = _ADVICE.get(error.errno or 0)
    if advice is None or advice in str(error):
        return error
    name = path or error.filename
    return OSError(error.errno, f"{error.strerror}: {advice}", *([] if name is None else [str(name)]))


def write_durably(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file so that readers see the old or the new one, never half of one, even after a crash of the machine.

    `write` is called with a temporary file in the same folder, whose name begins with a dot and is another one in every
    call. What a process that was killed leaves of them is removed by the next one that takes the lock of the folder or
    the file. **Raises** `OSError` where the file cannot be written, with an advice if the disk is full; the earlier
    file is then as it was."""
    temporary = path.with_name(f".{path.stem}.{os.getpid()}-{secrets.token_hex(4)}.partial{path.suffix}")
    try:
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise with_advice(error, path) from None
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def holding(path: Path, *, wait: float = 0.0, forget: bool = False) -> Iterator[bool]:
    """Hold one file for this process, and remove what killed processes left of it in the making. Yields whether that
    succeeded within `wait` seconds. `forget` removes the lock's own file at the end, for files that are written once:
    who gets the lock next must look whether the file is there."""
    lock = path.with_name(f".{path.name}.lock")
    with lock_file(lock, wait) as held:
        if held:
            _remove_partial(path.parent, rf"\.{re.escape(path.stem)}", re.escape(path.suffix))
        yield held
        if held and forget:
            # Systems that keep open files leave it.
            with contextlib.suppress(OSError):
                lock.unlink(missing_ok=True)


@contextlib.contextmanager
def holding_folder(lock: Path) -> Iterator[bool]:
    """Hold the folder of a lock's file for this process, and remove what killed processes left in it in the making.
    Yields whether that succeeded at once."""
    with lock_file(lock, 0.0) as held:
        if held:
            _remove_partial(lock.parent, r"\..*", r"(\.\w+)?")
        yield held


@contextlib.contextmanager
def lock_file(path: Path, wait: float) -> Iterator[bool]:
    """Take the operating system's lock of a file, which ends with the process. Yields whether that succeeded within
    `wait` seconds."""
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=wait, poll_interval=0.02)
    except filelock.Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def _remove_partial(folder: Path, stem: str, suffix: str) -> None:
    pattern = re.compile(f"{stem}{_PARTIAL}{suffix}")
    for path in folder.iterdir():
        if pattern.fullmatch(path.name) and path.is_file():
            path.unlink(missing_ok=True)
