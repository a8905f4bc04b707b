"""Numbers in MJCF files that no robot has: NaN, infinite, and huge ones, which MuJoCo's compiler computes with; and
numbers of copies that it would not finish to make."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any
from xml.parsers import expat

import numpy as np

from jaxdyn._errors import RobotFileError
from jaxdyn.io.robot_files import LARGEST, enumerate_items, quote

# The fields of `mjModel` that are read, by the objects whose rows they have, with their names in files.
_FIELDS = {
    "body": {
        "body_pos": "pos",
        "body_quat": "quat (or another orientation)",
        "body_mass": "mass (its own, or of its geoms)",
        "body_ipos": "center of mass (inertial pos, or of its geoms)",
        "body_iquat": "orientation of the inertia",
        "body_inertia": "inertia (its own, or of its geoms)",
        "body_gravcomp": "gravcomp",
    },
    "joint": {
        "jnt_pos": "pos",
        "jnt_axis": "axis",
        "jnt_stiffness": "stiffness",
        "qpos0": "ref",
        "qpos_spring": "springref",
        "dof_armature": "armature",
        "dof_damping": "damping",
        "dof_frictionloss": "frictionloss",
    },
    "site": {"site_pos": "pos", "site_quat": "quat (or another orientation)"},
    "geom": {"geom_pos": "pos", "geom_quat": "quat (or another orientation)", "geom_size": "size"},
    "actuator": {
        "actuator_gear": "gear",
        "actuator_gainprm": "parameters of the gain",
        "actuator_biasprm": "parameters of the bias",
        "actuator_dynprm": "parameters of the dynamics",
        "actuator_armature": "armature",
        "actuator_damping": "damping",
    },
}
_COORDINATES = np.array([7, 4, 1, 1])
"""Numbers of coordinates of free, ball, slide and hinge joints, as MuJoCo numbers the types."""


def require_numbers_of_robots(m: Any, source: str, text: str | None, name: Callable[[str, int], str]) -> None:
    """Raise `RobotFileError` for a compiled model with numbers beyond 1e12 or NaN, or quaternions and axes that are not
    unit.

    It names object, attribute and value, and the places in `text` that have such numbers. `name(kind, i)` is the name
    of an object.
    """
    gravity = np.asarray(m.opt.gravity)
    if not _are_sane(gravity).all():
        raise _error(source, "gravity in <option>", gravity, text)
    for kind, fields in _FIELDS.items():
        for field, attribute in fields.items():
            values = np.asarray(getattr(m, field, np.zeros(0)))
            if not values.size:
                continue
            values = values.reshape(len(values), -1)
            sane = _are_sane(values).all(axis=1)
            if field.endswith("quat") or field == "jnt_axis":
                sane &= abs(np.linalg.norm(np.where(sane[:, None], values, 0), axis=1) - 1) < 1e-3
            if not sane.all():
                row = int(np.flatnonzero(~sane)[0])
                raise _error(
                    source, f"{kind} {quote(name(kind, _object_of(m, field, row)))}: {attribute}", values[row], text
                )


_COPIES = {"replicate": ("count",), "composite": ("count",), "flexcomp": ("count",)}
_ARRAYS = {"texture": ("width", "height"), "hfield": ("nrow", "ncol")}
MOST_COPIES = 20_000
"""The largest number of elements after replication. A model of so many bodies takes minutes to load."""
_MOST_NUMBERS = 10**8
"""The largest number of pixels of a texture, or of points of a height field."""


def require_possible_size(text: str, source: str) -> None:
    """Raise `RobotFileError` for a file that asks MuJoCo's compiler for more copies of elements than 20,000, by nested
    `<replicate>` for instance, or for arrays of more than 1e8 numbers: a short file could fill the memory."""
    parser = expat.ParserCreate("utf-8")
    copies, total = [1.0], 0.0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal total
        counts = math.prod(_sizes(attributes, _COPIES.get(tag, ())))
        copies.append(copies[-1] * max(counts, 1.0))
        total += copies[-1] if copies[-1] > 1 else 0.0
        too_many = total > MOST_COPIES
        if too_many or math.prod(_sizes(attributes, _ARRAYS.get(tag, ()))) > _MOST_NUMBERS:
            what = f"more than {MOST_COPIES} copies of elements" if too_many else f"an array beyond {_MOST_NUMBERS:g}"
            where = f"line {parser.CurrentLineNumber}: <{tag}> asks for {what}, which may not end"
            raise RobotFileError(f"{source}, {where}; ask for fewer, or give a compiled mujoco.MjModel")

    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _: copies.pop()
    _parse(parser, text)


def _parse(parser: Any, text: str) -> None:
    """Parse what is XML of a text. MuJoCo reads some files that are none: comments with two hyphens inside, which are
    passed over here; of others the beginning counts."""
    kept, place = [], 0
    while (start := text.find("<!--", place)) >= 0 and (end := text.find("-->", start + 4)) >= 0:
        # Its lines remain, so that the numbers of lines do.
        kept += [text[place:start], "\n" * text.count("\n", start, end)]
        place = end + len("-->")
    kept.append(text[place:])
    with contextlib.suppress(expat.ExpatError):
        parser.Parse("".join(kept).encode(errors="replace"), True)


def _sizes(attributes: dict[str, str], names: tuple[str, ...]) -> list[float]:
    """Return the numbers in some attributes; what is none, or is not positive, is left to the compiler."""
    words = (word for name in names for word in attributes.get(name, "").split() if len(word) < 1000)
    numbers = (float(word) for word in words if _is_number(word))
    return [min(x, 1e100) for x in numbers if x > 0]


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _are_sane(values: np.ndarray) -> np.ndarray:
    return abs(values) <= LARGEST


def _object_of(m: Any, field: str, row: int) -> int:
    """Return the number of the object whose row it is."""
    if field.startswith("dof"):
        return int(m.dof_jntid[row])
    if field.startswith("qpos"):
        return int(np.repeat(np.arange(m.njnt), _COORDINATES[m.jnt_type])[row])
    return row


def _error(source: str, what: str, values: np.ndarray, text: str | None) -> RobotFileError:
    shown = " ".join(f"{x:g}" for x in values)
    needed = f"finite numbers up to {LARGEST:g} are needed, and axes and quaternions that have a direction"
    places = places_of_strange_numbers(text)
    return RobotFileError(f"{source}: {what} is {shown} after MuJoCo's compiler, but {needed}{places}; correct it")


def places_of_strange_numbers(text: str | None) -> str:
    """Return the elements, attributes and lines of a file that have NaN or numbers beyond 1e12, as the end of a
    sentence; nothing if there are none, or if they are in a file that this one includes."""
    places = [] if text is None else _strange_numbers(text)
    return f" (the file has {enumerate_items(places, 5)})" if places else ""


def _strange_numbers(text: str) -> list[str]:
    places: list[str] = []
    parser = expat.ParserCreate("utf-8")

    def look(tag: str, attributes: dict[str, str]) -> None:
        for attribute, value in attributes.items():
            if attribute != "name" and any(map(_is_strange, value.split())):
                places.append(f"{attribute}={quote(value)} of <{tag}> in line {parser.CurrentLineNumber}")

    parser.StartElementHandler = look
    _parse(parser, text)
    return places


def _is_strange(word: str) -> bool:
    return len(word) < 1000 and _is_number(word) and not abs(float(word)) <= LARGEST
