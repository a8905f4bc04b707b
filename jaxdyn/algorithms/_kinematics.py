"""Poses, velocities and Jacobians of bodies and frames."""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp

from jaxdyn._compile import compiled
from jaxdyn._errors import ModelError
from jaxdyn._types import Array, Configuration, Float, Velocity
from jaxdyn.algorithms.recursions._algorithm import batched, full, rows
from jaxdyn.algorithms.recursions._equations_of_motion import absolute_poses, kinematics
from jaxdyn.model import Model
from jaxdyn.spatial import SE3, Motion, Pose
from jaxdyn.tree._rows import matrix_to_leading, rows_of, static_column
from jaxdyn.tree._walks import take_rows

type Reference = Literal["local", "world", "local_world_aligned"]

_REFERENCES = ("local", "world", "local_world_aligned")


def _poses_shape(shape: tuple[int, ...]) -> Any:
    return jax.tree.unflatten(jax.tree.structure(SE3.identity()), [(*shape, 3, 3), (*shape, 3)])


@batched(lambda model: _poses_shape((model.nb,)))
def forward_kinematics(model: Model, q: Configuration) -> SE3:
    """The poses of all bodies in the world: `rotation` `[*batch, nb, 3, 3]`, `translation` `[*batch, nb, 3]` in m.

    A body's frame is its joint's moving frame. For the frames of merged links and for named frames see `frame_pose`.
    """
    (q,), batch, rank = rows(model, q=q)
    poses = take_rows(absolute_poses(model, q, rank), model.topology.body_dofs)
    return _to_se3(poses, batch, jnp.moveaxis)


@batched(lambda _: _poses_shape(()), "frame")
def frame_pose(model: Model, q: Configuration, frame: str) -> SE3:
    """The pose of a frame (a body, a merged link, or a named frame) in the world; batch axes as `q`.

    **Raises** `UnknownNameError`, with the nearest names.
    """
    (q,), batch, rank = rows(model, q=q)
    number = model.topology.frame(frame)
    body = model.topology.frame_bodies[number]
    pose = _frame_placement(model, number, rank)
    if body >= 0:
        pose = _body_pose(model, absolute_poses(model, q, rank), body).compose(pose)
    return _to_se3(pose, batch, lambda x, *_: x[0])


@batched(lambda model: (6, model.nv), "frame", "reference", forces=(-1,))
def frame_jacobian(
    model: Model, q: Configuration, frame: str, reference: Reference = "local_world_aligned"
) -> Float[Array, "*batch 6 nv"]:
    """The Jacobian `J(q)` `[*batch, 6, nv]` of a frame: its velocity `[linear(3), angular(3)]` is `J v`.

    `reference`: `"local_world_aligned"`, world axes, at the frame's origin; `"local"`, the frame's axes, at its origin;
    `"world"`, world axes, for the point of the body that is at the world's origin.

    **Raises** `UnknownNameError` for the frame, `ModelError` for the reference.
    """
    known_reference(reference)
    (q,), batch, rank = rows(model, q=q)
    topology = model.topology
    number = topology.frame(frame)
    body = topology.frame_bodies[number]
    if body < 0:
        return jnp.zeros((*batch, 6, model.nv), q.dtype)
    poses, S = kinematics(model, q, rank)
    moves = static_column(topology.moves_body[body].astype(float), q.dtype, rank)
    # Columns of the degrees of freedom that do not move the body are zero.
    pose = frame_reference(model, q, poses, number, reference, rank)
    J = (S * moves).at(pose.translation)
    if reference == "local":
        R = pose.rotation
        J = Motion(R.apply_transpose(J.angular), R.apply_transpose(J.linear))
    parts = jnp.broadcast_arrays(J.linear.x, J.linear.y, J.linear.z, J.angular.x, J.angular.y, J.angular.z)
    return matrix_to_leading(full(jnp.stack(parts), batch))


@compiled("frame", "reference")
def frame_velocity(
    model: Model, q: Configuration, v: Velocity, frame: str, reference: Reference = "local_world_aligned"
) -> Float[Array, "*batch 6"]:
    """The velocity `[linear(3), angular(3)]` of a frame, m/s and rad/s; `reference` as in `frame_jacobian`."""
    rows(model, q=q, v=v)
    return (frame_jacobian(model, q, frame, reference) * jnp.asarray(v)[..., None, :]).sum(axis=-1)


def known_reference(reference: str) -> None:
    """**Raises** `ModelError` for another."""
    if reference not in _REFERENCES:
        raise ModelError(f"reference is {reference!r}; known: {', '.join(map(repr, _REFERENCES))}")


def frame_reference(model: Model, q, poses: Pose, number: int, reference: Reference, rank: int) -> Pose:
    """`[1, *batch]`, from the point of reference of `poses`: the pose of a frame that is fixed in a body; for `"world"`
    the origin of the world, with the frame's rotation."""
    body = model.topology.frame_bodies[number]
    pose = _body_pose(model, poses, body).compose(_frame_placement(model, number, rank))
    if reference != "world":
        return pose
    root = _root(model.topology.parents, body)
    origin = _body_pose(model, absolute_poses(model, q, rank), root).translation
    return Pose(pose.rotation, -(origin - _body_pose(model, poses, root).translation))


def _root(parents: tuple[int, ...], body: int) -> int:
    while parents[body] >= 0:
        body = parents[body]
    return body


def _body_pose(model: Model, poses: Pose, body: int) -> Pose:
    """`[1, *batch]`: one body's."""
    return take_rows(poses, model.topology.body_dofs[body : body + 1])


def _frame_placement(model: Model, number: int, rank: int) -> Pose:
    """`[1, *batch]`"""
    local = Pose.from_vector(model.frame_placement[..., number : number + 1, :])
    return jax.tree.map(lambda x: rows_of(x, rank), local)


def _to_se3(pose: Pose, batch: tuple[int, ...], place) -> SE3:
    """Arrays from components `[n, *batch]`; `place` says what becomes of the first axis."""
    pose = jax.tree.map(lambda x: place(full(x, batch), 0, -1), pose)
    return SE3(pose.rotation.to_array(), pose.translation.to_array())
