"""What joints do: the pose of every node in its parent from `q`, and the columns of its motion subspace.

Both are computed for all nodes at once, outside any recursion.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.model._layout import rows_of, static_column
from jaxdyn.model._topology import Topology
from jaxdyn.model._traversal import take_rows, to_slots
from jaxdyn.spatial import Mat3, Motion, Pose, Quaternion, Vec3


class JointTable(NamedTuple):
    """Of every dof, rows `[nv, *batch]`: its unit axis in its node's frame, and the shift along it for a unit of its
    coordinate (None where no dof shifts)."""

    axes: Vec3
    advance: jax.Array | None


def joint_table(topology: Topology, joint_axis, joint_pitch, rank: int) -> JointTable:
    """From the leaves of a model; ball and free joints have unit vectors for their axes.

    The direction of `joint_axis` is what counts: normalised here, a gradient step on it stays a joint.
    """
    raw = Vec3(*(rows_of(joint_axis[..., k], rank) for k in range(3)))
    axes = _all_axes(topology, raw * (1 / jnp.sqrt(raw.squared_norm())))
    return JointTable(axes, _advance(topology, joint_pitch, axes.x.dtype, rank))


def _all_axes(topology: Topology, axis_rows: Vec3) -> Vec3:
    if len(topology.axis_dofs) == topology.nv:
        return axis_rows
    # Rows of the table: the model's axes, then the three unit vectors.
    index = np.empty(topology.nv, dtype=int)
    index[topology.axis_dofs] = np.arange(len(topology.axis_dofs))
    others = np.setdiff1d(np.arange(topology.nv), topology.axis_dofs)
    index[others] = len(topology.axis_dofs) + (others - topology.node_v[topology.node_of_dof[others]]) % 3

    def table(component, k):
        unit = jnp.zeros((3, *component.shape[1:]), component.dtype).at[k].set(1)
        return take_rows(jnp.concatenate([component, unit]), index)

    return Vec3(table(axis_rows.x, 0), table(axis_rows.y, 1), table(axis_rows.z, 2))


def _flags(topology: Topology) -> tuple[np.ndarray, np.ndarray]:
    """`[nv]` twice: whether a dof turns its body, and whether it shifts it by its coordinate."""
    kinds = np.array(list(topology.node_kinds))[topology.node_of_dof]
    first = np.arange(topology.nv) - topology.node_v[topology.node_of_dof] < 3
    rotates = np.isin(kinds, ["R", "H", "B"]) | ((kinds == "F") & ~first)
    translates = (kinds == "P") | ((kinds == "F") & first)
    return rotates.astype(float), translates.astype(float)


def _advance(topology: Topology, joint_pitch, dtype, rank: int):
    """`[nv, *batch]`: the shift along its axis for a unit of each dof's coordinate, or None where no dof shifts."""
    translates = _flags(topology)[1]
    if not translates.any() and not len(topology.helical_dofs):
        return None
    advance = static_column(translates, dtype, rank)
    if len(topology.helical_dofs):
        pitch_row = np.full(topology.nv, -1)
        pitch_row[topology.helical_dofs] = np.arange(len(topology.helical_dofs))
        advance = advance + take_rows(rows_of(joint_pitch, rank), pitch_row)
    return advance


def motion_columns(topology: Topology, table: JointTable, rank: int) -> Motion:
    """`[dof slots, *batch]`: the columns of the motion subspaces in the axes and at the origin of their nodes."""
    axes, advance = table
    rotates = _flags(topology)[0]
    turning = axes if rotates.all() else axes * static_column(rotates, axes.x.dtype, rank)
    linear = Vec3.zero() if advance is None else to_slots(topology.dofs, axes * advance)
    return Motion(to_slots(topology.dofs, turning), linear)


