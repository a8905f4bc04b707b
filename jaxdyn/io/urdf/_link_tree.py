"""The tree of a URDF robot: links and joints by name, their poses, and which joints mimic others."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from jaxdyn.io.robot_files import enumerate_names, quote
from jaxdyn.io.urdf._xml import Element, fail, forgive, unknown_name
from jaxdyn.model import Mimic, depth_first
from jaxdyn.spatial import IDENTITY_POSE, pose_array, rpy_to_quaternion

ROOT_JOINT = "root_joint"
"""Name of the joint that moves the root link of a robot with a free base."""

WORLD = "world"
JOINT_TYPES = ("revolute", "continuous", "prismatic", "planar", "floating", "fixed")
ONE_AXIS = ("revolute", "continuous", "prismatic")
VERSIONS = ("1.0", "1.1", "1.2")


@dataclasses.dataclass(frozen=True, eq=False)
class UrdfJoint:
    name: str
    type: str
    parent: str
    child: str
    element: Element


def format_version(robot: Element) -> str:
    """Return the version of the format, the newest one in place of one that is not known."""
    version = robot.attributes.get("version", "1.0")
    if version not in VERSIONS:
        problem = f"version={quote(version)} of <robot>, but {enumerate_names(VERSIONS)} are known"
        forgive(robot, problem, f"version {VERSIONS[-1]}")
        return VERSIONS[-1]
    return version


def pose_of(element: Element, version: str) -> np.ndarray:
    """Return the pose `[7]` that `<origin>` gives: position (m) and quaternion `w x y z`."""
    origins = element.all("origin")
    if not origins:
        return IDENTITY_POSE
    origin = origins[0]
    if any(other.attributes != origin.attributes for other in origins[1:]):
        forgive(origins[1], "<origin> is given twice, and differently", "the first one alone, as urdfdom does")
    elif len(origins) > 1:
        forgive(origins[1], "<origin> is given twice", "the same said once")
    xyz, rpy = (origin.numbers(a, 3) if a in origin.attributes else [0.0] * 3 for a in ("xyz", "rpy"))
    if "quat_xyzw" not in origin.attributes:
        return pose_array(xyz, rpy_to_quaternion(rpy))
    if version == "1.0":
        problem = "quat_xyzw of <origin> needs <robot version='1.1'> or newer"
        forgive(origin, problem, "the quaternion that it is")
    if "rpy" in origin.attributes:
        fail(origin, "<origin> has both rpy and quat_xyzw; remove one")
    x, y, z, w = origin.numbers("quat_xyzw", 4)
    norm = math.hypot(x, y, z, w)
    if abs(norm - 1) > 1e-3:
        fail(origin, f"quat_xyzw of <origin> has the norm {norm:g}; a unit quaternion is needed")
    return pose_array(xyz, [w / norm, x / norm, y / norm, z / norm])


def read_joints(robot: Element) -> list[UrdfJoint]:
    """Return the joints in the order of the file."""
    joints = []
    for name, element in by_name(robot, "joint").items():
        kind = element.attribute("type")
        if kind not in JOINT_TYPES:
            if kind.lower() not in JOINT_TYPES:
                fail(element, f"unknown joint type {quote(kind)}; known: {', '.join(JOINT_TYPES)}")
            forgive(element, f"joint type {quote(kind)}", repr(kind.lower()))
        parent, child = (element.require(tag).attribute("link") for tag in ("parent", "child"))
        joints.append(UrdfJoint(name, kind.lower(), parent, child, element))
    return joints


def by_name(robot: Element, tag: str) -> dict[str, Element]:
    """Return the elements with a tag by their names, which must be unique."""
    elements: dict[str, Element] = {}
    for element in robot.all(tag):
        name = element.attribute("name")
        if name in elements:
            fail(element, f"there is already a {tag} with this name ({elements[name].where}); names must be unique")
        elements[name] = element
    return elements


def read_tree(
    robot: Element, links: dict[str, Element], joints: list[UrdfJoint]
) -> tuple[str, dict[str, list[UrdfJoint]]]:
    """Return the root link, and for every link the joints that it carries."""
    above: dict[str, UrdfJoint] = {}
    children: dict[str, list[UrdfJoint]] = {name: [] for name in links}
    for joint in joints:
        for role, link in (("parent", joint.parent), ("child", joint.child)):
            if link not in links:
                fail(joint.element, f"its {role} does not exist: {unknown_name(link, links, 'link')}")
        if joint.child in above:
            first = above[joint.child]
            where = f"joint {quote(first.name)} ({first.element.where})"
            reason = f"link {quote(joint.child)} is also the child of {where}: a loop"
            fail(joint.element, f"{reason}. URDF describes trees only; remove one of the two joints")
        above[joint.child] = joint
        children[joint.parent].append(joint)
    roots = [name for name in links if name not in above]
    if len(roots) > 1:
        reason = f"it has {len(roots)} root links, {enumerate_names(roots)}, but can have one only"
        fail(robot, f"{reason}; connect them, by fixed joints perhaps")
    reached = {*depth_first(roots, lambda link: [joint.child for joint in children[link]])}
    if len(reached) < len(links):
        _fail_with_loop(above, next(name for name in links if name not in reached))
    return roots[0], children


def _fail_with_loop(above: dict[str, UrdfJoint], link: str) -> None:
    # Every link has one parent: going up from one that the root does not reach ends in a loop.
    seen: dict[str, None] = {}
    while link not in seen:
        seen[link] = None
        link = above[link].parent
    cycle = set(_from(link, seen))
    loop = {link: joint for link, joint in above.items() if link in cycle}
    first, names = next(iter(loop.values())), enumerate_names(joint.name for joint in loop.values())
    reason = f"a loop of the joints {names} and links {enumerate_names(loop)}"
    fail(first.element, f"{reason}; URDF describes trees only: remove one of the joints")


def read_mimics(joints: list[UrdfJoint], coupled: list[UrdfJoint]) -> dict[str, Mimic]:
    """Return, for each joint that mimics another, the independent joint at the end of the line that it follows."""
    all_joints = {joint.name: joint for joint in joints}
    advice = "correct <mimic>, or load with mimic='independent', which does not read it"
    direct: dict[str, Mimic] = {}
    for joint in coupled:
        element = joint.element.require("mimic")
        leader = element.attribute("joint")
        if leader not in all_joints:
            reason = f"the joint that it mimics does not exist: {unknown_name(leader, all_joints, 'joint')}"
            fail(element, f"{reason}; {advice}")
        for x in (joint, all_joints[leader]):
            if x.type not in ONE_AXIS:
                reason = f"joint {quote(joint.name)} mimics {quote(leader)}, but joint {quote(x.name)} is {x.type}"
                fail(element, f"{reason}; both must have one degree of freedom; {advice}")
        numbers = {a: element.number(a) for a in ("multiplier", "offset") if a in element.attributes}
        direct[joint.name] = Mimic(leader, **numbers)
    resolved: dict[str, Mimic] = {}
    for name in list(direct):
        line: dict[str, None] = {}
        while name in direct and name not in resolved:
            if name in line:
                reason = f"joints mimic each other: {enumerate_names(_from(name, line))}"
                fail(all_joints[name].element, f"{reason}; one of them must mimic none; {advice}")
            line[name] = None
            name = direct[name].joint
        for follower in reversed(line):
            mimic = direct[follower]
            leader = resolved.get(mimic.joint)
            if leader is not None:
                # q = m (m' q' + o') + o
                m, o = mimic.multiplier, mimic.offset
                mimic = Mimic(leader.joint, m * leader.multiplier, m * leader.offset + o)
            resolved[follower] = mimic
    return resolved


def _from(name: str, names: dict[str, None]) -> list[str]:
    """Return the names from one of them on."""
    return list(names)[list(names).index(name) :]
