"""Inverse dynamics by the recursive Newton-Euler algorithm."""

from __future__ import annotations

import jax.numpy as jnp

from jaxdyn._types import Array, Configuration, Float, Velocity, Wrenches
from jaxdyn.algorithms._first_derivatives import OF_RNEA
from jaxdyn.algorithms.recursions._algorithm import batched, full, rows, with_wrenches
from jaxdyn.algorithms.recursions._equations_of_motion import passive_torque, spring_torque_rows, terms
from jaxdyn.algorithms.recursions._inverse_dynamics import inverse
from jaxdyn.model import Model
from jaxdyn.tree._rows import to_leading


@batched(lambda model: (model.nv,), "joint_friction", derivatives=OF_RNEA, forces=(-1,))
def rnea(
    model: Model,
    q: Configuration,
    v: Velocity,
    a: Velocity,
    f_ext: Wrenches | None = None,
    *,
    joint_friction: bool = True,
) -> Float[Array, "*batch nv"]:
    """Inverse dynamics: the actuator torques for which the accelerations are `a`.

    `tau = M(q) a + C(q, v) v + g(q) + friction(v) + springs(q) - J^T f_ext`, by the recursive Newton-Euler algorithm
    (Featherstone, Rigid Body Dynamics Algorithms, 2008, section 5.3), in O(n).

    **Arguments**

    - `q` `[*batch, nq]`, `v` and `a` `[*batch, nv]`: rad, m and their rates; batch axes broadcast.
    - `f_ext` `[*batch, nb, 6]`: external wrenches `[force, moment]` on the bodies in N and N m, in world axes, acting
      at the origin of each body's frame.
    - `joint_friction`: whether `Model.damping` and `Model.friction` act. Armature and springs always count.

    **Returns** `tau` `[*batch, nv]` in N m or N; for a free joint the wrench `[force, moment]` in body axes.

    **Raises** `ShapeError`, while tracing, where a shape does not fit.
    """
    (q, v, a), batch, rank = rows(model, q=q, v=v, a=a)
    f_ext, batch, rank, (q, v, a) = with_wrenches(model, f_ext, batch, q, v, a)
    tau = inverse(model.topology, terms(model, q, v, f_ext, rank), a)
    tau = tau + passive_torque(model, q, v, rank, joint_friction=joint_friction)
    return to_leading(full(tau, batch))


@batched(lambda model: (model.nv,), forces=(-1,))
def nonlinear_effects(model: Model, q: Configuration, v: Velocity) -> Float[Array, "*batch nv"]:
    """`C(q, v) v + g(q) + springs(q)` `[*batch, nv]`, N m or N: the torques at zero acceleration, without friction."""
    (q, v), batch, rank = rows(model, q=q, v=v)
    still = jnp.zeros((model.nv,) + (1,) * rank, q.dtype)
    tau = inverse(model.topology, terms(model, q, v, None, rank), still) + spring_torque_rows(model, q, rank)
    return to_leading(full(tau, batch))


@batched(lambda model: (model.nv,), forces=(-1,))
def generalized_gravity(model: Model, q: Configuration) -> Float[Array, "*batch nv"]:
    """`g(q)` `[*batch, nv]`, N m or N: the torques that hold the robot at rest against gravity."""
    (q,), batch, rank = rows(model, q=q)
    still = jnp.zeros((model.nv,) + (1,) * rank, q.dtype)
    tau = inverse(model.topology, terms(model, q, None, None, rank), still)
    return to_leading(full(tau, batch))


@batched(lambda model: (model.nv,), forces=(-1,))
def spring_torque(model: Model, q: Configuration) -> Float[Array, "*batch nv"]:
    """The torques `[*batch, nv]`, N m or N, that hold the joints' springs at `q`, the gradient of their energy; zero
    for a model without springs.

    `stiffness (q - spring_reference)`; for a ball joint, and the rotation of a free one, the displacement is the
    rotation vector from the reference, and for a free joint's position it is in the parent's axes.
    """
    (q,), batch, rank = rows(model, q=q)
    zero = jnp.zeros((model.nv,) + (1,) * rank, q.dtype)
    return to_leading(full(zero + spring_torque_rows(model, q, rank), batch))
