"""The quantities in which the equations of motion are written, for all at once: poses, subspaces, inertias, bias.

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

from jaxdyn._compile import once
from jaxdyn.model import Model, Topology
from jaxdyn.model._configuration import spring_torque
from jaxdyn.model._joints import local_poses, motion_columns
from jaxdyn.spatial import Force, Inertia, Motion, Pose, Sym3, Vec3
from jaxdyn.tree._rows import columns_of, packed_rows, rows_of, static_column
from jaxdyn.tree._walks import compose_down, sum_down, take_rows


class Kinematics(NamedTuple):
    """At one configuration, a row for every degree of freedom: `[nv, *batch]`."""

    poses: Pose
    """Of the frames behind the dofs; translations from the tree's point of reference."""
    S: Motion
    """The columns of the joints' motion subspaces."""


class Terms(NamedTuple):
    """The equations of motion at one state: `tau = S^T sum_up(I a + p) + armature qdd`, with `a` from `qdd` by
    `a_i = a_parent + S_i qdd_i + c_i` and `a_world = -gravity`. Rows `[nv, *batch]`, one a degree of freedom."""

    S: Motion
    inertia: Inertia
    c: Motion
    """The part of the acceleration across each joint that is due to velocities."""
    p: Force
    """`v x* I v` less the external force."""
    gravity: Vec3
    """`[1, *batch]`"""
    armature: Any


def absolute_poses(model: Model, q, rank: int) -> Pose:
    """`[nv, *batch]`: the poses in the world of the frames behind the dofs."""
    return compose_down(model.topology.dofs, _local(model, q, rank))


def _local(model: Model, q, rank: int) -> Pose:
    return local_poses(model.topology, model.joint_placement, model.joint_axis, model.joint_pitch, q, rank)


def kinematics(model: Model, q, rank: int) -> Kinematics:
    topology = model.topology
    local = _local(model, q, rank)
    held = static_column(np.where(topology.is_root_joint, 0.0, 1.0), q.dtype, rank)
    poses = compose_down(topology.dofs, Pose(local.rotation, local.translation * held))
    # Nothing depends on where the point of reference is, so nothing is differentiated by it either.
    reference = lax.stop_gradient(take_rows(poses.translation, topology.reference_dof))
    poses = Pose(poses.rotation, once(poses.translation - reference))
    # S in the world: the column turned into world axes, and moved from the frame's origin to the point of reference.
    column = motion_columns(topology, model.joint_axis, model.joint_pitch, rank)
    angular = poses.rotation.apply(column.angular)
    linear = poses.translation.cross(angular)
    if not isinstance(column.linear.x, float):
        linear = linear + poses.rotation.apply(column.linear)
    return Kinematics(poses, once(Motion(angular, linear)))


def node_inertias(model: Model, poses: Pose, rank: int) -> Inertia:
    """`[nv, *batch]`: the inertias in world axes about the point of reference, zero for dofs that carry no body."""
    table = take_rows(packed_rows(model.inertial_parameters, rank), model.topology.body_of_dof)
    m, x, y, z, *moments = columns_of(table)
    return Inertia(m, Vec3(x, y, z), Sym3(*moments)).moved(poses)


def velocities(topology: Topology, S: Motion, v) -> tuple[Motion, Motion]:
    """`[nv, *batch]` twice: the velocity across each dof, and of the frame behind it."""
    joint = S * v
    return joint, sum_down(topology.dofs, joint)


def velocity_accelerations(topology: Topology, joint: Motion, velocity: Motion) -> Motion:
    """`[nv, *batch]`: `v x S qd`. A column is fixed in its moving body, so its rate is `v x S`, with the velocity
    behind the last dof of the joint."""
    several = topology.mover != np.arange(topology.nv)
    if not several.any():
        return velocity.cross(joint)
    if topology.is_root_joint[several].all():
        # All of a root's motion is across its joint, and `v x v = 0`.
        own = np.where(np.isin(topology.mover, topology.mover[several]), 0.0, 1.0)
        rate = joint.angular.x
        return velocity.cross(joint) * static_column(own, rate.dtype, rate.ndim - 1)
    return take_rows(velocity, topology.mover).cross(joint)


