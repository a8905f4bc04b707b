"""Files of jobs that continue after an interruption: archives, and the file that says how a job was begun. A damaged
file is set aside."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxdyn import DataError, cli
from jaxdyn._digests import digest_of_arrays as digest_of_arrays
from jaxdyn._durable_files import holding as holding

_CHECKSUM = "sha256"


def write_npz(path: Path, arrays: Mapping[str, Any], *, announce: bool = False, keep_other: bool = False) -> None:
    """Write an archive like `numpy.savez`'s, but without the time of writing, as `cli.write_durably` does.
    `keep_other` sets a file with another content aside first."""

    def write(temporary: Path) -> None:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
            for name, array in arrays.items():
                with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, np.asanyarray(array), allow_pickle=False)

        if keep_other and path.is_file() and digest_of_file(path) != digest_of_file(temporary):
            cli.set_aside(path, "in its place stands something else")

    cli.write_durably(path, write, announce=announce)


def read_npz(path: Path, build: Callable[[dict[str, np.ndarray]], Any] = dict, advice: str = "") -> Any:
    """Return `build` of the arrays of an archive. **Raises** `DataError` for a file from which it cannot be built."""

    def read() -> Any:
        # NumPy leaves a file open that it opened and could not read.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return build({name: archive[name] for name in archive.files})

    return cli.read_file(path, read, advice)


def digest_of_file(path: Path) -> str:
    """The SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of_json(content: Any) -> str:
    """The SHA-256 of what JSON can hold, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def begin(path: Path, content: dict[str, Any], why: str) -> dict[str, Any]:
    """Write down how a job was begun, or compare `content` with the file of an earlier run, and return the file's
    content. A damaged file is set aside, and the job begun anew: what lies beside the file and is of this job has its
    own checksums. **Raises** `DataError` with the entries that differ, and `why` they must be the same."""
    content = json.loads(json.dumps(content))
    earlier = None
    if os.path.lexists(path):
        try:
            earlier = cli.read_json(path, _begun, "it is of no use here")
        except DataError as error:
            cli.set_aside(path, str(error).removeprefix(f"{path}: "))
    if earlier is None:
        earlier = {**content, _CHECKSUM: {"of": list(content), "is": digest_of_json(content)}}
        cli.write_json(path, earlier)
        return earlier
    before, now = _flat({key: earlier.get(key) for key in content}), _flat(content)
    missing = "nothing"
    differences = [
        f"{key} was {before.get(key, missing)!r} and is {now.get(key, missing)!r}"
        for key in dict.fromkeys((*before, *now))
        if before.get(key, missing) != now.get(key, missing)
    ]
    if differences:
        advice = "Give the same configuration as before, another name, or delete the folder"
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
