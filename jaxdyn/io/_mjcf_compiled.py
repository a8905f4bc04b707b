"""What MuJoCo's compiler makes of an MJCF file: reading it, names of its objects, and parts that no model has."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import string
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxdyn._errors import ModelError, RobotFileError
from jaxdyn.io._urdf import RobotFileWarning

# Types of joints as MuJoCo numbers them.
FREE, BALL, SLIDE, HINGE = range(4)
NQ, NV = (7, 4, 1, 1), (6, 3, 1, 1)


def mujoco() -> Any:
    """The module, which is optional. **Raises** `ImportError` that says how to install it."""
    try:
        import mujoco
    except ImportError as error:
        reason = "MJCF is read by MuJoCo's compiler, which is not installed"
        raise ImportError(f"{reason}: pip install 'jaxdyn[mjcf]'") from error
    return mujoco


def compiled(path_or_text: Any) -> tuple[Any, str]:
    """The compiled `mjModel` of a path, of text, or given as such; and what to call the file in messages.

    **Raises** `RobotFileError` for what cannot be read, and with the compiler's words for what it refuses. **Warns**
    `RobotFileWarning` of what the compiler warns of.
    """
    mj_model = mujoco().MjModel
    if isinstance(path_or_text, mj_model):
        return path_or_text, "mujoco.MjModel"
    if not isinstance(path_or_text, str | os.PathLike):
        kind = type(path_or_text).__name__
        raise RobotFileError(f"a path, the text of an MJCF file or a mujoco.MjModel is needed, not {kind}")
    if isinstance(path_or_text, str):
        text = path_or_text.lstrip("\ufeff" + string.whitespace)
        if text.startswith("<"):
            # Line breaks in front keep the compiler's line numbers.
            skipped = path_or_text.count("\n", 0, len(path_or_text) - len(text))
            return _compile(mj_model.from_xml_string, "\n" * skipped + text, text, "MJCF text"), "MJCF text"
    source = os.fsdecode(path_or_text)
    try:
        data = Path(source).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        shown = source if len(source) < 300 else f"{source[:300]}..."
        advice = "give the path of an MJCF file, or its text, which must begin with '<'"
        raise RobotFileError(f"cannot read the robot's file {shown!r}: {reason}; {advice}") from error
    return _compile(mj_model.from_xml_path, source, data.decode(errors="replace"), source), source


def _compile(compiler, argument: str, text: str, source: str) -> Any:
    root = re.search(r"<([A-Za-z_][\w.:-]*)", re.sub(r"<!--.*?-->|<[?!].*?>", "", text, flags=re.DOTALL))
    if root and root[1] == "robot":
        # MuJoCo would read it, with rules of its own.
        raise RobotFileError(f"{source}: its root element is <robot>, so it is a URDF file; read it with load_urdf")
    said: list[str] = []
    try:
        with _warnings_to(said):
            found = compiler(argument)
    except Exception as error:
        # Whatever the foreign compiler raises says what is wrong with the file.
        raise RobotFileError(
            f"{source}: MuJoCo's compiler refuses it: {_line(error)}; correct the file there"
        ) from error
    for text in said:
        _warn(f"{source}: MuJoCo's compiler warns: {_line(text)}")
    return found


@contextlib.contextmanager
def _warnings_to(texts: list[str]) -> Iterator[None]:
    """MuJoCo's warnings, which it would write into a file of the working directory; if nobody else takes them."""
    module = mujoco()
    if module.get_mju_user_warning() is not None:
        yield
        return
    module.set_mju_user_warning(texts.append)
    try:
        yield
    finally:
        module.set_mju_user_warning(None)


def _line(text: object) -> str:
    return "; ".join(line.strip() for line in str(text).strip().splitlines())


def _warn(message: str) -> None:
    package = os.path.dirname(os.path.dirname(__file__))
    warnings.warn(message, RobotFileWarning, skip_file_prefixes=(package,))


def field(m, name: str, *shape: int) -> np.ndarray:
    """A field of `mjModel`; zeros of `shape` in versions of MuJoCo that do not have it yet."""
    return np.asarray(getattr(m, name, np.zeros(shape)))


