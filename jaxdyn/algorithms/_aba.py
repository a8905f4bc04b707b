"""Forward dynamics."""

from __future__ import annotations

from jaxdyn._types import Array, Configuration, Float, Torque, Velocity, Wrenches
from jaxdyn.algorithms._first_derivatives import OF_ABA
from jaxdyn.algorithms.recursions import Robot, algorithm, forward_at


@algorithm(derivatives=OF_ABA, motion_axes=((-1,),))
def aba(
    robot: Robot,
    q: Configuration,
    v: Velocity,
    tau: Torque,
    f_ext: Wrenches | None = None,
    *,
    joint_friction: bool = True,
) -> Float[Array, "*batch nv"]:
    """Forward dynamics: the accelerations under the actuator torques `tau`.

    `a = M(q)^-1 (tau - friction(v) - springs(q) + J^T f_ext - C(q, v) v - g(q))`, by the articulated-body algorithm
    (Featherstone, Rigid Body Dynamics Algorithms, 2008, section 7.3), in O(n). Derivatives of every order, forward and
    reverse, with respect to all arguments and every array of the model, are taken through the equation that `a` solves,
    not through the recursion. Forces that do no work hold joints that mimic others, at the cost of one more solve each,
    and the loops and couplings of the model: then `M a + J^T l = ...` with `J a + gamma = 0`, also where equations say
    the same twice (Carpentier, Budhiraja & Mansard, RSS 2021). The state should satisfy the constraints, which
    `project_configuration` and `project_velocity` achieve: accelerations keep errors as they are.

    **Arguments**

    - `q` `[*batch, nq]`, `v` and `tau` `[*batch, nv]`; batch axes broadcast. For a free joint `tau` is the wrench
      `[force, moment]` in body axes.
    - `f_ext` `[*batch, nb, 6]`: external wrenches `[force, moment]` on the bodies in N and N m, in world axes, acting
      at the origin of each body's frame.
    - `joint_friction`: whether `Model.damping` and `Model.friction` act. Armature and springs always count.

    **Returns** `a` `[*batch, nv]`, rad/s^2 or m/s^2: the rate of `v`.

    **Raises** `ShapeError`, while tracing, where a shape does not fit.
    """
    return forward_at(robot, q, v, tau, f_ext, joint_friction).a
