"""Facts that all formats of robot files share: text or path, the arrays of a model, and the wording of messages."""

from __future__ import annotations

import os
import re
import string
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from jaxdyn import _errors
from jaxdyn._errors import ModelError, PhysicalityWarning, RobotFileError
from jaxdyn.model import LEAVES, Model

LARGEST = 1e12
"""The largest number that is not a limit. No length, mass or inertia comes near, and products of a few such numbers are
still finite, in single precision too."""


class RobotFileWarning(UserWarning):
    """Something in a robot's file that the model does not reproduce, or that the format forbids."""


def warn(message: str, category: type[RobotFileWarning | PhysicalityWarning] = RobotFileWarning) -> None:
    """Warn at the line of the caller outside the library."""
    _errors.warn(message, category)


def quote(text: str, most: int = 100) -> str:
    """Return a piece of a file as it appears in messages: in quotes, and cut if it is long."""
    return repr(text) if len(text) <= most else f"{text[:most]!r}..."


def enumerate_names(names: Iterable[str], most: int = 20) -> str:
    """Return names in quotes, separated by commas; after the first `most` their number."""
    return enumerate_items(map(quote, names), most, ", ", " and")


def enumerate_items(items: Iterable[str], most: int = 20, separator: str = "; ", last: str = "; and") -> str:
    """Return the items with separators; after the first `most` the number of those left out."""
    items = list(items)
    more = f"{last} {len(items) - most} more" if len(items) > most else ""
    return separator.join(items[:most]) + more


def robot_text(path_or_text: object) -> tuple[str, int] | None:
    """Return the text of a robot's file without white space in front, and the number of lines that this had. Text
    begins with `<`, after white space and a byte order mark. Returns None for anything else, as for paths."""
    if not isinstance(path_or_text, str):
        return None
    text = path_or_text.lstrip("\ufeff" + string.whitespace)
    return (text, path_or_text.count("\n", 0, len(path_or_text) - len(text))) if text.startswith("<") else None


def read_robot_file(path: str | os.PathLike, file_format: str) -> bytes:
    """Return the contents of a robot's file. **Raises** `RobotFileError` if it cannot be read."""
    try:
        data = Path(path).read_bytes()
    except (OSError, ValueError, TypeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        advice = f"give the path of {file_format} file, or its text, which must begin with '<'"
        name = quote(str(path), 300)
        raise RobotFileError(f"cannot read the robot's file {name}: {reason}; {advice}") from error
    if data.startswith(b"PK\x03\x04"):
        advice = f"{file_format} file is needed; load_model reads files of save_model"
        raise RobotFileError(f"{quote(str(path), 300)} is an archive, such as NumPy's; {advice}")
    return data


def root_tag(text: str) -> str | None:
    """Return the tag of the root element of an XML text, or None if there is none.

    One pass over what stands before it, so the time is proportional to its length. This is not an XML parser, because
    MuJoCo's accepts beginnings that XML forbids, such as comments with two hyphens inside.
    """
    place = 0
    while (place := text.find("<", place)) >= 0:
        begin, end = next((pair for pair in _NO_ELEMENTS if text.startswith(pair[0], place)), ("", ""))
        if not begin:
            tag = _TAG.match(text, place + 1)
            return None if tag is None else tag[0]
        place = text.find(end, place + len(begin))
        if place < 0:
            return None
    return None


_NO_ELEMENTS = (("<!--", "-->"), ("<?", "?>"), ("<!", ">"))
"""The beginnings and ends of comments, instructions and declarations."""
_TAG = re.compile(r"[A-Za-z_][\w.:-]*")


def unbatched_leaves(model: Model) -> dict[str, np.ndarray]:
    """Return the arrays that a model has, in double precision. **Raises** `ModelError` if one has batch axes."""
    arrays = {name: np.asarray(getattr(model, name), np.float64) for name in LEAVES if getattr(model, name) is not None}
    for name, array in arrays.items():
        if batch := array.shape[: array.ndim - LEAVES[name].axes]:
            advice = "take one element first, for instance jax.tree.map(lambda x: x[0], model)"
            raise ModelError(f"{name} of the model has batch axes {batch}: {advice}")
    return arrays
