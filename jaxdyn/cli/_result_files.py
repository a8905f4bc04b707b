"""Files of programs: formats, checkpoints with checksums, and damaged files, which are set aside. How files are written
and held is in `jaxdyn._durable_files`."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import socket
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxdyn import _durable_files
from jaxdyn._digests import digest_of_arrays
from jaxdyn._durable_files import holding as holding
from jaxdyn._durable_files import holding_folder, sync_folder
from jaxdyn._errors import DataError, warn

_LOCK, _HOLDER = ".lock", ".lock-holder.json"
_CHECKSUM = "sha256"


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


def write_durably(
    path: Path, write: Callable[[Path], object], *, announce: bool = False, keep_other: bool = False
) -> None:
    """Write a file as `jaxdyn._durable_files` does: readers see the old or the new one, never half of one. `write` is
    called with a temporary file in the same folder. `announce` prints the path. `keep_other` sets a file with another
    content aside first."""

    def write_and_keep(temporary: Path) -> None:
        write(temporary)
        if path.is_dir() or (keep_other and path.exists() and digest_of_file(path) != digest_of_file(temporary)):
            set_aside(path, "in its place stands something else")

    _durable_files.write_durably(path, write_and_keep)
    if announce:
        print(f"wrote {path}")


def write_npz(path: Path, arrays: Mapping[str, Any], *, announce: bool = False, keep_other: bool = False) -> None:
    """Write an archive like `numpy.savez`'s, but without the time of writing, as `write_durably` does."""

    def write(temporary: Path) -> None:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
            for name, array in arrays.items():
                with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, np.asanyarray(array), allow_pickle=False)

    write_durably(path, write, announce=announce, keep_other=keep_other)


def read_npz(path: Path, build: Callable[[dict[str, np.ndarray]], Any] = dict, advice: str = "") -> Any:
    """Return `build` of the arrays of an archive. **Raises** `DataError` for a file from which it cannot be built."""

    def read() -> Any:
        # NumPy leaves a file open that it opened and could not read.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return build({name: archive[name] for name in archive.files})

    return _read(path, read, advice)


def read_json(path: Path, build: Callable[[Any], Any] = lambda content: content, advice: str = "") -> Any:
    """Return `build` of the content of a JSON file. **Raises** `DataError` for a file from which it cannot be built."""
    return _read(path, lambda: build(json.loads(path.read_text(encoding="utf-8"))), advice)


def _read(path: Path, read: Callable[[], Any], advice: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return read()
    except PermissionError:
        raise
    # Damaged bytes can make `zipfile`, `zlib`, `numpy` and `json` raise nearly anything: `BadZipFile`, `EOFError`,
    # `NotImplementedError` for a method of compression, `RecursionError`, `MemoryError`, `struct.error`, ...
    except Exception as error:
        what = str(error) if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
        raise DataError(f"{path}: cannot be read ({what}); {advice or 'delete it to start again'}") from None


def write_json(path: Path, content: Any, *, announce: bool = False) -> None:
    """Write a JSON file, as `write_durably` does."""
    text = json.dumps(content, indent=1) + "\n"
    write_durably(path, lambda temporary: temporary.write_text(text, encoding="utf-8"), announce=announce)


def digest_of_file(path: Path) -> str:
    """The SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of_json(content: Any) -> str:
    """The SHA-256 of what JSON can hold, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def set_aside(path: Path, why: str) -> Path:
    """Rename a file or folder that cannot be used to `<name>.damaged`, or `<name>.damaged-2` where there is one
    already, with a warning that names it. Returns the new path."""
    new, k = path.with_name(f"{path.name}.damaged"), 2
    while os.path.lexists(new):
        new, k = path.with_name(f"{path.name}.damaged-{k}"), k + 1
    os.replace(path, new)
    sync_folder(path.parent)
    warn(f"{path}: {why}; it is kept as {new.name}, and this part begins anew", UserWarning)
    return new


def write_checkpoint(path: Path, arrays: Mapping[str, Any], job: str) -> None:
    """Write arrays for `read_checkpoint`, with a checksum of them and of the text `job`, which says whose they are."""
    write_npz(path, {**arrays, _CHECKSUM: np.array(_checksum(arrays, job))})


def read_checkpoint(path: Path, job: str, build: Callable[[dict[str, np.ndarray]], Any] = dict) -> Any:
    """Return `build` of the arrays that `write_checkpoint` wrote for the same `job`, or None where there are none. A
    file that is damaged, or from another job, is set aside with a warning that names it (`set_aside`)."""

    def checked(arrays: dict[str, np.ndarray]) -> Any:
        checksum = str(arrays.pop(_CHECKSUM, "none"))
        if checksum != _checksum(arrays, job):
            raise DataError("its checksum is not that of its arrays and this job")
        return build(arrays)

    if not os.path.lexists(path):
        return None
    try:
        return read_npz(path, checked, "it is of no use here")
    except DataError as error:
        set_aside(path, str(error).removeprefix(f"{path}: "))
        return None


def _checksum(arrays: Mapping[str, Any], job: str) -> str:
    return digest_of_arrays({**arrays, "job": np.array(job)})


def begin(path: Path, content: dict[str, Any], why: str, advice: str = "") -> dict[str, Any]:
    """Write down how a job was begun, or compare `content` with the file of an earlier run, and return the file's
    content. A damaged file is set aside, and the job begun anew: what lies beside the file and is of this job has its
    own checksums. **Raises** `DataError` with the entries that differ, `why` they must be the same, and an advice."""
    content = json.loads(json.dumps(content))
    earlier = None
    if os.path.lexists(path):
        try:
            earlier = read_json(path, _begun, "it is of no use here")
        except DataError as error:
            set_aside(path, str(error).removeprefix(f"{path}: "))
    if earlier is None:
        earlier = {**content, _CHECKSUM: {"of": list(content), "is": digest_of_json(content)}}
        write_json(path, earlier)
        return earlier
    before, now = _flat({key: earlier.get(key) for key in content}), _flat(content)
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


def _begun(content: Any) -> dict[str, Any]:
    """Return the content of a file that `begin` wrote. **Raises** `DataError` if it was changed since."""
    if not isinstance(content, dict):
        raise DataError("not a JSON object")
    # Earlier versions wrote no checksum.
    if _CHECKSUM in content or not content:
        checksum = content.get(_CHECKSUM, {})
        if checksum["is"] != digest_of_json({key: content[key] for key in checksum["of"]}):
            raise DataError("its checksum is not that of its content")
    return content


def _flat(content: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(content, dict):
        return {prefix.removesuffix("."): content}
    return {key: value for name, inner in content.items() for key, value in _flat(inner, f"{prefix}{name}.").items()}


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold a folder for this process, and remove what killed processes left of files in the making. **Raises**
    `DataError`, which says who holds it, if another process does. The lock is one of the operating system: it ends with
    the process, whatever ends that."""
    with holding_folder(folder / _LOCK) as held:
        if not held:
            raise DataError(
                f"{folder}: another process is writing here{_holder(folder)}; wait until it ends, end it, or give "
                "another name"
            )
        now = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
        write_json(folder / _HOLDER, {"pid": os.getpid(), "host": socket.gethostname(), "since": now})
        try:
            yield
        finally:
            (folder / _HOLDER).unlink(missing_ok=True)


def _holder(folder: Path) -> str:
    """Say who holds a folder, as far as it is known."""
    with contextlib.suppress(DataError):
        return read_json(folder / _HOLDER, lambda x: f" (process {x['pid']:d} on {x['host']:s}, since {x['since']:s})")
    return ""
