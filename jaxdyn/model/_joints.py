"""What joints do: the pose of every node in its parent from `q`, and the columns of its motion subspace.

Both are computed for all nodes at once, outside any recursion.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.model._layout import columns_of, packed_rows, rows_of, static_column
from jaxdyn.model._topology import Topology
from jaxdyn.model._traversal import take_rows
from jaxdyn.spatial import Mat3, Motion, Pose, Quaternion, Vec3


def _unit_axes(topology: Topology, joint_axis, dofs: np.ndarray, rank: int) -> Vec3:
    """`[len(dofs), *batch]`: the unit axes of dofs in their nodes' frames; unit vectors for ball and free joints, z
    where the number is -1.

    The direction of `joint_axis` is what counts: normalised here, a gradient step on it stays a joint.
    """
    # Rows of the table: the model's axes, then the three unit vectors.
    own = len(topology.axis_dofs)
    index = np.full(topology.nv + 1, own + 2)
    index[topology.axis_dofs] = np.arange(own)
    others = np.setdiff1d(np.arange(topology.nv), topology.axis_dofs)
    index[others] = own + (others - topology.node_v[topology.node_of_dof[others]]) % 3
    table = packed_rows(joint_axis, rank)
    if len(others) or (dofs < 0).any():
        unit = jnp.eye(3, dtype=table.dtype).reshape((3, 3) + (1,) * rank)
        table = jnp.concatenate([table, jnp.broadcast_to(unit, (3, *table.shape[1:]))])
    axes = Vec3(*columns_of(take_rows(table, index[dofs])))
    return axes * (1 / jnp.sqrt(axes.squared_norm()))


def _flags(topology: Topology) -> tuple[np.ndarray, np.ndarray]:
    """`[nv]` twice: whether a dof turns its body, and whether it shifts it by its coordinate."""
    kinds = np.array(list(topology.node_kinds))[topology.node_of_dof]
    first = np.arange(topology.nv) - topology.node_v[topology.node_of_dof] < 3
    rotates = np.isin(kinds, ["R", "H", "B"]) | ((kinds == "F") & ~first)
    translates = (kinds == "P") | ((kinds == "F") & first)
    return rotates.astype(float), translates.astype(float)


def _advance(topology: Topology, joint_pitch, dofs: np.ndarray, dtype, rank: int):
    """`[len(dofs), *batch]`: each dof's shift along its axis for a unit of its coordinate; None where none shifts."""
    translates = _flags(topology)[1]
    if not translates.any() and not len(topology.helical_dofs):
        return None
    advance = static_column(np.append(translates, 0.0)[dofs], dtype, rank)
    if len(topology.helical_dofs):
        pitch_row = np.full(topology.nv + 1, -1)
        pitch_row[topology.helical_dofs] = np.arange(len(topology.helical_dofs))
        advance = advance + take_rows(rows_of(joint_pitch, rank), pitch_row[dofs])
    return advance


def motion_columns(topology: Topology, joint_axis, joint_pitch, rank: int) -> Motion:
    """`[dof slots, *batch]`: the columns of the motion subspaces in the axes and at the origin of their nodes; zero in
    the padding."""
    dofs = topology.dofs.node_of_slot
    axes = _unit_axes(topology, joint_axis, dofs, rank)
    rotates = np.append(_flags(topology)[0], 0.0)[dofs]
    turning = axes if rotates.all() else axes * static_column(rotates, axes.x.dtype, rank)
    advance = _advance(topology, joint_pitch, dofs, axes.x.dtype, rank)
    return Motion(turning, Vec3.zero() if advance is None else axes * advance)


