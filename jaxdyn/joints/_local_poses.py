"""Poses of all nodes in their parents from `q`, and the columns of all motion subspaces, outside any recursion."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from jaxdyn._compile import once
from jaxdyn.joints._topology import Topology
from jaxdyn.spatial import ROTATION, SKEW, Mat3, Motion, Pose, Quaternion, Vec3, scale_of_squares
from jaxdyn.tree import columns_of, packed_rows, rows_of, static_column, take_rows

# Rotations here are arrays `[n, 3, 3, *batch]` of columns: `[:, j, i]` is row `i` of column `j`, the order of `Mat3`.
# The compiler then sees one operation instead of nine.


def _over_lengths(quaternions, *others):
    """Quaternions `[n, 4, *batch]` of any length, and `others`, divided by the lengths of the first."""
    scale = scale_of_squares((quaternions * quaternions).sum(axis=1, keepdims=True))
    q, *others = (x * scale for x in (quaternions, *others))
    length = jnp.sqrt((q * q).sum(axis=1, keepdims=True))
    return [x / length for x in (q, *others)]


def _rotations(quaternions):
    """The rotations `[n, 3, 3, *batch]` of quaternions `[n, 4, *batch]` of any length."""
    (q,) = _over_lengths(quaternions)
    # The table is symmetric in the two elements: each product stands once. They are written out, because the compiler
    # hands a reduction over two axes to a library that takes ten times as long.
    table = (2 - np.eye(4)) * ROTATION.swapaxes(0, 1)
    table = jnp.asarray(table, q.dtype).reshape((3, 3, 4, 4) + (1,) * (q.ndim - 2))
    products = (table[:, :, k, j] * (q[:, k] * q[:, j])[:, None, None] for j in range(4) for k in range(j + 1))
    return functools.reduce(jnp.add, products)


def _skew(vectors):
    """The matrices `[v x]`, `[n, 3, 3, *batch]`, of vectors `[n, 3, *batch]`."""
    table = jnp.asarray(SKEW.swapaxes(0, 1), vectors.dtype).reshape((3, 3, 3) + (1,) * (vectors.ndim - 2))
    return functools.reduce(jnp.add, (table[:, :, k] * vectors[:, None, None, k] for k in range(3)))


def _times(a, b):
    """`A B` for rotations, or `A b` for vectors `b` `[n, 3, *batch]`."""
    if b.ndim < a.ndim:
        return functools.reduce(jnp.add, (a[:, k] * b[:, k, None] for k in range(3)))
    return functools.reduce(jnp.add, (a[:, None, k] * b[:, :, k, None] for k in range(3)))


def _unit_axes(topology: Topology, joint_axis, dofs: np.ndarray, rank: int):
    """`[len(dofs), 3, *batch]`: the unit axes of dofs in their nodes' frames; x, y and z for ball and free joints, z
    where the number is -1. They are normalized here, so that a gradient step on `joint_axis` gives a valid joint."""
    # Rows of the table: the model's axes, then the three unit vectors.
    count = len(topology.axis_dofs)
    index = np.full(topology.nv + 1, count + 2)
    index[topology.axis_dofs] = np.arange(count)
    axisless = np.setdiff1d(np.arange(topology.nv), topology.axis_dofs)
    index[axisless] = count + (axisless - topology.node_v[topology.node_of_dof[axisless]]) % 3
    table = packed_rows(joint_axis, rank)
    if len(axisless) or (dofs < 0).any():
        unit = jnp.eye(3, dtype=table.dtype).reshape((3, 3) + (1,) * rank)
        table = jnp.concatenate([table, jnp.broadcast_to(unit, (3, *table.shape[1:]))])
    axes = take_rows(table, index[dofs])
    return once(axes / jnp.sqrt((axes * axes).sum(axis=1, keepdims=True)))


def _advance(topology: Topology, joint_pitch, dofs: np.ndarray, dtype, rank: int):
    """`[len(dofs), *batch]`: each dof's shift along its axis for a unit of its coordinate; None if no dof shifts."""
    translates = np.append(topology.translating_dofs, False)[dofs]
    helical = np.isin(dofs, topology.helical_dofs)
    if not translates.any() and not helical.any():
        return None
    advance = static_column(translates, dtype, rank)
    if helical.any():
        pitch_row = np.full(topology.nv + 1, -1)
        pitch_row[topology.helical_dofs] = np.arange(len(topology.helical_dofs))
        advance = advance + take_rows(rows_of(joint_pitch, rank), pitch_row[dofs])
    return advance


