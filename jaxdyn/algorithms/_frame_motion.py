"""Accelerations of frames, and how their Jacobians change along a motion."""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
import numpy as np

from jaxdyn._compile import compiled
from jaxdyn._errors import require_choice
from jaxdyn._types import Array, Configuration, Float, Velocity
from jaxdyn.algorithms.recursions import (
    Reference,
    Robot,
    algorithm,
    column_vectors,
    frame_reference,
    single_vector,
    velocities,
    velocity_accelerations,
)
from jaxdyn.model import Model
from jaxdyn.spatial import Motion
from jaxdyn.tree import sum_down, take_rows

type AccelerationKind = Literal["classical", "spatial"]


@algorithm()
def frame_acceleration(
    robot: Robot,
    q: Configuration,
    v: Velocity,
    a: Velocity,
    frame: str,
    reference: Reference = "local_world_aligned",
    kind: AccelerationKind = "classical",
) -> Float[Array, "*batch 6"]:
    """The acceleration `[linear(3), angular(3)]` `[*batch, 6]` of a frame, m/s^2 and rad/s^2; gravity is not added.

    `reference`: as in `frame_jacobian`. `kind`: `"classical"`, the acceleration of the point of the body that is at the
    point of reference; `"spatial"`, the rate of the spatial velocity, whose linear part is less by `w x v` of that
    point (Featherstone 2008, section 2.11). The rate of `frame_velocity` is the classical one in
    `"local_world_aligned"`, and the spatial one in `"local"` and `"world"`.

    **Raises** `UnknownNameError` for the frame, `ModelError` for the reference or the kind.
    """
    require_choice(kind, ("classical", "spatial"), "kind")
    view = frame_reference(robot, q, frame, reference)
    if view is None:
        return robot.constant(np.zeros(6))
    joint, velocity = velocities(robot, view.S, v)
    acceleration = sum_down(robot.tree, view.S * a + velocity_accelerations(robot, joint, velocity))
    V, A = (view.at_point(x) for x in take_rows((velocity, acceleration), view.row))
    if kind == "classical":
        A = Motion(A.angular, A.linear + V.angular.cross(V.linear))
    return single_vector(robot, view.in_axes(A))


@compiled("frame", "reference", "kind")
def frame_bias_acceleration(
    model: Model,
    q: Configuration,
    v: Velocity,
    frame: str,
    reference: Reference = "local_world_aligned",
    kind: AccelerationKind = "classical",
) -> Float[Array, "*batch 6"]:
    """The acceleration `[*batch, 6]` of a frame where `a` is zero, m/s^2 and rad/s^2: `dJ/dt v` for the kind that is
    the rate of `frame_velocity`. Arguments and errors as in `frame_acceleration`."""
    return frame_acceleration(model, q, v, jnp.zeros_like(jnp.asarray(v)), frame, reference, kind)


@algorithm()
def frame_jacobian_time_derivative(
    robot: Robot, q: Configuration, v: Velocity, frame: str, reference: Reference = "local_world_aligned"
) -> Float[Array, "*batch 6 nv"]:
    """`dJ/dt` `[*batch, 6, nv]` of `frame_jacobian` along the velocity `v`; the rate of `frame_velocity` is
    `J a + dJ/dt v`.

    Analytic: a column turns with the body behind its joint, `dS_j/dt = v_j x S_j`. At the frame's origin, which moves
    with the velocity `u`, it changes by `w_j x u` more; in the axes of the frame by `-w x` of both of its parts.

    **Raises** `UnknownNameError` for the frame, `ModelError` for the reference.
    """
    view = frame_reference(robot, q, frame, reference)
    if view is None:
        return robot.constant(np.zeros((6, robot.nv)))
    _, velocity = velocities(robot, view.S, v)
    V = view.at_point(take_rows(velocity, view.row))
    dJ = view.at_point(take_rows(velocity, robot.topology.mover).cross(view.moving))
    if reference != "world":
        dJ = Motion(dJ.angular, dJ.linear + view.moving.angular.cross(V.linear))
    if reference == "local":
        J, w = view.at_point(view.moving), V.angular
        dJ = Motion(dJ.angular - w.cross(J.angular), dJ.linear - w.cross(J.linear))
    return column_vectors(robot, view.in_axes(dJ))
