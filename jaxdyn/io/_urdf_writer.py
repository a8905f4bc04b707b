"""`to_urdf`: a model as URDF text."""

from __future__ import annotations

import dataclasses
import math
import re
import xml.etree.ElementTree as ET
from typing import Any

import numpy as np

from jaxdyn._errors import ModelError
from jaxdyn.io._urdf_extensions import FRAME_ATTRIBUTE, JOINT_TAG, LIMITS, NAMESPACE, PER_COORDINATE, PER_VELOCITY
from jaxdyn.io._urdf_tree import ROOT_JOINT, WORLD
from jaxdyn.io._urdf_xml import LARGEST, UNLIMITED, warn
from jaxdyn.model import FRICTION_VELOCITY, Model
from jaxdyn.model._builder import _plane
from jaxdyn.model._inertia import moved_parameters, rotational_about_center
from jaxdyn.spatial import Pose

_TYPES = {
    "revolute": "revolute",
    "continuous": "continuous",
    "prismatic": "prismatic",
    "planar": "planar",
    "free": "floating",
}
_TABLES = ("joint_placement", "joint_axis", "inertial_parameters", "frame_placement", "attached_parameters")
_GROUPS = (slice(0, 1), slice(1, 4), slice(4, 10))

# What XML 1.0 has no way to write.
_UNWRITABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def to_urdf(model: Model, name: str = "robot") -> str:
    """The model as URDF text, which `load_urdf` reads as the same model, whatever was identified or changed in it.

    Numbers have all their digits. Links that were merged into a body are links again, with the inertia that
    `Model.link_parameters` has of them, fixed to their body; other frames become links without inertia, or, where they
    coincide with the link before them, as the names of fixed joints do, the name of its fixed joint. Joints keep
    placement, axis, limits, damping, Coulomb friction, and whom they mimic. What the URDF standard has no place for:

    - armature stands in a transmission, as Drake's `<drake:rotor_inertia>` with the gear ratio 1;
    - transition velocity of the Coulomb friction (where it is not the default), springs, and whatever acts in or
      limits planar and floating joints stands in `<jaxdyn:joint name=...>`, which other readers pass over;
    - no limit is the largest double-precision number;
    - **gravity is left out**: `load_urdf(text, gravity=model.gravity)`.

    A robot with the free base that `load_urdf` makes (its first joint, free, `root_joint`, at the world's origin, the
    only one in the world) is written without that joint: **load it with `free_base=True`**. All other free joints are
    floating ones. Where links fixed in the world do not begin with one at its origin, the root link is `world`.
    In single precision the numbers are those of the model.

    **Arguments**

    - `name`: of the robot.

    **Raises** `ModelError` for helical, cylindrical, universal and ball joints, which URDF does not have; for planar
    joints whose axes are not those that follow from their normal; for a model with batch axes, with numbers that
    are not finite (limits may be infinite), with a negative mass, armature or friction, or with names that XML cannot
    hold.

    **Warns** `RobotFileWarning` where a body has less mass than the links merged into it, as after identification of
    the sum: their inertia is then written with the body's link, which moves the same but tells them no longer apart.
    """
    if not isinstance(name, str) or not name:
        raise ModelError(f"the robot's name is {name!r}; a string that is not empty is needed")
    return _Writer(model, name).text()


@dataclasses.dataclass
class _Link:
    """A link that is fixed to a body, or to the world."""

    name: str
    frame: int
    joint: str | None
    """Name of its fixed joint, if that is a frame, too."""


