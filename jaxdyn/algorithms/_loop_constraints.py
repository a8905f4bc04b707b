"""Closed loops and couplings of joints: their errors, Jacobian and forces, and the motion that they allow."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jaxdyn._types import Array, Configuration, Float, Torque, Velocity, Wrenches
from jaxdyn.algorithms.recursions import Robot, algorithm, constraint_errors, constraint_rows, forward_at, kinematics


@algorithm()
def constraint_error(robot: Robot, q: Configuration) -> Float[Array, "*batch nc"]:
    """The errors `phi(q)` `[*batch, nc]` of the model's loops, in their order, and of its couplings; zero where they
    hold.

    With `d` the position of the second frame's origin less that of the first, and `x1, y1, z1`, `x2, y2, z2` the axes
    of the two frames: `connect` has `x1.d, y1.d, z1.d` (m); `weld` these and the rotation vector of the second frame in
    the first (rad); `revolute` those of `connect` and `x1.z2, y1.z2`; `cylindrical` `x1.d, y1.d, x1.z2, y1.z2`;
    `distance` `(d.d - L^2) / (2 L)` with the length `L`; a coupling `q1 - r1 - sum_k c_k (q2 - r2)^k`.

    **Raises** `ShapeError` where a shape does not fit.
    """
    return constraint_errors(robot, q)


@algorithm()
def loop_opening(robot: Robot, q: Configuration) -> Float[Array, "*batch"]:
    """The greatest of `constraint_error` `[*batch]`, each over its lever: about the angle (rad), or the displacement
    (m) of prismatic joints, by which joints would have to move to close the loops; zero without loops. Rotations of
    welds count with their sines, and one beyond a quarter turn."""
    rows = constraint_rows(robot, q, kinematics(robot, q))
    return robot.broadcast(jnp.zeros((), q.dtype)) if rows is None else rows.opening


@algorithm()
def constraint_jacobian(robot: Robot, q: Configuration) -> Float[Array, "*batch nc nv"]:
    """The Jacobian `J(q)` `[*batch, nc, nv]` of loops and couplings: `J v` is the rate of `constraint_error`.

    For the rotation of a `weld` that is the relative angular velocity in the axes of the first frame, which is the rate
    of the rotation vector only where the loop is closed.

    **Raises** `ShapeError` where a shape does not fit.
    """
    rows = constraint_rows(robot, q, kinematics(robot, q))
    return robot.constant(np.zeros((0, robot.nv))) if rows is None else rows.J[: robot.topology.nc]


@algorithm()
def constraint_forces(
    robot: Robot,
    q: Configuration,
    v: Velocity,
    tau: Torque,
    f_ext: Wrenches | None = None,
    *,
    joint_friction: bool = True,
) -> Float[Array, "*batch nc"]:
    """The forces `f` `[*batch, nc]` of loops and couplings on the robot at the accelerations of `aba`, N and N m.

    They act by the torques `J^T f`, with `J` of `constraint_jacobian`: a loop's force acts on its second body along the
    directions of the equations of `constraint_error`, at the origin of the second frame, and its opposite on the first
    body. The multipliers of `M a + J^T l = ...` are `l = -f`. Where equations say the same twice, only `J^T f` is
    determined, and `f` has the least norm, in equations that are scaled so that loops resist alike.

    **Arguments** and errors as for `aba`.

    Source: Carpentier, Budhiraja & Mansard, Proximal and sparse resolution of constrained dynamic equations, RSS 2021.
    """
    multipliers = forward_at(robot, q, v, tau, f_ext, joint_friction).multipliers
    return robot.constant(np.zeros(0)) if multipliers is None else -multipliers[: robot.topology.nc]
