"""Files that are either whole or absent, and whose bytes depend on their content alone."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxdyn._errors import DataError


def data_path(name: str) -> Path:
    """Return the path as given if it exists, otherwise the path below $JAXDYN_DATA."""
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


def write_durably(path: Path, write: Callable[[Path], object], *, announce: bool = False) -> None:
    """Write a file so that readers see the old or the new one, never half of one, even after a crash of the machine.
    `write` is called with a temporary file in the same folder, whose name begins with a dot. Its name is always the
    same, so the next call overwrites the remains of a process that was killed. `announce` prints the path."""
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
    if announce:
        print(f"wrote {path}")


def write_npz(path: Path, arrays: Mapping[str, Any], *, announce: bool = False) -> None:
    """Write an archive like `numpy.savez`'s, but without the time of writing, as `write_durably` does."""

    def write(temporary: Path) -> None:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
            for name, array in arrays.items():
                with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, np.asanyarray(array), allow_pickle=False)

    write_durably(path, write, announce=announce)


def read_npz(path: Path, build: Callable[[dict[str, np.ndarray]], Any] = dict, advice: str = "") -> Any:
    """Return `build` of the arrays of an archive. **Raises** `DataError` for a file from which it cannot be built."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return build({name: archive[name] for name in archive.files})
    except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile, DataError) as error:
        raise DataError(f"{path}: cannot be read ({error}); {advice or 'delete it to start again'}") from None


def write_json(path: Path, content: Any, *, announce: bool = False) -> None:
    """Write a JSON file, as `write_durably` does."""
    text = json.dumps(content, indent=1) + "\n"
    write_durably(path, lambda temporary: temporary.write_text(text, encoding="utf-8"), announce=announce)


def digest_of_arrays(arrays: Mapping[str, Any]) -> str:
    """The SHA-256 of arrays with their names."""
    state = hashlib.sha256()
    for name, array in arrays.items():
        x = np.asarray(array)
        state.update(f"{name} {x.dtype.str} {x.shape};".encode())
        state.update(x.tobytes())
    return state.hexdigest()


def begin(path: Path, content: dict[str, Any], why: str, advice: str = "") -> dict[str, Any]:
    """Write down how something was begun, or compare `content` with the file of an earlier run, and return the file's
    content. **Raises** `DataError` with the entries that differ, `why` they must be the same, and an advice."""
    if not path.is_file():
        write_json(path, content)
        return content
    again = "delete it and the files beside it to start again"
    try:
        earlier = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); {again}") from None
    if not isinstance(earlier, dict):
        raise DataError(f"{path}: not a JSON object; {again}")
    before, now = _flat({key: earlier.get(key) for key in content}), _flat(json.loads(json.dumps(content)))
    missing = "nothing"
    differences = [
        f"{key} was {before.get(key, missing)!r} and is {now.get(key, missing)!r}"
        for key in dict.fromkeys((*before, *now))
        if before.get(key, missing) != now.get(key, missing)
    ]
    if differences:
        advice = advice or "Give the same configuration as before, another name, or delete the folder"
        raise DataError(f"{path} was begun otherwise, and {why}: {'; '.join(differences)}. {advice}")
    return earlier


def _flat(content: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(content, dict):
        return {prefix.removesuffix("."): content}
    return {key: value for name, inner in content.items() for key, value in _flat(inner, f"{prefix}{name}.").items()}
