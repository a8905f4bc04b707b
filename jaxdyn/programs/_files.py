"""Files that are either whole or not there, and that hold the same bytes whenever they hold the same content."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxdyn._errors import DataError


def data_path(name: str) -> Path:
    """A path as given, if there is something, or below $JAXDYN_DATA."""
    path = Path(name).expanduser()
    if path.is_absolute() or path.exists():
        return path
    root = os.environ.get("JAXDYN_DATA")
    if not root:
        raise DataError(
            f"{name}: no such file here, and the environment variable JAXDYN_DATA, which names the directory of "
            "recorded data to look in, is not set; set it, or give the path of a file"
        )
    return Path(root).expanduser() / path


def write_durably(path: Path, write: Callable[[Path], object]) -> None:
    """Whoever reads the file finds the old one or the new one, never half of one, also after a crash of the machine.

    `write` writes a temporary file in the same folder, whose name begins with a dot; it is the same one each time, so
    what a killed process left is overwritten.
    """
    temporary = path.with_name(f".{path.stem}.partial{path.suffix}")
    try:
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    if os.name == "posix":
        # The new name is on the disk when its folder is.
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_npz(path: Path, arrays: Mapping[str, Any]) -> None:
    """As `numpy.savez`, but without the time of writing, which NumPy puts into the archive."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asanyarray(array), allow_pickle=False)


def write_json(path: Path, content: Any) -> None:
    write_durably(path, lambda temporary: temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8"))


def read_json(path: Path) -> dict[str, Any]:
    """**Raises** `DataError` for a file that is no JSON object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); delete it and what lies beside it to start anew") from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: not a JSON object; delete it and what lies beside it to start anew")
    return content


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of_arrays(arrays: Mapping[str, Any]) -> str:
    """SHA-256 of arrays by name."""
    state = hashlib.sha256()
    for name, array in arrays.items():
        x = np.asarray(array)
        state.update(f"{name} {x.dtype.str} {x.shape};".encode())
        state.update(x.tobytes())
    return state.hexdigest()


def require_same(path: Path, kept: Any, now: Any, why: str, allowed: str) -> None:
    """Raise `DataError` with the entries that differ between what `path` was begun with and what is given now."""
    kept, now = _flat(json.loads(json.dumps(kept))), _flat(json.loads(json.dumps(now)))
    missing = "nothing"
    differences = [
        f"{key} was {kept.get(key, missing)!r} and is {now.get(key, missing)!r}"
        for key in dict.fromkeys((*kept, *now))
        if kept.get(key, missing) != now.get(key, missing)
    ]
    if differences:
        raise DataError(f"{path} was begun otherwise, and {why}: {'; '.join(differences)}. {allowed}")


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder for this process. **Raises** `DataError` if another one holds it.

    A lock of the operating system, which goes with the process however that ends; where there is none, nothing is held.
    """
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


def _flat(content: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(content, dict):
        return {prefix.removesuffix("."): content}
    return {key: value for name, inner in content.items() for key, value in _flat(inner, f"{prefix}{name}.").items()}
