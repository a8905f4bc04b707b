"""The quantities in which the equations of motion are written, for all nodes at once.

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

from jaxdyn import joints
from jaxdyn._compile import once
from jaxdyn.algorithms.recursions._robot import Robot
from jaxdyn.friction import JointFriction
from jaxdyn.joints import local_poses, motion_columns, spring_torque
from jaxdyn.spatial import Force, Inertia, Motion, Pose, Sym3, Vec3
from jaxdyn.tree import columns_of, compose_down, sum_down, sum_up, take_rows


class Kinematics(NamedTuple):
    """Poses and motion subspaces at one configuration, rows `[nv, *batch]`."""

    poses: Pose
    """The frames behind the degrees of freedom; translations are from the tree's point of reference."""
    S: Motion
    """The columns of the joints' motion subspaces."""


class EquationsOfMotion(NamedTuple):
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


class Velocities(NamedTuple):
    """Velocities and momenta, rows `[nv, *batch]`, one a degree of freedom."""

    joint: Motion
    """The velocity across each degree of freedom."""
    velocity: Motion
    """The velocity behind each degree of freedom."""
    momentum: Force
    """`I v` of the body that each degree of freedom carries."""


def absolute_poses(robot: Robot, q) -> Pose:
    """Return the poses in the world of the frames behind the degrees of freedom, rows `[nv]`."""
    return compose_down(robot.tree, _local_poses(robot, q))


def poses_and_roots(robot: Robot, q) -> tuple[Pose, Vec3]:
    """Return `absolute_poses` with translations from the places where the joints that hold the trees in the world put
    their bodies, and these places, rows `[nv]`."""
    local, is_root_joint = _local_poses(robot, q), robot.topology.is_root_joint
    roots = _with_translations(robot, local, is_root_joint).translation
    return _with_translations(robot, local, ~is_root_joint), roots


def _with_translations(robot: Robot, local: Pose, which: np.ndarray) -> Pose:
    """Return the poses that follow from all rotations and from the translations of some degrees of freedom."""
    translation = local.translation * robot.constant(which.astype(float))
    return compose_down(robot.tree, Pose(local.rotation, translation))


def _local_poses(robot: Robot, q) -> Pose:
    placement, axis, pitch = (robot.arrays[name] for name in ("joint_placement", "joint_axis", "joint_pitch"))
    return local_poses(robot.topology, placement, axis, pitch, q, robot.rank)


def kinematics(robot: Robot, q) -> Kinematics:
    """Return the poses and motion subspaces at the configuration `q`."""
    return _kinematics(robot, _local_poses(robot, q))


def kinematics_and_poses(robot: Robot, q) -> tuple[Kinematics, Pose]:
    """Return `kinematics` and `absolute_poses` of the same configuration; their derivatives by a joint are added up
    before they go to its arrays."""
    local = _local_poses(robot, q)
    return _kinematics(robot, local), compose_down(robot.tree, local)


def _kinematics(robot: Robot, local: Pose) -> Kinematics:
    topology = robot.topology
    poses = _with_translations(robot, local, ~topology.is_root_joint)
    # Nothing depends on where the point of reference is, so nothing is differentiated by it either.
    reference = lax.stop_gradient(take_rows(poses.translation, topology.reference_dof))
    poses = Pose(poses.rotation, once(poses.translation - reference))
    # S in the world: the column turned into world axes, and moved from the frame's origin to the point of reference.
    column = motion_columns(topology, robot.arrays["joint_axis"], robot.arrays["joint_pitch"], robot.rank)
    angular = poses.rotation.apply(column.angular)
    linear = poses.translation.cross(angular)
    if not isinstance(column.linear.x, float):
        linear = linear + poses.rotation.apply(column.linear)
    return Kinematics(poses, once(Motion(angular, linear)))


def node_inertias(robot: Robot, poses: Pose) -> Inertia:
    """Return the inertias that the degrees of freedom carry, in world axes about the point of reference of `poses`;
    zero inside a joint."""
    table = take_rows(robot.inertial_parameters, robot.topology.body_of_dof)
    m, x, y, z, *moments = columns_of(table)
    return Inertia(m, Vec3(x, y, z), Sym3(*moments)).moved(poses)


def velocities(robot: Robot, S: Motion, v) -> tuple[Motion, Motion]:
    """Return the velocity across each degree of freedom, and of the frame behind it."""
    joint = S * v
    return joint, sum_down(robot.tree, joint)


def velocity_accelerations(robot: Robot, joint: Motion, velocity: Motion) -> Motion:
    """Return `v x S qd`. A column is fixed in its moving body, so its rate is `v x S`, with the velocity behind the
    last degree of freedom of the joint."""
    topology = robot.topology
    several = topology.mover != np.arange(robot.nv)
    if not several.any():
        return velocity.cross(joint)
    if topology.is_root_joint[several].all():
        # All of a root's motion is across its joint, and `v x v = 0`.
        return velocity.cross(joint) * _outside_chains(robot, several)
    return take_rows(velocity, topology.mover).cross(joint)


def momenta_and_rates(robot: Robot, at: Kinematics, v) -> tuple[Any, Any]:
    """Return the momenta `M v` of the degrees of freedom, and the rates at which they change because the robot moves:
    for joints whose coordinates are their velocities' integrals, the derivative of the kinetic energy by `q`. Rows
    `[nv]`."""
    velocity = velocities(robot, at.S, v)[1]
    momentum = sum_up(robot.tree, node_inertias(robot, at.poses).apply(velocity))
    turning = take_rows(velocity, robot.topology.mover).cross(at.S)
    return at.S.dot(momentum) + robot.armature * v, turning.dot(momentum)


