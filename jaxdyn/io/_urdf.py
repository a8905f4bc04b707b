"""URDF files as models. The format: http://wiki.ros.org/urdf/XML."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import string
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NoReturn
from xml.parsers import expat

import numpy as np

from jaxdyn._errors import JaxdynError, RobotFileError, UnknownNameError, look_up
from jaxdyn._types import ArrayLike
from jaxdyn.model import STANDARD_GRAVITY, BodyInertia, Joint, Model, ModelBuilder
from jaxdyn.model._inertia import moved_parameters

ROOT_JOINT = "root_joint"
"""Name of the joint that moves the root link of a robot with a free base."""

_WORLD = "world"
_JOINT_TYPES = ("revolute", "continuous", "prismatic", "planar", "floating", "fixed")
_ONE_AXIS = ("revolute", "continuous", "prismatic")

# What is read, or says nothing about the dynamics. Everything else is warned of: it may be a slip of the pen.
_UNDERSTOOD = {
    "robot": {"link", "joint", "material", "gazebo", "transmission", "sensor", "ros2_control"},
    "link": {"inertial", "visual", "collision", "contact", "sensor"},
    "joint": {"origin", "parent", "child", "axis", "limit", "dynamics", "mimic", "calibration", "safety_controller"},
    "inertial": {"origin", "mass", "inertia"},
}
_DYNAMICS = {"damping", "friction"}
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


class RobotFileWarning(UserWarning):
    """Something in a robot's file that the model does not reproduce."""


def load_urdf(
    path_or_text: str | os.PathLike, *, free_base: bool = False, gravity: ArrayLike = STANDARD_GRAVITY
) -> Model:
    """The model that a URDF file, or the text of one, describes (http://wiki.ros.org/urdf/XML).

    Every link keeps its name as a frame of the model. Links behind fixed joints are merged into the body that carries
    them (into the world, if nothing moves them): their inertia adds to the body's, `Model.link_parameters` tells it
    apart again, and the fixed joint's name becomes a frame, too, unless a link has it. Joints stand in depth-first
    order, children in the order of the `<joint>` elements. Joint types: `revolute`, `continuous`, `prismatic`,
    `planar`, `floating` (a `free` joint), `fixed`. A link without `<inertial>` has no mass, a joint without `<axis>`
    has (1, 0, 0), a joint without `<limit>` (or without `effort` or `velocity` in it) has no limits; `lower` and
    `upper` that `<limit>` leaves out are zero. Units in the file are SI and rad. Shapes, materials, transmissions,
    safety controllers, calibrations and extensions of simulators are not read.

    **Arguments**

    - `path_or_text`: a path, or text, which begins with `<`.
    - `free_base`: whether the root link moves freely, by a free joint named `root_joint`, the first of the model.
      Otherwise it is fixed to the world; a fixed root link named `world` is the world itself.
    - `gravity`: `[3]`, m/s^2, world axes.

    **Raises** `RobotFileError`, with the line, for a file that cannot be read, is no URDF, or has no tree of links; for
    what is missing, unknown, given twice, or no finite number. `ModelError` for a robot without a moving body, and for
    one whose joint moves nothing that has inertia.

    **Warns** `RobotFileWarning` of `<mimic>` joints, which are loaded as independent ones, and of all else that would
    change the motion and is not read; `PhysicalityWarning` of inertias that no distribution of mass has.
    """
    robot, source = _read(path_or_text)
    links, joints = _by_name(robot, "link"), _joints(robot)
    if not links:
        _fail(robot, "it has no links; add at least one <link name=...>")
    root, children = _tree(robot, links, joints)
    _check_root(root, links, joints, free_base)
    _warn_of_what_is_not_read(robot, joints, source)
    try:
        builder = ModelBuilder()
        if free_base:
            builder.add_body(root, _WORLD, Joint("free", name=ROOT_JOINT), inertia=_inertia(links[root]))
        elif root != _WORLD:
            _add_fixed(builder, links[root], _WORLD, None)
        stack = children[root][::-1]
        while stack:
            joint = stack.pop()
            _add(builder, joint, links)
            stack.extend(children[joint.child][::-1])
        return builder.build(gravity)
    except JaxdynError as error:
        error.add_note(f"(while loading {source})")
        raise


