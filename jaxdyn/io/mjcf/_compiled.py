"""The result of MuJoCo's compiler for an MJCF file: its fields, the names of its objects, and parts without a model."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxdyn._errors import RobotFileError, require_choice
from jaxdyn.io.mjcf._implausible_numbers import (
    places_of_strange_numbers,
    require_numbers_of_robots,
    require_possible_size,
)
from jaxdyn.io.robot_files import LeftOut, quote, read_robot_file, robot_text, root_tag, warn
from jaxdyn.spatial import IDENTITY_POSE, pose_array

# Types of joints as MuJoCo numbers them, and their numbers of coordinates and velocities.
FREE, BALL, SLIDE, HINGE = range(4)
NQ, NV = (7, 4, 1, 1), (6, 3, 1, 1)


def mujoco() -> Any:
    """Return the module, which is optional. **Raises** `ImportError` that says how to install it."""
    try:
        import mujoco
    except ImportError as error:
        reason = "MJCF is read by MuJoCo's compiler, which is not installed"
        raise ImportError(f"{reason}: pip install 'jaxdyn[mjcf]'") from error
    return mujoco


def is_mjcf(source: Any) -> bool:
    """Return whether a path, text or compiled model is MJCF rather than URDF, which its root element says. A file that
    cannot be read counts as URDF, whose loader refuses it."""
    if not isinstance(source, str | os.PathLike):
        return True
    try:
        text = robot_text(source) or (Path(source).read_bytes().decode(errors="replace"),)
    except (OSError, ValueError):
        return False
    return root_tag(text[0]) in ("mujoco", "mujocoinclude")


def compile_mjcf(path_or_text: Any) -> tuple[Any, str]:
    """Return the compiled `mjModel` of a path or text (or the one given), and the file's name for messages.

    **Raises** `RobotFileError` for a file that cannot be read, with the compiler's words for one that it refuses, and
    for numbers that no robot has: NaN, and beyond 1e12.
    **Warns** `RobotFileWarning` of what the compiler warns of.
    """
    mj_model = mujoco().MjModel
    if isinstance(path_or_text, mj_model):
        _require_names_and_numbers(path_or_text, "mujoco.MjModel", None)
        return path_or_text, "mujoco.MjModel"
    if not isinstance(path_or_text, str | os.PathLike):
        kind = type(path_or_text).__name__
        raise RobotFileError(f"a path, the text of an MJCF file or a mujoco.MjModel is needed, not {kind}")
    text = robot_text(path_or_text)
    if text is not None:
        # Line breaks in front keep the compiler's line numbers.
        return _compile(mj_model.from_xml_string, "\n" * text[1] + text[0], text[0], "MJCF text"), "MJCF text"
    data, source = read_robot_file(path_or_text, "an MJCF"), os.fsdecode(path_or_text)
    return _compile(mj_model.from_xml_path, source, data.decode(errors="replace"), source), source


def _compile(compiler, argument: str, text: str, source: str) -> Any:
    if root_tag(text) == "robot":
        # MuJoCo would read it, with rules of its own.
        raise RobotFileError(f"{source}: its root element is <robot>, so it is a URDF file; read it with load_urdf")
    require_possible_size(text, source)
    warnings: list[str] = []
    try:
        with _warnings_to(warnings):
            model = compiler(argument)
    except Exception as error:
        # Any error that the foreign compiler raises says what is wrong with the file.
        reason = f"{_one_line(error)}{places_of_strange_numbers(text)}"
        raise RobotFileError(f"{source}: MuJoCo's compiler refuses it: {reason}; correct the file there") from error
    if any("'NaN'" in warning for warning in warnings):
        # The compiler takes NaN for an attribute that is not given, in some attributes.
        reason = f"NaN stands for a number{places_of_strange_numbers(text)}"
        raise RobotFileError(f"{source}: {reason}; correct it, there or in a file that it includes")
    _require_names_and_numbers(model, source, text)
    for warning in warnings:
        warn(f"{source}: MuJoCo's compiler warns: {_one_line(warning)}")
    return model


def _require_names_and_numbers(m, source: str, text: str | None) -> None:
    try:
        m.names.decode()
    except UnicodeDecodeError as error:
        shown = quote(m.names[max(error.start - 20, 0) : error.end].decode(errors="replace").replace("\0", " "))
        raise RobotFileError(f"{source}: a name is not UTF-8, near {shown}; save the file as UTF-8") from error
    require_numbers_of_robots(m, source, text, lambda kind, i: object_name(m, kind, i))


@contextlib.contextmanager
def _warnings_to(texts: list[str]) -> Iterator[None]:
    """Collect MuJoCo's warnings, which it would write into a file of the working directory, and hand them on to the
    handler of another program if there is one."""
    module = mujoco()
    other = module.get_mju_user_warning()

    def hear(text: str) -> None:
        texts.append(text)
        if other is not None:
            other(text)

    module.set_mju_user_warning(hear)
    try:
        yield
    finally:
        module.set_mju_user_warning(other)


def _one_line(text: object) -> str:
    return "; ".join(line.strip() for line in str(text).strip().splitlines())


def field(m, name: str, *shape: int) -> np.ndarray:
    """Return a field of `mjModel`; zeros of `shape` in versions of MuJoCo that do not have it yet."""
    return np.asarray(getattr(m, name, np.zeros(shape)))


def is_disabled(m, *flags: str) -> bool:
    """Return whether one of these standard features is disabled in `<option><flag>`."""
    bits = mujoco().mjtDisableBit.__members__
    # Springs and dampers had one flag in MuJoCo before 3.3.6.
    values = (bits.get(f"mjDSBL_{flag.upper()}", bits.get("mjDSBL_PASSIVE")) for flag in flags)
    return any(m.opt.disableflags & int(bit) for bit in values)


def is_enabled(m, flag: str) -> bool:
    """Return whether an optional feature is enabled in `<option><flag>`."""
    return bool(m.opt.enableflags & int(mujoco().mjtEnableBit.__members__[f"mjENBL_{flag.upper()}"]))


def enum_name(enum: str, value) -> str:
    """Return the name of a value, such as `joint` for `mjtTrn.mjTRN_JOINT`."""
    return getattr(mujoco(), enum)(int(value)).name.split("_", 1)[1].lower()


def dofs(m, joint: int) -> slice:
    """Return the degrees of freedom of a joint."""
    start = int(m.jnt_dofadr[joint])
    return slice(start, start + NV[m.jnt_type[joint]])


def object_name(m, kind: str, i: int) -> str:
    """Return the name of an object; one without a name has its kind and number, with underscores behind it while
    another object of the kind has that name."""
    of_kind = getattr(mujoco().mjtObj, f"mjOBJ_{kind.upper()}")
    name = mujoco().mj_id2name(m, of_kind, int(i))
    if name:
        return name
    made = f"{kind}_{i}"
    while mujoco().mj_name2id(m, of_kind, made) >= 0:
        made += "_"
    return made


def effective_pose(position, quaternion, same_frame) -> np.ndarray:
    """Return the pose in a body that MuJoCo computes with: the body's own if they agree within 1e-6 (m, rad)."""
    same = enum_name("mjtSameFrame", same_frame)
    if same == "body":
        return IDENTITY_POSE
    return pose_array(position, IDENTITY_POSE[3:] if same == "bodyrot" else quaternion)