def turning_accelerations(robot: Robot, v):
    """Return `omega x v` of the linear velocities of free joints, rows `[nv]`; zero for other degrees of freedom.

    Their velocities are in axes that turn with the body. Added to the accelerations, it makes them those in the axes at
    the start of the step, in which a step neither gains nor loses energy in free flight.
    """
    topology = robot.topology
    starts = np.array([topology.v_starts[i] for i, kind in enumerate(topology.joint_types) if kind == "free"], int)
    if not len(starts):
        return robot.zeros()
    linear, angular = (Vec3(*(take_rows(v, starts + k + i) for i in range(3))) for k in (0, 3))
    turn = angular.cross(linear)
    where = np.full((3, robot.nv), -1)
    for i in range(3):
        where[i, starts + i] = np.arange(len(starts))
    return sum(take_rows(x, rows) for x, rows in zip((turn.x, turn.y, turn.z), where, strict=True))


def sum_before_joint(robot: Robot, behind: Motion, across: Motion) -> Motion:
    """Return the sum before the whole joint of each degree of freedom, from a sum down the tree and what each degree of
    freedom adds to it."""
    topology = robot.topology
    several = topology.mover != np.arange(robot.nv)
    if not several.any():
        return behind - across
    if topology.is_root_joint[several].all():
        return (behind - across) * _outside_chains(robot, several)
    return take_rows(behind, topology.dof_before_joint)


def _outside_chains(robot: Robot, several: np.ndarray):
    """Return 0 for degrees of freedom of joints that have several, else 1."""
    mover = robot.topology.mover
    return robot.constant(np.where(np.isin(mover, mover[several]), 0.0, 1.0))


def external_forces(robot: Robot, poses: Pose, f_ext) -> Force:
    """Return wrenches `[nb, 6, *batch]` at the bodies' origins as forces about the point of reference, rows `[nv]`."""
    return forces_at_origins(robot, f_ext).moved_from(poses.translation)


def forces_at_origins(robot: Robot, f_ext) -> Force:
    """Return wrenches `[nb, 6, *batch]` as forces about the bodies' origins, rows `[nv]`."""
    fx, fy, fz, nx, ny, nz = columns_of(take_rows(f_ext, robot.topology.body_of_dof))
    return Force(moment=Vec3(nx, ny, nz), force=Vec3(fx, fy, fz))


def equations_of_motion(robot: Robot, q, v=None, f_ext=None) -> EquationsOfMotion:
    """Return the equations of motion at `q` and `v`; without `v`, at rest."""
    if v is not None:
        return equations_and_velocities(robot, *kinematics(robot, q), v, f_ext)[0]
    return equations_at_rest(robot, kinematics(robot, q))


def equations_at_rest(robot: Robot, at: Kinematics) -> EquationsOfMotion:
    """Return the equations of motion at rest."""
    poses, S = at
    zero = jnp.zeros_like(poses.translation.x)
    zeros = Vec3(zero, zero, zero)
    c, p = Motion(zeros, zeros), Force(zeros, zeros)
    return EquationsOfMotion(S, node_inertias(robot, poses), c, p, robot.gravity_vector, robot.armature)


def equations_and_velocities(
    robot: Robot, poses: Pose, S: Motion, v, f_ext=None
) -> tuple[EquationsOfMotion, Velocities]:
    """Return the equations of motion, and the velocities and momenta in them."""
    inertia = node_inertias(robot, poses)
    joint, velocity = velocities(robot, S, v)
    momentum = inertia.apply(velocity)
    # d(I v)/dt has the gyroscopic part v x* I v.
    p = velocity.cross_force(momentum)
    if f_ext is not None:
        p = p - external_forces(robot, poses, f_ext)
    c = velocity_accelerations(robot, joint, velocity)
    equations = EquationsOfMotion(S, inertia, c, p, robot.gravity_vector, robot.armature)
    return equations, Velocities(joint, velocity, momentum)


def passive_torque(robot: Robot, q, v, joint_friction: bool):
    """Return the torque, rows `[nv]` or 0, that joint springs and, with `joint_friction`, friction take from the
    actuators' torque."""
    springs = spring_rows(robot, q)
    return springs + joint_friction_law(robot).torque(v) if joint_friction else springs


def joint_friction_law(robot: Robot) -> JointFriction:
    """Return the law of friction in the robot's joints, whose parameters are rows `[nv]`."""
    return JointFriction(robot.damping, robot.friction, robot.friction_velocity)


def spring_rows(robot: Robot, q):
    """Return the torque that holds the joints' springs at `q`, rows `[nv]`; 0 without springs."""
    if robot.stiffness is None:
        return 0.0
    return spring_torque(robot.topology, *_alike(robot.stiffness, robot.spring_reference, q))


def spring_energy(robot: Robot, q):
    """Return the energy `[*batch]` of the joints' springs at `q`; 0 without springs."""
    if robot.stiffness is None:
        return 0.0
    return joints.spring_energy(robot.topology, *_alike(robot.stiffness, robot.spring_reference, q))


def _alike(*rows) -> list:
    batch = jnp.broadcast_shapes(*(x.shape[1:] for x in rows))
    return [jnp.broadcast_to(x, (x.shape[0], *batch)) for x in rows]