@dataclasses.dataclass(frozen=True)
class _Element:
    """An XML element that knows where it stands: file and line, and the link or joint (or so) that it describes."""

    tag: str
    attributes: dict[str, str]
    where: str
    owner: str
    children: list[_Element] = dataclasses.field(default_factory=list)

    def named(self, tag: str) -> list[_Element]:
        return [child for child in self.children if child.tag == tag]

    def below(self) -> Iterator[_Element]:
        for child in self.children:
            yield child
            yield from child.below()


@dataclasses.dataclass(frozen=True)
class _Joint:
    name: str
    type: str
    parent: str
    child: str
    element: _Element


def _read(path_or_text: str | os.PathLike) -> tuple[_Element, str]:
    """The root element, and what to call the file in messages."""
    if isinstance(path_or_text, str):
        text = path_or_text.lstrip("\ufeff" + string.whitespace)
        if text.startswith("<"):
            skipped = path_or_text.count("\n", 0, len(path_or_text) - len(text))
            return _parse(text, "URDF text", skipped), "URDF text"
    source = str(path_or_text)
    try:
        data = Path(path_or_text).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        shown = source if len(source) < 300 else f"{source[:300]}..."
        advice = "give the path of a URDF file, or its text, which must begin with '<'"
        raise RobotFileError(f"cannot read the robot's file {shown!r}: {reason}; {advice}") from error
    return _parse(data, source), source


def _parse(data: str | bytes, source: str, skipped: int = 0) -> _Element:
    parser = expat.ParserCreate()
    stack = [_Element("", {}, source, "")]

    def here() -> str:
        return f"{source}, line {parser.CurrentLineNumber + skipped}"

    def start(tag: str, attributes: dict[str, str]) -> None:
        if tag.startswith("xacro:"):
            advice = "xacro robot.urdf.xacro > robot.urdf"
            raise RobotFileError(f"{here()}: <{tag}> belongs to xacro, which writes URDF; expand it first: {advice}")
        name = attributes.get("name")
        own = f"{tag} {name!r}" if name else f"a {tag} without a name"
        element = _Element(tag, attributes, here(), stack[2].owner if len(stack) > 2 else own)
        stack[-1].children.append(element)
        stack.append(element)

    def doctype(*_) -> NoReturn:
        reason = "the entities it may declare can make a small file huge, or read others"
        raise RobotFileError(f"{here()}: a <!DOCTYPE> is refused: {reason}; URDF needs none: remove it")

    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _: stack.pop()
    parser.StartDoctypeDeclHandler = doctype
    try:
        parser.Parse(data, True)
    except RobotFileError:
        raise
    except expat.ExpatError as error:
        at = f"{source}, line {error.lineno + skipped}, column {error.offset + 1}"
        reason = expat.ErrorString(error.code)
        raise RobotFileError(f"{at}: malformed XML: {reason}; correct the file there or shortly before") from error
    except (LookupError, ValueError) as error:
        raise RobotFileError(f"{here()}: {error}; save the file as UTF-8") from error
    (root,) = stack[0].children
    if root.tag != "robot":
        raise RobotFileError(f"{root.where}: the root element is <{root.tag}>, but that of a URDF file is <robot>")
    return root


def _joints(robot: _Element) -> list[_Joint]:
    joints = []
    for name, element in _by_name(robot, "joint").items():
        kind = _attribute(element, "type")
        if kind not in _JOINT_TYPES:
            _fail(element, f"unknown joint type {kind!r}; known: {', '.join(_JOINT_TYPES)}")
        parent, child = (_attribute(_required(element, tag), "link") for tag in ("parent", "child"))
        joints.append(_Joint(name, kind, parent, child, element))
    return joints


def _by_name(robot: _Element, tag: str) -> dict[str, _Element]:
    found: dict[str, _Element] = {}
    for element in robot.named(tag):
        name = _attribute(element, "name")
        if name in found:
            _fail(element, f"there is already a {tag} with this name ({found[name].where}); names must be unique")
        found[name] = element
    return found


