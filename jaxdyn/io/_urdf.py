"""URDF files as models. The format: http://wiki.ros.org/urdf/XML."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

import numpy as np

from jaxdyn._errors import JaxdynError, ModelError, PhysicalityWarning
from jaxdyn._types import ArrayLike
from jaxdyn.io._urdf_extensions import FRAME_ATTRIBUTE, JOINT_TAG, armatures, is_rotor, joint_extensions
from jaxdyn.io._urdf_tree import ONE_AXIS, ROOT_JOINT, WORLD, UrdfJoint, by_name, read_joints, read_mimics, read_tree
from jaxdyn.io._urdf_xml import Element, RobotFileWarning, fail, forgive, listed, read, shown, warn
from jaxdyn.model import STANDARD_GRAVITY, BodyInertia, Joint, Mimic, Model, ModelBuilder
from jaxdyn.model._builder import compose, pose_vector
from jaxdyn.model._inertia import moved_parameters, unphysical_reason
from jaxdyn.spatial import SE3

__all__ = ["MimicMode", "RobotFileWarning", "load_urdf"]

type MimicMode = Literal["merge", "independent", "error"]

_VERSIONS = ("1.0", "1.1", "1.2")

# What is read, or says nothing about the dynamics. Everything else is warned of: it may be a slip of the pen.
_UNDERSTOOD = {
    "robot": {"link", "joint", "material", "gazebo", "transmission", "sensor", "ros2_control", JOINT_TAG},
    "link": {"inertial", "visual", "collision", "contact", "sensor"},
    "joint": {"origin", "parent", "child", "axis", "limit", "dynamics", "mimic", "calibration", "safety_controller"},
    "inertial": {"origin", "mass", "inertia"},
}
_PRODUCTS = ("ixy", "ixz", "iyz")
_ATTRIBUTES = {
    "link": {"name", "type"},
    "joint": {"name", "type"},
    "inertial": set(),
    "origin": {"xyz", "rpy", "quat_xyzw"},
    "mass": {"value"},
    "inertia": {"ixx", "iyy", "izz", *_PRODUCTS},
    "parent": {"link"},
    "child": {"link"},
    "axis": {"xyz"},
    "limit": {"lower", "upper", "effort", "velocity", "acceleration", "deceleration", "jerk"},
    "dynamics": {"damping", "friction"},
    "mimic": {"joint", "multiplier", "offset"},
}


def load_urdf(
    path_or_text: str | os.PathLike,
    *,
    free_base: bool = False,
    root_placement: SE3 | ArrayLike | None = None,
    mimic: MimicMode = "merge",
    package_dirs: Sequence[str | os.PathLike] = (),
    gravity: ArrayLike = STANDARD_GRAVITY,
    strict: bool = True,
) -> Model:
    """The model that a URDF file, or the text of one, describes (http://wiki.ros.org/urdf/XML, versions 1.0 to 1.2).

    Every link keeps its name as a frame of the model. Links behind fixed joints are merged into the body that carries
    them (into the world, if nothing moves them): their inertia adds to the body's, `Model.link_parameters` tells it
    apart again, and the fixed joint's name becomes a frame, too, unless a link has it. Joints stand in depth-first
    order, children in the order of the `<joint>` elements. Joint types: `revolute`, `continuous`, `prismatic`,
    `planar`, `floating` (a `free` joint), `fixed`. A link without `<inertial>` has no mass, a joint without `<axis>`
    has (1, 0, 0), a joint without `<limit>` (or without `effort` or `velocity` in it) has no limits; `lower` and
    `upper` that `<limit>` leaves out are zero (before version 1.2 of the format, which forbids that). The largest
    double-precision number stands for no limit. Units in the file are SI and rad. Shapes, meshes (their files, too,
    `package://` or not), materials, safety controllers, calibrations and extensions of simulators are not read.

    Rotor inertia, which the standard leaves out, is read where a transmission of one actuator and one joint has
    `<drake:rotor_inertia value="J"/>` and `<drake:gear_ratio value="n"/>`, or `<motorInertia>J</motorInertia>` and
    `<mechanicalReduction>n</mechanicalReduction>`, in its `<actuator>`: the joint's armature is `J n^2`, as the rotor
    turns `n` times as fast as the joint. What `to_urdf` writes in `<jaxdyn:joint>` is read again.

    **Arguments**

    - `path_or_text`: a path, or text, which begins with `<`, or `package://name/path` (see `package_dirs`).
    - `free_base`: whether the root link moves freely, by a free joint named `root_joint`, the first of the model.
      Otherwise it is fixed to the world; a fixed root link named `world` is the world itself.
    - `root_placement`: pose of the root link in the world: an `SE3`, position and quaternion `w x y z` `[7]`, or a
      position `[3]`, m. With `free_base` it is the placement of the free joint, from which its coordinates count.
    - `mimic`: of joints with `<mimic>`, `"merge"` makes them follow, without coordinates of their own (chains of them
      are resolved); `"independent"` loads them as independent joints, with a warning; `"error"` refuses them.
    - `package_dirs`: folders that hold ROS packages, in which a file given as `package://name/path` is looked for:
      as `path` in the folder `name` below one of them, or in one that itself has this name. Nothing else is looked
      for there.
    - `gravity`: `[3]`, m/s^2, world axes; a URDF file has none.
    - `strict`: whether what the standard forbids is an error also where it has one obvious meaning. If not, it is
      read so, and one warning names each place: numbers with commas between them; an infinite limit (`inf`); a type
      of joint in capitals; `<axis>` without `xyz` (1, 0, 0); products of inertia left out (0); an element given twice
      alike; white space before the XML declaration; an unknown `version`; `quat_xyzw` before version 1.1; `lower` or
      `upper` left out in version 1.2 (no limit). Everything else is an error in any case.

    **Raises** `RobotFileError`, with the line, for a file that cannot be read, is no URDF, or has no tree of links; for
    what is missing, unknown, given twice, or no finite number (beyond 1e12 there is no quantity either, but limits);
    for joints that follow each other, or one that has not one degree of freedom. `ModelError` for a robot without a
    moving body, and for one whose joint moves nothing that has inertia. A document type declaration is refused, and
    with it all entities: nothing but the file itself is ever opened.

    **Warns** `RobotFileWarning` of what would change the motion and is not read; `PhysicalityWarning` of inertias that
    no distribution of mass has (for each link, with its principal moments), and, once, of singular ones, which only
    points and thin rods have.
    """
    if mimic not in get_args(MimicMode.__value__):
        raise ModelError(f"mimic is {mimic!r}; known: {listed(get_args(MimicMode.__value__))}")
    placement = None if root_placement is None else pose_vector(root_placement, "root_placement")
    robot = read(path_or_text, package_dirs, strict)
    version = format_version(robot)
    links, joints = by_name(robot, "link"), read_joints(robot)
    if not links:
        fail(robot, "it has no links; add at least one <link name=...>")
    root, children = read_tree(robot, links, joints)
    _check_root(root, links, joints, free_base, placement)
    coupled = [joint for joint in joints if joint.type != "fixed" and joint.element.named("mimic")]
    names = listed((joint.name for joint in coupled), most=100)
    if coupled and mimic == "error":
        fail(coupled[0].element, f"mimic='error' refuses <mimic>, which these joints have: {names}")
    if coupled and mimic == "independent":
        reason = f"<mimic> couples joints to others; loaded as independent joints: {names}"
        warn(f"{robot.source.name}: {reason}; let their coordinates, or a controller, follow")
    mimics = read_mimics(joints, coupled) if mimic == "merge" else {}
    loader = _Loader(robot, links, joints, mimics, free_base, version)
    _warn_of_what_is_not_read(robot, joints, loader.unread)
    try:
        builder = ModelBuilder()
        if free_base:
            free = Joint("free", name=ROOT_JOINT, **loader.fields(ROOT_JOINT))
            builder.add_body(root, WORLD, free, placement, loader.inertia(root))
        elif root != WORLD:
            loader.add_fixed(builder, root, WORLD, pose_vector(placement))
        stack = children[root][::-1]
        while stack:
            joint = stack.pop()
            loader.add(builder, joint)
            stack.extend(children[joint.child][::-1])
        model = builder.build(gravity)
    except JaxdynError as error:
        error.add_note(f"(while loading {robot.source.name})")
        raise
    _warn_of_singular_inertias(robot.source.name, loader.inertias)
    if robot.source.forgiven:
        warn(f"{robot.source.name}: against the URDF standard: {_first(robot.source.forgiven)}")
    return model


class _Loader:
    """What the elements of a robot say, as arguments of the builder.

    Links behind fixed joints are placed in the body that carries them here already: one product of poses for each, also
    in long chains of them.
    """

    def __init__(
        self,
        robot: Element,
        links: dict[str, Element],
        joints: list[UrdfJoint],
        mimics: dict[str, Mimic],
        free_base: bool,
        version: str,
    ):
        self.links, self.mimics, self.version = links, mimics, version
        self.inertias: dict[str, BodyInertia] = {}
        self.carriers: dict[str, tuple[str, np.ndarray]] = {}
        kinds = {joint.name: "free" if joint.type == "floating" else joint.type for joint in joints}
        self.armatures, self.unread = armatures(robot, kinds)
        moving = {name: kind for name, kind in kinds.items() if kind != "fixed"}
        self.extensions = joint_extensions(robot, moving | ({ROOT_JOINT: "free"} if free_base else {}))
        self.extension_elements = {e.attributes.get("name"): e for e in robot.named(JOINT_TAG)}

    def add(self, builder: ModelBuilder, joint: UrdfJoint) -> None:
        placement = pose_of(joint.element, self.version)
        if joint.type == "fixed":
            self.add_fixed(builder, joint.child, joint.parent, placement)
            frame = joint.element.attributes.get(FRAME_ATTRIBUTE, "yes")
            if frame not in ("yes", "no"):
                fail(joint.element, f"{FRAME_ATTRIBUTE} is {shown(frame)}; known: 'yes', 'no'")
            if frame == "yes" and joint.name not in self.links and joint.name != WORLD:
                builder.add_frame(joint.name, *self.carriers[joint.child])
            return
        fields = self.fields(joint.name, limits=_limits(joint, self.version), friction=_friction(joint))
        loaded = Joint(
            "free" if joint.type == "floating" else joint.type,
            axis=_axis(joint.element),
            name=joint.name,
            mimic=self.mimics.get(joint.name),
            **fields,
        )
        carrier, placement = self.placed(joint.parent, placement)
        builder.add_body(joint.child, carrier, loaded, placement, self.inertia(joint.child))

    def add_fixed(self, builder: ModelBuilder, link: str, parent: str, placement: np.ndarray) -> None:
        carrier, placement = self.carriers[link] = self.placed(parent, placement)
        inertia = self.inertia(link)
        if inertia is None:
            builder.add_frame(link, carrier, placement)
        else:
            builder.add_fixed_body(link, carrier, placement, inertia)

    def placed(self, link: str, placement: np.ndarray) -> tuple[str, np.ndarray]:
        """The body (or the world) that carries a link, and in it what is placed in the link."""
        if link not in self.carriers:
            return link, placement
        carrier, pose = self.carriers[link]
        return carrier, compose(pose, placement)

    def fields(self, joint: str, **standard: dict[str, float]) -> dict[str, Any]:
        """Limits, friction and so on, from the standard's elements and from extensions."""
        out: dict[str, Any] = {name: value for part in standard.values() for name, value in part.items()}
        if joint in self.armatures:
            out["armature"] = self.armatures[joint]
        for name, values in self.extensions.get(joint, {}).items():
            if name in out:
                fail(self.extension_elements[joint], f"{name} of this joint is given elsewhere, too; remove one")
            out[name] = values if len(values) > 1 else values[0]
        return out

    def inertia(self, link: str) -> np.ndarray | None:
        """The ten inertial parameters in the link's frame, or None where there is no `<inertial>`."""
        inertial = self.links[link].child("inertial")
        if inertial is None:
            return None
        mass, inertia = inertial.required("mass").number("value", minimum=0.0), inertial.required("inertia")
        for product in _PRODUCTS:
            if product not in inertia.attributes:
                forgive(inertia, f"<inertia> has no {product}", "zero")
        given = {
            a: inertia.number(a) for a in ("ixx", "iyy", "izz", *inertia.attributes) if a in _ATTRIBUTES["inertia"]
        }
        xx, xy, xz, yy, yz, zz = (given.get(a, 0.0) for a in ("ixx", "ixy", "ixz", "iyy", "iyz", "izz"))
        about_center = BodyInertia(mass, (0.0, 0.0, 0.0), np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]]))
        self.inertias[link] = about_center
        return moved_parameters(about_center.parameters(), pose_of(inertial, self.version))


