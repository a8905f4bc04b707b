"""The check that every joint moves something with inertia."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jax.core import Tracer

from jaxdyn._errors import ModelError
from jaxdyn.joints import Topology
from jaxdyn.spatial import SKEW, inertia_matrix


def require_resistance(topology: Topology, leaves: Mapping[str, Any]) -> None:
    """Raise `ModelError` if a joint moves nothing with inertia, which would have no acceleration. `leaves` has the
    arrays of a model by name. Nothing is checked while tracing."""
    arrays = [leaves[name] for name in ("joint_axis", "joint_pitch", "inertial_parameters", "armature")]
    if any(isinstance(x, Tracer) for x in arrays):
        return
    arrays = [np.asarray(x, np.float64) for x in arrays]
    i = _unresisted_joint(topology, *arrays)
    if i is None:
        return
    what = "no mass" if (arrays[2][..., i, 0] == 0).any() else "no inertia against the motion of its joint"
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
    """The first joint that moves nothing with inertia, or None, from leaves of a model with any batch axes. At leaves
    of the tree, and where nothing behind a joint has mass, `S^T I S + armature` must be positive definite. A joint that
    mimics another counts as in the spanning tree, without an armature."""
    massive = (inertias[..., 0] > 0).reshape(-1, topology.nb).all(axis=0)
    leaf = np.ones(topology.nb, bool)
    for i in reversed(range(topology.nb)):
        parent = topology.parents[i]
        if parent >= 0:
            massive[parent] |= massive[i]
            leaf[parent] = False
    columns = _columns(topology.spanning, axes, pitches)
    for i in np.flatnonzero(leaf | ~massive).tolist():
        S = columns[..., slice(*topology.spanning.v_starts[i : i + 2]), :]
        D = S @ _matrix6(inertias[..., i, :]) @ np.swapaxes(S, -1, -2)
        if i not in topology.leaders:
            rotor = armature[..., topology.v_starts[i] : topology.v_starts[i + 1]]
            D = D + rotor[..., None] * np.eye(rotor.shape[-1])
        if (np.linalg.eigvalsh(D)[..., 0] <= 1e-12 * np.abs(D).max(axis=(-1, -2))).any():
            return i
    return None


def _columns(tree: Topology, axes: np.ndarray, pitches: np.ndarray) -> np.ndarray:
    """`[*batch, nv, 6]`, angular first: the motion of each degree of freedom at `q = 0` in its body's frame."""
    batch = (*np.broadcast_shapes(axes.shape[:-2], pitches.shape[:-1]), tree.nv)
    # Without an axis, directions are x, y and z, and again x, y and z.
    number = np.arange(tree.nv) - tree.first_dofs[tree.node_of_dof]
    direction, advance = np.empty((*batch, 3)), np.empty((*batch, 1))
    direction[:], advance[:] = np.eye(3)[number % 3], tree.translating_dofs[:, None]
    direction[..., tree.axis_dofs, :] = axes / np.linalg.norm(axes, axis=-1, keepdims=True)
    advance[..., tree.helical_dofs, 0] = pitches
    return np.concatenate([tree.rotating_dofs[:, None] * direction, advance * direction], axis=-1)


def _matrix6(parameters: np.ndarray) -> np.ndarray:
    """`[*batch, 6, 6]`, angular first: the spatial inertia matrix of inertial parameters `[*batch, 10]`."""
    skew = np.einsum("ijk,...k->...ij", SKEW, parameters[..., 1:4])
    return np.block([[inertia_matrix(parameters), skew], [-skew, parameters[..., :1, None] * np.eye(3)]])
