"""Parts of the experiments that continue after an interruption: seeds, locks, and the content of files."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from jaxdyn import DataError


def require_seed(seed: int) -> None:
    """Raise `DataError` unless a seed is one that JAX takes."""
    if not 0 <= seed < 2**32:
        raise DataError(f"seed is {seed}, but it must be in 0 ... {2**32 - 1}")


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder for this process. **Raises** `DataError` if another process holds it. The lock is one of the
    operating system and ends with the process; systems without such locks hold nothing."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"{folder}: another process is writing here; wait for it, or give another name") from None
        yield


def arrays_by_path(tree: Any) -> dict[str, np.ndarray]:
    """Return the arrays of a pytree by their places in it, as names in an archive."""
    named = jax.tree_util.tree_leaves_with_path(eqx.filter(tree, eqx.is_array))
    # Slashes would make folders in an archive.
    return {jax.tree_util.keystr(path).replace("/", "|"): np.asarray(x) for path, x in named}


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