def local_poses(topology: Topology, table: JointTable, placement, q, rank: int) -> Pose:
    """`[node slots, *batch]`: the pose of every node in its parent node.

    `q` is `[nq, *batch]`; `placement` `[..., nb, 7]`. For an axis `a` and an angle `q`, Rodrigues' formula gives
    `R = R0 + sin(q) R0 [a x] + (1 - cos(q)) R0 [a x]^2`, where everything but sine and cosine is free of the batch.
    """
    nodes = topology.nodes
    placed = topology.placed_body_of_node[nodes.node_of_slot]
    placed = np.where(nodes.node_of_slot >= 0, placed, -1)
    pose0 = Pose.from_vector(placement)
    # Nodes inside a joint, and padding, have the identity for their placement.
    pose0 = Pose(
        Mat3(
            *(
                _slots_or(v, placed, unit, rank)
                for v, unit in zip((pose0.rotation.x, pose0.rotation.y, pose0.rotation.z), np.eye(3), strict=True)
            )
        ),
        _slots_or(pose0.translation, placed, np.zeros(3), rank),
    )
    kinds = topology.node_kinds
    screw = np.array([i for i, k in enumerate(kinds) if k in "RPH"], dtype=int)
    quaternion = np.array([i for i, k in enumerate(kinds) if k in "BF"], dtype=int)
    R0, p0 = pose0.rotation, pose0.translation
    if len(screw):
        pose = _screw_poses(topology, R0, p0, table, q, rank)
        if not len(quaternion):
            return pose
    else:
        pose = None
    jointed = _quaternion_poses(topology, quaternion, q)
    slots = nodes.slot_of_node[quaternion]
    before = Pose(R0, p0) if pose is None else pose
    at = take_rows(Pose(R0, p0), slots)
    placed_joint = at.compose(jointed)
    batch = jnp.broadcast_shapes(*(leaf.shape[1:] for leaf in (placed_joint.rotation.x.x, before.rotation.x.x)))
    # Rows of the table: the screw nodes' slots, then the quaternion nodes.
    index = np.arange(len(nodes.node_of_slot))
    index[slots] = len(index) + np.arange(len(slots))

    def merge(a, b):
        a, b = (jnp.broadcast_to(x, (x.shape[0], *batch)) for x in (a, b))
        return take_rows(jnp.concatenate([a, b]), index)

    return jax.tree.map(merge, before, placed_joint)


def _slots_or(v: Vec3, rows: np.ndarray, default, rank: int) -> Vec3:
    """Rows of the components `[..., n]` in slot order, with a constant where there is none."""
    missing = static_column((rows < 0).astype(float), v.x.dtype, rank)
    parts = []
    for component, constant in zip((v.x, v.y, v.z), default, strict=True):
        taken = take_rows(rows_of(component, rank), rows)
        parts.append(taken + missing * constant if constant and (rows < 0).any() else taken)
    return Vec3(*parts)


def _screw_poses(topology: Topology, R0: Mat3, p0: Vec3, table: JointTable, q, rank: int) -> Pose:
    nodes = topology.nodes
    kinds = np.array(list(topology.node_kinds))
    is_screw = np.isin(kinds, list("RPH"))
    node = nodes.node_of_slot
    # The coordinate and the dof of every screw node; other slots get zero.
    q_row = np.where((node >= 0) & is_screw[node], topology.node_q[node], -1)
    dof_row = np.where((node >= 0) & is_screw[node], topology.node_v[node], -1)
    axes, advance = table
    a = take_rows(axes, dof_row)
    angle = take_rows(q, q_row)
    rotates, _ = _flags(topology)
    R1 = R0.compose(Mat3.skew(a))
    R2 = R1.compose(Mat3.skew(a))
    turns = np.where(dof_row >= 0, rotates[np.maximum(dof_row, 0)], 0.0)
    turned = angle if turns.all() else angle * static_column(turns, angle.dtype, rank)
    # 1 - cos(q) = 2 sin(q/2)^2 keeps its digits at small angles.
    half = jnp.sin(0.5 * turned)
    R = R0 + R1 * jnp.sin(turned) + R2 * (2 * half * half)
    if advance is None:
        return Pose(R, p0)
    return Pose(R, p0 + R0.apply(a) * (take_rows(advance, dof_row) * angle))


def _quaternion_poses(topology: Topology, nodes: np.ndarray, q) -> Pose:
    """`[len(nodes), *batch]`: the displacement of every ball and free node."""
    free = np.array([topology.node_kinds[i] == "F" for i in nodes])
    start = topology.node_q[nodes]
    quaternion = Quaternion(*(take_rows(q, start + 3 * free + k) for k in range(4)))
    shift = Vec3(*(take_rows(q, np.where(free, start + k, -1)) for k in range(3)))
    return Pose(quaternion.to_rotation(), shift)
