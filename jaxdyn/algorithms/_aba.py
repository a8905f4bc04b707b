"""Forward dynamics."""

from __future__ import annotations

from jaxdyn._types import Array, Configuration, Float, Velocity, Wrenches
from jaxdyn.algorithms._first_derivatives import OF_ABA
from jaxdyn.algorithms._mimic import constrained_forward
from jaxdyn.algorithms.recursions._algorithm import batched, full, rows, with_wrenches
from jaxdyn.algorithms.recursions._equations_of_motion import passive_torque, terms
from jaxdyn.algorithms.recursions._forward_dynamics import forward
from jaxdyn.model import Model
from jaxdyn.tree._rows import to_leading


@batched(lambda model: (model.nv,), "joint_friction", derivatives=OF_ABA, mimic=constrained_forward)
def aba(
    model: Model,
    q: Configuration,
    v: Velocity,
    tau: Velocity,
    f_ext: Wrenches | None = None,
    *,
    joint_friction: bool = True,
) -> Float[Array, "*batch nv"]:
    """Forward dynamics: the accelerations under the actuator torques `tau`.

    `a = M(q)^-1 (tau - friction(v) - springs(q) + J^T f_ext - C(q, v) v - g(q))`, by the articulated-body algorithm
    (Featherstone, Rigid Body Dynamics Algorithms, 2008, section 7.3), in O(n). Derivatives of every order, forward and
    reverse, with respect to all arguments and every array of the model, are taken through the equation that `a` solves,
    not through the recursion. Joints that mimic others are held to them by forces that do no work, one more solve each.

    **Arguments**

    - `q` `[*batch, nq]`, `v` and `tau` `[*batch, nv]`; batch axes broadcast. For a free joint `tau` is the wrench
      `[force, moment]` in body axes.
    - `f_ext` `[*batch, nb, 6]`: external wrenches `[force, moment]` on the bodies in N and N m, in world axes, acting
      at the origin of each body's frame.
    - `joint_friction`: whether `Model.damping` and `Model.friction` act. Armature and springs always count.

    **Returns** `a` `[*batch, nv]`, rad/s^2 or m/s^2: the rate of `v`.

    **Raises** `ShapeError`, while tracing, where a shape does not fit.
    """
    (q, v, tau), batch, rank = rows(model, q=q, v=v, tau=tau)
    f_ext, batch, rank, (q, v, tau) = with_wrenches(model, f_ext, batch, q, v, tau)
    tau = tau - passive_torque(model, q, v, rank, joint_friction=joint_friction)
    a, _ = forward(model.topology, terms(model, q, v, f_ext, rank), tau)
    return to_leading(full(a, batch))
