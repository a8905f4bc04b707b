"""URDF files as models. The format: http://wiki.ros.org/urdf/XML."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np

from jaxdyn._errors import JaxdynError, PhysicalityWarning, require_choice
from jaxdyn._types import ArrayLike
from jaxdyn.io.robot_files import (
    LeftOut,
    enumerate_items,
    enumerate_names,
    named_robot,
    quote,
    warn,
    warn_of_what_is_left_out,
)
from jaxdyn.io.urdf import _link_tree as tree
from jaxdyn.io.urdf._extensions import FRAME_ATTRIBUTE, JOINT_TAG, armatures, joint_extensions
from jaxdyn.io.urdf._left_out_of_urdf import INERTIA, PRODUCTS, unread_parts
from jaxdyn.io.urdf._xml import Element, fail, forgive, read_robot
from jaxdyn.model import (
    STANDARD_GRAVITY,
    BodyInertia,
    Joint,
    Mimic,
    Model,
    ModelBuilder,
    depth_first,
    pose_vector,
    unphysical_reason,
    zero_limits,
)
from jaxdyn.spatial import IDENTITY_POSE, SE3, transform_inertial_parameters

type MimicMode = Literal["merge", "independent", "error"]


def load_urdf(
    path_or_text: str | os.PathLike,
    *,
    free_base: bool = False,
    root_placement: SE3 | ArrayLike | None = None,
    mimic: MimicMode = "merge",
    package_dirs: Sequence[str | os.PathLike] = (),
    gravity: ArrayLike = STANDARD_GRAVITY,
    kinematics_only: bool = False,
    strict: bool = True,
) -> Model:
    """Return the model that a URDF file, or the text of one, describes (http://wiki.ros.org/urdf/XML, 1.0 to 1.2).

    Every link keeps its name as a frame of the model. Links behind fixed joints are merged into the body that carries
    them (into the world, if nothing moves them): their inertia adds to the body's, `Model.link_parameters` separates it
    again, and the fixed joint's name becomes a frame, too, unless a link has it. Joints stand in depth-first order,
    children in the order of the `<joint>` elements. Joint types: `revolute`, `continuous`, `prismatic`, `planar`,
    `floating` (a `free` joint), `fixed`. A link without `<inertial>` is massless, a joint without `<axis>` has
    (1, 0, 0), a joint without `<limit>` (or without `effort` or `velocity` in it) is not limited; `lower` and `upper`
    are zero if `<limit>` leaves them out (before version 1.2 of the format, which forbids that). The largest
    double-precision number stands for no limit. Units in the file are SI and rad. Shapes (`load_contact_shapes` reads
    `<collision>`), materials, safety controllers, calibrations and extensions of simulators are not read.

    The standard has no rotor inertia. It is read where a transmission of one actuator and one joint has
    `<drake:rotor_inertia value="J"/>` and `<drake:gear_ratio value="n"/>`, or `<motorInertia>J</motorInertia>` and
    `<mechanicalReduction>n</mechanicalReduction>`, in its `<actuator>`: the joint's armature is `J n^2`, as the rotor
    turns `n` times as fast as the joint. What `to_urdf` writes in `<jaxdyn:joint>` is read again.

    **Arguments**

    - `path_or_text`: a path, or text, which begins with `<`, or `package://name/path` (see `package_dirs`), or
      the name of a robot of the package robot_descriptions (`"go1"`, with or without `_description`).
    - `free_base`: whether the root link moves freely, by a free joint named `root_joint`, the first of the model.
      Otherwise it is fixed to the world; a fixed root link named `world` is the world itself.
    - `root_placement`: pose of the root link in the world: an `SE3`, position and quaternion `w x y z` `[7]`, or a
      position `[3]`, m. With `free_base` it is the placement of the free joint, from which its coordinates count.
    - `mimic`: how joints with `<mimic>` are loaded. `"merge"` makes them follow, without coordinates of their own
      (chains of them are resolved); `"independent"` loads independent joints, with a warning; `"error"` refuses them.
    - `package_dirs`: folders that hold ROS packages, in which a file given as `package://name/path` is looked for:
      as `path` in the folder `name` below one of them, or in one that itself has this name.
    - `gravity`: `[3]`, m/s^2, world axes, which a URDF file does not say.
    - `kinematics_only`: whether links that move may lack an `<inertial>`, as those of many industrial arms do. The
      model has all of the kinematics (frames, Jacobians, inverse kinematics, pictures) and regressors; functions of its
      dynamics raise `ModelError`. `Model.with_link_parameters` gives a link its inertia; with those of all links that
      lack one the model is whole. A moving link with no inertia of its own or of links fixed to it counts as lacking
      one; if there is none, the argument has no effect.
    - `strict`: whether everything that the standard forbids is an error. If False, what has one obvious meaning is read
      so, and one warning names each place: numbers with commas between them; an infinite limit (`inf`); a type of joint
      in capitals; `<axis>` without `xyz` (1, 0, 0); products of inertia left out (0); an element given twice alike;
      `<origin>` given twice, and differently (the first, as urdfdom and Pinocchio read it); white
      space before the XML declaration; an unknown `version`; `quat_xyzw` before version 1.1; `lower` or `upper` left
      out in version 1.2 (no limit).

    **Raises** `RobotFileError`, with the line, for a file that cannot be read, is not URDF, or does not have a tree of
    links; for what is missing, unknown, given twice, or not a finite number (up to 1e12, but for limits); for joints
    that follow each other, or a follower with several degrees of freedom. `ModelError` for a robot without a moving
    body, and, unless `kinematics_only`, for a joint that moves nothing that has inertia. A document type declaration is
    refused, and with it all entities: only the file itself is ever opened.

    **Warns** `LeftOutWarning`, once, of what may change the motion and is not read (`left_out` lists it, and the rest);
    `RobotFileWarning` of what `strict=False` passes over, and of zero limits, also those of effort and velocity;
    `PhysicalityWarning` of inertias that no mass distribution has (for each link, with its principal moments), and,
    once, of singular ones, which only points and thin rods have, and of some that look like another unit; and of a
    singular mass matrix, with the joints that can move together without resistance.
    """
    require_choice(mimic, get_args(MimicMode.__value__), "mimic")
    placement = None if root_placement is None else pose_vector(root_placement, "root_placement")
    path_or_text = named_robot(path_or_text, ("URDF",))
    loader = UrdfLoader(read_robot(path_or_text, package_dirs, strict), free_base, placement, mimic)
    warn_of_what_is_left_out(loader.source.name, loader.left_out)
    try:
        model = loader.model(gravity, kinematics_only)
    except JaxdynError as error:
        error.add_note(f"(while loading {loader.source.name})")
        raise
    loader.warn_of_singular_inertias()
    if zeros := zero_limits(model):
        warn(f"{loader.source.name}: {zeros}")
    if loader.source.forgiven:
        warn(f"{loader.source.name}: against the URDF standard: {enumerate_items(loader.source.forgiven)}")
    return model


class UrdfLoader:
    """Turns the elements of a robot into arguments of the builder."""

    def __init__(self, robot: Element, free_base: bool, placement: np.ndarray | None, mimic: MimicMode):
        self.robot, self.source, self.free_base, self.placement = robot, robot.source, free_base, placement
        self.version = tree.format_version(robot)
        self.links, self.joints = tree.by_name(robot, "link"), tree.read_joints(robot)
        if not self.links:
            fail(robot, "it has no links; add at least one <link name=...>")
        self.root, self.children = tree.read_tree(robot, self.links, self.joints)
        self._check_root()
        self.left_out: list[LeftOut] = []
        self.mimics = self._mimics(mimic)
        self.inertias: dict[str, BodyInertia] = {}
        self.types = types = {j.name: "free" if j.type == "floating" else j.type for j in self.joints}
        self.armatures, rotors = armatures(robot, types)
        self.left_out.append(unread_parts(robot, self.joints, rotors))
        moving = {name: kind for name, kind in types.items() if kind != "fixed"}
        self.extensions = joint_extensions(robot, moving | ({tree.ROOT_JOINT: "free"} if free_base else {}))

    def model(self, gravity: ArrayLike, kinematics_only: bool) -> Model:
        builder = ModelBuilder()
        if self.free_base:
            free = Joint("free", name=tree.ROOT_JOINT, **self.fields(tree.ROOT_JOINT))
            builder.add_body(self.root, tree.WORLD, free, self.placement, self.inertia(self.root))
        elif self.root != tree.WORLD:
            placement = IDENTITY_POSE if self.placement is None else self.placement
            self.add_fixed_link(builder, self.root, tree.WORLD, placement)
        for joint in depth_first(self.children[self.root], lambda joint: self.children[joint.child]):
            self.add(builder, joint)
        return builder.build(gravity, kinematics_only=kinematics_only)

    def add(self, builder: ModelBuilder, joint: tree.UrdfJoint) -> None:
        placement = tree.pose_of(joint.element, self.version)
        if joint.type == "fixed":
            self.add_fixed_link(builder, joint.child, joint.parent, placement)
            frame = joint.element.attributes.get(FRAME_ATTRIBUTE, "yes")
            if frame not in ("yes", "no"):
                fail(joint.element, f"{FRAME_ATTRIBUTE} is {quote(frame)}; known: 'yes', 'no'")
            if frame == "yes" and joint.name not in self.links and joint.name != tree.WORLD:
                builder.add_frame(joint.name, joint.child)
            return
        moving = Joint(
            "free" if joint.type == "floating" else joint.type,
            axis=_axis(joint.element),
            name=joint.name,
            mimic=self.mimics.get(joint.name),
            **self.fields(joint.name, **_limits(joint, self.version), **_friction(joint)),
        )
        builder.add_body(joint.child, joint.parent, moving, placement, self.inertia(joint.child))

    def add_fixed_link(self, builder: ModelBuilder, link: str, parent: str, placement: np.ndarray) -> None:
        inertia = self.inertia(link)
        if inertia is None:
            builder.add_frame(link, parent, placement)
        else:
            builder.add_fixed_body(link, parent, placement, inertia)

    def fields(self, joint: str, **fields: Any) -> dict[str, Any]:
        """Return limits, friction and so on, from the standard's elements (`fields`) and from extensions."""
        if joint in self.armatures:
            fields["armature"] = self.armatures[joint]
        for name, values in self.extensions.get(joint, {}).items():
            if name in fields:
                element = next(e for e in self.robot.all(JOINT_TAG) if e.attributes["name"] == joint)
                fail(element, f"{name} of this joint is given elsewhere, too; remove one")
            fields[name] = values if len(values) > 1 else values[0]
        return fields

    def friction_and_extensions(self, joint: str) -> dict[str, Any]:
        """Return friction, armature and springs of a joint as the file has them, without those of joints that mimic
        it."""
        (element,) = [each for each in self.joints if each.name == joint]
        return self.fields(joint, **_friction(element))

    def inertia(self, link: str) -> np.ndarray | None:
        """Return the ten inertial parameters in the link's frame, or None if it has no `<inertial>`."""
        inertial = self.links[link].child("inertial")
        if inertial is None:
            return None
        mass, inertia = inertial.require("mass").number("value", minimum=0.0), inertial.require("inertia")
        for product in PRODUCTS:
            if product not in inertia.attributes:
                forgive(inertia, f"<inertia> has no {product}", "zero")
        names = [a for a in ("ixx", "iyy", "izz", *inertia.attributes) if a in INERTIA]
        elements = {a: inertia.number(a) for a in names}
        rows = [("ixx", "ixy", "ixz"), ("ixy", "iyy", "iyz"), ("ixz", "iyz", "izz")]
        about_center = BodyInertia(mass, (0, 0, 0), np.array([[elements.get(a, 0.0) for a in row] for row in rows]))
        self.inertias[link] = about_center
        return transform_inertial_parameters(about_center.parameters(), tree.pose_of(inertial, self.version))

    def _mimics(self, mode: MimicMode) -> dict[str, Mimic]:
        coupled = [joint for joint in self.joints if joint.type != "fixed" and joint.element.all("mimic")]
        names = enumerate_names((joint.name for joint in coupled), most=100)
        if coupled and mode == "error":
            fail(coupled[0].element, f"mimic='error' refuses <mimic>, which these joints have: {names}")
        if coupled and mode == "independent":
            kind, note = "<mimic> of independent joints", "let their coordinates, or a controller, follow"
            self.left_out.append(LeftOut(kind, tuple(quote(joint.name) for joint in coupled), True, note))
        return tree.read_mimics(self.joints, coupled) if mode == "merge" else {}

    def _check_root(self) -> None:
        links, root = self.links, self.root
        if tree.WORLD in links and root != tree.WORLD:
            fail(links[tree.WORLD], "the name stands for the fixed world, but this link is not the root; rename it")
        if root == tree.WORLD and self.free_base:
            fail(links[root], "this link is the fixed world, which cannot move; rename it, or drop free_base=True")
        if root == tree.WORLD and self.placement is not None:
            fail(links[root], "this link is the world, which root_placement cannot place; rename it, or drop that")
        for joint in self.joints if self.free_base else ():
            if joint.name == tree.ROOT_JOINT:
                fail(joint.element, "the joint of the free base needs this name; rename this joint")
        if not self.free_base and all(joint.type == "fixed" for joint in self.joints):
            fail(links[root], "nothing moves, as no joint does; perhaps free_base=True is meant")

    def warn_of_singular_inertias(self) -> None:
        singular = []
        for link, inertia in self.inertias.items():
            moments = np.linalg.eigvalsh(np.asarray(inertia.rotational))
            # The builder warns of inertias that no mass distribution has.
            if inertia.mass <= 0 or abs(moments[0]) > 1e-12 * moments[2]:
                continue
            if unphysical_reason(inertia.parameters()) is None:
                singular.append(f"{quote(link)} ({', '.join(f'{x:.6g}' for x in moments)} kg m^2)")
        if singular:
            reason = "singular inertias, which only points and infinitely thin rods have; principal moments"
            warn(f"{self.source.name}: links with {reason}: {enumerate_items(singular)}", PhysicalityWarning)


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


def _limits(joint: tree.UrdfJoint, version: str) -> dict[str, float]:
    limit = joint.element.child("limit")
    if limit is None or joint.type not in tree.ONE_AXIS:
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
        reason = "<limit> has neither lower nor upper, so the URDF standard sets both to zero"
        warn(f"{limit.where}: {limit.owner}: {reason}; give them, or remove <limit> if there are none")
    if bounds["lower"] > bounds["upper"]:
        fail(limit, f"<limit> has lower {bounds['lower']} > upper {bounds['upper']}; swap or correct them")
    return out | bounds


def _friction(joint: tree.UrdfJoint) -> dict[str, float]:
    dynamics = joint.element.child("dynamics")
    if dynamics is None or joint.type not in tree.ONE_AXIS:
        return {}
    return {a: dynamics.number(a, minimum=0.0) for a in ("damping", "friction") if a in dynamics.attributes}
