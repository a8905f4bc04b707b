"""Direct collocation: states and controls of all stages as the variables of one sparse nonlinear program."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from scipy.optimize import Bounds, NonlinearConstraint, minimize

from jaxdyn._errors import ModelError
from jaxdyn._types import ArrayLike
from jaxdyn.trajopt._solution import Multipliers, Residuals, Solution, Status
from jaxdyn.trajopt.collocation._nonlinear_program import NonlinearProgram
from jaxdyn.trajopt.problem import Problem


@dataclasses.dataclass(frozen=True)
class CollocationOptions:
    """The options of `collocation`."""

    max_iterations: int = 1000
    tolerance: float = 1e-6
    """Largest gradient of the Lagrangian, and largest defect of the collocation equations, at a solution."""
    constraint_tolerance: float = 1e-6
    """Largest violation of a constraint at a solution."""
    smallest_step: float = 1e-9
    """Radius of the trust region below which the solve ends."""


def collocation(
    problem: Problem,
    us: ArrayLike | None = None,
    xs: ArrayLike | None = None,
    *,
    options: CollocationOptions | None = None,
) -> Solution:
    """Solve a problem by direct collocation with Hermite-Simpson steps (Hargraves & Paris, Direct trajectory
    optimization using nonlinear programming and collocation, JGCD 1987; Betts, Practical Methods for Optimal Control,
    2010, section 4.7), through SciPy's `trust-constr`, an interior point method with exact sparse derivatives.

    It uses the rate of the dynamics instead of their step: within a stage the control is held, and the state is the
    cubic that satisfies the differential equation at both ends and in the middle, of fourth order in `dt`. So
    `problem.gaps` of the solution is the difference between that and the step; `residuals.gap` is the largest defect of
    the collocation equations.

    - `us` `[horizon, nu]`, `xs` `[horizon + 1, nx]`: the guess; by default zeros, and the roll-out of `us`.

    Runs on the host, in double precision: not under `jit`, `vmap` or `grad`. **Raises** `ShapeError`; `ModelError` for
    states that are not plain vectors, dynamics without a rate, and a guess whose cost or constraints are not finite.
    """
    options = CollocationOptions() if options is None else options
    if not problem.dynamics.euclidean:
        raise ModelError("collocation needs states that are plain vectors; use ddp for free bases and quaternions")
    xs, us = problem.guess(us, xs)
    program = NonlinearProgram(problem)
    z0 = np.asarray(program.join(xs, us), float)
    if not (np.isfinite(program.value(z0)) and np.isfinite(program.constraints(z0)).all()):
        raise ModelError("the cost or a constraint of the guess is not finite; start from another guess")
    return _solution(problem, program, _minimize(program, z0, options), options)


def _minimize(program: NonlinearProgram, z0: np.ndarray, options: CollocationOptions):
    """SciPy's result, from the guess `z0`."""
    constraint = NonlinearConstraint(
        program.constraints,
        *program.constraint_bounds,
        jac=program.jacobian,  # pyright: ignore[reportArgumentType]
        hess=lambda z, v: program.hessian(z, 0.0, v),
    )
    return minimize(
        program.value,
        z0,
        jac=program.gradient,
        hess=lambda z: program.hessian(z, 1.0, np.zeros(program.rows)),
        constraints=[constraint],
        # SciPy is typed for numbers only.
        bounds=Bounds(*program.variable_bounds),  # pyright: ignore[reportArgumentType]
        method="trust-constr",
        options={
            "maxiter": options.max_iterations,
            "gtol": options.tolerance,
            "xtol": options.smallest_step,
            "barrier_tol": options.tolerance,
        },
    )


def _solution(problem: Problem, program: NonlinearProgram, result, options: CollocationOptions) -> Solution:
    xs, us = program.split(jnp.asarray(result.x))
    # An interior point may lie outside of a bound by a rounding error.
    us = jnp.clip(us, *problem.control_box)
    defects = program.constraints(np.asarray(program.join(xs, us)))[: program.defects]
    gap, violation = float(np.abs(defects).max()), float(problem.violation(xs, us))
    feasible = gap <= options.tolerance and violation <= options.constraint_tolerance
    if not np.isfinite(result.fun):
        status = Status.DIVERGED
    elif feasible and result.optimality <= 10 * options.tolerance:
        status = Status.CONVERGED
    else:
        status = Status.OUT_OF_ITERATIONS if result.status == 0 else Status.STALLED
    multipliers = problem.split_rows(jnp.asarray(result.v[0][program.defects :]))
    return Solution(
        xs=xs,
        us=us,
        cost=problem.total_cost(xs, us),
        status=jnp.asarray(int(status), jnp.int32),
        iterations=jnp.asarray(result.nit),
        residuals=Residuals(*(jnp.asarray(r) for r in (gap, float(result.optimality), violation))),
        multipliers=Multipliers(None, *multipliers),
        aux={"message": result.message},
    )
