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

_NAMES = {
    "body_pos": "pos",
    "body_quat": "quat (or another orientation)",
    "body_mass": "mass (its own, or of its geoms)",
    "body_ipos": "center of mass (inertial pos, or of its geoms)",
    "body_iquat": "orientation of the inertia",
    "body_inertia": "inertia (its own, or of its geoms)",
    "site_quat": "quat (or another orientation)",
    "geom_quat": "quat (or another orientation)",
    "qpos0": "ref",
    "qpos_spring": "springref",
    "actuator_gainprm": "parameters of the gain",
    "actuator_biasprm": "parameters of the bias",
    "actuator_dynprm": "parameters of the dynamics",
}
"""The names in files of fields of `mjModel` that have other names there. They are checked first, because the compiler
derives others from them."""
_KINDS = {
    "body": ("body", "nbody"),
    "jnt": ("joint", "njnt"),
    "dof": ("joint", "nv"),
    "qpos": ("joint", "nq"),
    "qpos0": ("joint", "nq"),
    "geom": ("geom", "ngeom"),
    "site": ("site", "nsite"),
    "actuator": ("actuator", "nactuator"),
    "tendon": ("tendon", "ntendon"),
    "eq": ("equality", "neq"),
    "pair": ("pair", "npair"),
    "sensor": ("sensor", "nsensor"),
    "key": ("key", "nkey"),
    "wrap": ("tendon path", ""),
    "mesh": ("mesh", "nmesh"),
    "hfield": ("hfield", "nhfield"),
}
"""The objects whose numbers are read, by the prefixes of their fields, and the field with the number of rows if these
belong to objects. Cameras, lights, materials, skins and flexes have none that a model or a scene reads."""
_MAY_BE_INFINITE = {
    # Limits that nothing reaches.
    *("jnt_range", "jnt_actfrcrange", "tendon_range", "tendon_actfrcrange", "tendon_lengthspring", "sensor_cutoff"),
    *("actuator_ctrlrange", "actuator_forcerange", "actuator_actrange", "actuator_lengthrange"),
    # The compiler's own, the inverses of masses and inertias among them, which it bounds by 1e-15.
    *("body_invweight0", "dof_invweight0", "tendon_invweight0", "actuator_acc0", "geom_aabb", "geom_rbound"),
}
"""The fields that may be beyond 1e12, but not NaN. All others must be within."""
_UNREAD = ("user", "rgba")
"""The ends of names of fields that may have any numbers."""
_UNIT = ("body_quat", "body_iquat", "site_quat", "geom_quat", "jnt_axis")
_OPTIONS = ("gravity", "timestep", "wind", "magnetic", "density", "viscosity", "impratio")
_OPTIONS += ("o_margin", "o_solref", "o_solimp", "o_friction")
_COORDINATES = np.array([7, 4, 1, 1])
"""Numbers of coordinates of free, ball, slide and hinge joints, as MuJoCo numbers the types."""


def require_numbers_of_robots(m: Any, source: str, text: str | None, name: Callable[[str, int], str]) -> None:
    """Raise `RobotFileError` for a compiled model with NaN, with numbers beyond 1e12 in others than `_MAY_BE_INFINITE`,
    or with quaternions and axes that are not unit.

    It names object, attribute and value, and the places in `text` that have such numbers. `name(kind, i)` is the name
    of an object.
    """
    for option in _OPTIONS:
        values = np.ravel(getattr(m.opt, option, 0.0))
        if not (abs(values) <= LARGEST).all():
            raise _error(source, f"{option} in <option>", values, text)
    for field in [*_NAMES, *(x for x in dir(m) if x not in _NAMES)]:
        prefix, _, attribute = field.partition("_")
        values = getattr(m, field, None) if prefix in _KINDS and not field.endswith(_UNREAD) else None
        if not isinstance(values, np.ndarray) or values.dtype.kind != "f" or not values.size:
            continue
        values = values.reshape(len(values), -1)
        sane = (~np.isnan(values) if field in _MAY_BE_INFINITE else abs(values) <= LARGEST).all(axis=1)
        if field in _UNIT:
            sane &= abs(np.linalg.norm(np.where(sane[:, None], values, 0), axis=1) - 1) < 1e-3
        if not sane.all():
            row = int(np.flatnonzero(~sane)[0])
            (kind, count), attribute = _KINDS[prefix], _NAMES.get(field, attribute)
            belongs = len(values) == getattr(m, count, -1)
            whose = f"{kind} {quote(name(kind, _object_of(m, field, row)))}" if belongs else f"row {row} of {field}"
            raise _error(source, f"{whose}: {attribute}", values[row], text)


_COPIES = {"replicate": ("count",), "composite": ("count",), "flexcomp": ("count",)}
_ARRAYS = {"texture": ("width", "height"), "hfield": ("nrow", "ncol")}
_ROOM = {"nkey": 10_000, "nuserdata": 10**6} | {
    f"nuser_{x}": 10**6 for x in ("body", "jnt", "geom", "site", "cam", "tendon", "actuator", "sensor")
}
"""The most keyframes, and numbers of users, for which `<size>` may make room. The compiler takes 12 s for 1e5 keyframes
and a time that grows with their square, and 10 s for 1e8 numbers of users."""
MOST_COPIES = 20_000
"""The largest number of elements after replication. A model of so many bodies takes minutes to load."""
_MOST_NUMBERS = 10**8
"""The largest number of pixels of a texture, or of points of a height field."""


def require_possible_size(text: str, source: str) -> None:
    """Raise `RobotFileError` for a file that asks MuJoCo's compiler for more copies of elements than 20,000, by nested
    `<replicate>` for instance, for arrays of more than 1e8 numbers, or by `<size>` for more room than `_ROOM` has: a
    short file could fill the memory."""
    parser = expat.ParserCreate("utf-8")
    copies, total = [1.0], 0.0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal total
        room = _ROOM if tag == "size" else {}
        large = [x for x, most in room.items() if max(_sizes(attributes, (x,)), default=0.0) > most]
        counts = math.prod(_sizes(attributes, _COPIES.get(tag, ())))
        copies.append(copies[-1] * max(counts, 1.0))
        total += copies[-1] if copies[-1] > 1 else 0.0
        what = ""
        if total > MOST_COPIES:
            what = f"more than {MOST_COPIES} copies of elements"
        elif math.prod(_sizes(attributes, _ARRAYS.get(tag, ()))) > _MOST_NUMBERS:
            what = f"an array beyond {_MOST_NUMBERS:g}"
        elif large:
            what = f"{large[0]} beyond {_ROOM[large[0]]}"
        if what:
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