def geom_pose(m, g: int) -> np.ndarray:
    """Return the pose `[7]` of a geom in its body."""
    return effective_pose(m.geom_pos[g], m.geom_quat[g], m.geom_sameframe[g])


def geom_mesh(m, g: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the vertices `[n, 3]`, in the geom's frame, and the triangles `[k, 3]` of a geom that is a mesh."""
    k = m.geom_dataid[g]
    vertices = m.mesh_vert[m.mesh_vertadr[k] :][: m.mesh_vertnum[k]]
    return vertices, m.mesh_face[m.mesh_faceadr[k] :][: m.mesh_facenum[k]]


@dataclasses.dataclass(frozen=True)
class Names:
    """The names that a model has for MuJoCo's bodies, joints, sites and equality constraints, and for the frame behind
    each joint."""

    bodies: list[str]
    joints: list[str]
    sites: list[str]
    behind: list[str]
    equalities: list[str]

    @classmethod
    def of(cls, m) -> Names:
        taken: set[str] = set()
        bodies = _unique_names("body", [m.body(i).name for i in range(m.nbody)], taken)
        joints = _unique_names("joint", [m.joint(i).name for i in range(m.njnt)], set())
        behind = [f"{bodies[body]}:{joint}" for body, joint in zip(m.jnt_bodyid, joints, strict=True)]
        behind = _unique_names("joint", behind, taken)
        sites = _unique_names("site", [m.site(i).name for i in range(m.nsite)], taken)
        equalities = _unique_names("equality", [m.equality(i).name for i in range(m.neq)], set())
        return cls(bodies, joints, sites, behind, equalities)


def _unique_names(kind: str, names: list[str], taken: set[str]) -> list[str]:
    """Return the names, with the kind behind those that are taken, and kind and number for those that are empty. Adds
    all of them to `taken`."""
    unique = [f"{name}:{kind}" if name in taken else name for name in names]
    taken.update(new for new, name in zip(unique, names, strict=True) if new == name != "")
    for i, name in enumerate(names):
        if unique[i] != name or not name:
            new = unique[i] or f"{kind}_{i}"
            while new in taken:
                new += "_"
            taken.add(new)
            unique[i] = new
    return unique


@dataclasses.dataclass(frozen=True)
class Gap:
    """Something in a file that models do not have, and what to do to the file."""

    what: str
    remedy: str


def refuse(gaps: list[Gap], source: str, unsupported: str, title: str) -> None:
    """Raise `RobotFileError` with all gaps if `unsupported="error"`. **Raises** `ModelError` for another value."""
    require_choice(unsupported, ("error", "warn"), "unsupported")
    if unsupported == "error" and gaps:
        lines = "\n".join(f"- {gap.what}; {gap.remedy}" for gap in gaps)
        raise RobotFileError(f"{source}: {title}:\n{lines}\nor load it with unsupported='warn', which leaves them out")


def as_left_out(gaps: list[Gap]) -> LeftOut:
    """Return the gaps as one kind of what models leave out."""
    return LeftOut("parts that act", tuple(gap.what for gap in gaps), True)


# Actuators: since MuJoCo 4 one may have several of the `nu` controls, and several outputs.


def actuator_count(m) -> int:
    return getattr(m, "nactuator", m.nu)


def transmission(m, i: int) -> str:
    """Return the kind of object that an actuator acts on: `joint`, `jointinparent`, `tendon`, `site`, `body` ..."""
    return enum_name("mjtTrn", m.actuator_trntype[i])


def actuator_types(m, i: int) -> tuple[str, str, str]:
    """Return the types of an actuator's gain, bias and dynamics."""
    gain, bias, dynamics = m.actuator_gaintype[i], m.actuator_biastype[i], m.actuator_dyntype[i]
    return enum_name("mjtGain", gain), enum_name("mjtBias", bias), enum_name("mjtDyn", dynamics)


def gear(m, i: int) -> np.ndarray:
    """Return the gear `[6]` of an actuator's first output."""
    return m.actuator_gear[m.actuator_outadr[i] if hasattr(m, "actuator_outadr") else i]


def with_actuators(m, of_dofs, of_tendons, of_actuators) -> tuple[np.ndarray, np.ndarray]:
    """Return what degrees of freedom and tendons have, damping or armature, with what actuators add to it: MuJoCo
    reflects it by the square of the first gear, to all axes of a joint, also where actuation is disabled."""
    of_dofs, of_tendons = np.array(of_dofs), np.array(of_tendons)
    for i in range(actuator_count(m)):
        target, number = transmission(m, i), int(m.actuator_trnid[i, 0])
        added = gear(m, i)[0] ** 2 * of_actuators[i]
        if target in ("joint", "jointinparent"):
            of_dofs[dofs(m, number)] += added
        elif target == "tendon":
            of_tendons[number] += added
    return of_dofs, of_tendons
