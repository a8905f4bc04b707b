"""`to_mjcf`: a model as MuJoCo's MJCF text."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxdyn import _errors
from jaxdyn._errors import ModelError, look_up, naming_arguments, require_kind
from jaxdyn.io.robot_files import LeftOutWarning, enumerate_names, unbatched_leaves, warn
from jaxdyn.joints import JOINT_TYPES, Primitive, Topology
from jaxdyn.model import Actuator, Model, pose_vector, rotational_about_center
from jaxdyn.spatial import compose_poses, transform_points

_TYPES = {"revolute": "hinge", "continuous": "hinge", "prismatic": "slide", "ball": "ball", "free": "free"}


_UNREACHED = 1e13
"""A bound beyond those of robots, for joints that have one on the other side only; `load_mjcf` reads it as none."""
_BOUNDS = -_UNREACHED, _UNREACHED
_LEAST_MOMENT = 1e-13
"""The least principal moment that is written, kg m^2. MuJoCo's compiler requires 1e-14."""


@functools.singledispatch
def text_with_numbers(world: Any, template: Any) -> str:
    """Return the text of a template with the numbers of a world; the package of worlds registers how. **Raises**
    `ModelError` for anything else."""
    raise ModelError("to_mjcf: `template` is for worlds, which load_world reads; a model is written whole")


