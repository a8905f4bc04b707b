"""Robots by name: the samples and URDF files."""

from __future__ import annotations

from collections.abc import Sequence

from jaxdyn import samples
from jaxdyn._errors import DataError
from jaxdyn.io import load_urdf
from jaxdyn.model import Model
from jaxdyn.programs._files import data_path

SAMPLES = ("acrobot", "arm", "cartpole", "double_pendulum", "pendulum")


def load_robot(name: str, choices: Sequence[str] = SAMPLES, *, without: str = "") -> Model:
    """Load one of the sample robots in `choices`, or a URDF file: a path, or a path below $JAXDYN_DATA. `without` is a
    faulty text that is removed from the file before it is parsed; it must stand there once. **Raises** `DataError` for
    an unknown name."""
    if name in choices:
        return getattr(samples, name)()
    if not name.endswith(".urdf"):
        raise DataError(f"robot is {name!r}; known: {', '.join(choices)}, or a path that ends with .urdf")
    path = data_path(name)
    if not without:
        return load_urdf(path)
    text = path.read_text(encoding="utf-8")
    if text.count(without) != 1:
        raise DataError(f"{path}: robot_without, {without!r}, is in it {text.count(without)} times; once is needed")
    return load_urdf(text.replace(without, ""))