def format_version(robot: Element) -> str:
    version = robot.attributes.get("version", "1.0")
    if version not in _VERSIONS:
        problem = f"version={shown(version)} of <robot>, but {listed(_VERSIONS)} are known"
        forgive(robot, problem, f"version {_VERSIONS[-1]}")
        return _VERSIONS[-1]
    return version


def _check_root(
    root: str, links: dict[str, Element], joints: list[UrdfJoint], free_base: bool, placement: np.ndarray | None
) -> None:
    if WORLD in links and root != WORLD:
        fail(links[WORLD], "the name stands for the fixed world, but this link is not the root; rename it")
    if root == WORLD and free_base:
        fail(links[root], "the name stands for the fixed world, which cannot move; rename it, or drop free_base=True")
    if root == WORLD and placement is not None:
        fail(links[root], "the name stands for the world, which root_placement cannot place; rename it, or drop that")
    for joint in joints:
        if free_base and joint.name == ROOT_JOINT:
            fail(joint.element, "the joint of the free base needs this name; rename this joint")
    if not free_base and all(joint.type == "fixed" for joint in joints):
        fail(links[root], "nothing moves, as no joint does; perhaps free_base=True is meant")


def pose_of(element: Element, version: str) -> np.ndarray:
    """`[7]`: position, and the quaternion of roll, pitch, yaw about the fixed axes x, y, z in this order."""
    origin = element.child("origin")
    if origin is None:
        return np.array([0.0, 0, 0, 1, 0, 0, 0])
    xyz, rpy = (origin.numbers(a, 3) if a in origin.attributes else [0.0] * 3 for a in ("xyz", "rpy"))
    if "quat_xyzw" in origin.attributes:
        if version == "1.0":
            problem = "quat_xyzw of <origin> needs <robot version='1.1'> or newer"
            forgive(origin, problem, "the quaternion that it is")
        if "rpy" in origin.attributes:
            fail(origin, "<origin> has both rpy and quat_xyzw; remove one")
        x, y, z, w = origin.numbers("quat_xyzw", 4)
        norm = math.hypot(x, y, z, w)
        if abs(norm - 1) > 1e-3:
            fail(origin, f"quat_xyzw of <origin> has the norm {norm:g}; a unit quaternion is needed")
        return np.array([*xyz, w / norm, x / norm, y / norm, z / norm])
    (cr, cp, cy), (sr, sp, sy) = ([f(angle / 2) for angle in rpy] for f in (math.cos, math.sin))
    w, x = cy * cp * cr + sy * sp * sr, cy * cp * sr - sy * sp * cr
    y, z = cy * sp * cr + sy * cp * sr, sy * cp * cr - cy * sp * sr
    return np.array([*xyz, w, x, y, z])


