"""`patch_mjcf`: the numbers of a model or a world in the text of the MJCF file that it was loaded from."""

from __future__ import annotations

import copy
import functools
import math
import os
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxdyn._errors import ModelError, UnknownNameError
from jaxdyn.io.mjcf import _compiled as mj
from jaxdyn.io.mjcf._document import Document
from jaxdyn.io.mjcf._massless import compile_massless_mjcf
from jaxdyn.io.mjcf._mjcf_reader import load_mjcf
from jaxdyn.io.robot_files import EditedText, Place, enumerate_names
from jaxdyn.model import LEAVES, Model, rotational_about_center
from jaxdyn.spatial import quaternion_to_rotation

# Moments of inertia are about the centers of mass in the file and about the bodies' origins in models: of all digits
# about nine are left. Other numbers are those of the file.
_TOLERANCE = 1e-9
_OF_DTYPE = 1e-6
"""The same for numbers in single precision."""
# Products of inertia below this part of the moments are rounding.
_DIAGONAL = 1e-12
_OF_DOFS = {"dof_damping": "damping", "dof_armature": "armature", "dof_frictionloss": "frictionloss"}
_OF_TENDONS = {"stiffness": "stiffness", "damping": "damping", "frictionloss": "frictionloss", "armature": "armature"}
_OF_TENDONS |= {"lengthspring": "springlength", "range": "range"}
_OF_ACTUATORS = {"ctrlrange": "ctrlrange", "forcerange": "forcerange", "actrange": "actrange"}
# Attributes of actuators that are shorthands: with which sign a number stands in the gain and the bias of each.
_SHORT = {"position": {"kp": (0, 1), "kv": (None, 2)}, "intvelocity": {"kp": (0, 1), "kv": (None, 2)}}
_SHORT |= {"velocity": {"kv": (0, 2)}}


def patch_mjcf(path_or_text: str | os.PathLike, robot: Model | Any, *, files: bool = False) -> str | dict[str, str]:
    """Return the text of an MJCF file with the numbers of a model or a `World` that was loaded from it and then edited
    or identified.

    Only numbers that differ change, and everything else stays as it is to the last byte: comments, order, classes of
    defaults, units. `to_mjcf(world, template=...)` writes more, in MuJoCo's own form. Written are inertias of bodies;
    armature, damping, friction loss, stiffness, references of springs and ranges of joints, in the file's unit of
    angles; gears, gains, biases and ranges of actuators; stiffness, damping, friction loss, armature, lengths and
    ranges of tendons; friction of geoms; gravity and the time step. A number that a class of defaults gives is written
    at the element itself, and the class stays. A body whose inertia MuJoCo computed from geoms gets an `<inertial>`.

    The text is read again and compared with the robot, so that nothing is lost without a word.

    **Arguments**

    - `path_or_text`: the file from which the robot was loaded.
    - `files`: return the texts of all files that change, by their paths, where numbers stand in files that this one
      includes.

    **Raises** `ModelError` for another robot than that of the file, and, by name, for numbers that cannot be written
    in place: inertias where the compiler takes all from geoms (`inertiafromgeom="true"`) or changes them
    (`settotalmass`), friction of one geom whose contacts have different frictions now, numbers of elements that
    `<replicate>` or `<attach>` has made, placements, and others that are not above; and for numbers in an included
    file without `files`. `RobotFileError` for a file that cannot be read.
    """
    m, source = compile_massless_mjcf(path_or_text, kinematics_only=False)
    found, new, document = robot_in_file(robot, m), copy.copy(m), Document(path_or_text)
    found.put(new)
    patch = _ChangedElements(document, m, new)
    patch.joints()
    patch.tendons()
    patch.actuators()
    patch.geoms()
    patch.options()
    patch.inertias(found.model, found.before)
    texts = document.changed()
    again = _compiled({path: x.text() for path, x in document.texts.items()}, document.main)
    if lost := found.lost(again):
        raise ModelError(
            f"patch_mjcf: {source} does not get what has changed in {enumerate_names(lost)}: nothing in it says these "
            "numbers by itself; to_mjcf(world, template=...) writes more, in MuJoCo's own form"
        )
    if files:
        return texts
    if others := [path for path in texts if path != document.main]:
        raise ModelError(
            f"patch_mjcf: numbers that changed stand in {enumerate_names(others)}, which {source} includes; "
            "files=True returns the texts of all files by their paths"
        )
    return texts[document.main]