def motion_columns(topology: Topology, joint_axis, joint_pitch, rank: int) -> Motion:
    """`[nv, *batch]`: the columns of the motion subspaces in the axes and at the origin of their nodes."""
    axes = Vec3(*columns_of(_unit_axes(topology, joint_axis, np.arange(topology.nv), rank)))
    rotates = topology.rotating_dofs
    turning = axes if rotates.all() else axes * static_column(rotates, axes.x.dtype, rank)
    advance = _advance(topology, joint_pitch, np.arange(topology.nv), axes.x.dtype, rank)
    return Motion(turning, Vec3.zero() if advance is None else axes * advance)


def local_poses(topology: Topology, placement, joint_axis, joint_pitch, q, rank: int) -> Pose:
    """`[nv, *batch]`: the pose in its parent of the frame behind every dof. The first dof of a ball or free joint has
    all of the joint's displacement. `q` is `[nq, *batch]`; `placement`, `joint_axis` and `joint_pitch` are leaves."""
    # Dofs inside a joint have the identity for their placement: the last row of the table.
    placed = topology.placed_body_of_dof
    table = packed_rows(placement, rank)
    if (placed < 0).any():
        identity = jnp.array([0, 0, 0, 1, 0, 0, 0], table.dtype).reshape((1, 7) + (1,) * rank)
        table = jnp.concatenate([table, jnp.broadcast_to(identity, (1, *table.shape[1:]))])
        placed = np.where(placed < 0, topology.nb, placed)
    table = take_rows(table, placed)
    turns, p0 = _Turns(table[:, 3:]), table[:, :3]
    p, quaternion = p0, _quaternion_nodes(topology)
    if len(quaternion) < len(topology.node_joints):
        turns, advance = _screws(topology, turns, joint_axis, joint_pitch, q, rank)
        if advance is not None:
            p = p0 + once(_times(_rotations(turns.placement), turns.axis)) * advance[:, None]
    if len(quaternion):
        first = topology.first_dofs[quaternion]
        turn, shift = _displacements(topology, quaternion, q)
        turns = turns._replace(quaternion=turn)
        placement, origin = take_rows((turns.placement, p0), first)
        p = _with_rows(topology, p, once(_times(_rotations(placement), shift) + origin))
    R = _rotations_behind(topology, turns)
    return Pose(Mat3(*(Vec3(*columns_of(R[:, j])) for j in range(3))), Vec3(*columns_of(p)))


def _quaternion_nodes(topology: Topology) -> np.ndarray:
    """The numbers of the ball and free nodes."""
    return np.array([i for i, joint in enumerate(topology.node_joints) if joint.quaternion is not None], int)


def _with_rows(topology: Topology, x, y):
    """Rows `x` of all dofs, with rows `y` for the first dofs of the ball and free nodes."""
    first = topology.first_dofs[_quaternion_nodes(topology)]
    # In a loop over a concatenation instead of `where`, the compiler branches at every element.
    row = np.zeros(topology.nv, dtype=int)
    row[first] = np.arange(len(first))
    chosen = np.isin(np.arange(topology.nv), first).reshape((topology.nv,) + (1,) * (x.ndim - 1))
    return jnp.where(jnp.asarray(chosen), y if len(y) == 1 else y[row], x)


class _Turns(NamedTuple):
    """The quantities on which the rotations behind dofs depend."""

    placement: Any
    """`[nv, 4, *batch]`: the quaternions of placements."""
    axis: Any = None
    """`[nv, 3, *batch]`: the unit axes of screws; None without screws."""
    angle: Any = None
    """`[nv, *batch]`: the angles about them, zero for other dofs."""
    quaternion: Any = None
    """`[n, 4, *batch]`: the quaternions of ball and free nodes; None without them."""


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _rotations_behind(topology: Topology, turns: _Turns):
    """The rotations `[nv, 3, 3, *batch]` in their parents of the frames behind dofs: those of the placements `R0`,
    behind screws `R0 + sin(q) R0 [a x] + (1 - cos(q)) R0 [a x]^2` (Rodrigues), in which only sine and cosine have the
    batch of states."""
    R = R0 = once(_rotations(turns.placement))
    if turns.axis is not None:
        skew = once(_skew(turns.axis))
        R1 = once(_times(R0, skew))
        R2 = once(_times(R1, skew))
        sine, versine = once(_sine_and_versine(turns.angle))
        R = R0 + R1 * sine[:, None, None] + R2 * versine[:, None, None]
    if turns.quaternion is not None:
        placement = take_rows(R0, topology.first_dofs[_quaternion_nodes(topology)])
        R = _with_rows(topology, R, once(_times(placement, once(_rotations(turns.quaternion)))))
    return R


