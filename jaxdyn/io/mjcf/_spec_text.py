"""The text of MuJoCo's specifications of models (`MjSpec`), with all digits of their numbers."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from jaxdyn.io.mjcf._compiled import mujoco

_DIGITS = 17
"""The number of digits after which a number in double precision is read as it was."""


def text_of_spec(spec: Any) -> str:
    """Return the MJCF text of an `MjSpec`. MuJoCo writes six digits unless a function of its library asks for more. Its
    Python package does not offer this function; where a version lacks it, the text has six digits."""
    found = sorted(Path(mujoco().__file__).parent.glob("*mujoco*.*"))
    libraries = [path for path in found if {".so", ".dylib", ".dll"} & set(path.suffixes)]
    for path in libraries:
        try:
            library = ctypes.CDLL(str(path))
            before, change = library._mjPRIVATE__get_xml_precision(), library._mjPRIVATE__set_xml_precision
        except (OSError, AttributeError):
            continue
        change(_DIGITS)
        try:
            return spec.to_xml()
        finally:
            change(before)
    return spec.to_xml()