class RobotInFile(NamedTuple):
    """A robot and the one of its file, for numbers to be written in place."""

    model: Model
    before: Model
    """The model of the file."""
    put: Callable[[Any], None]
    """Writes what has changed, but for inertias, into a compiled `mjModel` of the file."""
    lost: Callable[[Any], list[str]]
    """Returns the names of the numbers that the robot has and a compiled `mjModel` has otherwise."""


@functools.singledispatch
def robot_in_file(robot: Any, m: Any) -> RobotInFile:
    """Return how a robot's numbers come into a file whose compiled model is `m`; the package of worlds registers its
    own. **Raises** `ModelError` for another robot than the file's."""
    raise ModelError(f"patch_mjcf: {type(robot).__name__} is neither a Model nor a World")


@robot_in_file.register
def _model_in_file(robot: Model, m: Any) -> RobotInFile:
    before = _quietly(lambda: load_mjcf(m, unsupported="warn").astype(robot.dtype))
    if before.topology != robot.topology or any(np.ndim(getattr(robot, k)) > x.axes for k, x in LEAVES.items()):
        raise ModelError(
            "patch_mjcf: the file has other joints, bodies or frames than the model, or the model has batch axes; give "
            "the file that load_mjcf has read, or write the model with to_mjcf"
        )

    def lost(again: Any) -> list[str]:
        written = _quietly(lambda: load_mjcf(again, unsupported="warn").astype(robot.dtype))
        leaves = {k: tuple(getattr(x, k) for x in (robot, written)) for k in LEAVES}
        return [k for k, (x, y) in leaves.items() if x is not None and not same_numbers(x, y, robot.dtype)]

    return RobotInFile(robot, before, lambda new: _put_model(robot, before, new), lost)


def same_numbers(x: Any, y: Any, dtype: Any) -> bool:
    """Return whether arrays agree to the digits that files keep, of numbers in a precision."""
    if x is None or y is None or np.shape(x) != np.shape(y):
        return x is y
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    finite = np.isfinite(x)
    slack = _TOLERANCE if np.dtype(dtype) == np.float64 else _OF_DTYPE
    close = np.abs(np.subtract(x, y, where=finite & np.isfinite(y), out=np.zeros(x.shape)))
    return bool(np.all(np.where(finite, close <= slack * max(np.abs(x[finite]).max(initial=0.0), 1e-12), x == y)))


def _put_model(model: Model, before: Model, m: Any) -> None:
    """Write what has changed in joints, and gravity, into a compiled model. Actuators may add to the numbers of the
    file, so differences are added."""
    one = {k: np.asarray(getattr(model, k), np.float64) for k in ("armature", "damping", "friction")}
    two = {k: np.asarray(getattr(before, k), np.float64) for k in one}
    arrays = {"armature": m.dof_armature, "damping": m.dof_damping, "friction": m.dof_frictionloss}
    names = mj.Names.of(m)
    for j, name in enumerate(names.joints):
        rows, dofs = model.v_index(name), mj.dofs(m, j)
        for key, array in arrays.items():
            new, old = one[key][rows], two[key][rows]
            now = np.array(array[dofs])
            array[dofs] = np.where(new == old, now, np.where(now == old, new, now + new - old))
        q = model.q_index(name)
        if m.jnt_type[j] in (mj.SLIDE, mj.HINGE):
            bounds = [[float(x[q.start]) for x in (r.position_lower, r.position_upper)] for r in (model, before)]
            if bounds[0] != bounds[1]:
                m.jnt_range[j] = bounds[0]
            springs = [[x.stiffness, x.spring_reference] for x in (model, before)]
            if all(x is not None for pair in springs for x in pair):
                new, old = (
                    [float(np.asarray(x)[i]) for x, i in zip(y, (rows.start, q.start), strict=True)] for y in springs
                )
                m.jnt_stiffness[j] += new[0] - old[0]
                m.qpos_spring[m.jnt_qposadr[j]] += new[1] - old[1]
    if not np.array_equal(model.gravity, before.gravity):
        m.opt.gravity[:] = np.asarray(model.gravity)


