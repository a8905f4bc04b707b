"""Pinocchio's answers for a URDF file, in the coordinates of a model that was loaded from it. Joints go by name."""

# pyright: reportAttributeAccessIssue=false
# (Pinocchio is a compiled module without type stubs.)

from __future__ import annotations

import statistics
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np

from jaxdyn.model import Model
from jaxdyn.programs._compare import States, random_states


def reference(path: Path, free_base: bool) -> Any:
    """Pinocchio's model, with joints that mimic others independent."""
    import pinocchio as pin

    root = [pin.JointModelFreeFlyer()] if free_base else []
    return pin.buildModelFromUrdf(str(path), *root)


def expected(model: Model, other: Any, path: Path, states: States) -> dict[str, np.ndarray]:
    """By the algorithms of Pinocchio; where joints mimic others, its independent joints are projected on them.

    With `v_all = G v`, and constant `G`: mass matrix `G^T M G`, bias `G^T h(q_all, G v)`.
    """
    import pinocchio as pin

    follows = followers(path)
    data, rows = other.createData(), velocity_rows(model, other)
    G = np.zeros((other.nv, model.nv))
    for i, joint in enumerate(rows):
        G[joint, i] = 1.0
    for joint in other.names:
        if joint in follows:
            leader, multiplier, _ = follows[joint]
            G[other.joints[other.getJointId(joint)].idx_v] = multiplier * G[rows[model.v_index(leader).start]]
    found: dict[str, list] = {"mass matrix": [], "bias": [], "acceleration": []}
    armature = np.diag(np.asarray(model.armature))
    for q, v, tau in zip(states.q, states.v, states.tau, strict=True):
        theirs = configuration(model, other, follows, q)
        M = pin.crba(other, data, theirs)
        M = G.T @ (np.triu(M) + np.triu(M, 1).T) @ G + armature
        h = G.T @ pin.nonLinearEffects(other, data, theirs, G @ v)
        if model.topology.mimics or armature.any():
            a = np.linalg.solve(M, tau - h)
        else:
            a = G.T @ pin.aba(other, data, theirs, G @ v, G @ tau)
        for name, value in zip(found, (M, h, a), strict=True):
            found[name].append(value)
    return {name: np.array(values) for name, values in found.items()}


def times(model: Model, path: Path, free_base: bool) -> dict[str, float]:
    """Wall time in us of `rnea`, `aba` and `crba`, a call from Python each, without what the loop itself takes."""
    import pinocchio as pin

    other = reference(path, free_base)
    data, follows, states = other.createData(), followers(path), random_states(model, 256, seed=0)
    rng = np.random.default_rng(0)
    # Its joints that mimic others have velocities of their own.
    arguments = [(configuration(model, other, follows, q), *rng.normal(size=(2, other.nv))) for q in states.q]
    calls = {
        "rnea": lambda q, v, x: pin.rnea(other, data, q, v, x),
        "aba": lambda q, v, x: pin.aba(other, data, q, v, x),
        "crba": lambda q, v, x: pin.crba(other, data, q),
    }

    def seconds(call) -> float:
        repeats = []
        for _ in range(5):
            began = time.perf_counter()
            for row in arguments:
                call(*row)
            repeats.append(time.perf_counter() - began)
        return statistics.median(repeats) / len(arguments)

    empty = seconds(lambda q, v, x: None)
    return {name: 1e6 * (seconds(call) - empty) for name, call in calls.items()}


def velocity_rows(model: Model, other: Any) -> list[int]:
    """Pinocchio's index of each of the model's velocities."""
    rows = []
    for joint in model.joint_names:
        if model.topology.joint(joint) not in model.topology.leaders:
            theirs = other.joints[other.getJointId(joint)]
            rows.extend(range(theirs.idx_v, theirs.idx_v + theirs.nv))
    return rows


def configuration(model: Model, other: Any, follows: dict, q: np.ndarray) -> np.ndarray:
    """`w x y z` becomes `x y z w`, the angle of a continuous joint cosine and sine, what follows is computed."""
    import pinocchio as pin

    out = pin.neutral(other)
    for i, joint in enumerate(model.joint_names):
        multiplier, offset, leader = 1.0, 0.0, joint
        if i in model.topology.leaders:
            leader, multiplier, offset = follows[joint]
        part = multiplier * q[model.q_index(leader)] + offset
        theirs = other.joints[other.getJointId(joint)]
        if model.topology.joint_types[i] == "free":
            part = np.concatenate([part[:3], part[4:], part[3:4]])
        elif theirs.nq == 2:
            part = np.array([np.cos(part[0]), np.sin(part[0])])
        out[theirs.idx_q : theirs.idx_q + theirs.nq] = part
    return out


def followers(path: Path) -> dict[str, tuple[str, float, float]]:
    """By joint that mimics another: the one at the end of the line, multiplier and offset, as the file has them."""
    direct = {}
    for joint in ET.parse(path).getroot().findall("joint"):
        mimic = joint.find("mimic")
        if mimic is not None and joint.get("type") != "fixed":
            direct[joint.get("name")] = (
                mimic.get("joint"),
                float(mimic.get("multiplier", 1)),
                float(mimic.get("offset", 0)),
            )

    def resolved(name: str, depth: int = 0) -> tuple[str, float, float]:
        leader, m, o = direct[name]
        if leader not in direct or depth > len(direct):
            return leader, m, o
        end, m2, o2 = resolved(leader, depth + 1)
        return end, m * m2, m * o2 + o

    return {name: resolved(name) for name in direct}
