"""Motions of a model that nothing with inertia resists, which make its mass matrix singular, in NumPy."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import PhysicalityWarning, warn
from jaxdyn.joints import Topology, coordinate_range, neutral
from jaxdyn.model._body_inertia import dof_columns, spatial_matrices
from jaxdyn.model._fields import LEAVES, ModelFields
from jaxdyn.model._spanning_tree import mimic_matrix, spanning_coordinates
from jaxdyn.spatial import IDENTITY_POSE, compose_poses, inertia_matrix, quaternion_to_rotation

_TOLERANCE = 1e-12
"""A joint that resists less than this part of what it would resist with all joints behind it locked, resists nothing:
the difference is that of rounding errors."""

_CONFIGURATIONS = 3
"""The number of random configurations beside the neutral one."""


def warn_of_singular_motions(model: ModelFields) -> None:
    """Warn the library's caller of the motions that nothing with inertia resists; `model` has NumPy arrays."""
    for text in singular_motions(model):
        warn(text, PhysicalityWarning)


def warn_of_new_singular_motions(before: ModelFields, after: ModelFields) -> None:
    """Warn the library's caller of the motions that nothing with inertia resists in an edited model, and that were not
    there before the edit. Nothing is said while tracing, and about models with batch axes."""
    if (edited := in_double_precision(after)) is None or not (texts := singular_motions(edited)):
        return
    earlier = in_double_precision(before)
    known = singular_motions(earlier) if earlier is not None else []
    for text in texts:
        if text not in known:
            warn(text, PhysicalityWarning)


def in_double_precision[M: ModelFields](model: M) -> M | None:
    """Return a model with NumPy arrays in double precision, or None if it is traced or has batch
    axes."""
    arrays: dict[str, Any] = {name: x for name in LEAVES if (x := getattr(model, name)) is not None}
    known = [isinstance(x, jax.Array | np.ndarray) and not isinstance(x, Tracer) for x in arrays.values()]
    if not all(known) or any(x.ndim != LEAVES[name].axes for name, x in arrays.items()):
        return None
    return dataclasses.replace(model, **{name: np.asarray(x, np.float64) for name, x in arrays.items()})


def singular_motions(model: ModelFields) -> list[str]:
    """Return a sentence for each motion of joints, of a model with NumPy arrays in double precision and without batch
    axes, that nothing with inertia resists.

    The mass matrix is computed at the neutral and a few random configurations (with a fixed seed, within the limits)
    and factorized from the leaves to the roots (Featherstone, Rigid Body Dynamics Algorithms, 2008, section 6.3): a
    pivot is the inertia that a joint feels if all joints behind it move freely. Models that lack inertias, and those
    whose every body resists every motion, have none.
    """
    # Numbers that no robot has, such as 1e300, overflow; the checks of values are elsewhere.
    with np.errstate(all="ignore"):
        try:
            return [] if model.topology.missing_inertias or _every_body_resists(model) else _found(model)
        except np.linalg.LinAlgError:
            return []


