"""The numbers that a model's URDF has: inertias of links, axes and fields of joints, and their texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxdyn._errors import ModelError
from jaxdyn.io.robot_files import enumerate_names, unbatched_leaves, warn
from jaxdyn.io.urdf._extensions import JOINT_TAG
from jaxdyn.io.urdf._xml import LARGEST, UNLIMITED
from jaxdyn.model import (
    JOINT_FIELDS,
    LEAVES,
    STANDARD_GRAVITY,
    Model,
    plane_axes,
    require_no_loops,
    rotational_about_center,
)
from jaxdyn.spatial import inertia_matrix

URDF_TYPES = {kind: kind for kind in ("revolute", "continuous", "prismatic", "planar")} | {"free": "floating"}
"""The name in URDF of each type of joint that URDF has."""

MANY_AXES = ("planar", "free")
"""Joints whose limits, friction and armature have no place in the standard."""


class Inertial(NamedTuple):
    """The content of an `<inertial>`, in the axes of the link."""

    mass: float
    center: np.ndarray
    rotational: np.ndarray
    """About the center of mass, `[3, 3]`."""


class WrittenNumbers:
    """The numbers of a model as its URDF has them. **Raises** `ModelError` for those that URDF cannot have."""

    def __init__(self, model: Model):
        require_no_loops(model.topology, "URDF", "write model.without_loops() and say beside the file what holds it")
        self.leaves = unbatched_leaves(model)
        self.model, self.topology = dataclasses.replace(model, **self.leaves), model.topology
        self.dtype = model.inertial_parameters.dtype
        self.eps = float(np.finfo(self.dtype).eps)
        self.inertias = self._inertias()
        self._check_joints()

    def _check_joints(self) -> None:
        joints = list(zip(self.topology.joint_names, self.topology.joint_types, strict=True))
        bad = [f"{joint!r} ({kind})" for joint, kind in joints if kind not in URDF_TYPES]
        if bad:
            advice = "A cylindrical or universal joint can be built as two joints with a massless link between them, "
            advice += "which is another model; to_mjcf writes all but helical ones"
            raise ModelError(f"URDF has no such joints: {', '.join(bad)}. {advice}")
        for i, (joint, kind) in enumerate(joints):
            rows = self.topology.rows("q", [i])
            limits = [self.leaves[f"position_{side}"][rows] for side in ("lower", "upper")]
            if kind == "continuous" and np.isfinite(limits).any():
                raise ModelError(f"joint {joint!r} is continuous, but has limits; make it a revolute one")
            if (limits[0] > limits[1]).any():
                raise ModelError(f"joint {joint!r} has the limits {limits[0]} > {limits[1]}; swap or correct them")
            for field, values in self.fields(i).items():
                if LEAVES[JOINT_FIELDS[field]].sign != "any" and (values < 0).any():
                    raise ModelError(f"{field} of joint {joint!r} is negative, which cannot be read again: {values}")

    def _inertias(self) -> dict[str, np.ndarray]:
        """Return the ten parameters, in its own frame, of each link with inertia."""
        topology = self.topology
        totals, attached = self.leaves["inertial_parameters"], self.leaves["attached_parameters"]
        inertias: dict[str, np.ndarray] = {}
        written = topology.links_of(-1)
        for body, link in enumerate(topology.body_names):
            merged = topology.links_of(body)
            remainder = _difference(totals[body], attached[merged], 64 * self.eps)
            if remainder[0] < 0 <= totals[body, 0]:
                names = ", ".join(repr(topology.attached_links[k]) for k in merged)
                own, fixed = f"{totals[body, 0]:.6g} kg", f"{attached[merged, 0].sum():.6g} kg ({names})"
                advice = "written with all of its body's inertia, and they without"
                warn(f"link {link!r}: its body has {own}, the links that are fixed to it {fixed}; {advice}")
                remainder, merged = totals[body], []
            inertias[link] = remainder
            written += merged
        links = (topology.attached_links[k] for k in written)
        return inertias | {link: np.asarray(self.model.link_parameters(link)) for link in links}

    def inertial(self, link: str) -> Inertial | None:
        """Return what the `<inertial>` of a link says, or None if it has none."""
        parameters = self.inertias.get(link)
        if (
            parameters is None
            or link in self.topology.unknown_inertias
            or (link in self.topology.body_names and not parameters.any())
        ):
            return None
        where, m, h = f"link {link!r}", parameters[0], parameters[1:4]
        if m < 0:
            raise ModelError(f"{where} has the negative mass {m:.6g} kg, which URDF cannot have; see nearest_physical")
        if m == 0 and h.any():
            raise ModelError(f"{where} has a first moment {h} kg m without mass, which URDF cannot express")
        if m == 0:
            return Inertial(0.0, np.zeros(3), inertia_matrix(parameters))
        return Inertial(float(m), h / m, rotational_about_center(parameters))

    def axis(self, i: int) -> np.ndarray:
        topology = self.topology
        axes = self.leaves["joint_axis"][topology.rows("axis", [i])]
        axes = axes / np.linalg.norm(axes, axis=1, keepdims=True)
        if topology.joint_types[i] == "planar":
            expected = np.array([*plane_axes(axes[2]), axes[2]])
            if not np.abs(axes - expected).max() < 64 * self.eps:
                what = f"planar joint {topology.joint_names[i]!r} has the axes {axes.tolist()}"
                reason = f"but URDF has its normal only, from which {expected[:2].tolist()} follow"
                raise ModelError(f"{what}, {reason}; set them to these")
        return axes[-1]

    def fields(self, i: int) -> dict[str, np.ndarray]:
        """Return the numbers of joint `i`, by the names of `Joint`'s fields; none for a joint that mimics another."""
        if i in self.topology.leaders:
            return {}
        rows = {space: self.topology.rows(space, [i]) for space in ("q", "v")}
        present = {field: name for field, name in JOINT_FIELDS.items() if name in self.leaves}
        return {field: self.leaves[name][rows[str(LEAVES[name].rows)]] for field, name in present.items()}


