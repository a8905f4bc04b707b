"""Frames that are fixed in bodies: their poses, and the point and axes to which their motion is referred."""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import numpy as np

from jaxdyn._errors import require_choice
from jaxdyn.algorithms.recursions._equations_of_motion import absolute_poses, kinematics
from jaxdyn.algorithms.recursions._robot import Robot
from jaxdyn.spatial import Motion, Pose
from jaxdyn.tree import rows_of, take_rows

type Reference = Literal["local", "world", "local_world_aligned"]


class FrameReference(NamedTuple):
    """The point and axes to which the motion of a frame is referred, and the motion subspaces that move it."""

    S: Motion
    """The columns of all motion subspaces, rows `[nv]`."""
    moving: Motion
    """The same, zero for degrees of freedom that do not move the frame."""
    row: np.ndarray
    """The row of the body in which the frame is fixed."""
    pose: Pose
    """The frame's pose, or with reference `"world"` the origin of the world with the frame's rotation, rows `[1]`, from
    the point of reference of the recursions."""
    local: bool
    """Whether vectors are in the axes of the frame."""

    def at_point(self, x: Motion) -> Motion:
        """Return a motion about the point of reference of the recursions about the frame's."""
        return x.at(self.pose.translation)

    def in_axes(self, x: Motion) -> Motion:
        """Return a motion in world axes in the axes of the reference."""
        R = self.pose.rotation
        return Motion(R.apply_transpose(x.angular), R.apply_transpose(x.linear)) if self.local else x


def frame_reference(robot: Robot, q, frame: str, reference: Reference) -> FrameReference | None:
    """Return the reference of a frame's motion, or None for a frame that is fixed in the world.

    **Raises** `UnknownNameError` for the frame, `ModelError` for the reference.
    """
    require_choice(reference, ("local", "world", "local_world_aligned"), "reference")
    topology = robot.topology
    number = topology.frame(frame)
    body = topology.frame_bodies[number]
    if body < 0:
        return None
    poses, S = kinematics(robot, q)
    pose = _body_pose(robot, poses, body).compose(_placement(robot, number))
    if reference == "world":
        root = body
        while topology.parents[root] >= 0:
            root = topology.parents[root]
        origin = _body_pose(robot, absolute_poses(robot, q), root).translation
        pose = Pose(pose.rotation, -(origin - _body_pose(robot, poses, root).translation))
    moving = S * robot.constant(topology.moves_body[body].astype(float))
    return FrameReference(S, moving, topology.body_dofs[body : body + 1], pose, reference == "local")


def absolute_frame_pose(robot: Robot, q, frame: str) -> Pose:
    """Return the pose of a frame in the world, rows `[1]`. **Raises** `UnknownNameError`."""
    number = robot.topology.frame(frame)
    body = robot.topology.frame_bodies[number]
    placement = _placement(robot, number)
    return placement if body < 0 else _body_pose(robot, absolute_poses(robot, q), body).compose(placement)


def _body_pose(robot: Robot, poses: Pose, body: int) -> Pose:
    return take_rows(poses, robot.topology.body_dofs[body : body + 1])


def _placement(robot: Robot, number: int) -> Pose:
    """Return the pose of a frame in its body, rows `[1]`."""
    placement = Pose.from_vector(robot.arrays["frame_placement"][..., number : number + 1, :])
    return jax.tree.map(lambda x: rows_of(x, robot.rank), placement)
