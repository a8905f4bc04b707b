"""A start of a robot's mounting and of its frames in closed form, for those that are far from the model's."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from jaxdyn.algorithms import frame_pose
from jaxdyn.model import Model
from jaxdyn.spatial import compose_poses, pose_array, quaternion_to_rotation, rotation_to_quaternion, transform_points
from jaxdyn.sysid.calibration._geometry_measurements import AbstractGeometryMeasurement, MeasuredPoses
from jaxdyn.sysid.parameters import KinematicErrors, blocks

# A mounting or a frame that is farther from the model's, rad or m, is found in closed form: the search would find it
# slowly or not at all. Numbers are about it then.
_FAR = 0.5
# Points whose second principal axis is shorter than this part of the first are on a line, which shows no rotation.
_ON_A_LINE = 1e-3


def near_start(
    model: Model,
    q: np.ndarray,
    measurements: Sequence[AbstractGeometryMeasurement],
    choices: Sequence[blocks.AbstractChoice],
) -> Model:
    """Return the model with another mounting, and with other frames whose poses were measured, where these are free and
    far from what was measured.

    The mounting takes the model's points to the measured ones with the least squares (Arun, Huang & Blostein 1987).
    """
    free = [x for x in choices if isinstance(x, KinematicErrors)]
    if any(x.base for x in free):
        model = _mounted(model, q, measurements)
    frames = {name for x in free for name in x.frames}
    for x in measurements:
        if isinstance(x, MeasuredPoses) and x.frame in frames:
            model = _turned(model, q[x.rows(len(q))], x)
    return model


def _mounted(model: Model, q: np.ndarray, measurements: Sequence[AbstractGeometryMeasurement]) -> Model:
    found = [(x.rows(len(q)), *seen) for x in measurements if (seen := x.points()) is not None]
    if not found:
        return model
    reached = [frame_pose(model, jnp.asarray(q[rows], model.dtype), frame).translation for rows, frame, _ in found]
    a, b = (np.concatenate([np.asarray(x, np.float64) for x in y]) for y in (reached, [x for *_, x in found]))
    seen = np.isfinite(b).all(axis=1)
    a, b = a[seen], b[seen]
    if len(a) < 3:
        return model
    U, size, V = np.linalg.svd((b - b.mean(axis=0)).T @ (a - a.mean(axis=0)))
    if size[1] < _ON_A_LINE * size[0]:
        return model
    R = U @ np.diag([1, 1, np.linalg.det(U @ V)]) @ V
    X = pose_array(b.mean(axis=0) - R @ a.mean(axis=0), rotation_to_quaternion(R))
    roots = np.flatnonzero(np.array(model.topology.parents) < 0)
    placements = np.array(model.joint_placement, np.float64)
    pivot = placements[roots[0], :3]
    if max(_angle(R), float(np.linalg.norm(transform_points(X, pivot) - pivot))) < _FAR:
        return model
    placements[roots] = compose_poses(X, placements[roots])
    return dataclasses.replace(model, joint_placement=jnp.asarray(placements, model.dtype))


def _turned(model: Model, q: np.ndarray, measured: MeasuredPoses) -> Model:
    """Return the model with another placement of a frame whose poses were measured."""
    seen, row = np.isfinite(measured.poses).all(axis=1), model.topology.frame(measured.frame)
    if not seen.any():
        return model
    found = frame_pose(model, jnp.asarray(q[seen], model.dtype), measured.frame)
    R, p = np.asarray(found.rotation, np.float64), np.asarray(found.translation, np.float64)
    poses = np.asarray(measured.poses)[seen]
    U, _, V = np.linalg.svd(np.mean(np.swapaxes(R, -1, -2) @ quaternion_to_rotation(poses[:, 3:]), axis=0))
    turn = U @ np.diag([1, 1, np.linalg.det(U @ V)]) @ V
    shift = np.mean(np.einsum("nji,nj->ni", R, poses[:, :3] - p), axis=0)
    if max(_angle(turn), float(np.linalg.norm(shift))) < _FAR:
        return model
    placements = np.array(model.frame_placement, np.float64)
    placements[row] = compose_poses(placements[row], pose_array(shift, rotation_to_quaternion(turn)))
    return dataclasses.replace(model, frame_placement=jnp.asarray(placements, model.dtype))


def _angle(R: np.ndarray) -> float:
    return float(np.arccos(np.clip((np.trace(R) - 1) / 2, -1, 1)))
