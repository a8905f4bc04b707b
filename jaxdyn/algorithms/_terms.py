"""The quantities in which the equations of motion are written, for all nodes at once: poses, subspaces, inertias, bias.

Everything is in world axes and, for each tree, referred to one point: the origin of the body in the tree's middle. Then
no recursion transforms anything: velocities add up on the way down, forces and inertias on the way up. The point moves
with the robot, so that no digits are lost far from the world's origin, and being in the middle it costs the light links
at the ends the fewest.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdyn.model import Model, Topology
from jaxdyn.model._joints import local_poses, motion_columns
from jaxdyn.model._layout import columns_of, packed_rows, rows_of, static_column
from jaxdyn.model._traversal import compose_down, sum_down, sum_rows, take_rows, to_slots
from jaxdyn.spatial import Force, Inertia, Motion, Pose, Sym3, Vec3


class Kinematics(NamedTuple):
    """Poses of the nodes and columns of the joints' motion subspaces, at one configuration."""

    poses: Pose
    """`[node slots]`, translations from the tree's point of reference."""
    S: Motion
    """`[dof slots]`"""


class Terms(NamedTuple):
    """The equations of motion at one state: `tau = S^T sum_up(I a + p) + armature qdd`, with `a` from `qdd` by
    `a_i = a_parent + S_i qdd_i + c_i` and `a_world = -gravity`."""

    S: Motion
    """`[dof slots]`"""
    inertia: Inertia
    """`[node slots]`"""
    c: Motion
    """`[node slots]`, the part of each node's acceleration that is due to velocities"""
    p: Force
    """`[node slots]`, `v x* I v` less the external force"""
    gravity: Vec3
    """`[1]`"""
    armature: Any
    """`[dof slots]`"""


def absolute_poses(model: Model, q, rank: int) -> Pose:
    """`[node slots]`: the poses of the nodes in the world."""
    return compose_down(model.topology.nodes, _local(model, q, rank))


def _local(model: Model, q, rank: int) -> Pose:
    return local_poses(model.topology, model.joint_placement, model.joint_axis, model.joint_pitch, q, rank)


def kinematics(model: Model, q, rank: int) -> Kinematics:
    topology = model.topology
    local = _local(model, q, rank)
    node = topology.nodes.node_of_slot
    moves = static_column(np.where((node >= 0) & topology.is_root_joint[node], 0.0, 1.0), q.dtype, rank)
    poses = compose_down(topology.nodes, Pose(local.rotation, local.translation * moves))
    # Nothing depends on where the point of reference is, so nothing is differentiated by it either.
    reference = lax.stop_gradient(take_rows(poses.translation, topology.reference_slot))
    poses = Pose(poses.rotation, poses.translation - reference)
    # S in the world: the column turned into world axes, and moved from the node's origin to the point of reference.
    at = take_rows(poses, topology.node_slot_of_dof_slot)
    column = motion_columns(topology, model.joint_axis, model.joint_pitch, rank)
    angular = at.rotation.apply(column.angular)
    linear = at.translation.cross(angular)
    if not isinstance(column.linear.x, float):
        linear = linear + at.rotation.apply(column.linear)
    return Kinematics(poses, Motion(angular, linear))


def node_inertias(model: Model, poses: Pose, rank: int) -> Inertia:
    """`[node slots]`: the inertias in world axes about the point of reference, zero for nodes without a body."""
    topology = model.topology
    node = topology.nodes.node_of_slot
    body = np.where(node >= 0, topology.body_of_node[node], -1)
    m, x, y, z, *moments = columns_of(take_rows(packed_rows(model.inertial_parameters, rank), body))
    return Inertia(m, Vec3(x, y, z), Sym3(*moments)).moved(poses)


def node_sums(topology: Topology, x):
    """From `[dof slots]` to `[node slots]`: sums over the dofs of each node."""
    return sum_rows(x, topology.node_slot_of_dof_slot, len(topology.nodes.node_of_slot))


def velocities(topology: Topology, S: Motion, v) -> tuple[Motion, Motion]:
    """`[node slots]` twice: the velocity across each node's joint, and of each node."""
    joint = node_sums(topology, S * v)
    return joint, sum_down(topology.nodes, joint)


def external_forces(model: Model, poses: Pose, f_ext, rank: int) -> Force:
    """`[node slots]`, about the point of reference, of wrenches `[*batch, nb, 6]` at the bodies' origins."""
    topology = model.topology
    node = topology.nodes.node_of_slot
    body = np.where(node >= 0, topology.body_of_node[node], -1)
    fx, fy, fz, nx, ny, nz = columns_of(take_rows(packed_rows(f_ext, rank), body))
    return Force(moment=Vec3(nx, ny, nz), force=Vec3(fx, fy, fz)).moved_from(poses.translation)


def terms(model: Model, q, v, f_ext, rank: int) -> Terms:
    """The equations of motion at `q`, `v` (rows; `v` None for a body at rest)."""
    topology = model.topology
    poses, S = kinematics(model, q, rank)
    inertia = node_inertias(model, poses, rank)
    if v is None:
        zero = jnp.zeros_like(poses.translation.x)
        zeros = Vec3(zero, zero, zero)
        c, p = Motion(zeros, zeros), Force(zeros, zeros)
    else:
        joint, velocity = velocities(topology, S, to_slots(topology.dofs, v))
        # S is fixed in the moving node, so its rate is v x S; and d(I v)/dt has the gyroscopic part v x* I v.
        c = velocity.cross(joint)
        p = velocity.cross_force(inertia.apply(velocity))
    if f_ext is not None:
        p = p - external_forces(model, poses, f_ext, rank)
    return Terms(S, inertia, c, p, gravity_rows(model, rank), armature_slots(model, rank))


def gravity_rows(model: Model, rank: int) -> Vec3:
    g = rows_of(model.gravity, rank)
    return Vec3(g[0:1], g[1:2], g[2:3])


def armature_slots(model: Model, rank: int):
    return to_slots(model.topology.dofs, rows_of(model.armature, rank))


def friction_torque(model: Model, v, rank: int):
    """Rows `[nv]`: `damping v + friction tanh(v / friction_velocity)`, the torque that opposes `v`."""
    damping, friction, scale = (rows_of(x, rank) for x in (model.damping, model.friction, model.friction_velocity))
    return damping * v + friction * jnp.tanh(v / scale)