@naming_arguments
def to_mjcf(
    model: Model | Any,
    timestep: float = 0.001,
    *,
    limits: bool = True,
    actuators: Sequence[Actuator] | None = None,
    shapes: Sequence[Any] | None = None,
    template: str | os.PathLike | None = None,
) -> str:
    """Return the model as MJCF, with actuators and shapes where they are given: a model does not hold them.

    A `World` is written into its file: `to_mjcf(world, template="scene.xml")` returns the text of that file, as MuJoCo
    writes it, with the numbers that the world has now, to all digits: inertias, armature, damping, springs, friction
    losses, limits, contacts (a `<pair>` for each pair of geoms that changed), sizes and places of geoms that touch,
    equality constraints, actuators, keyframes, options. Files of meshes are named as in the template. Needs MuJoCo 4.

    `actuators` are those of `load_mjcf_actuators`, or made by hand, and `shapes` the `ContactShape`s of
    `load_contact_shapes(model, file).shapes`, or others. Spheres, capsules, cylinders, boxes and ellipsoids become
    geoms without mass, which touch each other by MuJoCo's defaults, and points become small spheres. `()` says that
    none are wanted. The surface of the world and meshes are not written.

    It has bodies, joints, inertias, armature, damping, friction loss, springs, and gravity; with `limits`, also the
    ranges of joints, which MuJoCo holds by constraints, and the effort limits, which bound the forces of actuators
    (`actuatorfrcrange`). Joint `j` of `d` degrees of freedom becomes `d` joints (`j_0`, `j_1`, ...) of one MuJoCo body
    where it is cylindrical, universal or planar. The order of coordinates is kept. MuJoCo's Coulomb friction
    (`frictionloss`) is a constraint, not a smooth function.
    MuJoCo requires positive moments of inertia: a principal one below 1e-12 of the largest, or below 1e-13 kg m^2, such
    as that of a thin rod about its axis, is written as that.
    Continuous joints become hinges, which differ by whole turns. Frames are left out, and merged links, whose inertias
    their bodies have. `timestep` (s) is that of MuJoCo's simulations.

    Loops of the kinds `connect` and `weld` become equality constraints between two sites (`name_1` and `name_2`), and
    couplings those of two joints. MuJoCo holds them by springs, with its default `solref` and `solimp`, where a model
    here holds them exactly; `load_mjcf` of the text has the same loops and couplings, whose polynomials are written
    about the origin of the second joint.

    **Raises** `ModelError` for a helical joint, for a free joint that is not placed at the world's origin, for a ball
    or free joint with a spring whose reference is not the origin, for a body without mass, for joints that mimic
    others (MuJoCo has them as soft constraints only), for loops of other kinds, for a model with batch axes, for an
    actuator on a joint that has several hinges or slides in MuJoCo, and for shapes that MuJoCo does not have;
    `UnknownNameError` for joints of actuators and links of shapes. Of a world, `ModelError` for a template with other
    parts, and for changes that MJCF cannot have, by name; `RobotFileError` for a template that cannot be read.
    **Warns** `LeftOutWarning`, of a world about numbers that MuJoCo's compiler derives otherwise than the world, which
    keeps those that it was loaded with (`invweight0` of changed inertias, for one), and of a model where `actuators` or
    `shapes` are not given, and `RobotFileWarning`, once, of limits that MJCF cannot have, with the names of their
    joints: those of velocities, efforts of ball and free joints, and limits that leave no room.
    """
    is_world = text_with_numbers.dispatch(type(model)) is not text_with_numbers.dispatch(object)
    if is_world or template is not None:
        if template is None or not limits or actuators is not None or shapes is not None:
            raise ModelError("to_mjcf: of a world give its MJCF file as `template`, and nothing else")
        return text_with_numbers(model, template)
    require_kind(model, Model, "to_mjcf: `model`", "a World", error=ModelError)
    leaves, topology = unbatched_leaves(model), model.topology
    _require_expressible(topology)
    root = ET.Element("mujoco")
    ET.SubElement(root, "compiler", angle="radian", autolimits="false", balanceinertia="false")
    ET.SubElement(root, "option", timestep=repr(timestep), gravity=_text(model.gravity), integrator="Euler")
    elements = {-1: ET.SubElement(root, "worldbody")}
    missing: dict[str, list[str]] = {}
    blocks, axes = iter(topology.blocks), iter(leaves["joint_axis"])
    for i, name in enumerate(topology.body_names):
        placement, joint, kind = leaves["joint_placement"][i], topology.joint_names[i], topology.joint_types[i]
        if kind == "free" and not np.allclose(placement, [0, 0, 0, 1, 0, 0, 0], atol=1e-12):
            reason = "MuJoCo has the coordinates of a free joint in the world; make its placement the identity"
            raise ModelError(f"free joint {joint!r} is placed at {placement}: {reason}")
        pose = {"name": name, "pos": _text(placement[:3]), "quat": _text(placement[3:])}
        elements[i] = element = ET.SubElement(elements[topology.parents[i]], "body", pose)
        chain = JOINT_TYPES[kind]
        for k, block in enumerate(itertools.islice(blocks, len(chain))):
            named = joint if len(chain) == 1 else f"{joint}_{k}"
            attributes = _joint(leaves, joint, named, block, axes)
            if limits:
                attributes |= _limits(leaves, *block, named, missing)
            ET.SubElement(element, "joint", attributes)
        _inertial(element, leaves["inertial_parameters"][i], name)
    _shapes(elements, leaves, topology, shapes or ())
    _equalities(root, elements, leaves, topology)
    _actuators(root, topology, actuators or ())
    absent = [name for name, given in (("actuators", actuators), ("shapes", shapes)) if given is None]
    if absent:
        what, how = " and ".join(absent), ", ".join(f"{name}=..." for name in absent)
        advice = f"give {how}, or () to say that none are wanted"
        _errors.warn(f"to_mjcf: the text has no {what}, which a model does not hold; {advice}", LeftOutWarning)
    if missing:
        shown = "; ".join(f"{what} of joint {enumerate_names(names)}" for what, names in missing.items())
        warn(f"to_mjcf leaves out limits that MJCF cannot have: {shown}")
    return ET.tostring(root, encoding="unicode")


def _joint(
    leaves: dict[str, np.ndarray],
    joint: str,
    name: str,
    block: tuple[Primitive, int, int],
    axes: Iterator[np.ndarray],
) -> dict[str, str]:
    """Return the attributes of a primitive joint with this name, without its limits. Its axis is the next of `axes`."""
    primitive, coordinate, dof = block
    if primitive.name not in _TYPES:
        raise ModelError(f"joint {joint!r} is {primitive.name}, which MuJoCo does not have")
    attributes = {"name": name, "type": _TYPES[primitive.name]}
    if primitive.has_axis:
        attributes["axis"] = _text(next(axes))
    if "stiffness" in leaves:
        attributes |= _spring(leaves, joint, primitive, dof, coordinate)
    for field, attribute in (("armature", "armature"), ("damping", "damping"), ("friction", "frictionloss")):
        attributes[attribute] = _one_number(leaves[field][dof : dof + primitive.nv], joint, field)
    return attributes