class _Writer:
    def __init__(self, model: Model, name: str):
        for field in dataclasses.fields(model):
            value = getattr(model, field.name)
            if field.name == "topology" or value is None:
                continue
            axes = value.shape[: value.ndim - (2 if field.name in _TABLES else 1)]
            if axes:
                raise ModelError(
                    f"{field.name} of the model has batch axes {axes}: take one element first, for instance "
                    "jax.tree.map(lambda x: x[0], model)"
                )
        self.model, self.topology = model, model.topology
        self.eps = float(np.finfo(model.inertial_parameters.dtype).eps)
        self.leaves = {
            f.name: np.asarray(getattr(model, f.name), np.float64)
            for f in dataclasses.fields(model)
            if f.name != "topology" and getattr(model, f.name) is not None
        }
        self.robot = ET.Element("robot", name=_written(name))
        self.joint_names = set(self.topology.joint_names)
        self.inertias = self._inertias()
        self._check_joints()

    def text(self) -> str:
        topology = self.topology
        fixed = self._fixed_links()
        roots = [i for i, parent in enumerate(topology.parents) if parent < 0]
        root_joint = topology.joint_names[0] == ROOT_JOINT and topology.joint_types[0] == "free"
        at_origin = _is_identity(self.leaves["joint_placement"][0])
        extensions: list[ET.Element] = []
        transmissions: list[ET.Element] = []
        children = self._children(fixed)
        if roots == [0] and root_joint and at_origin and not fixed.get(-1):
            root: int | _Link = 0
            root_name = topology.body_names[0]
            self._link(root_name)
            extensions += self._extension(0)
            stack = children[0][::-1]
        else:
            first = fixed[-1][0] if fixed.get(-1) else None
            if first is not None and _is_identity(self.leaves["frame_placement"][first.frame]) and first.joint is None:
                root, root_name = first, first.name
                self._link(root_name)
            else:
                root, root_name = -1, WORLD
                ET.SubElement(self.robot, "link", name=WORLD)
            stack = [item for item in children[-1][::-1] if item is not root]
        while stack:
            item = stack.pop()
            if isinstance(item, _Link):
                self._fixed_joint(item, root_name)
                continue
            self._joint(item, root_name)
            extensions += self._extension(item)
            transmissions += self._transmission(item)
            stack.extend(children[item][::-1])
        self.robot.extend(transmissions)
        self.robot.extend(extensions)
        self._declare_prefixes()
        ET.indent(self.robot)
        return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(self.robot, encoding="unicode") + "\n"

    def _check_joints(self) -> None:
        bad = [
            f"{joint!r} ({kind})"
            for joint, kind in zip(self.topology.joint_names, self.topology.joint_types, strict=True)
            if kind not in _TYPES
        ]
        if bad:
            raise ModelError(
                f"URDF has no such joints: {', '.join(bad)}. A cylindrical or universal joint can be built as two "
                "joints with a massless link between them, which is another model; to_mjcf writes all but helical ones"
            )
        for i, (joint, kind) in enumerate(zip(self.topology.joint_names, self.topology.joint_types, strict=True)):
            at = slice(self.topology.q_starts[i], self.topology.q_starts[i + 1])
            limits = [self.leaves[f"position_{side}"][at] for side in ("lower", "upper")]
            if kind == "continuous" and np.isfinite(limits).any():
                raise ModelError(f"joint {joint!r} is continuous, but has limits; make it a revolute one")
            if (limits[0] > limits[1]).any():
                raise ModelError(f"joint {joint!r} has the limits {limits[0]} > {limits[1]}; swap or correct them")
            for field, values in self._fields(i).items():
                if field in PER_VELOCITY and (values < 0).any():
                    raise ModelError(
                        f"{field} of joint {joint!r} is negative, which no model can be read with: {values}"
                    )

    # Structure.

    def _fixed_links(self) -> dict[int, list[_Link]]:
        """By body (-1: the world): the links that are fixed to it, in the order of the frames."""
        topology, placements = self.topology, self.leaves["frame_placement"]
        out: dict[int, list[_Link]] = {}
        k = len(topology.frame_names) - 1
        # From behind, a frame without inertia that coincides with the one before it is the name of that one's joint.
        while k >= topology.nb:
            name, body = topology.frame_names[k], topology.frame_bodies[k]
            joint = None
            if (
                k - 1 >= topology.nb
                and name not in topology.attached_links
                and name not in self.joint_names
                and topology.frame_bodies[k - 1] == body
                and np.array_equal(placements[k - 1], placements[k])
            ):
                k, joint = k - 1, name
                self.joint_names.add(joint)
            out.setdefault(body, []).append(_Link(topology.frame_names[k], k, joint))
            k -= 1
        return {body: links[::-1] for body, links in out.items()}

    def _children(self, fixed: dict[int, list[_Link]]) -> dict[int, list[int | _Link]]:
        """What hangs on each body: the bodies in their order, and fixed links between them, so that a depth-first walk
        meets the frames in their order, too, where one can."""
        topology = self.topology
        first = [math.inf] * topology.nb
        for body, links in fixed.items():
            if body >= 0:
                first[body] = links[0].frame
        moved: dict[int, list[int]] = {i: [] for i in range(-1, topology.nb)}
        for body in range(topology.nb):
            moved[topology.parents[body]].append(body)
        for body in reversed(range(topology.nb)):
            if topology.parents[body] >= 0:
                first[topology.parents[body]] = min(first[topology.parents[body]], first[body])
        out: dict[int, list[int | _Link]] = {}
        for body, bodies in moved.items():
            waiting, items = list(fixed.get(body, [])), []
            for other in bodies:
                while waiting and waiting[0].frame < first[other] < math.inf:
                    items.append(waiting.pop(0))
                items.append(other)
            out[body] = items + waiting
        return out

    # Links.

    def _inertias(self) -> dict[str, np.ndarray]:
        """By link with inertia: its ten parameters in its own frame."""
        topology = self.topology
        totals, attached = self.leaves["inertial_parameters"], self.leaves["attached_parameters"]
        out: dict[str, np.ndarray] = {}
        for body, link in enumerate(topology.body_names):
            merged = [k for k, b in enumerate(topology.attached_bodies) if b == body]
            own = _difference(totals[body], attached[merged], 64 * self.eps)
            if own[0] < 0 <= totals[body, 0]:
                names = ", ".join(repr(topology.attached_links[k]) for k in merged)
                warn(
                    f"link {link!r}: its body has {totals[body, 0]:.6g} kg, the links that are fixed to it "
                    f"{attached[merged, 0].sum():.6g} kg ({names}); written with all of its body's inertia, and they "
                    "without"
                )
                own, merged = totals[body], []
            out[link] = own
            for k in merged:
                out[topology.attached_links[k]] = self._in_link_frame(k)
        for k, body in enumerate(topology.attached_bodies):
            if body < 0:
                out[topology.attached_links[k]] = self._in_link_frame(k)
        return out

    def _in_link_frame(self, attached: int) -> np.ndarray:
        placement = self.leaves["frame_placement"][self.topology.frame(self.topology.attached_links[attached])]
        back = Pose.from_vector(placement).inverse().translation
        inverse = np.array([back.x, back.y, back.z, placement[3], *-placement[4:]])
        return moved_parameters(self.leaves["attached_parameters"][attached], inverse)

    def _link(self, link: str) -> None:
        element = ET.SubElement(self.robot, "link", name=_written(link))
        parameters = self.inertias.get(link)
        if parameters is None or (link in self.topology.body_names and not parameters.any()):
            return
        where = f"link {link!r}"
        m, h = parameters[0], parameters[1:4]
        xx, xy, yy, xz, yz, zz = parameters[4:]
        if m < 0:
            raise ModelError(f"{where} has the negative mass {m:.6g} kg, which URDF cannot have; see nearest_physical")
        if m == 0 and h.any():
            raise ModelError(f"{where} has a first moment {h} kg m without mass, which URDF cannot express")
        center = np.zeros(3)
        if m > 0:
            center = h / m
            I = rotational_about_center(parameters)
            xx, xy, yy, xz, yz, zz = I[0, 0], I[0, 1], I[1, 1], I[0, 2], I[1, 2], I[2, 2]
        inertial = ET.SubElement(element, "inertial")
        ET.SubElement(inertial, "origin", xyz=_numbers(center, where), rpy="0.0 0.0 0.0")
        ET.SubElement(inertial, "mass", value=_numbers(m, where))
        moments = {"ixx": xx, "ixy": xy, "ixz": xz, "iyy": yy, "iyz": yz, "izz": zz}
        ET.SubElement(inertial, "inertia", {key: _numbers(value, where) for key, value in moments.items()})

    # Joints.

    def _frame_of(self, body: int, root: str) -> str:
        return root if body < 0 else self.topology.body_names[body]

    def _between(self, joint: str, kind: str, parent: str, child: str, placement: np.ndarray) -> ET.Element:
        element = ET.SubElement(self.robot, "joint", name=_written(joint), type=kind)
        where = f"placement of joint {joint!r}"
        rpy = roll_pitch_yaw(placement[3:])
        ET.SubElement(element, "origin", xyz=_numbers(placement[:3], where), rpy=_numbers(rpy, where))
        ET.SubElement(element, "parent", link=parent)
        ET.SubElement(element, "child", link=child)
        return element

    def _fixed_joint(self, link: _Link, root: str) -> None:
        parent = self._frame_of(self.topology.frame_bodies[link.frame], root)
        self._link(link.name)
        joint, count = link.joint or f"{link.name}_fixed", 1
        while link.joint is None and (joint in self.joint_names or joint in self.topology.frame_names):
            count += 1
            joint = f"{link.name}_fixed{count}"
        self.joint_names.add(joint)
        placement = self.leaves["frame_placement"][link.frame]
        element = self._between(joint, "fixed", parent, link.name, placement)
        if link.joint is None:
            element.set(FRAME_ATTRIBUTE, "no")

    def _joint(self, i: int, root: str) -> None:
        topology = self.topology
        joint, kind, body = topology.joint_names[i], topology.joint_types[i], topology.body_names[i]
        self._link(body)
        parent = self._frame_of(topology.parents[i], root)
        element = self._between(joint, _TYPES[kind], parent, body, self.leaves["joint_placement"][i])
        if kind == "free":
            return
        ET.SubElement(element, "axis", xyz=_numbers(self._axis(i), f"axis of joint {joint!r}"))
        if kind == "planar":
            return
        own = {key: values[0] for key, values in self._fields(i).items()}
        limits = {}
        if kind != "continuous":
            limits = {"lower": own.get("lower", -math.inf), "upper": own.get("upper", math.inf)}
        limits |= {a: own.get(f"{a}_limit", math.inf) for a in ("effort", "velocity")}
        if kind != "continuous" or np.isfinite(list(limits.values())).any():
            written = {a: _limits(x, f"{a} of joint {joint!r}") for a, x in limits.items()}
            ET.SubElement(element, "limit", written)
        if any(own.get(a) for a in ("damping", "friction")):
            written = {a: _numbers(own[a], f"{a} of joint {joint!r}") for a in ("damping", "friction")}
            ET.SubElement(element, "dynamics", written)
        if i in topology.leaders:
            k = [follower for follower, _ in topology.mimics].index(i)
            where = f"mimic of joint {joint!r}"
            ET.SubElement(
                element,
                "mimic",
                joint=topology.joint_names[topology.leaders[i]],
                multiplier=_numbers(self.leaves["mimic_multiplier"][k], where),
                offset=_numbers(self.leaves["mimic_offset"][k], where),
            )

    def _axis(self, i: int) -> np.ndarray:
        topology = self.topology
        tree = topology.spanning
        dofs = range(tree.v_starts[i], tree.v_starts[i + 1])
        axes = self.leaves["joint_axis"][np.flatnonzero(np.isin(topology.axis_dofs, dofs))]
        axes = axes / np.linalg.norm(axes, axis=1, keepdims=True)
        if topology.joint_types[i] == "planar":
            expected = np.array([*_plane(axes[2]), axes[2]])
            if not np.abs(axes - expected).max() < 64 * self.eps:
                raise ModelError(
                    f"planar joint {topology.joint_names[i]!r} has the axes {axes.tolist()}, but URDF has its normal "
                    f"only, from which {expected[:2].tolist()} follow; set them to these"
                )
        return axes[-1]

    def _fields(self, i: int) -> dict[str, np.ndarray]:
        """What acts in joint `i` or limits it, by the names of `Joint`'s fields; nothing where it mimics another."""
        topology = self.topology
        if i in topology.leaders:
            return {}
        at_q, at_v = (slice(s[i], s[i + 1]) for s in (topology.q_starts, topology.v_starts))
        names = {"lower": "position_lower", "upper": "position_upper"}
        return {
            field: self.leaves[leaf][at_q if field in PER_COORDINATE else at_v]
            for field in PER_VELOCITY + PER_COORDINATE
            if (leaf := names.get(field, field)) in self.leaves
        }

    def _extension(self, i: int) -> list[ET.Element]:
        topology, fields = self.topology, self._fields(i)
        kind = topology.joint_types[i]
        rest: dict[str, Any] = dict.fromkeys(fields, 0.0) | dict.fromkeys(LIMITS, math.inf) | {"lower": -math.inf}
        rest["friction_velocity"] = float(np.asarray(FRICTION_VELOCITY, self.model.friction_velocity.dtype))
        if "spring_reference" in fields and kind == "free":
            rest["spring_reference"] = np.array([0.0, 0, 0, 1, 0, 0, 0])
        of_one_axis = {"armature", "damping", "friction", *LIMITS}
        written = {}
        for field, values in fields.items():
            if (values == rest[field]).all() or (kind not in ("planar", "free") and field in of_one_axis):
                continue
            where = f"{field} of joint {topology.joint_names[i]!r}"
            written[field] = _limits(values, where) if field in LIMITS else _numbers(values, where)
        return [ET.Element(JOINT_TAG, {"name": topology.joint_names[i]} | written)] if written else []

    def _transmission(self, i: int) -> list[ET.Element]:
        topology, joint = self.topology, self.topology.joint_names[i]
        armature = self._fields(i).get("armature", np.zeros(1))
        if topology.joint_types[i] in ("planar", "free") or not armature[0]:
            return []
        element = ET.Element("transmission", name=f"{joint}_transmission")
        ET.SubElement(element, "type").text = "transmission_interface/SimpleTransmission"
        ET.SubElement(ET.SubElement(element, "joint", name=joint), "hardwareInterface").text = "EffortJointInterface"
        actuator = ET.SubElement(element, "actuator", name=f"{joint}_actuator")
        ET.SubElement(actuator, "hardwareInterface").text = "EffortJointInterface"
        ET.SubElement(actuator, "mechanicalReduction").text = "1"
        value = _numbers(armature[0], f"armature of joint {joint!r}")
        ET.SubElement(actuator, "drake:rotor_inertia", value=value)
        ET.SubElement(actuator, "drake:gear_ratio", value="1")
        return [element]

    def _declare_prefixes(self) -> None:
        used = {x.split(":")[0] for e in self.robot.iter() for x in (e.tag, *e.attrib) if ":" in x}
        for prefix, namespace in (("drake", "http://drake.mit.edu"), ("jaxdyn", NAMESPACE)):
            if prefix in used:
                self.robot.set(f"xmlns:{prefix}", namespace)


