"""Inverse dynamics by the recursive Newton-Euler algorithm."""

from __future__ import annotations

from jaxdyn._types import Array, Configuration, Float, Velocity, Wrenches
from jaxdyn.algorithms._first_derivatives import OF_RNEA
from jaxdyn.algorithms.recursions import Robot, algorithm, equations_of_motion, inverse, passive_torque, spring_rows


@algorithm(derivatives=OF_RNEA)
def rnea(
    robot: Robot,
    q: Configuration,
    v: Velocity,
    a: Velocity,
    f_ext: Wrenches | None = None,
    *,
    joint_friction: bool = True,
) -> Float[Array, "*batch nv"]:
    """Inverse dynamics: the actuator torques for which the accelerations are `a`.

    `tau = M(q) a + C(q, v) v + g(q) + friction(v) + springs(q) - J^T f_ext`, by the recursive Newton-Euler algorithm
    (Featherstone, Rigid Body Dynamics Algorithms, 2008, section 5.3), in O(n). These are the torques of the tree: those
    of closed loops and couplings, `J^T f`, are not heeded (`constrained_inverse_dynamics` does).

    **Arguments**

    - `q` `[*batch, nq]`, `v` and `a` `[*batch, nv]`: rad, m and their rates; batch axes broadcast.
    - `f_ext` `[*batch, nb, 6]`: external wrenches `[force, moment]` on the bodies in N and N m, in world axes, acting
      at the origin of each body's frame.
    - `joint_friction`: whether `Model.damping` and `Model.friction` act. Armature and springs always count.

    **Returns** `tau` `[*batch, nv]` in N m or N; for a free joint the wrench `[force, moment]` in body axes.

    **Raises** `ShapeError`, while tracing, where a shape does not fit.
    """
    tau = inverse(robot.tree, equations_of_motion(robot, q, v, f_ext), a)
    return tau + passive_torque(robot, q, v, joint_friction)


@algorithm()
def nonlinear_effects(robot: Robot, q: Configuration, v: Velocity) -> Float[Array, "*batch nv"]:
    """The torques at zero acceleration without friction, `C(q, v) v + g(q) + springs(q)`, `[*batch, nv]`, N m or N."""
    return inverse(robot.tree, equations_of_motion(robot, q, v), robot.zeros()) + spring_rows(robot, q)


@algorithm()
def generalized_gravity(robot: Robot, q: Configuration) -> Float[Array, "*batch nv"]:
    """The torques `g(q)` `[*batch, nv]`, N m or N, that hold the robot at rest against gravity."""
    return inverse(robot.tree, equations_of_motion(robot, q), robot.zeros())


@algorithm()
def spring_torque(robot: Robot, q: Configuration) -> Float[Array, "*batch nv"]:
    """The torques `[*batch, nv]`, N m or N, that hold the joints' springs at `q`, the gradient of their energy; zero
    for a model without springs.

    `stiffness (q - spring_reference)`. For a ball joint, and the rotation of a free one, the displacement is the
    rotation vector from the reference, and for a free joint's position it is in the parent's axes.
    """
    return robot.zeros() + spring_rows(robot, q)
