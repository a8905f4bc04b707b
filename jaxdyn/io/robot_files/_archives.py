"""Files of the library's own format: NumPy archives without pickled objects.

An archive has arrays by name, as they are, and `structure`, a text of JSON with the format, its version, what is not an
array, and a checksum.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxdyn._digests import digest_of_arrays
from jaxdyn._durable_files import write_durably
from jaxdyn._errors import RobotFileError
from jaxdyn.io.robot_files._facts import enumerate_names, quote

_STRUCTURE = "structure"
_ZIP = b"PK\x03\x04"
"""The first bytes of an archive."""
_READERS = {"jaxdyn model": "load_model", "jaxdyn world": "load_world"}


class ArchiveFormat(NamedTuple):
    """The files of one kind."""

    what: str
    """`"model"` or `"world"`."""
    version: int
    writer: str
    """The function that writes them."""
    advice: str
    """The functions that read files of this and of other formats."""

    @property
    def name(self) -> str:
        """The name of the format in its files."""
        return f"jaxdyn {self.what}"


def is_archive(path: Any) -> bool:
    """Return whether a path has the beginning or the ending of an archive of NumPy."""
    if not isinstance(path, str | os.PathLike) or str(path).lstrip()[:1] == "<":
        return False
    try:
        with Path(path).open("rb") as file:
            return file.read(len(_ZIP)) == _ZIP or Path(path).suffix == ".npz"
    except (OSError, ValueError):
        return Path(path).suffix == ".npz"


def write_archive(
    path: str | os.PathLike, form: ArchiveFormat, content: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> None:
    """Write a file at once, when it is complete and on the disk. **Raises** `RobotFileError` if that fails."""
    structure = {"format": form.name, "version": form.version, **content, "sha256": _checksum(content, arrays)}
    contents = io.BytesIO()
    np.savez(contents, allow_pickle=False, **{_STRUCTURE: np.array(json.dumps(structure))}, **arrays)
    try:
        write_durably(Path(path), lambda temporary: temporary.write_bytes(contents.getvalue()))
    except OSError as error:
        raise RobotFileError(f"cannot write the {form.what} {quote(str(path), 300)}: {error.strerror}") from None


def read_archive(
    path: str | os.PathLike, form: ArchiveFormat, build: Callable[[dict[str, Any], dict[str, np.ndarray]], Any]
) -> Any:
    """Return `build(content, arrays)` of a file, which raises `ValueError` and others where the file makes nothing.

    **Raises** `RobotFileError` for a file that is missing, damaged, not of this format, or of a later version of it.
    """
    name = quote(str(path), 300)
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    except FileNotFoundError as error:
        raise RobotFileError(f"cannot read the {form.what} {name}: {error.strerror}") from None
    except Exception as error:  # zipfile.BadZipFile and zlib.error, among others, have no common base.
        # NumPy takes all that is not its format for pickled objects, and advises to read them.
        what = "the file is not an archive of NumPy" if "pickle" in str(error) else str(error)
        damaged = f"the {form.what} {name} is damaged, or not a file of {form.writer}: {what}"
        raise RobotFileError(f"{damaged}. {form.advice}") from None
    if _STRUCTURE not in arrays:
        found = enumerate_names(sorted(arrays)) or "nothing"
        raise RobotFileError(f"{name} is an archive, but no {form.what} that {form.writer} has written: it has {found}")
    try:
        structure = json.loads(str(arrays.pop(_STRUCTURE)[()]))
        _require_format(structure, form)
        checksum = structure.pop("sha256", None)
        content = {key: value for key, value in structure.items() if key not in ("format", "version")}
        built = build(content, arrays)
        if checksum != _checksum(content, arrays):
            raise ValueError("it is damaged: its checksum is not that of its content")
        return built
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        raise RobotFileError(f"the {form.what} {name} cannot be read: {error}") from None


def _require_format(structure: Any, form: ArchiveFormat) -> None:
    kind = structure.get("format") if isinstance(structure, dict) else None
    if kind != form.name:
        reader = _READERS.get(kind) if isinstance(kind, str) else None
        raise ValueError(f"{form.writer} has not written it" + (f"; read it with {reader}" if reader else ""))
    version = structure.get("version")
    if not isinstance(version, int) or version < 1:
        raise ValueError(f"its version is {version!r}")
    if version > form.version:
        reads = f"this version of jaxdyn reads {form.version}"
        raise ValueError(f"its format has version {version}, and {reads}: use a newer jaxdyn")


def _checksum(content: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of what a file holds."""
    texts = {key: np.array(json.dumps(value)) for key, value in content.items()}
    return digest_of_arrays(texts | dict(sorted(arrays.items())))