def _axis(joint: Element) -> list[float]:
    axis = joint.child("axis")
    if axis is not None and "xyz" not in axis.attributes:
        forgive(axis, "<axis> has no xyz", "(1, 0, 0)")
        axis = None
    if axis is None:
        return [1.0, 0.0, 0.0]
    xyz = axis.numbers("xyz", 3)
    if math.hypot(*xyz) < 1e-9:
        fail(axis, f"<axis> is {xyz}, which has no direction; give a vector that is not zero")
    return xyz


def _limits(joint: UrdfJoint, version: str) -> dict[str, float]:
    limit = joint.element.child("limit")
    if limit is None or joint.type not in ONE_AXIS:
        return {}
    out = {f"{a}_limit": limit.limit(a, minimum=0.0) for a in ("effort", "velocity") if a in limit.attributes}
    if joint.type == "continuous":
        return out
    bounds = {}
    for name, unlimited in (("lower", -math.inf), ("upper", math.inf)):
        if name in limit.attributes:
            bounds[name] = limit.limit(name)
        elif version == "1.2":
            forgive(limit, f"<limit> has no {name}, which version 1.2 of URDF requires", "no limit")
            bounds[name] = unlimited
        else:
            bounds[name] = 0.0
    if not set(bounds) & set(limit.attributes) and version != "1.2":
        reason = "<limit> has neither lower nor upper, which both are zero then by the URDF standard"
        warn(f"{limit.where}: {limit.owner}: {reason}; give them, or remove <limit> if there are none")
    if bounds["lower"] > bounds["upper"]:
        fail(limit, f"<limit> has lower {bounds['lower']} > upper {bounds['upper']}; swap or correct them")
    return out | bounds