def _quietly(make: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        # The file has been loaded before, and its user has seen the warnings.
        warnings.simplefilter("ignore")
        return make()


def _compiled(texts: dict[str, str], main: str) -> Any:
    """Return what MuJoCo compiles from the texts of a file and of those that it includes."""
    folder = os.path.dirname(main) or "."
    others = {os.path.relpath(path, folder): text.encode() for path, text in texts.items() if path != main}
    try:
        spec = mj.mujoco().MjSpec.from_string(texts[main], include=others)
        if main:
            spec.modelfiledir = folder
        return _quietly(spec.compile)
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"patch_mjcf: MuJoCo refuses the text with the new numbers: {reason}") from error


class _ChangedElements:
    """The changes of a document that lead from one compiled model to another."""

    def __init__(self, document: Document, old: Any, new: Any):
        self.document, self.old, self.new = document, old, new
        degrees = document.compiler.get("angle", "degree") == "degree"
        self.angle = 180 / math.pi if degrees else 1.0

    def _name(self, kind: str, i: int) -> str:
        of_kind = getattr(mj.mujoco().mjtObj, f"mjOBJ_{kind.upper()}")
        return mj.mujoco().mj_id2name(self.old, of_kind, int(i)) or ""

    def _element(self, kind: str, i: int) -> tuple[EditedText, Place]:
        count = {"body": self.old.nbody - 1, "actuator": mj.actuator_count(self.old)}.get(kind)
        count = (
            getattr(self.old, {"joint": "njnt", "geom": "ngeom", "tendon": "ntendon"}.get(kind, "nq"))
            if (count is None)
            else count
        )
        return self.document.find(kind, self._name(kind, i), i - (kind == "body"), count)

    def _write(self, kind: str, i: int, attribute: str, old: np.ndarray, new: np.ndarray, scale: float = 1.0) -> None:
        """Write numbers of an element, those that differ with new digits, and all before them."""
        old, new = (np.atleast_1d(np.asarray(x, np.float64)) for x in (old, new))
        if np.array_equal(old, new):
            return
        text, place = self._element(kind, i)
        words = text.value(place, attribute).split() if attribute in place.attributes else []
        last = max(int(np.flatnonzero(old != new)[-1]) + 1, len(words))
        out = [
            words[k] if k < len(words) and (k >= len(new) or new[k] == old[k]) else repr(float(new[k] * scale))
            for k in range(last)
        ]
        text.set(place, attribute, " ".join(out))

    def joints(self) -> None:
        old, new = self.old, self.new
        for j in range(old.njnt):
            dofs = mj.dofs(old, j)
            for array, attribute in _OF_DOFS.items():
                a, b = np.array(getattr(old, array)[dofs]), np.array(getattr(new, array)[dofs])
                if not np.array_equal(a, b):
                    if np.ptp(b) > 0:
                        raise ModelError(
                            f"patch_mjcf: {attribute} of joint {mj.object_name(old, 'joint', j)} differs along its "
                            f"axes, {b.tolist()}, and MJCF has one number for all"
                        )
                    self._write("joint", j, attribute, a[0], b[0])
            self._write("joint", j, "stiffness", old.jnt_stiffness[j], new.jnt_stiffness[j])
            if old.jnt_type[j] in (mj.SLIDE, mj.HINGE):
                scale, k = self.angle if old.jnt_type[j] == mj.HINGE else 1.0, old.jnt_qposadr[j]
                self._write("joint", j, "springref", old.qpos_spring[k], new.qpos_spring[k], scale)
                self._write("joint", j, "range", old.jnt_range[j], new.jnt_range[j], scale)
            elif old.jnt_type[j] == mj.BALL:
                self._write("joint", j, "range", old.jnt_range[j], new.jnt_range[j], self.angle)

    def tendons(self) -> None:
        for i in range(self.old.ntendon):
            for name, attribute in _OF_TENDONS.items():
                old, new = (np.array(getattr(x, f"tendon_{name}")[i]) for x in (self.old, self.new))
                if name == "lengthspring" and np.ptp(old) == np.ptp(new) == 0:
                    old, new = old[0], new[0]
                self._write("tendon", i, attribute, old, new)

    def actuators(self) -> None:
        for i in range(mj.actuator_count(self.old)):
            old, new = (np.array(mj.gear(x, i)) for x in (self.old, self.new))
            self._write("actuator", i, "gear", old, new)
            for name, attribute in _OF_ACTUATORS.items():
                old, new = (np.array(getattr(x, f"actuator_{name}")[i]) for x in (self.old, self.new))
                self._write("actuator", i, attribute, old, new)
            self._gains(i)

    def _gains(self, i: int) -> None:
        names = ("gainprm", "biasprm", "dynprm")
        old, new = ({k: np.array(getattr(x, f"actuator_{k}")[i]) for k in names} for x in (self.old, self.new))
        if all(np.array_equal(old[k], new[k]) for k in names):
            return
        tag = self._element("actuator", i)[1].tag
        if tag == "general":
            for k in names:
                self._write("actuator", i, k, old[k], new[k])
        for attribute, (gain, bias) in _SHORT.get(tag, {}).items():
            self._write("actuator", i, attribute, -old["biasprm"][bias], -new["biasprm"][bias])
            if gain is not None and new["gainprm"][gain] != -new["biasprm"][bias]:
                title = mj.object_name(self.old, "actuator", i)
                raise ModelError(
                    f"patch_mjcf: {attribute} of actuator {title} is {new['gainprm'][gain]:g} in its gain and "
                    f"{-new['biasprm'][bias]:g} in its bias, and <{tag}> has one number for both"
                )
        if tag in ("position", "velocity", "intvelocity"):
            # The time constant of a filter of positions.
            self._write("actuator", i, "timeconst", old["dynprm"][0], new["dynprm"][0])

    def geoms(self) -> None:
        for i in range(self.old.ngeom):
            self._write("geom", i, "friction", self.old.geom_friction[i], self.new.geom_friction[i])

    def options(self) -> None:
        for attribute in ("gravity", "timestep"):
            old, new = (np.array(getattr(x.opt, attribute)) for x in (self.old, self.new))
            if np.array_equal(old, new):
                continue
            if self.document.elements["option"]:
                text, place = self.document.elements["option"][-1]
                text.set(place, attribute, _text(new))
            else:
                text = self.document.texts[self.document.main]
                text.add(text.root, "option", {attribute: _text(new)})

    def inertias(self, model: Model, before: Model) -> None:
        names = mj.Names.of(self.old)
        for i in range(1, self.old.nbody):
            if self.old.body_weldid[i] == 0 and names.bodies[i] not in model.topology.frame_names:
                continue
            try:
                new, old = (np.asarray(x.link_parameters(names.bodies[i]), np.float64) for x in (model, before))
            except UnknownNameError:
                continue
            if not np.array_equal(new, old):
                self._inertia(i, names.bodies[i], new)

    def _inertia(self, i: int, name: str, parameters: np.ndarray) -> None:
        """Write the inertia of a body, in the axes that the file has for it if these are principal."""
        if self.document.compiler.get("inertiafromgeom", "auto") == "true":
            raise ModelError(
                f"patch_mjcf: the inertia of body {name} has changed, but the file's compiler takes all inertias from "
                'geoms; set inertiafromgeom="auto" there'
            )
        text, body = self._element("body", i)
        mass = float(parameters[0])
        if not mass > 0:
            raise ModelError(f"patch_mjcf: body {name} has a mass of {mass:g} kg, which MuJoCo's <inertial> lacks")
        center, moments = parameters[1:4] / mass, rotational_about_center(parameters)
        R = np.asarray(quaternion_to_rotation(self.old.body_iquat[i]))
        turned, found = R.T @ moments @ R, body.all("inertial")
        off = np.abs(turned - np.diag(np.diagonal(turned))).max()
        if found and "diaginertia" in found[0].attributes and off <= _DIAGONAL * np.trace(moments):
            numbers = {"mass": mass, "pos": center, "diaginertia": np.diagonal(turned)}
        else:
            full = (moments[0, 0], moments[1, 1], moments[2, 2], moments[0, 1], moments[0, 2], moments[1, 2])
            numbers = {"mass": mass, "pos": center, "fullinertia": np.array(full)}
        if found and set(found[0].attributes) - {"quat", "euler", "axisangle", "xyaxes", "zaxis"} >= set(numbers):
            for attribute, x in numbers.items():
                text.set(found[0], attribute, _text(x))
            return
        written = " ".join(f'{key}="{_text(x)}"' for key, x in numbers.items())
        if found:
            text.replace(found[0], f"<inertial {written}/>")
        else:
            text.append(body, [f"<inertial {written}/>"])


def _text(x: Any) -> str:
    return " ".join(repr(float(y)) for y in np.atleast_1d(x))
