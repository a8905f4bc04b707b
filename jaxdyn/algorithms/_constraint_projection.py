"""Configurations and velocities that satisfy loops and couplings: the nearest ones, by the mass matrix."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxdyn._compile import compiled
from jaxdyn._errors import naming_arguments, require_positive, require_positive_integer
from jaxdyn._status import Status
from jaxdyn._types import Array, Configuration, Float, Velocity
from jaxdyn.algorithms._joint_motions import dofs_of_joints, from_joints
from jaxdyn.algorithms._loop_constraints import constraint_error
from jaxdyn.algorithms.recursions import (
    Robot,
    algorithm,
    all_rows,
    check_arrays,
    constraint_errors,
    constraint_rows,
    correction,
    kinematics,
)
from jaxdyn.constraints import CORRECTIONS
from jaxdyn.model import Model, require_inertias


@algorithm(motion_axes=((-1,),))
def configuration_correction(robot: Robot, q: Configuration, *, assembling: bool = False) -> Float[Array, "*batch nv"]:
    """The Gauss-Newton step `-M^-1 J^T (J M^-1 J^T)^+ phi(q)` `[*batch, nv]`: the least displacement, in the metric of
    the mass matrix, that closes the linearized loops. With `assembling`, it heeds combinations of equations that may
    be redundant once loops are closed: without them, a guess could stay open in a direction in which they move
    little."""
    at = kinematics(robot, q)
    rows = constraint_rows(robot, q, at)
    rows = rows._replace(opening=None) if assembling and rows is not None else rows
    return correction(robot, at, rows, constraint_errors(robot, q), CORRECTIONS)


@algorithm(motion_axes=((-1,),))
def _kept_correction(
    robot: Robot, q: Configuration, goal: Velocity, *, dofs: tuple[int, ...]
) -> Float[Array, "*batch nv"]:
    """The Gauss-Newton step `[*batch, nv]` that closes the linearized loops, whose components `dofs` are nearest to
    those of `goal`."""
    rows = all_rows(robot, constraint_rows(robot, q, kinematics(robot, q)))
    errors = robot.broadcast(constraint_errors(robot, q))
    mimics = jnp.zeros((len(rows.J) - len(errors), *errors.shape[1:]), errors.dtype)
    return from_joints(robot, rows.J, dofs, goal, jnp.concatenate([errors, mimics]))


@algorithm(motion_axes=((-1,),))
def project_velocity(robot: Robot, q: Configuration, v: Velocity) -> Float[Array, "*batch nv"]:
    """The velocity `[*batch, nv]` nearest to `v` that loops and couplings allow, `J v = 0`.

    The nearest in the metric of the mass matrix: `v - M^-1 J^T (J M^-1 J^T)^+ J v`, as after an impact that closes
    them. Joints that mimic others do so already. `v` itself for a model without loops. Differentiable.

    **Raises** `ShapeError` where a shape does not fit; `ModelError` for a model that lacks inertias.
    """
    at = kinematics(robot, q)
    rows = constraint_rows(robot, q, at)
    v = robot.broadcast(v)
    return v if rows is None else v + correction(robot, at, rows, (rows.J * v[None]).sum(axis=1))


class Assembly(NamedTuple):
    """The result of `project_configuration`, for each element of the batch."""

    q: Float[Array, "*batch nq"]
    status: Array
    """`[*batch]` integers of `Status`: `CONVERGED` where all loops and couplings are closed to the tolerance; `STALLED`
    where no shorter step lessens the errors, as where the mechanism cannot be assembled; `OUT_OF_ITERATIONS`;
    `DIVERGED` where the guess is not finite."""
    error: Float[Array, "*batch"]
    """The largest error of an equation, m, rad, or without unit for axes."""


@naming_arguments
def project_configuration(
    model: Model,
    q: Configuration,
    *,
    kept: Collection[str] | None = None,
    tolerance: float | None = None,
    max_iterations: int = 50,
) -> Assembly:
    """The configuration near `q` in which the model's loops and couplings are closed: assembly from a guess.

    Gauss-Newton steps in the metric of the mass matrix, each halved, up to ten times, until it lessens the sum of
    squared errors. The result is close to the nearest configuration if the guess is; from a distant guess it may be
    another assembly of the mechanism. Limits of joints are not heeded.

    **Arguments**

    - `q` `[*batch, nq]`.
    - `kept`: names of joints that keep their coordinates, such as those of the drives: then all others follow, and no
      inertias are needed. If these joints have more degrees of freedom than the robot, their coordinates are kept as
      nearly as the loops allow.
    - `tolerance`: the largest error (`constraint_error`) of closed loops; by default 1e-12 in double precision and 1e-5
      in single.
    - `max_iterations`: the number of steps.

    **Returns** `Assembly`. Differentiable by `q` and the arrays of the model, by the last step: the derivative is the
    displacement that keeps the loops closed, with changes of `q` projected on it, or those of the joints `kept`.

    **Raises** `ShapeError` where a shape does not fit; `UnknownNameError` for a joint; `ModelError` for options out of
    range, for a joint in `kept` that mimics another, and for a model that lacks inertias.

    Source: Nocedal & Wright, Numerical Optimization, 2006, section 10.3.
    """
    require_positive_integer(max_iterations, "max_iterations")
    if tolerance is not None:
        require_positive(tolerance, "tolerance (m, rad)")
    dofs = None if kept is None else dofs_of_joints(model, kept, "kept")
    if model.topology.has_loops and kept is None:
        require_inertias(model.topology, "project_configuration")
    return _assembled(model, q, dofs, tolerance, max_iterations)


@compiled("dofs", "tolerance", "max_iterations")
def _assembled(model: Model, q, dofs: tuple[int, ...] | None, tolerance: float | None, max_iterations: int) -> Assembly:
    batch = check_arrays(model, {"q": (Configuration, q)})
    dtype = jnp.result_type(model.dtype, jnp.asarray(q))
    q = jnp.broadcast_to(jnp.asarray(q, dtype), (*batch, model.nq))
    if not model.topology.has_loops:
        zero = jnp.zeros(batch, dtype)
        return Assembly(q, jnp.full(batch, int(Status.CONVERGED)), zero)
    limit = tolerance if tolerance is not None else (1e-12 if dtype == jnp.float64 else 1e-5)
    fixed = jax.tree.map(lax.stop_gradient, model)
    found, status, error = _search(fixed, lax.stop_gradient(q), dofs, limit, max_iterations)
    # One step more from the result has the derivatives. It moves with `q`, of which its step takes the part that opens
    # the loops.
    moved = model.integrate(q, lax.stop_gradient(fixed.difference(lax.stop_gradient(q), found)))
    last = _correction(model, moved, jnp.zeros((*batch, model.nv), dtype), dofs)
    reached = (status == Status.CONVERGED)[..., None]
    return Assembly(model.integrate(moved, jnp.where(reached, last, last - lax.stop_gradient(last))), status, error)


def _correction(model: Model, q, goal, dofs: tuple[int, ...] | None):
    """Return the step from `q`: the shortest one, or the one whose components `dofs` are those of `goal`."""
    return (
        configuration_correction(model, q, assembling=True)
        if dofs is None
        else _kept_correction(model, q, goal, dofs=dofs)
    )


def _search(model: Model, guess, dofs: tuple[int, ...] | None, tolerance: float, max_iterations: int):
    """Return the last configuration, the status and the largest error."""

    def measured(q):
        phi = constraint_error(model, q)
        return (phi * phi).sum(axis=-1), jnp.abs(phi).max(axis=-1)

    def advance(carry):
        q, cost, error, status, iteration = carry
        step = _correction(model, q, None if dofs is None else model.difference(q, guess), dofs)

        def shorter(_, trial):
            length, _, new_cost, _ = trial
            length = jnp.where(new_cost < cost, length, 0.5 * length)
            q_new = model.integrate(q, length[..., None] * step)
            return length, q_new, *measured(q_new)

        first = model.integrate(q, step)
        trial = (jnp.ones_like(cost), first, *measured(first))
        _, new, new_cost, new_error = lax.while_loop(
            lambda x: ((x[0] < 10) & ~(x[1][2] < cost) & (status == Status.RUNNING)).any(),
            lambda x: (x[0] + 1, shorter(x[0], x[1])),
            (0, trial),
        )[1]
        taken = (new_cost < cost) & (status == Status.RUNNING)
        q = jnp.where(taken[..., None], new, q)
        cost, error = jnp.where(taken, new_cost, cost), jnp.where(taken, new_error, error)
        ended = jnp.where(taken, status, int(Status.STALLED))
        ended = jnp.where(iteration + 1 >= max_iterations, int(Status.OUT_OF_ITERATIONS), ended)
        ended = jnp.where(error <= tolerance, int(Status.CONVERGED), ended)
        return q, cost, error, jnp.where(status == Status.RUNNING, ended, status), iteration + 1

    cost, error = measured(guess)
    status = jnp.where(error <= tolerance, int(Status.CONVERGED), int(Status.RUNNING))
    status = jnp.where(jnp.isfinite(cost), status, int(Status.DIVERGED))
    start = (guess, cost, error, status, jnp.zeros((), int))
    q, _, error, status, _ = lax.while_loop(lambda x: (x[3] == Status.RUNNING).any(), advance, start)
    return q, status, error