def _friction(joint: UrdfJoint) -> dict[str, float]:
    dynamics = joint.element.child("dynamics")
    if dynamics is None or joint.type not in ONE_AXIS:
        return {}
    return {a: dynamics.number(a, minimum=0.0) for a in ("damping", "friction") if a in dynamics.attributes}


def _warn_of_what_is_not_read(robot: Element, joints: list[UrdfJoint], rotors: list[Element]) -> None:
    unread = [(element, f"<{element.tag}>") for element in rotors]
    for control in robot.named("ros2_control"):
        unread += [(element, f"<{element.tag}>") for element in control.below() if is_rotor(element)]
    inertials = [inertial for link in robot.named("link") for inertial in link.named("inertial")]
    for parent in (robot, *robot.named("link"), *inertials, *robot.named("joint")):
        unread += [(child, f"<{child.tag}>") for child in parent.children if child.tag not in _UNDERSTOOD[parent.tag]]
        if parent is not robot:
            for element in (parent, *parent.children):
                # Those with a prefix are other programs'.
                unread += [
                    (element, f"{shown(a)} in <{element.tag}>")
                    for a in element.attributes
                    if a not in _ATTRIBUTES.get(element.tag, element.attributes) and ":" not in a
                ]
    for joint in joints:
        for element in joint.element.children:
            if joint.type == "fixed":
                ignored = element.tag == "mimic"
            else:
                ignored = element.tag in ("limit", "dynamics") and joint.type not in ONE_AXIS
            if ignored:
                unread.append((element, f"<{element.tag}> of a {joint.type} joint"))
            elif element.tag == "limit" and joint.type == "continuous":
                unread += [
                    (element, f"{shown(a)} in <limit> of a continuous joint")
                    for a in ("lower", "upper")
                    if a in element.attributes
                ]
    first: dict[str, Element] = {}
    for element, what in unread:
        first.setdefault(what, element)
    if first:
        found = [f"{what} (line {e.line}, {e.owner})" for what, e in first.items()]
        warn(f"{robot.source.name}: no part of URDF that is read, each named once: {_first(found)}")


def _warn_of_singular_inertias(source: str, inertias: dict[str, BodyInertia]) -> None:
    found = []
    for link, inertia in inertias.items():
        moments = np.linalg.eigvalsh(np.asarray(inertia.rotational))
        # Of a massless link it is none at all; what no distribution of mass has is named by the builder.
        singular = inertia.mass > 0 and abs(moments[0]) <= 1e-12 * moments[2]
        if singular and unphysical_reason(inertia.parameters()) is None:
            found.append(f"{shown(link)} ({', '.join(f'{x:.6g}' for x in moments)} kg m^2)")
    if found:
        reason = "singular inertias, which only points and infinitely thin rods have; principal moments"
        warn(f"{source}: links with {reason}: {_first(found)}", PhysicalityWarning)


def _first(items: Iterable[str], count: int = 20) -> str:
    items = list(items)
    more = f"; and {len(items) - count} more" if len(items) > count else ""
    return "; ".join(items[:count]) + more
