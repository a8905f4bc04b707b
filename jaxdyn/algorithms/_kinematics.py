"""Poses, velocities and Jacobians of bodies and frames."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from jaxdyn._types import Array, Configuration, Float, Velocity
from jaxdyn.algorithms.recursions import (
    Reference,
    Robot,
    absolute_frame_pose,
    absolute_poses,
    algorithm,
    column_vectors,
    frame_reference,
    pose_arrays,
    single_vector,
    velocities,
)
from jaxdyn.spatial import SE3
from jaxdyn.tree import take_rows


@algorithm()
def forward_kinematics(robot: Robot, q: Configuration) -> Annotated[SE3, "nb"]:
    """The poses of all bodies in the world: `rotation` `[*batch, nb, 3, 3]`, `translation` `[*batch, nb, 3]` in m.

    A body's frame is its joint's moving frame. For the frames of merged links and for named frames see `frame_pose`.
    """
    return pose_arrays(robot, take_rows(absolute_poses(robot, q), robot.topology.body_dofs))


@algorithm()
def frame_pose(robot: Robot, q: Configuration, frame: str) -> SE3:
    """The pose of a frame (a body, a merged link, or a named frame) in the world; batch axes as `q`.

    **Raises** `UnknownNameError`, with the nearest names.
    """
    rotation, translation = pose_arrays(robot, absolute_frame_pose(robot, q, frame))
    return rotation[0], translation[0]  # type: ignore[return-value]


@algorithm()
def frame_jacobian(
    robot: Robot, q: Configuration, frame: str, reference: Reference = "local_world_aligned"
) -> Float[Array, "*batch 6 nv"]:
    """The Jacobian `J(q)` `[*batch, 6, nv]` of a frame: its velocity `[linear(3), angular(3)]` is `J v`.

    `reference`: `"local_world_aligned"`, world axes, at the frame's origin; `"local"`, the frame's axes, at its origin;
    `"world"`, world axes, for the point of the body that is at the world's origin.

    **Raises** `UnknownNameError` for the frame, `ModelError` for the reference.
    """
    view = frame_reference(robot, q, frame, reference)
    if view is None:
        return robot.constant(np.zeros((6, robot.nv)))
    return column_vectors(robot, view.in_axes(view.at_point(view.moving)))


@algorithm()
def frame_velocity(
    robot: Robot, q: Configuration, v: Velocity, frame: str, reference: Reference = "local_world_aligned"
) -> Float[Array, "*batch 6"]:
    """The velocity `[linear(3), angular(3)]` of a frame, m/s and rad/s; `reference` and errors as in
    `frame_jacobian`."""
    view = frame_reference(robot, q, frame, reference)
    if view is None:
        return robot.constant(np.zeros(6))
    _, velocity = velocities(robot, view.S, v)
    return single_vector(robot, view.in_axes(view.at_point(take_rows(velocity, view.row))))
