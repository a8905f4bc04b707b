"""`to_urdf`: a model as URDF text."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import xml.etree.ElementTree as ET

import numpy as np

from jaxdyn._errors import ModelError, require_kind
from jaxdyn.io.robot_files import EditedText, enumerate_items, enumerate_names, warn
from jaxdyn.io.urdf._extensions import FRAME_ATTRIBUTE, JOINT_TAG, NAMESPACE
from jaxdyn.io.urdf._link_tree import ROOT_JOINT, WORLD
from jaxdyn.io.urdf._written_numbers import (
    MANY_AXES,
    URDF_TYPES,
    WrittenNumbers,
    gravity_notes,
    limits_text,
    numbers_text,
    own_element_notes,
)
from jaxdyn.io.urdf._xml import read_robot, urdf_text
from jaxdyn.model import JOINT_FIELDS, LEAVES, Model, depth_first
from jaxdyn.spatial import IDENTITY_POSE, inertia_elements, quaternion_to_rpy

_EXTENDED = ("friction_velocity", "stiffness", "spring_reference")
"""Fields that have no place in the standard for any joint."""

# The characters that XML 1.0 cannot write.
_UNWRITABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def to_urdf(model: Model, name: str = "robot", *, shapes_from: str | os.PathLike | None = None) -> str:
    """Return the model as URDF text, which `load_urdf` reads as the same model, also after identification or edits.

    Numbers have all their digits. Links that were merged into a body are links again, with the inertia that
    `Model.link_parameters` gives them, fixed to their body; other frames become links without inertia, or, where they
    coincide with the link before them, as the names of fixed joints do, the name of its fixed joint. Joints keep
    placement, axis, limits, damping, Coulomb friction, and the joint that they mimic. Some quantities have no place in
    the URDF standard:

    - armature is written in a transmission, as Drake's `<drake:rotor_inertia>` with the gear ratio 1;
    - the transition velocity of the Coulomb friction (where it is not the default), springs, and all that acts in or
      limits planar and floating joints is written in `<jaxdyn:joint name=...>`, which other readers pass over;
    - an infinite limit is written as the largest double-precision number;
    - **gravity is left out**: `load_urdf(text, gravity=model.gravity)`.

    A robot with the free base that `load_urdf` makes (its first joint, free, `root_joint`, at the world's origin, the
    only one in the world) is written without that joint: **load it with `free_base=True`**. All other free joints are
    floating ones. Where links fixed in the world do not begin with one at its origin, the root link is `world`.

    **Arguments**

    - `name`: the robot's name.
    - `shapes_from`: a URDF file, or its text, such as that from which the model was loaded: links get the `<visual>`
      and `<collision>` elements that links of the same names have there, and the robot its materials. Lengths in
      them stay as they are.

    **Raises** `ModelError` for helical, cylindrical, universal and ball joints, which URDF does not have; for planar
    joints whose axes do not follow from their normal; for a model with closed loops, with batch axes, with numbers that
    are not finite (limits may be infinite), with a negative mass, armature or friction, or with names that XML cannot
    hold.

    Shapes, and whatever else the user's file had, are not in a model (see `shapes_from`): `patch_urdf` writes a
    model's numbers into the file and keeps all of it. Links without known inertia (`kinematics_only`) have no
    `<inertial>`.

    **Warns** `RobotFileWarning` where a body has less mass than the links merged into it, as after identification of
    the sum: their inertia is then written with the body's link, which moves the same but no longer separates them.
    Also, once, of what other readers pass over, with the names of the joints: armature (Drake reads it, MuJoCo and
    Pinocchio do not; `to_mjcf` writes it for MuJoCo), what is in `<jaxdyn:joint>`, and gravity that is not the
    standard one. And of links in `shapes_from` that the model does not have.
    """
    require_kind(model, Model, "to_urdf: `model`", error=ModelError)
    if not isinstance(name, str) or not name:
        raise ModelError(f"the robot's name is {name!r}; a string that is not empty is needed")
    text = _Writer(model, name).text()
    return text if shapes_from is None else _with_shapes(text, shapes_from)


def _with_shapes(text: str, shapes_from: str | os.PathLike) -> str:
    """Return a URDF text in which links have the shapes, and the robot the materials, of another one."""
    # What cannot be read as URDF is refused here.
    source = read_robot(shapes_from, (), strict=False).source.name
    edited, other = EditedText(text), EditedText(urdf_text(shapes_from))
    links = {place.attributes["name"]: place for place in edited.root.all("link")}
    without = []
    for link in other.root.all("link"):
        shapes = [other.piece(x) for x in link.children if x.tag in ("visual", "collision")]
        if shapes and link.attributes.get("name") in links:
            edited.append(links[link.attributes["name"]], shapes)
        elif shapes:
            without.append(link.attributes.get("name", ""))
    edited.append(edited.root, [other.piece(x) for x in other.root.all("material")])
    if without:
        warn(f"{source}: shapes of links that the model does not have are left out: {enumerate_names(without)}")
    return edited.text()


@dataclasses.dataclass
class _Link:
    """A link that is fixed to a body, or to the world."""

    name: str
    frame: int
    joint: str | None
    """Name of its fixed joint, if that is a frame, too."""


class _Writer:
    def __init__(self, model: Model, name: str):
        self.written = WrittenNumbers(model)
        self.leaves, self.topology = self.written.leaves, model.topology
        self.robot = ET.Element("robot", name=_xml_name(name))
        self.joint_names = set(self.topology.joint_names)
        self.root = WORLD
        self.transmissions: list[ET.Element] = []
        self.extensions: list[ET.Element] = []

    def text(self) -> str:
        topology, fixed = self.topology, self._fixed_links()
        children = self._children(fixed)
        free_base = (
            (topology.joint_names[0], topology.joint_types[0]) == (ROOT_JOINT, "free")
            and _is_identity(self.leaves["joint_placement"][0])
            and children[-1] == [0]
        )
        items = children[-1]
        if free_base:
            self.root, items = topology.body_names[0], children[0]
            self._extension(0)
        elif fixed.get(-1):
            first = fixed[-1][0]
            if _is_identity(self.leaves["frame_placement"][first.frame]) and first.joint is None:
                self.root = first.name
                items.remove(first)
        self._link(self.root)
        for item in depth_first(items, lambda item: [] if isinstance(item, _Link) else children[item]):
            if isinstance(item, _Link):
                self._fixed_joint(item)
            else:
                self._joint(item)
        self.robot.extend(self.transmissions + self.extensions)
        self._declare_prefixes()
        self._warn_of_what_others_pass_over()
        ET.indent(self.robot)
        return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(self.robot, encoding="unicode") + "\n"

    # Structure.

    def _fixed_links(self) -> dict[int, list[_Link]]:
        """Return, by body (-1: the world), the links that are fixed to it, in the order of the frames."""
        topology, placements = self.topology, self.leaves["frame_placement"]
        out: dict[int, list[_Link]] = {}
        joint = None
        # From behind, a frame without inertia that coincides with the one before it is the name of that one's joint.
        for k in reversed(range(topology.nb, len(topology.frame_names))):
            name, body = topology.frame_names[k], topology.frame_bodies[k]
            if (
                joint is None
                and k > topology.nb
                and name not in topology.attached_links
                and name not in self.joint_names
                and topology.frame_bodies[k - 1] == body
                and np.array_equal(placements[k - 1], placements[k])
            ):
                joint = name
                self.joint_names.add(joint)
            else:
                out.setdefault(body, []).append(_Link(name, k, joint))
                joint = None
        return {body: links[::-1] for body, links in out.items()}

    def _children(self, fixed: dict[int, list[_Link]]) -> dict[int, list[int | _Link]]:
        """Return what each body carries: the bodies in their order, and fixed links between them, so that a depth-first
        walk meets the frames in their order, too, where one can."""
        topology = self.topology
        # The first frame behind each body; the last entry is for the world.
        first = [math.inf] * (topology.nb + 1)
        for body, links in fixed.items():
            first[body] = links[0].frame
        moved: dict[int, list[int]] = {i: [] for i in range(-1, topology.nb)}
        for body, parent in reversed(list(enumerate(topology.parents))):
            moved[parent].insert(0, body)
            first[parent] = min(first[parent], first[body])
        out: dict[int, list[int | _Link]] = {}
        for body, bodies in moved.items():
            waiting, items = list(fixed.get(body, [])), []
            for child in bodies:
                while waiting and waiting[0].frame < first[child] < math.inf:
                    items.append(waiting.pop(0))
                items.append(child)
            out[body] = items + waiting
        return out

    # Links.

    def _link(self, link: str) -> None:
        element = ET.SubElement(self.robot, "link", name=_xml_name(link))
        found = self.written.inertial(link)
        if found is None:
            return
        where = f"link {link!r}"
        inertial = ET.SubElement(element, "inertial")
        ET.SubElement(inertial, "origin", xyz=numbers_text(found.center, where), rpy="0.0 0.0 0.0")
        ET.SubElement(inertial, "mass", value=numbers_text(found.mass, where))
        moments = dict(zip(("ixx", "ixy", "iyy", "ixz", "iyz", "izz"), inertia_elements(found.rotational), strict=True))
        ET.SubElement(inertial, "inertia", {key: numbers_text(moments[key], where) for key in sorted(moments)})

    # Joints.

    def _between(self, joint: str, kind: str, parent: int, child: str, placement: np.ndarray) -> ET.Element:
        """Add a joint between a body (-1: the world) and a link."""
        element = ET.SubElement(self.robot, "joint", name=_xml_name(joint), type=kind)
        where = f"placement of joint {joint!r}"
        rpy = quaternion_to_rpy(placement[3:])
        ET.SubElement(element, "origin", xyz=numbers_text(placement[:3], where), rpy=numbers_text(rpy, where))
        ET.SubElement(element, "parent", link=self.root if parent < 0 else self.topology.body_names[parent])
        ET.SubElement(element, "child", link=child)
        return element

    def _fixed_joint(self, link: _Link) -> None:
        self._link(link.name)
        joint, count = link.joint or f"{link.name}_fixed", 1
        while link.joint is None and (joint in self.joint_names or joint in self.topology.frame_names):
            count += 1
            joint = f"{link.name}_fixed{count}"
        self.joint_names.add(joint)
        body, placement = self.topology.frame_bodies[link.frame], self.leaves["frame_placement"][link.frame]
        element = self._between(joint, "fixed", body, link.name, placement)
        if link.joint is None:
            element.set(FRAME_ATTRIBUTE, "no")

    def _joint(self, i: int) -> None:
        topology = self.topology
        joint, kind, body = topology.joint_names[i], topology.joint_types[i], topology.body_names[i]
        self._link(body)
        self._transmission(i)
        self._extension(i)
        element = self._between(joint, URDF_TYPES[kind], topology.parents[i], body, self.leaves["joint_placement"][i])
        if kind == "free":
            return
        ET.SubElement(element, "axis", xyz=numbers_text(self.written.axis(i), f"axis of joint {joint!r}"))
        if kind == "planar":
            return
        fields = {key: values[0] for key, values in self.written.fields(i).items()}
        names = {"effort": "effort_limit", "velocity": "velocity_limit"}
        if kind != "continuous":
            names = {"lower": "lower", "upper": "upper"} | names
        limits = {a: fields.get(name, LEAVES[JOINT_FIELDS[name]].default) for a, name in names.items()}
        if kind != "continuous" or np.isfinite(list(limits.values())).any():
            ET.SubElement(element, "limit", {a: limits_text(x, f"{a} of joint {joint!r}") for a, x in limits.items()})
        if any(fields.get(a) for a in ("damping", "friction")):
            written = {a: numbers_text(fields[a], f"{a} of joint {joint!r}") for a in ("damping", "friction")}
            ET.SubElement(element, "dynamics", written)
        if i in topology.leaders:
            k = [follower for follower, _ in topology.mimics].index(i)
            where = f"mimic of joint {joint!r}"
            numbers = {a: numbers_text(self.leaves[f"mimic_{a}"][k], where) for a in ("multiplier", "offset")}
            ET.SubElement(element, "mimic", {"joint": topology.joint_names[topology.leaders[i]]} | numbers)

    def _extension(self, i: int) -> None:
        joint, kind = self.topology.joint_names[i], self.topology.joint_types[i]
        written = {}
        for field, values in self.written.fields(i).items():
            leaf = LEAVES[JOINT_FIELDS[field]]
            default = np.asarray(leaf.default, self.written.dtype).astype(np.float64)
            if field == "spring_reference" and kind == "free":
                default = IDENTITY_POSE
            if (kind in MANY_AXES or field in _EXTENDED) and (values != default).any():
                where = f"{field} of joint {joint!r}"
                written[field] = numbers_text(values, where) if leaf.finite else limits_text(values, where)
        if written:
            self.extensions.append(ET.Element(JOINT_TAG, {"name": joint} | written))

    def _transmission(self, i: int) -> None:
        topology, joint = self.topology, self.topology.joint_names[i]
        armature = self.written.fields(i).get("armature", np.zeros(1))
        if topology.joint_types[i] in MANY_AXES or not armature[0]:
            return
        element = ET.Element("transmission", name=f"{joint}_transmission")
        ET.SubElement(element, "type").text = "transmission_interface/SimpleTransmission"
        actuated = ET.SubElement(element, "joint", name=joint)
        actuator = ET.SubElement(element, "actuator", name=f"{joint}_actuator")
        for part in (actuated, actuator):
            ET.SubElement(part, "hardwareInterface").text = "EffortJointInterface"
        ET.SubElement(actuator, "mechanicalReduction").text = "1"
        value = numbers_text(armature[0], f"armature of joint {joint!r}")
        ET.SubElement(actuator, "drake:rotor_inertia", value=value)
        ET.SubElement(actuator, "drake:gear_ratio", value="1")
        self.transmissions.append(element)

    def _warn_of_what_others_pass_over(self) -> None:
        passed = []
        if self.transmissions:
            names = enumerate_names(str(x.get("name")).removesuffix("_transmission") for x in self.transmissions)
            readers = "which Drake reads, but MuJoCo (use to_mjcf) and Pinocchio do not"
            passed.append(f"in <transmission>, {readers}: armature of joint {names}")
        passed += own_element_notes({str(x.get("name")): [a for a in x.attrib if a != "name"] for x in self.extensions})
        passed += gravity_notes(self.leaves["gravity"])
        if passed:
            warn(f"not all readers of this URDF will have the same motion: {enumerate_items(passed)}")

    def _declare_prefixes(self) -> None:
        used = {x.split(":")[0] for e in self.robot.iter() for x in (e.tag, *e.attrib) if ":" in x}
        for prefix, namespace in (("drake", "http://drake.mit.edu"), ("jaxdyn", NAMESPACE)):
            if prefix in used:
                self.robot.set(f"xmlns:{prefix}", namespace)


def _is_identity(placement: np.ndarray) -> bool:
    return not placement[:3].any() and not placement[4:].any()


def _xml_name(name: str) -> str:
    unwritable = _UNWRITABLE.search(name)
    if unwritable:
        raise ModelError(f"the name {name!r} has the character {unwritable[0]!r}, which XML cannot hold; rename it")
    return name
