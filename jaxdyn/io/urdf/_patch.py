"""`patch_urdf`: the numbers of a model in the text of the URDF file that it was loaded from."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Sequence

import numpy as np

from jaxdyn._errors import ModelError, require_kind
from jaxdyn.io.robot_files import EditedText, Place, enumerate_items, enumerate_names, warn
from jaxdyn.io.urdf import _link_tree as tree
from jaxdyn.io.urdf._extensions import JOINT_TAG, NAMESPACE, Rotor, is_rotor, simple_rotor
from jaxdyn.io.urdf._urdf_reader import UrdfLoader
from jaxdyn.io.urdf._written_numbers import (
    WrittenNumbers,
    gravity_notes,
    limits_text,
    numbers_text,
    own_element_notes,
)
from jaxdyn.io.urdf._xml import read_robot, urdf_text
from jaxdyn.joints import neutral
from jaxdyn.model import JOINT_FIELDS, LEAVES, STANDARD_GRAVITY, Model
from jaxdyn.spatial import IDENTITY_POSE, compose_poses, invert_pose, quaternion_to_rotation, quaternion_to_rpy

_LIMITS = {"lower": "lower", "upper": "upper", "effort_limit": "effort", "velocity_limit": "velocity"}
_WORD = re.compile(r"[^\s,]+")
_MOMENTS = {"ixx": (0, 0), "ixy": (0, 1), "ixz": (0, 2), "iyy": (1, 1), "iyz": (1, 2), "izz": (2, 2)}
_POWERS = {"armature": 2, "damping": 2, "friction": 1}
"""With which power of its multiplier a joint that mimics another adds to the joint that it follows."""


def patch_urdf(
    path_or_text: str | os.PathLike,
    model: Model,
    *,
    package_dirs: Sequence[str | os.PathLike] = (),
    strict: bool = True,
) -> str:
    """Return the text of a URDF file with the numbers of a model that was loaded from it and then edited or identified.

    Only numbers that differ change. Everything else stays as it is to the last byte: comments, white space, meshes,
    materials, transmissions, extensions of simulators. So the text of an unchanged model is the file's, and
    `load_urdf` reads the model again from the text. Links and joints are found by their names. Numbers that change are
    inertials; placements of joints, also of fixed ones; axes, limits, damping and Coulomb friction; multipliers and
    offsets of `<mimic>`; and rotor inertias in transmissions that `load_urdf` reads. An element that the file lacks,
    such as the `<inertial>` of a link that has an inertia now, is added. An armature without a transmission that says
    it, springs, and the transition velocity of friction are written in `<jaxdyn:joint>`, as `to_urdf` does.

    Links that were merged into a body have inertials of their own again (`Model.link_parameters`). What a fit or a
    payload added to the body is written with the body's own link. Gravity, and the root's placement, are not in the
    file: give them to `load_urdf` again.

    ```python
    Path("calibrated.urdf").write_text(jaxdyn.patch_urdf("robot.urdf", fit.model), encoding="utf-8", newline="")
    ```

    **Arguments**

    - `path_or_text`: the file from which the model was loaded, as in `load_urdf`. A file that is not in UTF-8 must be
      written in the encoding that its first line declares.
    - `package_dirs`, `strict`: as in `load_urdf`. Whether the base is free, and whether joints mimic others, is taken
      from the model.

    **Raises** `RobotFileError` for a file that `load_urdf` refuses; `ModelError` for a model with other joints, links
    or frames than the file, which are named (after locking joints, attaching a robot, or a payload with a name):
    `to_urdf` writes these; for closed loops; and for numbers that URDF, or the file's elements, cannot have.

    **Warns** `RobotFileWarning`, once, of what other readers pass over; and where a body has less mass than the links
    merged into it, whose inertias are then zero in the file, and the body's link has all.
    """
    require_kind(model, Model, "patch_urdf: `model`", error=ModelError)
    robot = read_robot(path_or_text, package_dirs, strict)
    free_base = (model.topology.joint_names[0], model.topology.joint_types[0]) == (tree.ROOT_JOINT, "free")
    free_base &= tree.ROOT_JOINT not in tree.by_name(robot, "joint")
    with warnings.catch_warnings():
        # Loading the file has warned already.
        warnings.simplefilter("ignore")
        loader = UrdfLoader(robot, free_base, None, "merge" if model.topology.mimics else "independent")
    return _Patch(EditedText(urdf_text(path_or_text, package_dirs)), loader, model).text()


class _Patch:
    def __init__(self, edited: EditedText, loader: UrdfLoader, model: Model):
        self.edited, self.loader = edited, loader
        self.links, self.joints = ({p.attributes["name"]: p for p in edited.root.all(t)} for t in ("link", "joint"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            before = loader.model(STANDARD_GRAVITY, kinematics_only=True).astype(model.dtype)
            _require_same_structure(before, model, loader.source.name)
            self.before = WrittenNumbers(before)
        self.after = WrittenNumbers(model)
        self.topology = model.topology
        self.tolerance = 8 * self.after.eps
        self.own: dict[str, dict[str, str]] = {}
        """Attributes to be added in `<jaxdyn:joint>`, by joint."""

    def text(self) -> str:
        for link in self.links:
            self._link(link)
        for joint in self.loader.joints:
            self._placement(joint)
        for i, joint in enumerate(self.topology.joint_names):
            if joint in self.joints:
                self._axis(i)
                self._mimic(i)
            self._fields(i)
        notes = []
        for joint, fields in self.own.items():
            self.edited.add(self.edited.root, JOINT_TAG, {"xmlns:jaxdyn": NAMESPACE, "name": joint} | fields)
        notes += own_element_notes({joint: list(fields) for joint, fields in self.own.items()})
        notes += gravity_notes(self.after.leaves["gravity"])
        if notes:
            where = f"{self.loader.source.name}, patched"
            warn(f"{where}: not all readers of this URDF will have the same motion: {enumerate_items(notes)}")
        return self.edited.text()

    # Numbers in attributes.

    def _write(
        self, places: list[Place], attribute: str, values, what: str, default: float = 0.0, size: float = 0.0
    ) -> None:
        """Write numbers into an attribute of elements that say the same, where they differ from what it says by more
        than the rounding errors of numbers of this `size`, or their own."""
        values = np.atleast_1d(np.asarray(values, np.float64))
        slack = self.tolerance * max(size, np.abs(values).max())
        new = numbers_text(_readable(values, self.tolerance * size), what).split()
        for place in places:
            if attribute in place.attributes:
                pairs = zip(values, new, strict=True)
                old = self.edited.value(place, attribute)
                text = _WORD.sub(lambda word: _kept(word[0], *next(pairs), slack), old)  # noqa: B023
                if text != old:
                    self.edited.set(place, attribute, text)
            elif (np.abs(values - default) > slack).any():
                self.edited.set(place, attribute, " ".join(new))

    # Links.

    def _link(self, link: str) -> None:
        old, new = (numbers.inertias.get(link, np.zeros(10)) for numbers in (self.before, self.after))
        if np.array_equal(old, new):
            return
        what, place = f"link {link!r}", self.links[link]
        inertials = _alike(place.all("inertial"))
        found = self.after.inertial(link)
        if not inertials:
            if found is not None:
                self._add_inertial(place, found, what)
            return
        mass, center, rotational = (0.0, None, np.zeros((3, 3))) if found is None else found
        # Parameters about the origins of body and link have rounding errors of this size.
        reach = np.linalg.norm(self._frame(self.after, link)[:3]) + (0 if center is None else np.linalg.norm(center))
        for inertial in inertials:
            self._write(_alike(inertial.all("mass")), "value", mass, f"mass of {what}")
            element = self.loader.links[link].all("inertial")[0]
            R = quaternion_to_rotation(tree.pose_of(element, self.loader.version)[3:])
            if center is not None and mass > 0:
                self._position(inertial, center, f"center of mass of {what}", reach)
            moments = R.T @ rotational @ R
            self._moments(_alike(inertial.all("inertia")), moments, f"inertia of {what}", mass * reach**2)

    def _moments(self, places: list[Place], moments: np.ndarray, what: str, size: float) -> None:
        slack = self.tolerance * max(size, np.abs(moments).max())
        for place in places:
            for attribute, (i, j) in _MOMENTS.items():
                value = float(moments[i, j])
                old = self.edited.value(place, attribute) if attribute in place.attributes else "0"
                if abs(float(old) - value) > slack:
                    self.edited.set(place, attribute, numbers_text(_readable(value, slack), what))

    def _position(self, parent: Place, position: np.ndarray, what: str, size: float) -> None:
        if origins := _alike(parent.all("origin")):
            self._write(origins, "xyz", position, what, size=size)
        elif position.any():
            self.edited.add(parent, "origin", {"xyz": numbers_text(position, what)})

    def _add_inertial(self, place: Place, found, what: str) -> None:
        moments = {a: numbers_text(found.rotational[ij], what) for a, ij in _MOMENTS.items()}
        written = " ".join(f'{a}="{x}"' for a, x in moments.items())
        origin = f'<origin xyz="{numbers_text(found.center, what)}"/>'
        mass = f'<mass value="{numbers_text(found.mass, what)}"/>'
        self.edited.add(place, "inertial", {}, f"{origin}{mass}<inertia {written}/>")

    # Placements.

    def _placement(self, joint: tree.UrdfJoint) -> None:
        old, new = (self._pose(numbers, joint) for numbers in (self.before, self.after))
        if joint.type == "fixed":
            self._require_frame_of_joint(joint)
        if np.array_equal(old, new):
            return
        place, what = self.joints[joint.name], f"placement of joint {joint.name!r}"
        size = np.linalg.norm(new[:3]) + np.linalg.norm(self._frame(self.after, joint.parent)[:3])
        moved = np.abs(old[:3] - new[:3]).max() > self.tolerance * size
        # Quaternions of opposite signs are one rotation.
        turned = min(np.abs(old[3:] - new[3:]).max(), np.abs(old[3:] + new[3:]).max()) > self.tolerance
        origins = _alike(place.all("origin"))
        if not origins and (moved or turned):
            rpy = numbers_text(quaternion_to_rpy(new[3:]), what)
            self.edited.add(place, "origin", {"xyz": numbers_text(new[:3], what), "rpy": rpy})
            return
        if moved:
            self._write(origins, "xyz", new[:3], what, size=size)
        if turned and "quat_xyzw" in origins[0].attributes:
            self._write(origins, "quat_xyzw", np.roll(new[3:], -1), what)
        elif turned:
            self._write(origins, "rpy", quaternion_to_rpy(new[3:]), what)

    def _pose(self, numbers: WrittenNumbers, joint: tree.UrdfJoint) -> np.ndarray:
        """Return the pose of a joint in its parent link."""
        topology = self.topology
        if joint.name in topology.joint_names:
            pose = numbers.leaves["joint_placement"][topology.joint(joint.name)]
        else:
            pose = self._frame(numbers, joint.child)
        parent = self._frame(numbers, joint.parent)
        return pose if np.array_equal(parent, IDENTITY_POSE) else compose_poses(invert_pose(parent), pose)

    def _frame(self, numbers: WrittenNumbers, link: str) -> np.ndarray:
        if link not in self.topology.frame_names:
            return IDENTITY_POSE
        return numbers.leaves["frame_placement"][self.topology.frame(link)]

    def _require_frame_of_joint(self, joint: tree.UrdfJoint) -> None:
        if joint.name not in self.topology.frame_names or joint.name in self.loader.links:
            return
        a, b = (self._frame(self.after, name) for name in (joint.name, joint.child))
        if np.abs(a - b).max() > 8 * self.tolerance * max(1.0, np.abs(b).max()):
            reason = f"but that of the link {joint.child!r}, whose place it is in URDF, does not"
            raise ModelError(f"frame {joint.name!r} stands at {a.tolist()}, {reason}: {b.tolist()}; move both alike")

    # Joints.

    def _axis(self, i: int) -> None:
        rows = self.topology.rows("axis", [i])
        old, new = (numbers.leaves["joint_axis"][rows] for numbers in (self.before, self.after))
        if np.array_equal(old, new):
            return
        joint = self.topology.joint_names[i]
        place, axis = self.joints[joint], self.after.axis(i)
        if axes := _alike(place.all("axis")):
            self._write(axes, "xyz", axis, f"axis of joint {joint!r}", default=np.inf)
        else:
            self.edited.add(place, "axis", {"xyz": numbers_text(axis, f"axis of joint {joint!r}")})

    def _mimic(self, i: int) -> None:
        if i not in self.topology.leaders:
            return
        joint, leader = (self.topology.joint_names[k] for k in (i, self.topology.leaders[i]))
        row = [follower for follower, _ in self.topology.mimics].index(i)
        for attribute, default in (("multiplier", 1.0), ("offset", 0.0)):
            old, new = (numbers.leaves[f"mimic_{attribute}"][row] for numbers in (self.before, self.after))
            if old == new:
                continue
            places = _alike(self.joints[joint].all("mimic"))
            if places[0].attributes["joint"] != leader:
                reason = f"in the file it follows {places[0].attributes['joint']!r}, which follows {leader!r}"
                raise ModelError(f"joint {joint!r} has another {attribute}, but {reason}; use to_urdf")
            self._write(places, attribute, new, f"{attribute} of joint {joint!r}", default)

    def _fields(self, i: int) -> None:
        joint, kind = self.topology.joint_names[i], self.topology.joint_types[i]
        old, new = (self._own_fields(numbers, i) for numbers in (self.before, self.after))
        changed = {field: x for field, x in new.items() if not np.array_equal(x, old[field])}
        texts = {
            field: (numbers_text if LEAVES[JOINT_FIELDS[field]].finite else limits_text)(
                x, f"{field} of joint {joint!r}"
            )
            for field, x in changed.items()
        }
        for element in self.edited.root.all(JOINT_TAG):
            for field in [f for f in texts if element.attributes.get("name") == joint and f in element.attributes]:
                self.edited.set(element, field, texts.pop(field))
        if kind in tree.ONE_AXIS:
            self._limit(joint, kind, texts, new)
            self._dynamics(joint, texts, new)
            if "armature" in texts and self._rotors(joint, float(new["armature"][0])):
                del texts["armature"]
        if texts:
            self.own[joint] = texts

    def _own_fields(self, numbers: WrittenNumbers, i: int) -> dict[str, np.ndarray]:
        """Return the fields of a joint without what joints that mimic it add to them."""
        topology = self.topology
        fields = numbers.fields(i)
        if fields and "stiffness" not in fields:
            rest = neutral(topology)[topology.q_starts[i] : topology.q_starts[i + 1]]
            fields |= {"stiffness": 0 * fields["armature"], "spring_reference": rest}
        for row, (follower, leader) in enumerate(self.topology.mimics):
            if leader != i:
                continue
            name, of = (topology.joint_names[k] for k in (follower, i))
            theirs = self.loader.friction_and_extensions(name)
            if theirs.get("stiffness") and self._springs_differ():
                reason = (
                    f"joint {name!r}, which mimics {of!r}, has a spring in the file, and the model has one for both"
                )
                raise ModelError(f"{reason}, which differs; use to_urdf")
            for field, power in _POWERS.items():
                share = abs(numbers.leaves["mimic_multiplier"][row]) ** power * theirs.get(field, 0.0)
                own = fields[field] - share
                if own[0] < -self.tolerance * share:
                    reason = f"is less than what {name!r}, which mimics it, has in the file"
                    raise ModelError(f"{field} of joint {of!r} {reason}; remove that there, or use to_urdf")
                fields[field] = np.maximum(own, 0.0)
        return fields

    def _springs_differ(self) -> bool:
        before, after, none = self.before.leaves, self.after.leaves, np.zeros(0)
        fields = ("stiffness", "spring_reference")
        return any(not np.array_equal(before.get(field, none), after.get(field, none)) for field in fields)

    def _limit(self, joint: str, kind: str, texts: dict[str, str], new: dict[str, np.ndarray]) -> None:
        known = {field: a for field, a in _LIMITS.items() if kind != "continuous" or a in ("effort", "velocity")}
        written = {a: texts.pop(field) for field, a in known.items() if field in texts}
        if not written:
            return
        place = self.joints[joint]
        for limit in (limits := _alike(place.all("limit"))):
            for attribute, text in written.items():
                self.edited.set(limit, attribute, text)
        if not limits:
            every = {a: limits_text(new[field], f"{a} of joint {joint!r}") for field, a in known.items()}
            self.edited.add(place, "limit", every)

    def _dynamics(self, joint: str, texts: dict[str, str], new: dict[str, np.ndarray]) -> None:
        written = {field: texts.pop(field) for field in ("damping", "friction") if field in texts}
        if not written:
            return
        place = self.joints[joint]
        for dynamics in (found := _alike(place.all("dynamics"))):
            for attribute, text in written.items():
                self.edited.set(dynamics, attribute, text)
        if not found:
            self.edited.add(place, "dynamics", {a: numbers_text(new[a], f"{a} of joint {joint!r}") for a in written})

    def _rotors(self, joint: str, armature: float) -> bool:
        """Write an armature as the rotor inertia of the joint's transmissions, and return whether there is one."""
        found: list[tuple[Place, Rotor]] = []
        pairs = zip(self.loader.robot.all("transmission"), self.edited.root.all("transmission"), strict=True)
        for element, place in pairs:
            inside = [e for e in element.below() if is_rotor(e)]
            rotor = simple_rotor(element, inside, self.loader.types) if inside else None
            if rotor is not None and rotor.joint == joint:
                (actuator,) = place.all("actuator")
                found += [(twin, rotor) for twin in _alike(actuator.all(rotor.element.tag))[:1]]
        total = sum(rotor.inertia * rotor.ratio**2 for _, rotor in found)
        for place, rotor in found:
            if len(found) > 1 and total == 0:
                names = enumerate_names([joint])
                raise ModelError(f"joint {names} has several transmissions without rotor inertia; give one in the file")
            inertia = armature / rotor.ratio**2 if len(found) == 1 else rotor.inertia * armature / total
            text = numbers_text(inertia, f"rotor inertia of joint {joint!r}")
            if "value" in place.attributes and rotor.element.tag != "motorInertia":
                self.edited.set(place, "value", text)
            else:
                self.edited.set_text(place, text)
        return bool(found)