def disabled(m, *flags: str) -> bool:
    """Whether one of these standard features is disabled in `<option><flag>`."""
    bits = mujoco().mjtDisableBit.__members__
    # Springs and dampers had one flag in MuJoCo before 3.3.6.
    given = (bits.get(f"mjDSBL_{flag.upper()}", bits.get("mjDSBL_PASSIVE")) for flag in flags)
    return any(m.opt.disableflags & int(bit) for bit in given)


def enum_name(enum: str, value) -> str:
    """`mjtTrn.mjTRN_JOINT` as `joint`."""
    return getattr(mujoco(), enum)(int(value)).name.split("_", 1)[1].lower()


def dofs(m, joint: int) -> slice:
    """The degrees of freedom of a joint."""
    start = int(m.jnt_dofadr[joint])
    return slice(start, start + NV[m.jnt_type[joint]])


def object_name(m, kind: str, i: int) -> str:
    """The name of an object, or its kind and number where it has none."""
    found = mujoco().mj_id2name(m, getattr(mujoco().mjtObj, f"mjOBJ_{kind.upper()}"), int(i))
    return found or f"{kind}_{i}"


def listed(names: Iterable[str]) -> str:
    """For messages: names in quotes, the first twelve."""
    names = list(names)
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return ", ".join(repr(name) for name in names[:12]) + more


@dataclasses.dataclass(frozen=True)
class Names:
    """The names that a model has for MuJoCo's bodies, joints and sites, and for the frame behind each joint."""

    bodies: list[str]
    joints: list[str]
    sites: list[str]
    behind: list[str]

    @classmethod
    def of(cls, m) -> Names:
        taken: set[str] = set()
        bodies = _named("body", [m.body(i).name for i in range(m.nbody)], taken)
        joints = _named("joint", [m.joint(i).name for i in range(m.njnt)], set())
        behind = [f"{bodies[body]}:{joint}" for body, joint in zip(m.jnt_bodyid, joints, strict=True)]
        behind = _named("joint", behind, taken)
        return cls(bodies, joints, _named("site", [m.site(i).name for i in range(m.nsite)], taken), behind)


def _named(kind: str, given: list[str], taken: set[str]) -> list[str]:
    """The names given, with the kind behind those that are taken, and kind and number for those that are empty; all
    are taken then."""
    names = [f"{name}:{kind}" if name in taken else name for name in given]
    taken.update(name for name, own in zip(names, given, strict=True) if name == own != "")
    for i, (name, own) in enumerate(zip(names, given, strict=True)):
        if name != own or not own:
            unique = name or f"{kind}_{i}"
            while unique in taken:
                unique += "_"
            taken.add(unique)
            names[i] = unique
    return names


@dataclasses.dataclass(frozen=True)
class Gap:
    """Something in a file that no model has, and what to do to the file."""

    what: str
    remedy: str


def report(gaps: list[Gap], source: str, unsupported: str, title: str) -> None:
    """Raise an error that lists all gaps, or warn of each. **Raises** `ModelError` for another `unsupported`."""
    if unsupported not in ("error", "warn"):
        raise ModelError(f"unsupported={unsupported!r}, but it must be 'error' or 'warn'")
    if unsupported == "error" and gaps:
        lines = "\n".join(f"- {gap.what}; {gap.remedy}" for gap in gaps)
        raise RobotFileError(f"{source}: {title}:\n{lines}\nor load it with unsupported='warn', which leaves them out")
    for gap in gaps:
        _warn(f"{source}: left out: {gap.what}")


# Actuators: since MuJoCo 4 one may have several of the `nu` controls, and several outputs.


def actuator_count(m) -> int:
    return getattr(m, "nactuator", m.nu)


def transmission(m, i: int) -> str:
    """What an actuator acts on: `joint`, `jointinparent`, `tendon`, `site`, `body` ..."""
    return enum_name("mjtTrn", m.actuator_trntype[i])


def actuator_types(m, i: int) -> tuple[str, str, str]:
    """The types of an actuator's gain, bias and dynamics."""
    gain, bias, dynamics = m.actuator_gaintype[i], m.actuator_biastype[i], m.actuator_dyntype[i]
    return enum_name("mjtGain", gain), enum_name("mjtBias", bias), enum_name("mjtDyn", dynamics)


def gear(m, i: int) -> np.ndarray:
    """`[6]`: the gear of an actuator's first output."""
    return m.actuator_gear[m.actuator_outadr[i] if hasattr(m, "actuator_outadr") else i]
