"""Pinocchio's dynamics for a URDF file, in the coordinates of a model that was loaded from it. Joints match by name."""

# pyright: reportAttributeAccessIssue=false
# (Pinocchio is a compiled module without type stubs.)

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np

from jaxdyn.model import Model
from jaxdyn.programs._comparison import ANSWERS, States, random_states
from jaxdyn.programs._timing import wall_time


def pinocchio_model(path: Path, free_base: bool) -> Any:
    """Load Pinocchio's model, in which joints that mimic others are independent."""
    import pinocchio as pin

    root = [pin.JointModelFreeFlyer()] if free_base else []
    return pin.buildModelFromUrdf(str(path), *root)


def pinocchio_answers(model: Model, reference: Any, path: Path, states: States) -> dict[str, np.ndarray]:
    """Compute mass matrix, bias and acceleration by Pinocchio, as `dynamics` returns them.

    Where joints mimic others, Pinocchio's independent joints are projected on the leaders: with `v_all = G v` and a
    constant `G`, the mass matrix is `G^T M G` and the bias `G^T h(q_all, G v)`.
    """
    import pinocchio as pin

    leaders = mimic_leaders(path)
    data, columns = reference.createData(), _velocity_indices(model, reference)
    G = np.zeros((reference.nv, model.nv))
    G[columns, np.arange(model.nv)] = 1.0
    for joint in reference.names:
        if joint in leaders:
            leader, multiplier, _ = leaders[joint]
            G[reference.joints[reference.getJointId(joint)].idx_v] = (
                multiplier * G[columns[model.v_index(leader).start]]
            )
    armature = np.diag(np.asarray(model.armature))
    rows = []
    for q, v, tau in zip(states.q, states.v, states.tau, strict=True):
        q_all = _configuration(model, reference, leaders, q)
        M = pin.crba(reference, data, q_all)
        M = G.T @ (np.triu(M) + np.triu(M, 1).T) @ G + armature
        h = G.T @ pin.nonLinearEffects(reference, data, q_all, G @ v)
        if model.topology.mimics or armature.any():
            a = np.linalg.solve(M, tau - h)
        else:
            a = G.T @ pin.aba(reference, data, q_all, G @ v, G @ tau)
        rows.append((M, h, a))
    return dict(zip(ANSWERS, map(np.array, zip(*rows, strict=True)), strict=True))


def pinocchio_times(model: Model, path: Path, free_base: bool) -> dict[str, float]:
    """Measure the wall time in us of one call of `rnea`, `aba` and `crba` from Python, less that of an empty loop."""
    import pinocchio as pin

    reference = pinocchio_model(path, free_base)
    data, leaders, states = reference.createData(), mimic_leaders(path), random_states(model, 256, seed=0)
    rng = np.random.default_rng(0)
    # Pinocchio's joints that mimic others have independent velocities.
    arguments = [(_configuration(model, reference, leaders, q), *rng.normal(size=(2, reference.nv))) for q in states.q]
    calls = {
        "rnea": lambda q, v, x: pin.rnea(reference, data, q, v, x),
        "aba": lambda q, v, x: pin.aba(reference, data, q, v, x),
        "crba": lambda q, v, x: pin.crba(reference, data, q),
    }

    def seconds(call) -> float:
        def run() -> None:
            for row in arguments:
                call(*row)

        return wall_time(run, 0.0, repeats=5) / len(arguments)

    empty = seconds(lambda q, v, x: None)
    return {name: 1e6 * (seconds(call) - empty) for name, call in calls.items()}


def _velocity_indices(model: Model, reference: Any) -> list[int]:
    """Pinocchio's index of each of the model's velocities."""
    indices = []
    for joint in model.joint_names:
        if model.topology.joint(joint) not in model.topology.leaders:
            peer = reference.joints[reference.getJointId(joint)]
            indices.extend(range(peer.idx_v, peer.idx_v + peer.nv))
    return indices


def _configuration(model: Model, reference: Any, leaders: dict, q: np.ndarray) -> np.ndarray:
    """Convert `q`: quaternions become `x y z w`, the angle of a continuous joint becomes cosine and sine, and joints
    that mimic others get their coordinates."""
    import pinocchio as pin

    out = pin.neutral(reference)
    for i, joint in enumerate(model.joint_names):
        leader, multiplier, offset = leaders[joint] if i in model.topology.leaders else (joint, 1.0, 0.0)
        part = multiplier * q[model.q_index(leader)] + offset
        peer = reference.joints[reference.getJointId(joint)]
        if model.topology.joint_types[i] == "free":
            part = np.concatenate([part[:3], part[4:], part[3:4]])
        elif peer.nq == 2:
            part = np.array([np.cos(part[0]), np.sin(part[0])])
        out[peer.idx_q : peer.idx_q + peer.nq] = part
    return out


def mimic_leaders(path: Path) -> dict[str, tuple[str, float, float]]:
    """Read for each joint that mimics another the independent joint at the end of the line, multiplier and offset."""
    direct = {
        str(joint.get("name")): (
            str(mimic.get("joint")),
            float(mimic.get("multiplier", 1)),
            float(mimic.get("offset", 0)),
        )
        for joint in ET.parse(path).getroot().findall("joint")
        if (mimic := joint.find("mimic")) is not None and joint.get("type") != "fixed"
    }
    leaders = {}
    for name, (leader, multiplier, offset) in direct.items():
        # A circle, which the loader refuses, must end, too.
        for _ in direct:
            if leader in direct:
                leader, m, o = direct[leader]
                multiplier, offset = multiplier * m, multiplier * o + offset
        leaders[name] = leader, multiplier, offset
    return leaders