def _kept(word: str, value: float, text: str, slack: float) -> str:
    """Return a number as it is written if it is this value, else the value's text."""
    return word if abs(float(word) - value) <= slack else text


def _readable(values, slack: float) -> np.ndarray:
    """Return numbers with fewer digits, where these are right up to rounding errors."""
    values = np.atleast_1d(np.asarray(values, np.float64))
    short = np.array([float(f"{x:.14g}") for x in values])
    return np.where(np.abs(short - values) <= slack, short, values)


def _alike(places: list[Place]) -> list[Place]:
    """Return the first of some elements, and those that say the same, which are read as one."""
    return [place for place in places if _content(place) == _content(places[0])]


def _content(place: Place) -> tuple:
    return place.tag, place.attributes, [_content(child) for child in place.children]


def _require_same_structure(before: Model, after: Model, source: str) -> None:
    """Raise `ModelError`, with names, unless the structures of the file's model and the given one agree."""
    a, b = before.topology, after.topology
    for kind, field in (("joint", "joint_names"), ("frame", "frame_names"), ("link with inertia", "attached_links")):
        theirs, ours = getattr(a, field), getattr(b, field)
        more, fewer = ([x for x in one if x not in other] for one, other in ((ours, theirs), (theirs, ours)))
        for names, what in (
            (more, "the model has, and the file lacks,"),
            (fewer, "the file has, and the model lacks,"),
        ):
            if names:
                reason = f"{what} the {kind} {enumerate_names(names)}"
                raise ModelError(f"{source}: {reason}; patch_urdf changes numbers only: use to_urdf")
    for field in ("joint_names", "body_names", "joint_types", "parents", "mimics"):
        if getattr(a, field) != getattr(b, field):
            reason = f"{field} are {getattr(b, field)!r} in the model and {getattr(a, field)!r} in the file"
            raise ModelError(f"{source}: {reason}; patch_urdf changes numbers only: use to_urdf")
    if dict(zip(a.frame_names, a.frame_bodies, strict=True)) != dict(zip(b.frame_names, b.frame_bodies, strict=True)):
        raise ModelError(f"{source}: frames are fixed in other bodies than in the file; use to_urdf")