@functools.partial(_rotations_behind.defjvp, symbolic_zeros=True)
def _rotations_behind_jvp(topology: Topology, primals, tangents):
    # The derivative of a rotation has three numbers, an angular velocity `w` in its own axes, R' = R [w x]. The nine
    # numbers of the derivative of each factor take more than twice the operations in reverse mode.
    (turns,), (rates,) = primals, tangents
    R, w = once(_rotations_behind(topology, turns)), []
    dots = _Turns(*(None if isinstance(x, SymbolicZero) else x for x in rates))
    if dots.placement is not None:
        unit, dot = (Quaternion(*columns_of(x)) for x in _over_lengths(turns.placement, 2 * dots.placement))
        before = jnp.broadcast_to(once(dot.multiply(unit.conjugate()).vector.to_array(axis=1)), R[:, 0].shape)
        w.append(jnp.stack([(column * before).sum(axis=1) for column in columns_of(R)], axis=1))
    if dots.angle is not None:
        w.append(turns.axis * dots.angle[:, None])
    if dots.axis is not None:
        # w = sin(q) a' - (1 - cos(q)) a x a', since a' is at right angles to a, whose length stays 1.
        sine, versine = (x[:, None] for x in once(_sine_and_versine(turns.angle)))
        across = Vec3(*columns_of(turns.axis)).cross(Vec3(*columns_of(dots.axis))).to_array(axis=1)
        w.append(once(dots.axis * sine - once(across) * versine))
    if dots.quaternion is not None:
        unit, dot = (Quaternion(*columns_of(x)) for x in _over_lengths(turns.quaternion, 2 * dots.quaternion))
        behind = unit.conjugate().multiply(dot).vector.to_array(axis=1)
        w.append(_with_rows(topology, jnp.zeros((topology.nv, *behind.shape[1:]), behind.dtype), behind))
    x, y, z = columns_of(once(functools.reduce(jnp.add, w))[:, :, None])
    Rx, Ry, Rz = columns_of(R)
    return R, jnp.stack([Ry * z - Rz * y, Rz * x - Rx * z, Rx * y - Ry * x], axis=1)


def _sine_and_versine(angle):
    """Return the sine, and `1 - cos(q)` as `2 sin(q/2)^2`, because that keeps its digits at small angles."""
    half = jnp.sin(0.5 * angle)
    return jnp.sin(angle), 2 * half * half


def _screws(topology: Topology, turns: _Turns, joint_axis, joint_pitch, q, rank: int) -> tuple[_Turns, Any]:
    """The turns with the axes and angles of screws, and how far each dof shifts along its axis, `[nv, *batch]`, or None
    if none does."""
    node = topology.node_of_dof
    is_screw = np.isin(np.arange(topology.nv), topology.axis_dofs)
    # The coordinate and the dof of every screw; others get zero.
    angle = take_rows(q, np.where(is_screw, topology.node_q[node], -1))
    dofs = np.where(is_screw, np.arange(topology.nv), -1)
    axis = _unit_axes(topology, joint_axis, dofs, rank)
    advance = _advance(topology, joint_pitch, dofs, angle.dtype, rank)
    rotates = np.append(topology.rotating_dofs, False)[dofs]
    turned = angle if rotates.all() else angle * static_column(rotates, angle.dtype, rank)
    return turns._replace(axis=axis, angle=turned), None if advance is None else advance * angle


def _displacements(topology: Topology, nodes: np.ndarray, q):
    """The quaternion `[len(nodes), 4, *batch]` and the shift `[len(nodes), 3, *batch]` of every ball and free node."""
    joints = [topology.node_joints[i] for i in nodes]
    start = topology.node_q[nodes]
    turn = [take_rows(q, start + [(joint.quaternion or 0) + k for joint in joints]) for k in range(4)]
    # Rows -1, for joints without a position, are zero.
    shifts = np.array([joint.position is not None for joint in joints])
    position = start + [joint.position or 0 for joint in joints]
    shift = [take_rows(q, np.where(shifts, position + k, -1)) for k in range(3)]
    return jnp.stack(turn, axis=1), jnp.stack(shift, axis=1)
