"""Motions of all joints that constraints allow, from the motions of some of them."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdyn.algorithms.recursions._constraint_rows import ConstraintRows
from jaxdyn.algorithms.recursions._robot import Robot
from jaxdyn.constraints import mimic_rows, proximal_solve, scale_of_equations


def all_rows(robot: Robot, rows: ConstraintRows | None) -> ConstraintRows:
    """Return the rows of all constraints, also those of a robot that has none but joints that mimic others, or none at
    all."""
    if rows is not None:
        return rows
    if robot.mimics is None:
        J = robot.constant(np.zeros((0, robot.nv)))
    else:
        J = mimic_rows(robot.mimics, robot.mimic_multiplier)
    J = robot.broadcast(J)
    return ConstraintRows(J, jnp.zeros_like(J[:, 0]))


def motions_from_joints(J, dofs: tuple[int, ...], given, rates):
    """Return the motions `x` `[*batch, nv, k]` with `J x = -rates` whose components `dofs` are nearest to `given`
    `[*batch, n, k]`, for rows `J` `[*batch, m, nv]` and `rates` `[*batch, m, k]`.

    They solve `S S^T x + J^T l = S given`, `J x = -rates`, with the unit vectors `S` of `dofs`. By the second equation
    `S S^T + J^T J` may stand in place of `S S^T`: it is regular where the degrees of freedom determine the motion, also
    where rows say the same twice. Elsewhere `x` is a solution of small norm.
    """
    m, nv = J.shape[-2:]
    S = jnp.asarray(np.eye(nv)[:, list(dofs)], J.dtype)
    right = _product(S, given)
    right = jnp.broadcast_to(right, (*J.shape[:-2], *right.shape[-2:]))
    if not m:
        return right
    # Rows of like size, so that none counts for nothing beside `S S^T`.
    weight = scale_of_equations(lax.stop_gradient((J * J).sum(axis=-1)))[..., None]
    J, rates = weight * J, weight * rates
    k, J_transposed = right.shape[-1], jnp.swapaxes(J, -1, -2)
    solved = proximal_solve(S @ S.T + _product(J_transposed, J), jnp.concatenate([right, J_transposed], axis=-1))
    free, by_rows = solved[..., :k], solved[..., k:]
    return free - _product(by_rows, proximal_solve(_product(J, by_rows), _product(J, free) + rates))


def with_batch_first(x, axes: int = 1):
    """Return rows `[*axes, *batch]` with the batch first."""
    return jnp.moveaxis(x, range(axes), range(-axes, 0))


def _product(x, y):
    return jnp.matmul(x, y, precision=lax.Precision.HIGHEST)