def _tree(robot: _Element, links: dict[str, _Element], joints: list[_Joint]) -> tuple[str, dict[str, list[_Joint]]]:
    """The root link, and the joints whose parent each link is."""
    above: dict[str, _Joint] = {}
    children: dict[str, list[_Joint]] = {name: [] for name in links}
    for joint in joints:
        for role, link in (("parent", joint.parent), ("child", joint.child)):
            try:
                look_up(link, links, "link")
            except UnknownNameError as error:
                _fail(joint.element, f"its {role} does not exist: {error}")
        if joint.child in above:
            other = above[joint.child]
            reason = f"link {joint.child!r} is also the child of joint {other.name!r} ({other.element.where}): a loop"
            _fail(joint.element, f"{reason}. URDF describes trees only; remove one of the two joints")
        above[joint.child] = joint
        children[joint.parent].append(joint)
    roots = [name for name in links if name not in above]
    if len(roots) > 1:
        reason = f"it has {len(roots)} root links, {_listed(roots)}, but can have one only"
        _fail(robot, f"{reason}; connect them, by fixed joints perhaps")
    loop = dict(above)
    while leaves := loop.keys() - {joint.parent for joint in loop.values()}:
        loop = {link: joint for link, joint in loop.items() if link not in leaves}
    if loop:
        first, names = next(iter(loop.values())), _listed(joint.name for joint in loop.values())
        reason = f"a loop of the joints {names} and links {_listed(loop)}"
        _fail(first.element, f"{reason}; URDF describes trees only: remove one of the joints")
    return roots[0], children


def _check_root(root: str, links: dict[str, _Element], joints: list[_Joint], free_base: bool) -> None:
    if _WORLD in links and root != _WORLD:
        _fail(links[_WORLD], "the name stands for the fixed world, but this link is not the root; rename it")
    if root == _WORLD and free_base:
        _fail(links[root], "the name stands for the fixed world, which cannot move; rename it, or drop free_base=True")
    for joint in joints:
        if free_base and joint.name == ROOT_JOINT:
            _fail(joint.element, "the joint of the free base needs this name; rename this joint")
    if not free_base and all(joint.type == "fixed" for joint in joints):
        _fail(links[root], "nothing moves, as no joint does; perhaps free_base=True is meant")


def _add(builder: ModelBuilder, joint: _Joint, links: dict[str, _Element]) -> None:
    element, placement = joint.element, _origin(joint.element)
    if joint.type == "fixed":
        _add_fixed(builder, links[joint.child], joint.parent, placement)
        if joint.name not in links and joint.name != _WORLD:
            builder.add_frame(joint.name, joint.child)
        return
    kind = "free" if joint.type == "floating" else joint.type
    loaded = Joint(kind, axis=_axis(element), name=joint.name, **_limits(joint), **_friction(joint))
    builder.add_body(joint.child, joint.parent, loaded, placement, _inertia(links[joint.child]))


def _add_fixed(builder: ModelBuilder, link: _Element, parent: str, placement: np.ndarray | None) -> None:
    inertia = _inertia(link)
    if inertia is None:
        builder.add_frame(link.attributes["name"], parent, placement)
    else:
        builder.add_fixed_body(link.attributes["name"], parent, placement, inertia)


def _inertia(link: _Element) -> np.ndarray | None:
    """The ten inertial parameters in the link's frame, or None where there is no `<inertial>`."""
    inertial = _child(link, "inertial")
    if inertial is None:
        return None
    mass, inertia = _number(_required(inertial, "mass"), "value", minimum=0.0), _required(inertial, "inertia")
    xx, xy, xz, yy, yz, zz = (_number(inertia, a) for a in ("ixx", "ixy", "ixz", "iyy", "iyz", "izz"))
    about_center = BodyInertia(mass, (0.0, 0.0, 0.0), np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]]))
    return moved_parameters(about_center.parameters(), _origin(inertial))


def _origin(element: _Element) -> np.ndarray:
    """`[7]`: position, and the quaternion of roll, pitch, yaw about the fixed axes x, y, z in this order."""
    origin = _child(element, "origin")
    if origin is None:
        return np.array([0.0, 0, 0, 1, 0, 0, 0])
    xyz, rpy = (_numbers(origin, a, 3) if a in origin.attributes else [0.0] * 3 for a in ("xyz", "rpy"))
    (cr, cp, cy), (sr, sp, sy) = np.cos(np.array(rpy) / 2), np.sin(np.array(rpy) / 2)
    w, x = cy * cp * cr + sy * sp * sr, cy * cp * sr - sy * sp * cr
    y, z = cy * sp * cr + sy * cp * sr, sy * cp * cr - cy * sp * sr
    return np.array([*xyz, w, x, y, z])


def _axis(joint: _Element) -> list[float]:
    axis = _child(joint, "axis")
    if axis is None:
        return [1.0, 0.0, 0.0]
    xyz = _numbers(axis, "xyz", 3)
    if math.hypot(*xyz) < 1e-9:
        _fail(axis, f"<axis> is {xyz}, which has no direction; give a vector that is not zero")
    return xyz


