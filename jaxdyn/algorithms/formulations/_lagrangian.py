"""The Lagrangian form `tau = M(q) a + C(q, v) v + g(q) + friction(v)`: its matrices, and the coefficients in them."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._compile import compiled, once
from jaxdyn._errors import ShapeError, naming_arguments, require_choice
from jaxdyn._types import Array, Configuration, Float, Velocity
from jaxdyn.algorithms.recursions import (
    DofMatrices,
    Robot,
    algorithm,
    centers,
    components,
    joint_friction_law,
    kinematics,
    node_inertias,
    operator,
    product,
    velocities,
)
from jaxdyn.friction import ExactCoulomb, FrictionSum, Viscous
from jaxdyn.model import Model
from jaxdyn.tree import sum_up, take_rows

type Sign = Literal["smooth", "exact"]


@algorithm()
def coriolis_matrix(robot: Robot, q: Configuration, v: Velocity) -> Float[Array, "*batch nv nv"]:
    """The Coriolis matrix `C(q, v)` `[*batch, nv, nv]`: `C v` are the velocity terms of inverse dynamics.

    Of the matrices with that product it is the one of the Christoffel symbols, `C_ij = sum_k b[i, j, k] v_k` (see
    `christoffel_symbols`), so `dM/dt - 2 C` is skew-symmetric, and it is linear in `v`. With `I^c`, `B^c` the sums over
    the subtree of `i` of the inertias and of `B = 1/2 [(v x*) I - I (v x) + (I v) xbar*]`, for `j` an ancestor of `i`

        C_ij = S_i . (I^c dS_j/dt + B^c S_j),    C_ji = S_j . (I^c dS_i/dt + B^c S_i)

    in O(nv depth) (Echeandia & Wensing, Numerical methods to compute the Coriolis matrix and Christoffel symbols for
    rigid-body systems, Journal of Computational and Nonlinear Dynamics 2021, section 3).

    **Arguments**: `q` `[*batch, nq]`, `v` `[*batch, nv]`. **Raises** `ShapeError` where a shape does not fit.
    """
    pairs = DofMatrices(robot)
    return pairs.result(_coriolis(robot, pairs, q, v))


def _coriolis(robot: Robot, pairs: DofMatrices, q, v):
    """Return the Coriolis matrix as `pairs` holds it."""
    poses, S = kinematics(robot, q)
    inertia = node_inertias(robot, poses)
    _, velocity = velocities(robot, S, v)
    # A column turns with the body behind its whole joint: 2 dS/dt, to go with the operator, which is 2 B.
    rate = take_rows(velocity, robot.topology.mover).cross(S) * 2
    inertia, B = sum_up(robot.tree, (inertia, operator(inertia, velocity, inertia.apply(velocity))))
    w, u = inertia.apply(S), B.apply_transpose(S)
    force = B.apply(S.angular) + inertia.apply(rate)
    S, rate, w, u, force = once((S, rate, w, u, force))
    C = pairs.triangular(pairs.products((u, w), (S.angular, rate)), pairs.products(S, force))
    return 0.5 * C


@algorithm()
def christoffel_symbols(robot: Robot, q: Configuration) -> Float[Array, "*batch nv nv nv"]:
    """The Christoffel symbols of the first kind `b[i, j, k]` `[*batch, nv, nv, nv]` of the mass matrix.

    `sum_jk b[i, j, k] v_j v_k` are the velocity terms of inverse dynamics, `sum_k b[i, j, k] v_k` is `coriolis_matrix`,
    and `b[i, j, k] + b[j, i, k]` the derivative of `M_ij` along degree of freedom `k` (`mass_matrix_derivative`).

    Where every joint has coordinates whose rates are the velocities (all types but ball and free ones), they are

        b[i, j, k] = 1/2 (dM_ij/dq_k + dM_ik/dq_j - dM_jk/dq_i)

    and symmetric in `j, k`. The velocities of ball and free joints are in body axes and are rates of no coordinates:
    there `b` are the coefficients of the same connection in those axes (Koszul's formula), which have the structure
    constants `[e_k, e_j] = sum_l c_l e_l` of the joint's group in them, `b[i, j, k] - b[i, k, j] = sum_l M_il c_l` with
    `M` less armature; the three statements above hold for every joint.

    Computed as the Coriolis matrices at unit velocities (Echeandia & Wensing 2021, section 4), in O(nv^2 depth).
    """
    # The unit velocities are the first batch axis.
    many = robot.with_batch_axis(robot.nv)
    unit = robot.constant(np.eye(robot.nv))
    pairs = DofMatrices(many)
    return pairs.to_rows(_coriolis(many, pairs, q[:, None], unit))


@compiled()
def mass_matrix_derivative(model: Model, q: Configuration) -> Float[Array, "*batch nv nv nv"]:
    """`dM[i, j, k]` `[*batch, nv, nv, nv]`: the rate of `M_ij(q)` along degree of freedom `k`, the derivative by `s` of
    `crba(model, model.integrate(q, s e_k))`. Analytic: `b[i, j, k] + b[j, i, k]` of `christoffel_symbols`."""
    b = christoffel_symbols(model, q)
    return b + jnp.swapaxes(b, -3, -2)


@compiled()
def coriolis_centrifugal_matrices(
    model: Model, q: Configuration
) -> tuple[Float[Array, "*batch nv pairs"], Float[Array, "*batch nv nv"]]:
    """The matrices `(B, C)` of the velocity terms in the form `V(q, v) = B(q) [v v] + C(q) [v^2]`.

    `B` `[*batch, nv, nv (nv - 1) / 2]`, the Coriolis coefficients, belongs to the products `v_j v_k` with `j < k` in
    the order of `velocity_products`; `C` `[*batch, nv, nv]`, the centrifugal ones, to the squares (Craig, Introduction
    to Robotics, 3rd edition, 2005, section 6.8, the configuration-space equation). `B[i, (j, k)] = b[i, j, k] +
    b[i, k, j]` and `C[i, k] = b[i, k, k]` of `christoffel_symbols`; for ball and free joints they are coefficients
    of products of the velocities in body axes.
    """
    b = christoffel_symbols(model, q)
    j, k = np.triu_indices(model.nv, 1)
    return b[..., j, k] + b[..., k, j], jnp.diagonal(b, axis1=-2, axis2=-1)


@naming_arguments
def velocity_products(v: Velocity) -> Float[Array, "*batch pairs"]:
    """`v_j v_k` for `j < k`, `[*batch, nv (nv - 1) / 2]`: (0, 1), (0, 2), ..., (1, 2), ..., the order of the columns of
    `B` of `coriolis_centrifugal_matrices`.

    **Raises** `ShapeError` for a number.
    """
    v = jnp.asarray(v)
    if v.ndim == 0:
        raise ShapeError("v has shape (), but [..., nv] is needed")
    j, k = np.triu_indices(v.shape[-1], 1)
    return v[..., j] * v[..., k]


@algorithm()
def mass_matrix_from_jacobians(robot: Robot, q: Configuration) -> Float[Array, "*batch nv nv"]:
    """The mass matrix `[*batch, nv, nv]` as the sum over the bodies of `m Jv^T Jv + Jw^T I Jw`, armature included.

    `Jv` is the Jacobian of the body's center of mass, `Jw` that of its angular velocity, `I` its inertia about the
    center of mass: the matrix of twice the kinetic energy, as in lectures. In O(nb nv^2); `crba` gives the same matrix
    in O(nv depth). A body without mass must have no first moment either.

    Source: Murray, Li & Sastry, A Mathematical Introduction to Robotic Manipulation, 1994, section 4.3.
    """
    poses, S = kinematics(robot, q)
    poses = take_rows(poses, robot.topology.body_dofs)
    mass, center, inertia = centers(robot)
    # Every pair of a body (first axis) and a degree of freedom (second axis).
    S = jax.tree.map(lambda x: x[None], S) * robot.constant(robot.topology.moves_body.astype(float))
    R, center, inertia = jax.tree.map(lambda x: x[:, None], (poses.rotation, poses.apply(center), inertia))
    Jv = S.linear + S.angular.cross(center)
    Jw = R.apply_transpose(S.angular)
    left = components(Jv) + components(Jw)
    right = components(Jv * mass[:, None]) + components(inertia.apply(Jw))
    M = sum(product("bi...,bj...->ij...", *jnp.broadcast_arrays(x, y)) for x, y in zip(left, right, strict=True))
    return M + robot.constant(np.eye(robot.nv)) * robot.armature


@algorithm()
def friction_torque(robot: Robot, v: Velocity, *, sign: Sign = "smooth") -> Float[Array, "*batch nv"]:
    """Viscous and Coulomb friction `[*batch, nv]`, N m or N, the torques that the actuators lose at the velocity `v`.

    `damping v + friction sign(v)`, with `sign(v)` smooth, `tanh(v / friction_velocity)`, which is what `rnea` and `aba`
    have in them, or exact: -1, 0 or 1. The exact one has the derivative zero by `v` wherever it has one.

    **Raises** `ModelError` for another `sign`.
    """
    require_choice(sign, ("smooth", "exact"), "sign")
    exact = FrictionSum(Viscous(robot.damping), ExactCoulomb(robot.friction))
    return (exact if sign == "exact" else joint_friction_law(robot)).torque(v)
