"""Parts of URDF files that models leave out: what is not part of the format, what is for simulators, and shapes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from jaxdyn.io.robot_files import LeftOut, present, quote
from jaxdyn.io.urdf import _link_tree as tree
from jaxdyn.io.urdf._extensions import JOINT_TAG, armatures, is_rotor
from jaxdyn.io.urdf._xml import SKIPPED_TAGS, Element, read_robot

# The elements and attributes that are read, or that say nothing about the dynamics. All others are warned of: they may
# be mistakes.
_TAGS = {
    "robot": {"link", "joint", "material", "gazebo", "transmission", "sensor", "ros2_control", JOINT_TAG},
    "link": {"inertial", "visual", "collision", "contact", "sensor"},
    "joint": {"origin", "parent", "child", "axis", "limit", "dynamics", "mimic", "calibration", "safety_controller"},
    "inertial": {"origin", "mass", "inertia"},
}
_UNREAD_TAGS = {"fixed": ("mimic",), "planar": ("limit", "dynamics"), "floating": ("limit", "dynamics")}
PRODUCTS = ("ixy", "ixz", "iyz")
INERTIA = {"ixx", "iyy", "izz", *PRODUCTS}
_ATTRIBUTES = {
    "link": {"name", "type"},
    "joint": {"name", "type"},
    "inertial": set(),
    "origin": {"xyz", "rpy", "quat_xyzw"},
    "mass": {"value"},
    "inertia": INERTIA,
    "parent": {"link"},
    "child": {"link"},
    "axis": {"xyz"},
    "limit": {"lower", "upper", "effort", "velocity", "acceleration", "deceleration", "jerk"},
    "dynamics": {"damping", "friction"},
    "mimic": {"joint", "multiplier", "offset"},
}


def unread_parts(robot: Element, joints: Sequence[tree.UrdfJoint], rotors: Iterable[Element]) -> LeftOut:
    """Return the elements and attributes that are no part of the format that is read, and that may be mistakes, or mean
    something to other programs; each is named once. `rotors` are elements of rotors that could not be read."""
    unread = [(element, f"<{element.tag}>") for element in rotors]
    for control in robot.all("ros2_control"):
        unread += [(element, f"<{element.tag}>") for element in control.below() if is_rotor(element)]
    inertials = [inertial for link in robot.all("link") for inertial in link.all("inertial")]
    for parent in (robot, *robot.all("link"), *inertials, *robot.all("joint")):
        skipped = SKIPPED_TAGS | _TAGS[parent.tag]
        unread += [(child, f"<{child.tag}>") for child in parent.children if child.tag not in skipped]
        for element in (parent, *parent.children) if parent is not robot else ():
            # Those with a prefix are other programs'.
            unread += [
                (element, f"{quote(a)} in <{element.tag}>")
                for a in element.attributes
                if a not in _ATTRIBUTES.get(element.tag, element.attributes) and ":" not in a
            ]
    for joint in joints:
        for tag in _UNREAD_TAGS.get(joint.type, ()):
            unread += [(element, f"<{tag}> of a {joint.type} joint") for element in joint.element.all(tag)]
        for limit in joint.element.all("limit") if joint.type == "continuous" else ():
            bounds = [a for a in ("lower", "upper") if a in limit.attributes]
            unread += [(limit, f"{quote(a)} in <limit> of a continuous joint") for a in bounds]
    first: dict[str, Element] = {}
    for element, what in unread:
        first.setdefault(what, element)
    places = tuple(f"{what} (line {e.line}, {e.owner})" for what, e in first.items())
    return LeftOut("no part of URDF that is read, each named once", places, True)


def left_out_of_urdf(
    path_or_text: str | os.PathLike, package_dirs: Sequence[str | os.PathLike] = ()
) -> tuple[LeftOut, ...]:
    """Return what the file has and its model leaves out. See `left_out`."""
    robot = read_robot(path_or_text, package_dirs, strict=False, skipped_tags=frozenset())
    joints = tree.read_joints(robot)
    _, rotors = armatures(robot, {joint.name: "free" if joint.type == "floating" else joint.type for joint in joints})
    bounded = [x for x in joints if x.type in ("revolute", "prismatic") and x.element.all("limit")]
    bounds = "position_lower and position_upper, which dynamics ignore"
    return present(
        [
            unread_parts(robot, joints, rotors),
            LeftOut("ranges of joints", tuple(quote(joint.name) for joint in bounded), False, bounds),
            *(
                LeftOut(f"<{tag}> of links", _owners(robot, "link", tag), False, note)
                for tag, note in _OF_LINKS.items()
            ),
            *(LeftOut(f"<{tag}> of joints", _owners(robot, "joint", tag), False) for tag in _OF_JOINTS),
            *(LeftOut(f"<{tag}>", _labels(robot.all(tag)), False, x) for tag, x in _OF_ROBOTS.items()),
        ]
    )


_OF_LINKS = {
    "collision": "jaxdyn.load_contact_shapes reads them",
    "visual": "jaxdyn.viz.load_visuals reads them",
    "contact": "",
    "sensor": "",
}
_OF_JOINTS = ("safety_controller", "calibration")
_OF_ROBOTS = {
    "transmission": "rotor inertias in them are read where they are unambiguous",
    "gazebo": "settings and plugins of a simulator, which may act there",
    "ros2_control": "",
    "sensor": "",
}


def _owners(robot: Element, parent: str, tag: str) -> tuple[str, ...]:
    return tuple(quote(x.attributes.get("name", "")) for x in robot.all(parent) for _ in x.all(tag))


def _labels(elements: Sequence[Element]) -> tuple[str, ...]:
    labels = (element.attributes.get("name") or element.attributes.get("reference") or "" for element in elements)
    return tuple(quote(x) if x else f"line {e.line}" for x, e in zip(labels, elements, strict=True))
