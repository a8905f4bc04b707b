"""The check that every joint moves something with inertia."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jax.core import Tracer

from jaxdyn._errors import ModelError
from jaxdyn.joints import JOINT_TYPES, Topology
from jaxdyn.model._row_tables import row_joints, rows_of_joints


def require_resistance(topology: Topology, leaves: Mapping[str, Any]) -> None:
    """Raise `ModelError` if a joint moves nothing with inertia, which would have no acceleration.

    `leaves` has the arrays of a model by name. Nothing is checked while tracing.
    """
    names = ("joint_axis", "joint_pitch", "inertial_parameters", "armature")
    if any(isinstance(leaves[name], Tracer) for name in names):
        return
    arrays = [np.asarray(leaves[name], np.float64) for name in names]
    i = _unresisted_joint(topology, *arrays)
    if i is None:
        return
    massless = (arrays[2][..., i, 0] == 0).any()
    what = "no mass" if massless else "no inertia against the motion of its joint"
    advice = "Give it an inertia, give the joint an armature, or fix the joint"
    if i in topology.leaders:
        advice = "Give it an inertia, or fix the joint, which mimics another"
    raise ModelError(
        f"body {topology.body_names[i]!r}, moved by joint {topology.joint_names[i]!r}, has {what}, and nothing with "
        f"mass is attached to it: its acceleration would be undefined. {advice}"
    )


def _unresisted_joint(
    topology: Topology, axes: np.ndarray, pitches: np.ndarray, inertias: np.ndarray, armature: np.ndarray
) -> int | None:
    """The first joint that moves nothing with inertia, or None: at leaves, and where nothing behind a joint has mass,
    `S^T I S + armature` must be positive definite. The others are leaves of a model, with any batch axes.

    Joints that mimic others are looked at as the spanning tree has them, without an armature of their own.
    """
    massive = (inertias[..., 0] > 0).reshape(-1, topology.nb).all(axis=0)
    leaf = np.ones(topology.nb, bool)
    for i in reversed(range(topology.nb)):
        parent = topology.parents[i]
        if parent >= 0:
            massive[parent] |= massive[i]
            leaf[parent] = False
    owner = row_joints(topology)
    for i in range(topology.nb):
        if massive[i] and not leaf[i]:
            continue
        own_axes = axes[..., rows_of_joints(owner["axis"], [i]), :]
        S = _columns(topology.joint_types[i], own_axes, pitches[..., rows_of_joints(owner["pitch"], [i])])
        D = np.swapaxes(S, -1, -2) @ _matrix6(inertias[..., i, :]) @ S
        if i not in topology.leaders:
            rotor = armature[..., topology.v_starts[i] : topology.v_starts[i + 1]]
            D = D + rotor[..., None] * np.eye(rotor.shape[-1])
        if (np.linalg.eigvalsh(D)[..., 0] <= 1e-12 * np.abs(D).max(axis=(-1, -2))).any():
            return i
    return None


def _columns(joint_type: str, axes: np.ndarray, pitch: np.ndarray) -> np.ndarray:
    """`[*batch, 6, nv]`, angular first: a joint's motion subspace at `q = 0` in its body's frame."""
    columns = []
    for k, joint in enumerate(JOINT_TYPES[joint_type]):
        axis = axes[..., k, :] if joint.has_axis else np.ones(3)
        columns.append(joint.columns(axis, pitch[..., 0] if joint.has_pitch else np.zeros(())))
    return np.concatenate(columns, axis=-1)


def _matrix6(parameters: np.ndarray) -> np.ndarray:
    """`[*batch, 6, 6]`, angular first."""
    m, x, y, z, xx, xy, yy, xz, yz, zz = np.moveaxis(parameters, -1, 0)
    o = np.zeros_like(m)
    rows = [
        [xx, xy, xz, o, -z, y],
        [xy, yy, yz, z, o, -x],
        [xz, yz, zz, -y, x, o],
        [o, z, -y, m, o, o],
        [-z, o, x, o, m, o],
        [y, -x, o, o, o, m],
    ]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)