def _require_expressible(topology: Topology) -> None:
    if topology.mimics:
        names = ", ".join(repr(topology.joint_names[i]) for i, _ in topology.mimics)
        reason = "which MuJoCo holds by soft constraints only: their dynamics would differ"
        advice = "Write model.spanning_tree(), in which they are independent, with a coupling for each (with_coupling)"
        raise ModelError(f"joints {names} mimic others, {reason}. {advice}")
    if others := [loop for loop in topology.loops if loop.kind not in ("connect", "weld")]:
        names = ", ".join(f"{loop.name!r} ({loop.kind})" for loop in others)
        advice = f"write model.without_loops({[loop.name for loop in others]}), or loops of the kinds connect and weld"
        raise ModelError(f"to_mjcf: MuJoCo has no constraint like the loop {names}; {advice}")


def _equalities(root: ET.Element, elements: dict[int, ET.Element], leaves: dict, topology: Topology) -> None:
    """Add the loops, each with a site at either end, and the couplings."""
    if not topology.has_loops:
        return
    equality = ET.SubElement(root, "equality")
    for k, loop in enumerate(topology.loops):
        ends = {}
        for number, body in ((1, loop.body1), (2, loop.body2)):
            pose, name = leaves[f"loop_placement{number}"][k], f"{loop.name}_{number}"
            ET.SubElement(elements[body], "site", name=name, pos=_text(pose[:3]), quat=_text(pose[3:]))
            ends[f"site{number}"] = name
        ET.SubElement(equality, loop.kind, {"name": loop.name, **ends})
    for k, pair in enumerate(topology.couplings):
        attributes = {"name": pair.name, "joint1": topology.joint_names[pair.joint1]}
        first, second = leaves["coupling_reference"][k]
        coefficients = np.array(leaves["coupling_coefficients"][k])
        if pair.joint2 < 0:
            coefficients[1:] = 0
        else:
            attributes["joint2"] = topology.joint_names[pair.joint2]
            # MuJoCo's references are the coordinates of the file, zero here: q1 = r1 + c(q2 - r2), in powers of q2.
            moved = np.polynomial.Polynomial(coefficients)(np.polynomial.Polynomial([-second, 1.0])).coef
            coefficients = np.pad(moved, (0, 5 - len(moved)))
        coefficients[0] += first
        ET.SubElement(equality, "joint", attributes, polycoef=_text(coefficients))


def _actuators(root: ET.Element, topology: Topology, actuators: Sequence[Actuator]) -> None:
    """Add actuators on joints, as `general` ones, which all others are short for."""
    element = ET.SubElement(root, "actuator") if actuators else root
    for actuator in actuators:
        if not isinstance(actuator.joint, str):
            on = "a link" if actuator.joint is None else "several joints"
            raise ModelError(f"actuator {actuator.title!r} is on {on}, which to_mjcf does not write; leave it out")
        i = look_up(actuator.joint, topology.joint_names, f"joint for actuator {actuator.title!r}")
        if len(JOINT_TYPES[topology.joint_types[i]]) > 1:
            reason = f"is {topology.joint_types[i]} and becomes several joints of MuJoCo"
            raise ModelError(f"actuator {actuator.title!r}: its joint {actuator.joint!r} {reason}; leave it out")
        if actuator.control_path or actuator.force_path:
            raise ModelError(f"actuator {actuator.title!r} has blocks on its paths, which MuJoCo lacks; leave them out")
        gain, bias = actuator.terms
        attributes = {"name": actuator.title, "joint": actuator.joint, "gear": _text(np.atleast_1d(actuator.gear))}
        attributes |= {"gaintype": "affine" if any(gain[1:]) else "fixed", "gainprm": _text(gain)}
        attributes |= {"biastype": "affine" if any(bias) else "none", "biasprm": _text(bias)}
        attributes |= {"dyntype": actuator.dynamics_type}
        if actuator.time_constant is not None:
            attributes["dynprm"] = repr(float(actuator.time_constant))
        for part, attribute in (("control", "ctrl"), ("force", "force"), ("activation", "act")):
            if (values := getattr(actuator, f"{part}_range")) is not None:
                attributes |= {f"{attribute}limited": "true", f"{attribute}range": _text(np.clip(values, *_BOUNDS))}
        ET.SubElement(element, "general", attributes)


_GEOMS = {"Sphere": "sphere", "Capsule": "capsule", "Cylinder": "cylinder", "Box": "box", "Ellipsoid": "ellipsoid"}
_POINT = 1e-3
"""The radius of the spheres that stand for points, m."""


