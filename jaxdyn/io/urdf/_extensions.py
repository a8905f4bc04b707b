"""Facts about joints outside of the URDF standard: rotor inertias in transmissions, and this library's own element."""

from __future__ import annotations

import re
from typing import NamedTuple

from jaxdyn.io.robot_files import quote
from jaxdyn.io.urdf._link_tree import ROOT_JOINT
from jaxdyn.io.urdf._xml import Element, fail, unknown_name
from jaxdyn.joints import joint_nq, joint_nv
from jaxdyn.model import JOINT_FIELDS, LEAVES

NAMESPACE = "urn:jaxdyn"
"""The namespace of the prefix `jaxdyn` in files that this library writes."""

JOINT_TAG = "jaxdyn:joint"
FRAME_ATTRIBUTE = "jaxdyn:frame"


def joint_extensions(robot: Element, types: dict[str, str]) -> dict[str, dict[str, list[float]]]:
    """Return, by joint, the fields that `<jaxdyn:joint name=...>` has, one number for each coordinate or velocity.
    `types` is the type of every joint that moves, by name."""
    extensions: dict[str, dict[str, list[float]]] = {}
    for element in robot.all(JOINT_TAG):
        name = _joint_name(element, types)
        if name in extensions:
            fail(element, f"<{JOINT_TAG}> is given twice for this joint; remove one")
        extensions[name] = {}
        for attribute in element.attributes:
            if attribute == "name" or ":" in attribute:
                continue
            if attribute not in JOINT_FIELDS:
                known = ", ".join(JOINT_FIELDS)
                fail(element, f"unknown attribute {quote(attribute)} of <{JOINT_TAG}>; known: {known}")
            leaf = LEAVES[JOINT_FIELDS[attribute]]
            size = (joint_nq if leaf.rows == "q" else joint_nv)(types[name])
            parse = element.numbers if leaf.finite else element.limits
            extensions[name][attribute] = parse(attribute, size)
    return extensions


def armatures(robot: Element, types: dict[str, str]) -> tuple[dict[str, float], list[Element]]:
    """Return, by joint, the rotor inertias in its transmissions as the joint sees them; and the elements of rotors that
    could not be read.

    The URDF standard does not have them (https://github.com/ros/urdfdom/issues/78). Two extensions are in use, both
    inside the `<actuator>` of a transmission of one actuator and one joint:

    - `<drake:rotor_inertia value="J"/>` and `<drake:gear_ratio value="n"/>` (Drake);
    - `<motorInertia>J</motorInertia>` (FROST), with the standard's `<mechanicalReduction>n</mechanicalReduction>`.

    The rotor turns `n` times as fast as the joint (ros_control's `SimpleTransmission`), its kinetic energy is
    `J (n v)^2 / 2`, so it adds `J n^2` to the joint's inertia.
    """
    inertias: dict[str, float] = {}
    unread = []
    for transmission in robot.all("transmission"):
        rotors = [element for element in transmission.below() if is_rotor(element)]
        inertia = _reflected_inertia(transmission, rotors, types) if rotors else None
        if inertia is None:
            unread += rotors
            continue
        joint = transmission.require("joint").attribute("name")
        inertias[joint] = inertias.get(joint, 0.0) + inertia
    return inertias, unread


def _reflected_inertia(transmission: Element, rotors: list[Element], types: dict[str, str]) -> float | None:
    """Return `J n^2` of a transmission with these elements of rotors; None if it is not one of those that are read."""
    rotor = simple_rotor(transmission, rotors, types)
    return None if rotor is None else rotor.inertia * rotor.ratio**2


class Rotor(NamedTuple):
    """The rotor of a transmission of one actuator and one joint."""

    element: Element
    """The one that says the inertia: `<drake:rotor_inertia>` or `<motorInertia>`."""
    inertia: float
    ratio: float
    joint: str


def simple_rotor(transmission: Element, rotors: list[Element], types: dict[str, str]) -> Rotor | None:
    """Return the rotor of a transmission with these elements of rotors; None if it is not one of those that are
    read."""
    joints, actuators = transmission.all("joint"), transmission.all("actuator")
    kind = transmission.attributes.get("type") or "".join(x.text for x in transmission.all("type"))
    if len(joints) != 1 or len(actuators) != 1 or (kind and not kind.endswith("SimpleTransmission")):
        return None
    (actuator,) = actuators
    readable = [x for x in actuator.children if x.tag in ("drake:rotor_inertia", "motorInertia")]
    if not all(any(x is rotor for x in readable) for rotor in rotors):
        return None
    drake, frost = actuator.child("drake:rotor_inertia"), actuator.child("motorInertia")
    if drake is not None and frost is not None:
        fail(frost, "<drake:rotor_inertia> and <motorInertia> both give the rotor's inertia; remove one")
    if drake is not None:
        inertia, gear = drake.number("value", minimum=0.0), actuator.child("drake:gear_ratio")
        ratio = 1.0 if gear is None else gear.number("value")
    else:
        assert frost is not None
        inertia, gear = frost.text_number(minimum=0.0), actuator.child("mechanicalReduction")
        ratio = 1.0 if gear is None else gear.text_number()
        # The file does not say between what and what further reductions reduce.
        if any(
            x.tag == "mechanicalReduction" and x is not gear and x.text_number() != 1.0 for x in transmission.below()
        ):
            return None
    if ratio == 0 and gear is not None:
        fail(gear, f"<{gear.tag}> is zero: the rotor would not turn; give how often it turns for one of the joint")
    is_fixed = types.get(joints[0].attribute("name")) == "fixed"
    if is_fixed or joint_nv(types[_joint_name(joints[0], types)]) != 1:
        return None
    element = frost if drake is None else drake
    assert element is not None
    return Rotor(element, inertia, ratio, joints[0].attribute("name"))


def is_rotor(element: Element) -> bool:
    """Return whether the tag reads like the inertia of a motor's rotor."""
    return re.sub("[^a-z]", "", element.tag.lower()).endswith(("rotorinertia", "motorinertia"))


def _joint_name(element: Element, types: dict[str, str]) -> str:
    name = element.attribute("name")
    if name not in types:
        hint = "; perhaps free_base=True is meant" if name == ROOT_JOINT else ""
        fail(element, unknown_name(name, types, "joint") + hint)
    return name