def mass_matrices(model: ModelFields, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mass matrices `[n, nv, nv]` at configurations `[n, nq]`, of a model with NumPy arrays and without
    batch axes, and the joints' axes `[nv, 6]` at the first."""
    columns = _columns(model.topology.spanning, model, np.asarray(spanning_coordinates(model, q, velocity=False)))
    return _mass_matrices(model, columns), columns[0][0]


def _found(model: ModelFields) -> list[str]:
    """Return the sentences of `singular_motions`."""
    matrices, axes = mass_matrices(model, configurations(model))
    if not np.isfinite(matrices).all():
        return []
    found = [dict(_null_vectors(M, _bounds(model))) for M in matrices]
    texts = []
    for dof in found[0]:
        always = all(dof in motions for motions in found)
        moving = np.flatnonzero(np.any([motions[dof] for motions in found if dof in motions], axis=0))
        of_dof = model.topology.row_joints["v"]
        texts.append(_sentence(model, sorted({int(of_dof[k]) for k in moving}), axes, always))
    return texts


def _every_body_resists(model: ModelFields) -> bool:
    """Return whether the inertia of every body, in every direction, is more than a billionth of the robot's. This takes
    little time, and holds for most robots."""
    inertias = model.inertial_parameters
    mass = inertias[:, 0]
    if not (mass > 0).all():
        return False
    centers = inertias[:, 1:4] / mass[:, None]
    squares = np.einsum("bi,bi->b", centers, centers)[:, None, None] * np.eye(3)
    about_centers = inertia_matrix(inertias) - mass[:, None, None] * (
        squares - np.einsum("bi,bj->bij", centers, centers)
    )
    turning, shifting = _bounds(model)
    smallest = np.linalg.eigvalsh(about_centers)[:, 0].min()
    return bool(smallest > 1e-9 * turning and mass.min() > 1e-9 * shifting)


def _bounds(model: ModelFields) -> tuple[float, float]:
    """Return inertias (kg m^2, kg) beyond those of the whole robot against the turning and shifting of a joint."""
    inertias, topology = model.inertial_parameters, model.topology
    mass = np.abs(inertias[:, 0]).sum()
    low, high = coordinate_range(topology, model.position_lower, model.position_upper)
    travel = np.abs(np.stack([low, high])).max(axis=0)[topology.coordinate_units == "m"].sum()
    reach = np.linalg.norm(model.joint_placement[:, :3], axis=1).sum() + travel
    return float(2 * mass * reach**2 + 2 * np.abs(inertias[:, 4:]).sum()), float(mass)


def configurations(model: ModelFields) -> np.ndarray:
    """Return the neutral configuration, and then random ones, `[n, nq]`."""
    rng, topology = np.random.default_rng(0), model.topology
    low, high = coordinate_range(topology, model.position_lower, model.position_upper)
    q = low + (high - low) * rng.random((_CONFIGURATIONS, topology.nq))
    for start in topology.quaternion_starts.tolist():
        raw = rng.normal(size=(_CONFIGURATIONS, 4))
        q[:, start : start + 4] = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    return np.concatenate([neutral(topology)[None], q])


def _columns(tree: Topology, model: ModelFields, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the joints' motion subspaces `[n, nv, 6]` and the bodies' inertias `[n, nb, 6, 6]`, angular first, in the
    axes of the world about the origin of the first joint of each tree."""
    motions = motion_transforms(node_poses(tree, model, q, absolute=False))
    S = np.einsum(
        "ndij,dj->ndi",
        motions[:, tree.node_of_dof],
        dof_columns(tree, np.asarray(model.joint_axis), np.asarray(model.joint_pitch)),
    )
    # Inertias turn as X I X^T with the inverse transposed of the transform of motions.
    forces = np.linalg.inv(motions[:, tree.body_nodes])
    inertias = np.swapaxes(forces, -1, -2) @ spatial_matrices(np.asarray(model.inertial_parameters)) @ forces
    return S, inertias


def node_poses(tree: Topology, model: ModelFields, q: np.ndarray, *, absolute: bool) -> np.ndarray:
    """Return the poses `[n, nodes, 7]` behind the primitive joints of a spanning tree at its configurations `q`
    `[n, nq]`, in the world, or from the origin of the first joint of each tree in its axes."""
    first_of_joint = {int(node): i for i, node in enumerate(tree.joint_nodes)}
    axes, pitches = (
        dict(zip(x.tolist(), y, strict=True))
        for x, y in ((tree.axis_dofs, model.joint_axis), (tree.helical_dofs, model.joint_pitch))
    )
    poses: list[np.ndarray] = []
    for node, (primitive, parent) in enumerate(zip(tree.node_joints, tree.nodes.parents, strict=True)):
        pose = poses[parent] if parent >= 0 else np.broadcast_to(IDENTITY_POSE, (len(q), 7))
        if node in first_of_joint:
            placement = model.joint_placement[first_of_joint[node]]
            here = placement if parent >= 0 or absolute else np.concatenate([np.zeros(3), placement[3:]])
            pose = compose_poses(pose, here)
        dof, start, end = int(tree.first_dofs[node]), *tree.node_q[node : node + 2]
        own = primitive.pose(axes.get(dof), pitches.get(dof), q[:, start:end])
        if parent < 0 and primitive.position is not None and not absolute:
            own = np.concatenate([0 * own[:, :3], own[:, 3:]], axis=1)
        poses.append(compose_poses(pose, own))
    return np.stack(poses, axis=1)


def motion_transforms(poses: np.ndarray) -> np.ndarray:
    """Return the transforms `[..., 6, 6]`, angular first, of motions in frames at `poses` `[..., 7]` to the world."""
    R, p = quaternion_to_rotation(poses[..., 3:]), poses[..., :3]
    out = np.zeros((*poses.shape[:-1], 6, 6))
    out[..., :3, :3] = out[..., 3:, 3:] = R
    out[..., 3:, :3] = np.cross(p[..., :, None], R, axisa=-2, axisb=-2, axisc=-2)
    return out


def _mass_matrices(model: ModelFields, columns: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Return the mass matrix `[n, nv, nv]` at each configuration, by composite inertias (Featherstone 2008, table 6.1),
    on the independent coordinates."""
    topology = model.topology
    tree, (S, inertias) = topology.spanning, columns
    composite = np.einsum("bd,nbij->ndij", tree.moves_body.astype(float), inertias)
    M = np.einsum("nai,nbij,nbj->nab", S, composite, S, optimize=True)
    # Column b has the composite inertia of b, which is right for the joints a before it.
    M = np.where(tree.dof_ancestors.T, M, 0.0)
    before = tree.dof_ancestors.T & ~tree.dof_ancestors
    M = M + np.swapaxes(np.where(before, M, 0.0), -1, -2)
    G = mimic_matrix(model)
    return G.T @ M @ G + np.diag(model.armature)


def _null_vectors(M: np.ndarray, bounds: tuple[float, float]) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each degree of freedom whose pivot is zero, and which of them `[nv]` move in the motion without energy in
    which it moves at unit speed."""
    rest, scale, kept = M.copy(), np.diag(M), []
    least = np.maximum(_TOLERANCE * scale, 1e-20 * min(bounds))
    with contextlib.suppress(np.linalg.LinAlgError):
        # The squares of the diagonal are the pivots, in the reverse order.
        if (np.diag(np.linalg.cholesky(M[::-1, ::-1]))[::-1] ** 2 > least).all():
            return
    for i in reversed(range(len(M))):
        if rest[i, i] > least[i]:
            rest[:i, :i] -= np.outer(rest[:i, i], rest[i, :i]) / rest[i, i]
            kept.append(i)
            continue
        motion = np.zeros(len(M))
        motion[i] = 1.0
        motion[kept] = -np.linalg.solve(M[np.ix_(kept, kept)], M[kept, i])
        # Energies of the parts tell whether a part moves, whatever its unit.
        parts = np.abs(motion) * np.sqrt(np.maximum(scale, 0.0))
        moves = parts > 1e-6 * parts.max()
        moves[i] = True
        yield i, moves


def _sentence(model: ModelFields, joints: list[int], S: np.ndarray, always: bool) -> str:
    """Return what joints can do; `S` `[nv, 6]` are their axes at the neutral configuration."""
    topology = model.topology
    names = [repr(topology.joint_names[i]) for i in joints]
    last = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    between = _between(topology, *joints) if len(joints) == 2 else []
    where = "at every configuration tried" if always else "at the neutral configuration, though not at others"
    what = f"joints {last} can move together without moving anything that has inertia"
    remedy = "give an inertia to what they move, or one of the joints an armature, or lock one"
    if len(joints) == 1:
        what = f"joint {last} can move without moving anything that has inertia"
        remedy = "give an inertia to what it moves, or the joint an armature, or lock it"
    elif between and (kind := _same_motion(topology.spanning, joints, S)):
        bodies = ", ".join(repr(topology.body_names[b]) for b in between)
        none = "has no inertia" if len(between) == 1 else "have no inertia"
        what = f"joints {last} {kind}, and {'body' if len(between) == 1 else 'bodies'} {bodies} between them {none}"
        what += " against that motion" if model.inertial_parameters[between].any() else ""
        it = "it" if len(between) == 1 else "them"
        remedy = f"give {it} an inertia, or one of the joints an armature, or lock one"
    return f"{what}: the mass matrix is singular {where}, and accelerations are undefined; {remedy}"


def _between(topology: Topology, first: int, second: int) -> list[int]:
    """Return the bodies from a joint to one behind it; none if it is not behind it."""
    bodies, body = [], topology.parents[second]
    while body >= first:
        bodies.insert(0, body)
        if body == first:
            return bodies
        body = topology.parents[body]
    return []


def _same_motion(tree: Topology, joints: list[int], S: np.ndarray) -> str | None:
    """Return what two joints do if they have the same axis, else None."""
    rows = [tree.rows("v", [i]) for i in joints]
    if any(len(row) != 1 for row in rows):
        return None
    a, b = (S[int(row[0])] for row in rows)
    if min(np.abs(a - b).max(), np.abs(a + b).max()) > 1e-6 * np.abs(a).max():
        return None
    return "turn about the same axis" if np.abs(a[:3]).any() else "shift along the same direction"