def before(topology: Topology, behind: Motion, across: Motion) -> Motion:
    """`[nv, *batch]`: from a sum down the tree and what each dof adds to it, the sum before the whole joint."""
    several = topology.mover != np.arange(topology.nv)
    if not several.any():
        return behind - across
    if topology.is_root_joint[several].all():
        own = np.where(np.isin(topology.mover, topology.mover[several]), 0.0, 1.0)
        rate = across.angular.x
        return (behind - across) * static_column(own, rate.dtype, rate.ndim - 1)
    return take_rows(behind, topology.dof_before_joint)


def external_forces(model: Model, poses: Pose, f_ext, rank: int) -> Force:
    """`[nv, *batch]`, about the point of reference, of wrenches `[*batch, nb, 6]` at the bodies' origins."""
    fx, fy, fz, nx, ny, nz = columns_of(take_rows(packed_rows(f_ext, rank), model.topology.body_of_dof))
    return Force(moment=Vec3(nx, ny, nz), force=Vec3(fx, fy, fz)).moved_from(poses.translation)


class Moving(NamedTuple):
    """Rows `[nv, *batch]`, one a degree of freedom."""

    joint: Motion
    """The velocity across each."""
    velocity: Motion
    """The velocity behind each."""
    momentum: Force
    """`I v` of the body that each carries."""


def terms(model: Model, q, v, f_ext, rank: int) -> Terms:
    """The equations of motion at `q`, `v` (rows; `v` None for a body at rest)."""
    if v is not None:
        return terms_and_motion(model, q, v, f_ext, rank)[0]
    poses, S = kinematics(model, q, rank)
    zero = jnp.zeros_like(poses.translation.x)
    zeros = Vec3(zero, zero, zero)
    still = Motion(zeros, zeros), Force(zeros, zeros)
    return Terms(S, node_inertias(model, poses, rank), *still, gravity_rows(model, rank), rows_of(model.armature, rank))


def terms_and_motion(model: Model, q, v, f_ext, rank: int) -> tuple[Terms, Moving]:
    return terms_at(model, kinematics(model, q, rank), v, f_ext, rank)


def terms_at(model: Model, at: Kinematics, v, f_ext, rank: int) -> tuple[Terms, Moving]:
    poses, S = at
    inertia = node_inertias(model, poses, rank)
    joint, velocity = velocities(model.topology, S, v)
    momentum = inertia.apply(velocity)
    # d(I v)/dt has the gyroscopic part v x* I v.
    p = velocity.cross_force(momentum)
    if f_ext is not None:
        p = p - external_forces(model, poses, f_ext, rank)
    c = velocity_accelerations(model.topology, joint, velocity)
    return Terms(S, inertia, c, p, gravity_rows(model, rank), rows_of(model.armature, rank)), Moving(
        joint, velocity, momentum
    )


def gravity_rows(model: Model, rank: int) -> Vec3:
    g = rows_of(model.gravity, rank)
    return Vec3(g[0:1], g[1:2], g[2:3])


def passive_torque(model: Model, q, v, rank: int, *, joint_friction: bool):
    """Rows `[nv]`, or zero: the torque that joint springs and, if so wanted, friction take from the actuators'."""
    out = spring_torque_rows(model, q, rank)
    return out + friction_torque(model, v, rank) if joint_friction else out


def friction_torque(model: Model, v, rank: int):
    """Rows `[nv]`: `damping v + friction tanh(v / friction_velocity)`, the torque that opposes `v`."""
    damping, friction, scale = (rows_of(x, rank) for x in (model.damping, model.friction, model.friction_velocity))
    return damping * v + friction * jnp.tanh(v / scale)


def spring_torque_rows(model: Model, q, rank: int):
    """Rows `[nv]`: the torque that takes the joints' springs out of their reference; zero where there are none."""
    if model.stiffness is None:
        return 0.0
    stiffness, reference = rows_of(model.stiffness, rank), rows_of(model.spring_reference, rank)
    batch = jnp.broadcast_shapes(*(x.shape[1:] for x in (stiffness, reference, q)))
    rows = (jnp.broadcast_to(x, (x.shape[0], *batch)) for x in (stiffness, reference, q))
    return spring_torque(model.topology, *rows)