def roll_pitch_yaw(quaternion: np.ndarray) -> np.ndarray:
    """Angles about the fixed axes x, y, z, in this order, that give the rotation of a quaternion `w x y z`.

    Yaw turns the image of x into the plane of x and z; what remains is pitch and roll, for any yaw where the image of x
    is z or -z and none is distinguished. So the angles' rounding is that of the rotation also there.
    """
    w, x, y, z = quaternion / np.linalg.norm(quaternion)
    R = np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )
    yaw = math.atan2(R[1, 0], R[0, 0])
    c, s = math.cos(yaw), math.sin(yaw)
    rest_x, rest_y = c * R[0] + s * R[1], c * R[1] - s * R[0]
    return np.array([math.atan2(-rest_y[2], rest_y[1]), math.atan2(-R[2, 0], rest_x[0]), yaw])


def _difference(total: np.ndarray, parts: np.ndarray, tolerance: float) -> np.ndarray:
    """`total` without `parts`, where what is left of rounding is zero."""
    out = total - parts.sum(axis=0)
    if len(parts):
        for group in _GROUPS:
            scale = np.abs(total[group]).max() + np.abs(parts[:, group]).sum(axis=0).max()
            if np.abs(out[group]).max() <= tolerance * scale:
                out[group] = 0.0
    return out


def _is_identity(placement: np.ndarray) -> bool:
    return not placement[:3].any() and not placement[4:].any()


def _numbers(values, what: str, largest: float = LARGEST) -> str:
    values = np.atleast_1d(np.asarray(values, np.float64))
    if not (np.abs(values) <= largest).all():
        raise ModelError(f"{what}: {values.tolist()}; finite numbers up to {largest:g} can be written")
    return " ".join(repr(float(x)) for x in values)


def _limits(values, what: str) -> str:
    return _numbers(np.clip(values, -UNLIMITED, UNLIMITED), what, UNLIMITED)


def _written(name: str) -> str:
    found = _UNWRITABLE.search(name)
    if found:
        raise ModelError(f"the name {name!r} has the character {found[0]!r}, which XML cannot hold; rename it")
    return name
