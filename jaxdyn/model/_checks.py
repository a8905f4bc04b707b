"""Checks of the numbers of models: joints that nothing resists, and inertias that no body has. NumPy."""

from __future__ import annotations

import numpy as np

from jaxdyn.model._inertia import rotational_about_center, unphysical_reason
from jaxdyn.model._restructure import of_joints, owners
from jaxdyn.model._topology import PRIMITIVES, Topology


def unresisted_joint(
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
    owner = owners(topology)
    for i in range(topology.nb):
        if massive[i] and not leaf[i]:
            continue
        own_axes = axes[..., of_joints(owner["axis"], [i]), :]
        S = _columns(topology.joint_types[i], own_axes, pitches[..., of_joints(owner["pitch"], [i])])
        D = np.swapaxes(S, -1, -2) @ _matrix6(inertias[..., i, :]) @ S
        if i not in topology.leaders:
            rotor = armature[..., topology.v_starts[i] : topology.v_starts[i + 1]]
            D = D + rotor[..., None] * np.eye(rotor.shape[-1])
        if (np.linalg.eigvalsh(D)[..., 0] <= 1e-12 * np.abs(D).max(axis=(-1, -2))).any():
            return i
    return None


def unphysical_beyond_rounding(parameters: np.ndarray, rounding: np.ndarray) -> str | None:
    """Why no distribution of mass has ten parameters, if they are wrong by more than their rounding errors `[10]`."""
    if not np.isfinite(parameters).all():
        return "inertial parameters that are not finite"
    if (np.abs(parameters) <= rounding).all():
        return None
    reason = unphysical_reason(parameters)
    if reason and parameters[0] > 0:
        moments = np.linalg.eigvalsh(rotational_about_center(parameters))
        if max(-moments[0], moments[2] - moments[0] - moments[1]) <= rounding[4:].max():
            return None
    return reason


def rounding(parameters: np.ndarray, dtype) -> np.ndarray:
    """How far parameters may be off that were computed in a precision, from terms of their own size."""
    return 64 * np.finfo(np.dtype(dtype)).eps * np.abs(parameters)


def _columns(kind: str, axes: np.ndarray, pitch: np.ndarray) -> np.ndarray:
    """`[*batch, 6, nv]`, angular first: a joint's motion subspace at `q = 0` in its body's frame."""
    word = PRIMITIVES[kind]
    if word in ("B", "F"):
        return np.eye(6)[:, : 3 if word == "B" else 6]
    columns = []
    for i, primitive in enumerate(word):
        axis = axes[..., i, :] / np.linalg.norm(axes[..., i, :], axis=-1, keepdims=True)
        angular = 0 * axis if primitive == "P" else axis
        advance = {"P": np.ones(1), "R": np.zeros(1), "H": pitch[..., :1]}[primitive]
        columns.append(np.concatenate(np.broadcast_arrays(angular, advance * axis), axis=-1))
    return np.stack(np.broadcast_arrays(*columns), axis=-1)


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
