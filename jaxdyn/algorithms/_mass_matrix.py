"""The inverse and the factors of the mass matrix by recursion over the tree, and products with the inverse."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._compile import compiled, once
from jaxdyn._errors import ModelError, require_choice
from jaxdyn._types import Array, Configuration, Float, Torque
from jaxdyn.algorithms._kinematics import frame_jacobian
from jaxdyn.algorithms.recursions import (
    DofMatrices,
    Reference,
    Robot,
    algorithm,
    constant_elimination,
    constrained_inverse,
    constraint_rows,
    eliminate,
    equations_at_rest,
    equations_of_motion,
    kinematics,
    product,
    solve,
)
from jaxdyn.model import Model, mimic_coordinates
from jaxdyn.tree import sum_up

type Part = Literal["all", "linear", "angular"]
_PARTS = {"all": slice(0, 6), "linear": slice(0, 3), "angular": slice(3, 6)}


@algorithm(motion_axes=((-2, -1),))
def inverse_mass_matrix(robot: Robot, q: Configuration) -> Float[Array, "*batch nv nv"]:
    """The inverse `M(q)^-1` `[*batch, nv, nv]` of the mass matrix, the derivative of accelerations by torques, without
    `M`.

    `M^-1 = W^T D^-1 W`, with the factors of the articulated-body recursion and unit upper triangular `W`, in
    O(nv depth), and a product of matrices (Rodriguez, Jain & Kreutz-Delgado, A spatial operator algebra for manipulator
    modeling and control, IJRR 1991, the innovations form). Its derivative is `-M^-1 dM M^-1`. For a model with loops
    or couplings it is singular: `M^-1 - M^-1 J^T (J M^-1 J^T)^+ J M^-1`, the accelerations that they allow.

    **Raises** `ShapeError` where a shape does not fit.
    """
    at = kinematics(robot, q)
    equations = equations_at_rest(robot, at)
    pairs = DofMatrices(robot)
    force = sum_up(robot.tree, equations.inertia).apply(equations.S)
    M = pairs.symmetric(once(pairs.products(force, equations.S))) + pairs.diagonal(equations.armature)
    factors = constant_elimination(robot, equations).factors
    rows = constraint_rows(robot, q, at)
    return pairs.result(constrained_inverse(robot, pairs, equations, factors, M, rows).Minv)


@algorithm(motion_axes=((-1,),))
def solve_mass_matrix(robot: Robot, q: Configuration, rhs: Torque) -> Float[Array, "*batch nv"]:
    """The accelerations `M(q)^-1 rhs` `[*batch, nv]`, rad/s^2 or m/s^2, that torques `rhs` `[*batch, nv]`, N m or N,
    add.

    In O(nv), by the articulated-body recursion without velocities and gravity. Several torques at one configuration are
    a batch axis that `q` does not have, or `jax.vmap`: the elimination is done once. Derivatives of every order are
    those of the linear equation. Loops and couplings take away the part of the accelerations that they do not allow.

    **Raises** `ShapeError` where a shape does not fit.

    Source: Rodriguez, Jain & Kreutz-Delgado 1991 (see `inverse_mass_matrix`).
    """
    at = kinematics(robot, q)
    equations = equations_at_rest(robot, at)
    rows = constraint_rows(robot, q, at)
    return solve(robot, equations, constant_elimination(robot, equations).factors, rhs, rows)


@algorithm(independent_joints=True)
def mass_matrix_ltdl(robot: Robot, q: Configuration) -> tuple[Float[Array, "*batch nv nv"], Float[Array, "*batch nv"]]:
    """The factors `(L, D)` of the mass matrix, `M = L^T diag(D) L`: `L` `[*batch, nv, nv]` unit lower triangular, `D`
    `[*batch, nv]` positive.

    In this order no zero of `M` is lost: `L[i, j]` is other than zero only where degree of freedom `j` is an ancestor
    of `i` (Featherstone 2008, section 6.5). `D` are the diagonal inertias of the articulated-body recursion and
    `L[i, j] = S_j . U_i / D_i`, so `M` itself is never formed.

    **Raises** `ModelError` for a model with joints that mimic others, whose mass matrix has other zeros; `ShapeError`
    where a shape does not fit.
    """
    pairs = DofMatrices(robot)
    L, D = _ltdl_factors(robot, pairs, q)
    return pairs.result(L), D


@algorithm(independent_joints=True)
def mass_matrix_cholesky(robot: Robot, q: Configuration) -> Float[Array, "*batch nv nv"]:
    """The lower triangular `L` `[*batch, nv, nv]` with `M = L^T L`, which has the zeros of `M` below its diagonal.

    Not the textbook's `M = L L^T`, whose factor is full for a branched tree (Featherstone 2008, section 6.5). It is
    `sqrt(D) L` of `mass_matrix_ltdl`; errors as there.
    """
    pairs = DofMatrices(robot)
    L, D = _ltdl_factors(robot, pairs, q)
    return pairs.result(pairs.scale_rows(jnp.sqrt(D), L))


def _ltdl_factors(robot: Robot, pairs: DofMatrices, q):
    """Return `L` as `pairs` holds it, and `D`, rows `[nv]`."""
    equations = equations_of_motion(robot, q)
    _, U, D = eliminate(robot.tree, equations.S, equations.inertia, equations.armature)
    L = pairs.where(np.tril(robot.tree.ancestors, -1), pairs.products(U * (1 / D), equations.S))
    return L + pairs.diagonal(robot.constant(np.ones(robot.nv))), D


@compiled("frames", "reference", "part")
def inverse_operational_space_inertia(
    model: Model,
    q: Configuration,
    frames: str | tuple[str, ...],
    reference: Reference = "local_world_aligned",
    part: Part = "all",
) -> Float[Array, "*batch n n"]:
    """The inverse operational-space inertia `J M^-1 J^T` `[*batch, n, n]`, from wrenches on frames to the accelerations
    that they give to the frames.

    `frames`: the name of one, or a tuple of names, whose Jacobians (see `frame_jacobian` for `reference`) are stacked;
    `part`: `"all"` six rows of each, `[linear(3), angular(3)]`, or only its `"linear"` or `"angular"` three. For `k`
    frames `n` is `6 k` or `3 k`. It exists also where the frames cannot move in every direction.

    **Raises** `UnknownNameError` for a frame, `ModelError` for `reference` and `part`.

    Source: Khatib, A unified approach for motion and force control of robot manipulators, IEEE Journal on Robotics and
    Automation 1987.
    """
    J = _stacked_jacobians(model, q, frames, reference, part)
    return product("...ai,...ij,...bj->...ab", J, inverse_mass_matrix(model, q), J)


@compiled("frames", "reference", "part")
def operational_space_inertia(
    model: Model,
    q: Configuration,
    frames: str | tuple[str, ...],
    reference: Reference = "local_world_aligned",
    part: Part = "all",
) -> Float[Array, "*batch n n"]:
    """The operational-space inertia `(J M^-1 J^T)^-1` `[*batch, n, n]` of frames: the inertia that the robot, free to
    move, shows there (Khatib, A unified approach for motion and force control of robot manipulators, 1987, eq. 52).

    **Arguments** as for `inverse_operational_space_inertia`. Where the frames cannot move in every direction, at a
    singular configuration, it does not exist: values grow without bound or are NaN.

    **Raises** `ModelError` where fewer than `n` degrees of freedom move the frames, so that it exists at no
    configuration; other errors as there.
    """
    names = _names(frames)
    n = len(names) * (_part(part).stop - _part(part).start)
    bodies = [model.topology.frame_bodies[model.topology.frame(name)] for name in names]
    tree = model.topology.spanning
    moving = np.zeros(tree.nv, bool)
    for body in bodies:
        moving |= tree.moves_body[body] if body >= 0 else False
    # A joint that mimics another moves with it and does not count.
    movers = len(set(mimic_coordinates(model.topology, velocity=True).source[moving]))
    if movers < n:
        fewer = "ask for one part (part='linear'), or " if part == "all" else ""
        raise ModelError(
            f"the inertia of frames {', '.join(map(repr, names))} in {n} directions does not exist: {movers} degrees "
            f"of freedom move them; {fewer}use inverse_operational_space_inertia"
        )
    inverse = inverse_operational_space_inertia(model, q, names, reference, part)
    factor = jnp.linalg.cholesky(inverse)
    eye = jnp.broadcast_to(jnp.eye(n, dtype=inverse.dtype), inverse.shape)
    return jax.scipy.linalg.cho_solve((factor, True), eye)


def _stacked_jacobians(model: Model, q, frames, reference: Reference, part: Part):
    jacobians = [frame_jacobian(model, q, name, reference)[..., _part(part), :] for name in _names(frames)]
    return jnp.concatenate(jacobians, axis=-2)


def _names(frames: str | tuple[str, ...]) -> tuple[str, ...]:
    return (frames,) if isinstance(frames, str) else frames


def _part(part: Part) -> slice:
    require_choice(part, _PARTS, "part")
    return _PARTS[part]