def local_poses(topology: Topology, placement, joint_axis, joint_pitch, q, rank: int) -> Pose:
    """`[node slots, *batch]`: the pose of every node in its parent node.

    `q` is `[nq, *batch]`; the others are leaves of a model.
    """
    nodes = topology.nodes
    # Nodes inside a joint, and padding, have the identity for their placement: the last row of the table.
    placed = np.where(nodes.node_of_slot >= 0, topology.placed_body_of_node[nodes.node_of_slot], -1)
    table = packed_rows(placement, rank)
    if (placed < 0).any():
        identity = jnp.array([0, 0, 0, 1, 0, 0, 0], table.dtype).reshape((1, 7) + (1,) * rank)
        table = jnp.concatenate([table, jnp.broadcast_to(identity, (1, *table.shape[1:]))])
        placed = np.where(placed < 0, topology.nb, placed)
    x, y, z, *quaternion0 = columns_of(take_rows(table, placed))
    pose0 = Pose(Quaternion(*quaternion0).to_rotation(), Vec3(x, y, z))
    kinds = np.array(list(topology.node_kinds))
    quaternion = np.flatnonzero(np.isin(kinds, ["B", "F"]))
    pose = _screw_poses(topology, pose0, joint_axis, joint_pitch, q, rank) if len(quaternion) < len(kinds) else pose0
    if not len(quaternion):
        return pose
    slots = nodes.slot_of_node[quaternion]
    placed_joint = take_rows(pose0, slots).compose(_quaternion_poses(topology, quaternion, q))
    batch = jnp.broadcast_shapes(*(leaf.shape[1:] for leaf in jax.tree.leaves((placed_joint, pose))))
    # Rows of the table: the other nodes' slots, then the quaternion nodes.
    index = np.arange(len(nodes.node_of_slot))
    index[slots] = len(index) + np.arange(len(slots))

    def merge(a, b):
        a, b = (jnp.broadcast_to(x, (x.shape[0], *batch)) for x in (a, b))
        return take_rows(jnp.concatenate([a, b]), index)

    return jax.tree.map(merge, pose, placed_joint)


def _screw_poses(topology: Topology, pose0: Pose, joint_axis, joint_pitch, q, rank: int) -> Pose:
    """For an axis `a` and an angle `q`, Rodrigues' formula gives `R = R0 + sin(q) R0 [a x] + (1 - cos(q)) R0 [a x]^2`,
    where everything but sine and cosine is free of the batch."""
    node = topology.nodes.node_of_slot
    is_screw = (node >= 0) & np.isin(list(topology.node_kinds), list("RPH"))[node]
    # The coordinate and the dof of every screw node; other slots get zero.
    angle = take_rows(q, np.where(is_screw, topology.node_q[node], -1))
    dofs = np.where(is_screw, topology.node_v[node], -1)
    a = _unit_axes(topology, joint_axis, dofs, rank)
    R0, p0 = pose0.rotation, pose0.translation
    R1 = R0.compose(Mat3.skew(a))
    R2 = R1.compose(Mat3.skew(a))
    turns = np.append(_flags(topology)[0], 0.0)[dofs]
    turned = angle if turns.all() else angle * static_column(turns, angle.dtype, rank)
    # 1 - cos(q) = 2 sin(q/2)^2 keeps its digits at small angles.
    half = jnp.sin(0.5 * turned)
    R = R0 + R1 * jnp.sin(turned) + R2 * (2 * half * half)
    advance = _advance(topology, joint_pitch, dofs, angle.dtype, rank)
    return Pose(R, p0 if advance is None else p0 + R0.apply(a) * (advance * angle))


def _quaternion_poses(topology: Topology, nodes: np.ndarray, q) -> Pose:
    """`[len(nodes), *batch]`: the displacement of every ball and free node."""
    free = np.array([topology.node_kinds[i] == "F" for i in nodes])
    start = topology.node_q[nodes]
    quaternion = Quaternion(*(take_rows(q, start + 3 * free + k) for k in range(4)))
    shift = Vec3(*(take_rows(q, np.where(free, start + k, -1)) for k in range(3)))
    return Pose(quaternion.to_rotation(), shift)
