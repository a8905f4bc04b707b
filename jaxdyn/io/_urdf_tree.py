"""The tree of a URDF robot: links and joints by name, who moves whom, and which joints mimic others."""

from __future__ import annotations

import dataclasses

from jaxdyn.io._urdf_xml import Element, fail, forgive, listed, shown, unknown
from jaxdyn.model import Mimic

ROOT_JOINT = "root_joint"
"""Name of the joint that moves the root link of a robot with a free base."""

WORLD = "world"
JOINT_TYPES = ("revolute", "continuous", "prismatic", "planar", "floating", "fixed")
ONE_AXIS = ("revolute", "continuous", "prismatic")


@dataclasses.dataclass(frozen=True, eq=False)
class UrdfJoint:
    name: str
    type: str
    parent: str
    child: str
    element: Element


def read_joints(robot: Element) -> list[UrdfJoint]:
    joints = []
    for name, element in by_name(robot, "joint").items():
        kind = element.attribute("type")
        if kind not in JOINT_TYPES:
            if kind.lower() not in JOINT_TYPES:
                fail(element, f"unknown joint type {shown(kind)}; known: {', '.join(JOINT_TYPES)}")
            forgive(element, f"joint type {shown(kind)}", repr(kind.lower()))
        parent, child = (element.required(tag).attribute("link") for tag in ("parent", "child"))
        joints.append(UrdfJoint(name, kind.lower(), parent, child, element))
    return joints


def by_name(robot: Element, tag: str) -> dict[str, Element]:
    found: dict[str, Element] = {}
    for element in robot.named(tag):
        name = element.attribute("name")
        if name in found:
            fail(element, f"there is already a {tag} with this name ({found[name].where}); names must be unique")
        found[name] = element
    return found


def read_tree(
    robot: Element, links: dict[str, Element], joints: list[UrdfJoint]
) -> tuple[str, dict[str, list[UrdfJoint]]]:
    """The root link, and the joints whose parent each link is."""
    above: dict[str, UrdfJoint] = {}
    children: dict[str, list[UrdfJoint]] = {name: [] for name in links}
    for joint in joints:
        for role, link in (("parent", joint.parent), ("child", joint.child)):
            if link not in links:
                fail(joint.element, f"its {role} does not exist: {unknown(link, links, 'link')}")
        if joint.child in above:
            other = above[joint.child]
            where = f"joint {shown(other.name)} ({other.element.where})"
            reason = f"link {shown(joint.child)} is also the child of {where}: a loop"
            fail(joint.element, f"{reason}. URDF describes trees only; remove one of the two joints")
        above[joint.child] = joint
        children[joint.parent].append(joint)
    roots = [name for name in links if name not in above]
    if len(roots) > 1:
        reason = f"it has {len(roots)} root links, {listed(roots)}, but can have one only"
        fail(robot, f"{reason}; connect them, by fixed joints perhaps")
    reached, stack = set(roots), list(roots)
    while stack:
        below = [joint.child for joint in children[stack.pop()]]
        reached.update(below)
        stack.extend(below)
    if len(reached) < len(links):
        # Every link has one parent: going up from one that the root does not reach ends in a loop.
        seen: dict[str, None] = {}
        link = next(name for name in links if name not in reached)
        while link not in seen:
            seen[link] = None
            link = above[link].parent
        order = list(seen)
        cycle = set(order[order.index(link) :])
        loop = {link: joint for link, joint in above.items() if link in cycle}
        first, names = next(iter(loop.values())), listed(joint.name for joint in loop.values())
        reason = f"a loop of the joints {names} and links {listed(loop)}"
        fail(first.element, f"{reason}; URDF describes trees only: remove one of the joints")
    return roots[0], children


def read_mimics(joints: list[UrdfJoint], coupled: list[UrdfJoint]) -> dict[str, Mimic]:
    """By joint that mimics another: the one at the end of the line that it follows."""
    known = {joint.name: joint for joint in joints}
    advice = "correct <mimic>, or load with mimic='independent', which does not read it"
    direct: dict[str, Mimic] = {}
    for joint in coupled:
        element = joint.element.required("mimic")
        leader = element.attribute("joint")
        if leader not in known:
            reason = f"the joint that it mimics does not exist: {unknown(leader, known, 'joint')}"
            fail(element, f"{reason}; {advice}")
        for one in (joint, known[leader]):
            if one.type not in ONE_AXIS:
                reason = f"joint {shown(joint.name)} mimics {shown(leader)}, but joint {shown(one.name)} is {one.type}"
                fail(element, f"{reason}; both must have one degree of freedom; {advice}")
        read = [element.number(a) if a in element.attributes else None for a in ("multiplier", "offset")]
        multiplier, offset = (default if x is None else x for x, default in zip(read, (1.0, 0.0), strict=True))
        direct[joint.name] = Mimic(leader, multiplier, offset)
    resolved: dict[str, Mimic] = {}
    for name in list(direct):
        line: dict[str, Mimic] = {}
        while name in direct and name not in resolved:
            if name in line:
                order = list(line)
                reason = f"joints mimic each other: {listed(order[order.index(name) :])}"
                fail(known[name].element, f"{reason}; one of them must mimic none; {advice}")
            line[name] = direct[name]
            name = direct[name].joint
        for follower, own in reversed(line.items()):
            leader = resolved.get(own.joint)
            if leader is not None:
                # q = m (m' q' + o') + o
                m, o = own.multiplier, own.offset
                own = Mimic(leader.joint, m * leader.multiplier, m * leader.offset + o)
            resolved[follower] = own
    return resolved
