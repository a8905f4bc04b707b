"""Identified parameters in small files of text, by the names of links and joints, and those that come with jaxdyn."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxdyn._durable_files import write_durably
from jaxdyn._errors import DataError, ModelError, naming_arguments
from jaxdyn.model import Model

_FOLDER = Path(__file__).parent / "identified"
_OF_JOINTS = ("armature", "damping", "friction", "friction_velocity")
# Digits that are kept: more than any fit determines.
_DIGITS = 6


def identified_robots() -> tuple[str, ...]:
    """Return the names of the robots whose identified parameters come with jaxdyn, for `load_parameters`."""
    return tuple(sorted(x.stem for x in _FOLDER.glob("*.json")))


@naming_arguments
def save_parameters(path: str | os.PathLike, model: Model, notes: Mapping[str, Any] | None = None) -> None:
    """Write the inertial parameters of a model's bodies, and armature, damping, friction and its velocity of joints
    with one degree of freedom, to a file of JSON, to six digits. `notes` go into it besides, such as
    `{"verdict": found.verdict()}` and how the parameters were found.

    **Raises** `ModelError` for a model with batch axes.
    """
    if model.inertial_parameters.ndim != 2:
        raise ModelError("save_parameters: the model has batch axes; take one element first")
    inertial = np.asarray(model.inertial_parameters, np.float64)
    joints = {}
    for name in model.joint_names:
        v = model.v_index(name)
        if v.stop - v.start == 1:
            joints[name] = {x: _rounded(getattr(model, x)[v.start]) for x in _OF_JOINTS}
    links = {x: [_rounded(y) for y in row] for x, row in zip(model.body_names, inertial, strict=True)}
    content = {**(notes or {}), "units": "SI", "links": links, "joints": joints}
    write_durably(Path(path), lambda file: file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8"))


@naming_arguments
def load_parameters(model: Model, source: str | os.PathLike) -> Model:
    """Return the model with the parameters of a file of `save_parameters`, or of one of `identified_robots()` by its
    name. `parameter_notes(source)` has what else the file says.

    Inertias are `[m, m cx, m cy, m cz, Ixx, Ixy, Iyy, Ixz, Iyz, Izz]` about the body's origin, of bodies with all links
    that are fixed to them, and mean something only with the placements of joints that the fit had: those of the robot's
    common URDF file.

    **Raises** `DataError` for a file that is missing or not of this kind; `ModelError` unless the model has all bodies
    and joints of the file.
    """
    content = _content(source)
    absent = [x for x in content["links"] if x not in model.body_names]
    absent += [x for x in content["joints"] if x not in model.joint_names]
    if absent:
        raise ModelError(
            f"load_parameters: the model has no body or joint {', '.join(absent)} of {source}; it has the bodies "
            f"{', '.join(model.body_names)} and the joints {', '.join(model.joint_names)}"
        )
    changed = {x: np.array(getattr(model, x), np.float64) for x in ("inertial_parameters", *_OF_JOINTS)}
    for name, row in content["links"].items():
        changed["inertial_parameters"][model.body_names.index(name)] = row
    for name, values in content["joints"].items():
        for key, value in values.items():
            changed[key][model.v_index(name)] = value
    return dataclasses.replace(model, **{x: jnp.asarray(y, model.dtype) for x, y in changed.items()})


@naming_arguments
def parameter_notes(source: str | os.PathLike) -> dict[str, Any]:
    """Return what a file of `save_parameters` says besides parameters: for those that come with jaxdyn how they were
    found, their error on held-out motions, and the verdict of the fit. **Raises** `DataError`."""
    return {name: x for name, x in _content(source).items() if name not in ("links", "joints", "units")}


def _content(source: str | os.PathLike) -> dict[str, Any]:
    path = _FOLDER / f"{source}.json" if str(source) in identified_robots() else Path(source)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not {"links", "joints"} <= content.keys():
            raise KeyError("it lacks links or joints")
    except OSError as error:
        names = ", ".join(identified_robots())
        raise DataError(f"{source}: {error.strerror or error}; give a file of save_parameters, or {names}") from None
    except (ValueError, KeyError, AttributeError) as error:
        raise DataError(f"{source}: not a file of save_parameters: {error}") from None
    return content


def _rounded(x: Any) -> float:
    return float(f"{float(x):.{_DIGITS}g}")