def _limits(joint: _Joint) -> dict[str, float]:
    limit = _child(joint.element, "limit")
    if limit is None or joint.type not in _ONE_AXIS:
        return {}
    out = {f"{a}_limit": _number(limit, a, minimum=0.0) for a in ("effort", "velocity") if a in limit.attributes}
    if joint.type == "continuous":
        return out
    bounds = {a: _number(limit, a) if a in limit.attributes else 0.0 for a in ("lower", "upper")}
    if not set(bounds) & set(limit.attributes):
        reason = "<limit> has neither lower nor upper, which both are zero then by the URDF standard"
        _warn(f"{limit.where}: {limit.owner}: {reason}; give them, or remove <limit> if there are none")
    if bounds["lower"] > bounds["upper"]:
        _fail(limit, f"<limit> has lower {bounds['lower']} > upper {bounds['upper']}; swap or correct them")
    return out | bounds


def _friction(joint: _Joint) -> dict[str, float]:
    dynamics = _child(joint.element, "dynamics")
    if dynamics is None or joint.type not in _ONE_AXIS:
        return {}
    return {a: _number(dynamics, a, minimum=0.0) for a in ("damping", "friction") if a in dynamics.attributes}


def _warn_of_what_is_not_read(robot: _Element, joints: list[_Joint], source: str) -> None:
    moving = [joint for joint in joints if joint.type != "fixed"]
    mimics = [joint.name for joint in moving if _child(joint.element, "mimic") is not None]
    if mimics:
        reason = f"<mimic> couples joints to others; loaded as independent joints: {_listed(mimics)}"
        _warn(f"{source}: {reason}; let their coordinates, or a controller, follow")
    unread = [
        (element, f"<{element.tag}>")
        for transmission in robot.named("transmission")
        for element in transmission.below()
        if re.sub("[^a-z]", "", element.tag.lower()).endswith("rotorinertia")
    ]
    inertials = [inertial for link in robot.named("link") for inertial in link.named("inertial")]
    for parent in (robot, *robot.named("link"), *inertials, *robot.named("joint")):
        unread += [(child, f"<{child.tag}>") for child in parent.children if child.tag not in _UNDERSTOOD[parent.tag]]
    for joint in moving:
        for element in (e for e in joint.element.children if e.tag in ("limit", "dynamics")):
            if joint.type not in _ONE_AXIS:
                unread.append((element, f"<{element.tag}> of a {joint.type} joint"))
            elif element.tag == "dynamics":
                unread += [(element, f"{a!r} in <dynamics>") for a in element.attributes if a not in _DYNAMICS]
    first = {what: element for element, what in reversed(unread)}
    if first:
        shown = "; ".join(
            f"{what} ({e.where.removeprefix(source + ', ')}, {e.owner})" for what, e in reversed(first.items())
        )
        _warn(f"{source}: no part of URDF that is read, each named once: {shown}")


def _warn(message: str) -> None:
    package = os.path.dirname(os.path.dirname(__file__))
    warnings.warn(message, RobotFileWarning, skip_file_prefixes=(package,))


def _child(element: _Element, tag: str) -> _Element | None:
    found = element.named(tag)
    if len(found) > 1:
        _fail(found[1], f"<{tag}> is given twice; remove one")
    return found[0] if found else None


def _required(element: _Element, tag: str) -> _Element:
    found = _child(element, tag)
    if found is None:
        _fail(element, f"<{tag}> is missing in <{element.tag}>; add it")
    return found


def _attribute(element: _Element, name: str) -> str:
    value = element.attributes.get(name)
    if not value:
        _fail(element, f"<{element.tag}> has no {name}; add the attribute {name}=...")
    return value


def _number(element: _Element, attribute: str, minimum: float = -math.inf) -> float:
    (value,) = _numbers(element, attribute, 1)
    if value < minimum:
        _fail(element, f"negative {attribute} of <{element.tag}>: {value}; it must be zero or more")
    return value


def _numbers(element: _Element, attribute: str, count: int) -> list[float]:
    words = _attribute(element, attribute).split()
    numbers = [float(word) if _NUMBER.fullmatch(word) else math.nan for word in words]
    if len(numbers) != count or not all(math.isfinite(x) for x in numbers):
        needed = "a finite number" if count == 1 else f"{count} finite numbers separated by spaces"
        _fail(element, f"{attribute}={element.attributes.get(attribute)!r} of <{element.tag}>, but {needed} is needed")
    return numbers


def _fail(element: _Element, message: str) -> NoReturn:
    raise RobotFileError(f"{element.where}: {element.owner}: {message}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
