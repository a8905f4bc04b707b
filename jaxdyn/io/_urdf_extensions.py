"""What files say of joints outside of the URDF standard: rotor inertias in transmissions, and this library's own."""

from __future__ import annotations

import re

from jaxdyn.io._urdf_tree import ROOT_JOINT
from jaxdyn.io._urdf_xml import Element, fail, shown, unknown
from jaxdyn.model._topology import joint_nq, joint_nv

NAMESPACE = "urn:jaxdyn"
"""Of the prefix `jaxdyn` in files that this library writes."""

JOINT_TAG = "jaxdyn:joint"
FRAME_ATTRIBUTE = "jaxdyn:frame"

PER_VELOCITY = ("armature", "damping", "friction", "friction_velocity", "stiffness", "velocity_limit", "effort_limit")
PER_COORDINATE = ("spring_reference", "lower", "upper")
LIMITS = ("velocity_limit", "effort_limit", "lower", "upper")


def joint_extensions(robot: Element, types: dict[str, str]) -> dict[str, dict[str, list[float]]]:
    """By joint: what `<jaxdyn:joint name=...>` says of it, one number for each of its coordinates.

    `types`: the type of every joint that moves, by name.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for element in robot.named(JOINT_TAG):
        name = _known(element, types)
        if name in found:
            fail(element, f"<{JOINT_TAG}> is given twice for this joint; remove one")
        found[name] = {}
        for attribute in element.attributes:
            if attribute == "name" or ":" in attribute:
                continue
            if attribute not in PER_VELOCITY + PER_COORDINATE:
                known = ", ".join(PER_VELOCITY + PER_COORDINATE)
                fail(element, f"unknown attribute {shown(attribute)} of <{JOINT_TAG}>; known: {known}")
            size = (joint_nq if attribute in PER_COORDINATE else joint_nv)(types[name])
            parse = element.limits if attribute in LIMITS else element.numbers
            found[name][attribute] = parse(attribute, size)
    return found


def armatures(robot: Element, types: dict[str, str]) -> tuple[dict[str, float], list[Element]]:
    """By joint: the rotor inertias in its transmissions, seen from the joint; and the elements that could not be read.

    The URDF standard has none (https://github.com/ros/urdfdom/issues/78). Two extensions are in use, both inside the
    `<actuator>` of a transmission of one actuator and one joint:

    - `<drake:rotor_inertia value="J"/>` and `<drake:gear_ratio value="n"/>` (Drake);
    - `<motorInertia>J</motorInertia>` (FROST), with the standard's `<mechanicalReduction>n</mechanicalReduction>`.

    The rotor turns `n` times as fast as the joint (ros_control's `SimpleTransmission`), its kinetic energy is
    `J (n v)^2 / 2`, so it adds `J n^2` to the joint's inertia.
    """
    found: dict[str, float] = {}
    unread = []
    for transmission in robot.named("transmission"):
        rotors = [element for element in transmission.below() if is_rotor(element)]
        if not rotors:
            continue
        joints, actuators = transmission.named("joint"), transmission.named("actuator")
        kind = transmission.attributes.get("type") or "".join(x.text for x in transmission.named("type"))
        simple = len(joints) == len(actuators) == 1 and (not kind or kind.endswith("SimpleTransmission"))
        known = simple and all(
            any(x is rotor for x in actuators[0].children) and rotor.tag in ("drake:rotor_inertia", "motorInertia")
            for rotor in rotors
        )
        if not known:
            unread += rotors
            continue
        (actuator,) = actuators
        theirs, motors = actuator.child("drake:rotor_inertia"), actuator.child("motorInertia")
        if theirs is not None and motors is not None:
            fail(motors, "<drake:rotor_inertia> and <motorInertia> both give the rotor's inertia; remove one")
        if theirs is not None:
            inertia, gear = theirs.number("value", minimum=0.0), actuator.child("drake:gear_ratio")
            ratio = 1.0 if gear is None else gear.number("value")
        else:
            assert motors is not None
            inertia, gear = motors.text_number(minimum=0.0), actuator.child("mechanicalReduction")
            ratio = 1.0 if gear is None else gear.text_number()
            others = [x for x in transmission.below() if x.tag == "mechanicalReduction" and x is not gear]
            if any(x.text_number() != 1.0 for x in others):
                # Between what and what they reduce is not said.
                unread += rotors
                continue
        if ratio == 0 and gear is not None:
            fail(gear, f"<{gear.tag}> is zero: the rotor would not turn; give how often it turns for one of the joint")
        name = joints[0].attribute("name")
        if types.get(name) == "fixed" or joint_nv(types[_known(joints[0], types)]) != 1:
            unread += rotors
            continue
        found[name] = found.get(name, 0.0) + inertia * ratio**2
    return found, unread


def is_rotor(element: Element) -> bool:
    """Whether the tag reads like the inertia of a motor's rotor."""
    return re.sub("[^a-z]", "", element.tag.lower()).endswith(("rotorinertia", "motorinertia"))


def _known(element: Element, types: dict[str, str]) -> str:
    name = element.attribute("name")
    if name not in types:
        hint = "; perhaps free_base=True is meant" if name == ROOT_JOINT else ""
        fail(element, unknown(name, types, "joint") + hint)
    return name