def _shapes(elements: dict[int, ET.Element], leaves: dict, topology: Topology, shapes: Sequence[Any]) -> None:
    """Add shapes as geoms, which have no mass: inertias are written."""
    for k, given in enumerate(shapes):
        what = f"to_mjcf: element {k} of `shapes`"
        if not (hasattr(given, "shape") and hasattr(given, "link")):
            raise ModelError(f"{what} is {type(given).__name__}; a jaxdyn.ContactShape is needed")
        body, pose, kind = -1, pose_vector(given.placement, f"{what}: placement"), type(given.shape).__name__
        if given.link != "world":
            frame = topology.frame(given.link)
            body, pose = topology.frame_bodies[frame], compose_poses(leaves["frame_placement"][frame], pose)
        sizes = [np.ravel(x) for x in dataclasses.astuple(given.shape)]
        if kind not in (*_GEOMS, "Points") or any(np.size(x) > 3 for x in sizes if kind != "Points"):
            raise ModelError(f"{what} is a {kind}, which MuJoCo has no geom for; leave it out")
        points = np.reshape(sizes[0], (-1, 3)) if kind == "Points" else np.zeros((1, 3))
        size = [_POINT] if kind == "Points" else np.concatenate(sizes)
        for point in points:
            at = {"pos": _text(transform_points(pose, point)), "quat": _text(pose[3:])}
            ET.SubElement(elements[body], "geom", at, type=_GEOMS.get(kind, "sphere"), size=_text(size), mass="0")


def _limits(
    leaves: dict[str, np.ndarray],
    primitive: Primitive,
    coordinate: int,
    dof: int,
    joint: str,
    missing: dict[str, list[str]],
) -> dict[str, str]:
    """Return the attributes of a joint's limits, and add those without an attribute to the names in `missing`."""
    rows = slice(dof, dof + primitive.nv)
    velocity, effort = leaves["velocity_limit"][rows], leaves["effort_limit"][rows]
    out = {}
    if np.isfinite(velocity).any():
        missing.setdefault("velocity limits", []).append(joint)
    if np.isfinite(effort).any():
        if primitive.nv == 1 and effort[0] > 0:
            out |= {"actuatorfrclimited": "true", "actuatorfrcrange": _text([-effort[0], effort[0]])}
        else:
            missing.setdefault("effort limits", []).append(joint)
    lower, upper = (float(leaves[name][coordinate]) for name in ("position_lower", "position_upper"))
    if primitive.nv == 1 and np.isfinite([lower, upper]).any():
        if lower < upper:
            out |= {"limited": "true", "range": _text(np.clip([lower, upper], *_BOUNDS))}
        else:
            missing.setdefault("ranges", []).append(joint)
    return out


def _spring(
    leaves: dict[str, np.ndarray], joint: str, primitive: Primitive, dof: int, coordinate: int
) -> dict[str, str]:
    stiffness = leaves["stiffness"][dof : dof + primitive.nv]
    reference = leaves["spring_reference"][coordinate : coordinate + primitive.nq]
    if not stiffness.any():
        return {}
    spring = {"stiffness": _one_number(stiffness, joint, "stiffness")}
    if primitive.has_axis:
        return spring | {"springref": repr(float(reference[0]))}
    if not np.allclose(reference, primitive.neutral, atol=1e-12):
        reason = "but MuJoCo's acts from the origin; make it the identity, or leave the spring out"
        raise ModelError(f"joint {joint!r}: its spring has the reference {reference}, {reason}")
    return spring


def _one_number(values: np.ndarray, joint: str, field: str) -> str:
    if np.ptp(values) > 0:
        raise ModelError(f"joint {joint!r}: {field} {values} differs by axis, MuJoCo has one for the joint")
    return repr(float(values[0]))


def _inertial(element: ET.Element, parameters: np.ndarray, name: str) -> None:
    m, h = parameters[0], parameters[1:4]
    if m <= 0:
        raise ModelError(f"body {name!r} has no mass, which MuJoCo does not allow for a moving body")
    c, I = h / m, rotational_about_center(parameters)
    moments, axes = np.linalg.eigh(I)
    least = max(_LEAST_MOMENT, 1e-12 * moments[-1])
    if -least < moments[0] < least:
        I = axes @ np.diag(np.maximum(moments, least)) @ axes.T
    full = (I[0, 0], I[1, 1], I[2, 2], I[0, 1], I[0, 2], I[1, 2])
    ET.SubElement(element, "inertial", pos=_text(c), mass=repr(float(m)), fullinertia=_text(full))


def _text(values) -> str:
    return " ".join(repr(float(x)) for x in np.asarray(values, np.float64))