def _difference(total: np.ndarray, parts: np.ndarray, tolerance: float) -> np.ndarray:
    """Return `total` without `parts`, with zeros in place of rounding errors: mass, first moment and inertia each."""
    out = total - parts.sum(axis=0)
    if len(parts):
        for group in (slice(0, 1), slice(1, 4), slice(4, 10)):
            scale = np.abs(total[group]).max() + np.abs(parts[:, group]).sum(axis=0).max()
            if np.abs(out[group]).max() <= tolerance * scale:
                out[group] = 0.0
    return out


def own_element_notes(fields: Mapping[str, Sequence[str]]) -> list[str]:
    """Return, for a warning, which fields of which joints stand in this library's own element."""
    joints: dict[str, list[str]] = {}
    for joint, names in fields.items():
        for name in names:
            joints.setdefault(name, []).append(joint)
    shown = ", ".join(f"{name} of joint {enumerate_names(of)}" for name, of in joints.items())
    return [f"in <{JOINT_TAG}>, which other readers pass over: {shown}"] if joints else []


def gravity_notes(gravity: np.ndarray) -> list[str]:
    """Return, for a warning, that URDF has no gravity, if this is not the standard one."""
    if np.allclose(gravity, STANDARD_GRAVITY, rtol=1e-6, atol=1e-6):
        return []
    return [f"gravity {gravity.tolist()} m/s^2, which URDF does not have: give it to the reader"]


def numbers_text(values, what: str, largest: float = LARGEST) -> str:
    values = np.atleast_1d(np.asarray(values, np.float64))
    if not (np.abs(values) <= largest).all():
        raise ModelError(f"{what}: {values.tolist()}; finite numbers up to {largest:g} can be written")
    return " ".join(repr(float(x)) for x in values)


def limits_text(values, what: str) -> str:
    return numbers_text(np.clip(values, -UNLIMITED, UNLIMITED), what, UNLIMITED)
