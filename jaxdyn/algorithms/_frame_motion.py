"""Accelerations of frames, and how their Jacobians change along a motion."""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp

from jaxdyn._compile import compiled
from jaxdyn._errors import ModelError
from jaxdyn._types import Array, Configuration, Float, Velocity
from jaxdyn.algorithms._kinematics import Reference, frame_reference, known_reference
from jaxdyn.algorithms.recursions._algorithm import batched, full, rows
from jaxdyn.algorithms.recursions._body_frames import components
from jaxdyn.algorithms.recursions._equations_of_motion import kinematics, velocities, velocity_accelerations
from jaxdyn.model import Model
from jaxdyn.spatial import Motion
from jaxdyn.tree._rows import matrix_to_leading, static_column
from jaxdyn.tree._walks import sum_down, take_rows

type Acceleration = Literal["classical", "spatial"]

_ACCELERATIONS = ("classical", "spatial")


@batched(lambda _: (6,), "frame", "reference", "kind")
def frame_acceleration(
    model: Model,
    q: Configuration,
    v: Velocity,
    a: Velocity,
    frame: str,
    reference: Reference = "local_world_aligned",
    kind: Acceleration = "classical",
) -> Float[Array, "*batch 6"]:
    """The acceleration `[linear(3), angular(3)]` `[*batch, 6]` of a frame, m/s^2 and rad/s^2; gravity is not added.

    `reference`: as in `frame_jacobian`. `kind`: `"classical"`, the acceleration of the point of the body that is at the
    point of reference; `"spatial"`, the rate of the spatial velocity, whose linear part is less by `w x v` of that
    point (Featherstone 2008, section 2.11). The rate of `frame_velocity` is the classical one in
    `"local_world_aligned"`, and the spatial one in `"local"` and `"world"`.

    **Raises** `UnknownNameError` for the frame, `ModelError` for the reference or the kind.
    """
    known_reference(reference)
    if kind not in _ACCELERATIONS:
        raise ModelError(f"kind is {kind!r}; known: {', '.join(map(repr, _ACCELERATIONS))}")
    (q, v, a), batch, rank = rows(model, q=q, v=v, a=a)
    topology = model.topology
    number = topology.frame(frame)
    body = topology.frame_bodies[number]
    if body < 0:
        return jnp.zeros((*batch, 6), q.dtype)
    poses, S = kinematics(model, q, rank)
    joint, velocity = velocities(topology, S, v)
    acceleration = sum_down(topology.dofs, S * a + velocity_accelerations(topology, joint, velocity))
    pose = frame_reference(model, q, poses, number, reference, rank)
    moved = take_rows((velocity, acceleration), topology.body_dofs[body : body + 1])
    V, A = (x.at(pose.translation) for x in moved)
    if kind == "classical":
        A = Motion(A.angular, A.linear + V.angular.cross(V.linear))
    if reference == "local":
        A = Motion(pose.rotation.apply_transpose(A.angular), pose.rotation.apply_transpose(A.linear))
    return jnp.stack([full(x[0], batch) for x in components(A)], axis=-1)


@compiled("frame", "reference", "kind")
def frame_bias_acceleration(
    model: Model,
    q: Configuration,
    v: Velocity,
    frame: str,
    reference: Reference = "local_world_aligned",
    kind: Acceleration = "classical",
) -> Float[Array, "*batch 6"]:
    """The acceleration `[*batch, 6]` of a frame where `a` is zero, m/s^2 and rad/s^2: `dJ/dt v` for the kind that is
    the rate of `frame_velocity`. Arguments and errors as in `frame_acceleration`."""
    return frame_acceleration(model, q, v, jnp.zeros_like(jnp.asarray(v)), frame, reference, kind)


@batched(lambda model: (6, model.nv), "frame", "reference", forces=(-1,))
def frame_jacobian_time_derivative(
    model: Model, q: Configuration, v: Velocity, frame: str, reference: Reference = "local_world_aligned"
) -> Float[Array, "*batch 6 nv"]:
    """`dJ/dt` `[*batch, 6, nv]` of `frame_jacobian` along the velocity `v`; the rate of `frame_velocity` is
    `J a + dJ/dt v`.

    Analytic: a column turns with the body behind its joint, `dS_j/dt = v_j x S_j`. At the frame's origin, which moves
    with the velocity `u`, it changes by `w_j x u` more; in the frame's own axes by `-w x` of both of its parts.

    **Raises** `UnknownNameError` for the frame, `ModelError` for the reference.
    """
    known_reference(reference)
    (q, v), batch, rank = rows(model, q=q, v=v)
    topology = model.topology
    number = topology.frame(frame)
    body = topology.frame_bodies[number]
    if body < 0:
        return jnp.zeros((*batch, 6, model.nv), q.dtype)
    poses, S = kinematics(model, q, rank)
    _, velocity = velocities(topology, S, v)
    S = S * static_column(topology.moves_body[body].astype(float), q.dtype, rank)
    pose = frame_reference(model, q, poses, number, reference, rank)
    V = take_rows(velocity, topology.body_dofs[body : body + 1]).at(pose.translation)
    dJ = take_rows(velocity, topology.mover).cross(S).at(pose.translation)
    if reference != "world":
        dJ = Motion(dJ.angular, dJ.linear + S.angular.cross(V.linear))
    if reference == "local":
        J, R, w = S.at(pose.translation), pose.rotation, V.angular
        dJ = Motion(
            R.apply_transpose(dJ.angular - w.cross(J.angular)), R.apply_transpose(dJ.linear - w.cross(J.linear))
        )
    return matrix_to_leading(jnp.stack([full(x, batch) for x in components(dJ)]))
