"""The content of a world as text, and as plain values, which `jaxdyn info` prints."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np

from jaxdyn import _printing as printing
from jaxdyn.model import NO_VALUES, may_be_values

_REACHED = 1e29
"""Bounds beyond are none: worlds have large numbers in the place of infinite ones."""


def facts_of(world: Any) -> printing.Facts:
    """Return the facts that `print` shows of a `World`."""
    parts, batch = world.parts, world.start.shape[:-1]
    first = f"{world.model.nb} moving bodies, nq = {world.model.nq}, nv = {world.model.nv}"
    if not may_be_values(world.model):
        return f"{first}; {NO_VALUES}", {}
    lists = {
        "bodies": world.body_names[1:],
        "actuators": world.actuator_names,
        "equalities": world.equality_names,
        "tendons": parts.tendons.names,
        "sensors": parts.sensors.names,
        "keyframes": tuple(world.keyframes),
    }
    facts = {name: printing.names(words) for name, words in lists.items() if words}
    limits, pairs = parts.constraints.limits, parts.constraints.contacts.pairs
    if parts.as_mujoco:
        facts["limits"] = f"of {len(limits.joints) + len(limits.balls)} joints and {len(limits.tendons)} tendons"
        facts["contacts"] = f"{sum(len(x.first) for x in pairs)} pairs of geoms may touch"
        if (own := parts.constraints.compliance) is not None:
            facts["law of contact"] = f"Hunt and Crossley's, {printing.number(own.stiffness, 'N/m')}"
    else:
        facts["contacts"] = str(len(world.contact_names))
        facts |= {} if parts.touching is None else parts.touching.facts()
    facts["step"] = f"{printing.number(world.timestep, 's')}, {parts.integrator}"
    return first + (f", batch {batch}" if batch else ""), facts


def describe(world: Any) -> dict[str, Any]:
    """Return what a world has beside its tree, without batch axes, as JSON can hold it: infinite bounds are None."""
    parts = world.parts
    limits, pairs = parts.constraints.limits, parts.constraints.contacts.pairs
    touching: collections.Counter[str] = collections.Counter()
    for x in pairs:
        touching[" and ".join(kind.__name__.lower() for kind in x.types)] += len(x.first)
    joints = _joints_of_dofs(world)
    keyframes = {
        name: {key: np.asarray(x, np.float64).tolist() for key, x in frame._asdict().items()}
        for name, frame in world.keyframes.items()
    }
    sensors = zip(parts.sensors.names, parts.sensors.types, parts.sensors.sizes, strict=True)
    spatial = {tendon for tendon, *_ in (*parts.tendons.segments, *parts.tendons.wraps)}
    return {
        "timestep": float(world.timestep),
        "integrator": parts.integrator,
        "actuators": _actuators(world, joints),
        "sensors": [{"name": name, "type": kind, "size": size} for name, kind, size in sensors],
        "tendons": [
            {"name": name, "type": "spatial" if i in spatial else "fixed"} for i, name in enumerate(parts.tendons.names)
        ],
        "equalities": _equalities(world),
        "limited_joints": [joints[v] for _, v in (*limits.joints, *limits.balls)],
        "limited_tendons": [parts.tendons.names[i] for i in limits.tendons],
        "mocap_bodies": list(world.mocap_names),
        "pairs_of_geoms": dict(touching),
        "keyframes": keyframes,
    }


def _joints_of_dofs(world: Any) -> list[str]:
    # Parts count those of the tree of all joints.
    topology = world.model.topology.spanning
    return [name for i, name in enumerate(topology.joint_names) for _ in range(*topology.v_starts[i : i + 2])]


def _actuators(world: Any, joints: list[str]) -> list[dict[str, Any]]:
    own = world.parts.actuators
    targets = {i: f"joint {joints[v]}" for i, _, v in own.axes_of_joints}
    targets |= {i: f"joint {joints[v]}" for i, _, v, *_ in own.turning}
    for i, _, v, _ in own.joined:
        targets[i] = f"{targets[i]} and {joints[v]}" if i in targets else f"joints {joints[v]}"
    targets |= {i: f"tendon {world.parts.tendons.names[k]}" for i, k in own.pulling}
    targets |= dict.fromkeys(own.pushing, "site") | {i: "slider-crank" for i, *_ in own.cranks}
    targets |= {i: f"contacts of body {world.body_names[body]}" for i, body in own.adhering}
    rows = [np.asarray(x, np.float64).tolist() for x in (own.gear, own.gain, own.bias)]
    ranges = [_range(x) for x in (own.control_range, own.force_range)]
    return [
        {
            "name": name,
            "target": targets[i],
            "gear": rows[0][i] if any(rows[0][i][1:]) else rows[0][i][0],
            "gain_type": own.gains[i],
            "gain": rows[1][i],
            "bias_type": own.biases[i],
            "bias": rows[2][i],
            "dynamics": own.dynamics[i],
            "control_range": ranges[0][i],
            "force_range": ranges[1][i],
            "control_path": _path(own.control_path, i),
            "force_path": _path(own.force_path, i),
        }
        for i, name in enumerate(own.names)
    ]


def _path(path: Any, i: int) -> list[str]:
    return [type(blocks.block).__name__ for blocks in path if i in blocks.numbers]


def _range(bounds: Any) -> list[list[float | None]]:
    return [[float(x) if abs(x) < _REACHED else None for x in row] for row in np.asarray(bounds, np.float64)]


def _equalities(world: Any) -> list[dict[str, Any]]:
    own, out = world.parts.constraints.equalities, {}
    if own.held is not None:
        kinds = ["connect"] * own.held.connections
        out |= dict(zip(own.held.numbers, kinds + ["weld"] * (len(own.held.numbers) - len(kinds)), strict=True))
    for kind, part in (("joint", own.joints), ("tendon", own.tendons)):
        out |= {} if part is None else dict.fromkeys(part.numbers, kind)
    active = {
        number: bool(x > 0)
        for part in (own.held, own.joints, own.tendons)
        if part is not None
        for number, x in zip(part.numbers, np.asarray(part.active), strict=True)
    }
    return [
        {"name": name, "type": out.get(i, "without effect"), "active": active.get(i, False)}
        for i, name in enumerate(own.names)
    ]
