"""Direct collocation: states and controls of all stages as the variables of one sparse nonlinear program."""

import dataclasses
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, NonlinearConstraint, minimize

from jaxdyn._errors import ModelError, naming_arguments
from jaxdyn._types import ArrayLike
from jaxdyn.trajopt._solution import Multipliers, Residuals, Solution, Status
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


@naming_arguments
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


class NonlinearProgram:
    """The functions that SciPy minimizes and constrains, of the variables `z = (x_1, ..., x_N, u_0, ..., u_(N-1))`.

    Its constraint rows are the defects of collocation `[N nx]`, the stage constraints and the terminal ones."""

    def __init__(self, problem: Problem):
        self.problem = problem
        N, n, m = problem.horizon, problem.dynamics.nx, problem.dynamics.nu
        n_stage, n_terminal = problem.constraint_sizes
        self.defects = N * n
        self.rows = N * (n + n_stage) + n_terminal
        self.size = N * (n + m)
        x, u = np.arange(N * n).reshape(N, n), N * n + np.arange(N * m).reshape(N, m)
        # Columns of the variables (x_k, u_k, x_(k+1)) of each stage; x_0 is fixed, and its columns -1 are cut off.
        before = np.concatenate([np.full((1, n), -1), x[:-1]])
        columns = np.concatenate([before, u, x], axis=1)
        rows = np.concatenate([x, N * n + np.arange(N * n_stage).reshape(N, n_stage)], axis=1)
        terminal_rows = self.rows - n_terminal + np.arange(n_terminal)[None]
        self._jacobian_indices = _block_indices(rows, columns), _block_indices(terminal_rows, x[-1:])
        self._hessian_indices = _block_indices(columns, columns), _block_indices(x[-1:], x[-1:])
        us, xs = jnp.zeros((N, m), problem.dtype), jnp.broadcast_to(problem.x0, (N + 1, n))
        self.constraint_bounds = [np.append(np.zeros(N * n), bound) for bound in problem.constraints(xs, us)[1:]]
        free = np.full(N * n, np.inf)
        low, high = (np.asarray(b, float).ravel() for b in problem.control_box)
        self.variable_bounds = np.concatenate([-free, low]), np.concatenate([free, high])

    def split(self, z):
        """The states and controls of the variables."""
        return _split(self.problem, z)

    @staticmethod
    def join(xs, us):
        """The variables of states and controls."""
        return jnp.concatenate([xs[1:].ravel(), us.ravel()])

    def value(self, z) -> float:
        return float(_value(self.problem, z))

    def gradient(self, z) -> np.ndarray:
        return np.asarray(_gradient(self.problem, z))

    def constraints(self, z) -> np.ndarray:
        return np.asarray(_rows_of_trajectory(self.problem, z))

    def jacobian(self, z):
        return _sparse_matrix(self._jacobian_indices, _jacobians(self.problem, z), (self.rows, self.size))

    def hessian(self, z, cost_factor: float, multipliers):
        blocks = _hessians(self.problem, z, jnp.asarray(cost_factor), multipliers)
        return _sparse_matrix(self._hessian_indices, blocks, (self.size, self.size))


def _split(problem: Problem, z):
    N, n = problem.horizon, problem.dynamics.nx
    xs = jnp.concatenate([problem.x0[None].astype(z.dtype), z[: N * n].reshape(N, n)])
    return xs, z[N * n :].reshape(N, problem.dynamics.nu)


def _defect(problem: Problem, w, k):
    """The defect of Simpson's rule in a stage with the variables `w = (x, u, x_next)`."""
    dynamics = problem.dynamics
    n, m = dynamics.nx, dynamics.nu
    x, u, after = w[:n], w[n : n + m], w[n + m :]
    h, t = dynamics.dt, dynamics.time(k)
    first, last = dynamics.rate(x, u, t), dynamics.rate(after, u, t + h)
    middle = dynamics.rate(0.5 * (x + after) + h / 8 * (first - last), u, t + 0.5 * h)
    return after - x - h / 6 * (first + 4 * middle + last)


def _stage_rows(problem: Problem, w, k):
    """The defect and the constraints of a stage."""
    n, m = problem.dynamics.nx, problem.dynamics.nu
    return jnp.concatenate([_defect(problem, w, k), problem.stage_constraint(w[:n], w[n : n + m], k)[0]])


def _stage_variables(xs, us):
    return jnp.concatenate([xs[:-1], us, xs[1:]], axis=1)


@eqx.filter_jit
def _value(problem: Problem, z):
    return problem.total_cost(*_split(problem, z))


_gradient = eqx.filter_jit(jax.grad(_value, 1))


@eqx.filter_jit
def _rows_of_trajectory(problem: Problem, z):
    xs, us = _split(problem, z)
    defects = problem.over_stages(functools.partial(_defect, problem))(_stage_variables(xs, us), problem.stages)
    return jnp.concatenate([defects.ravel(), problem.constraints(xs, us)[0]])


@eqx.filter_jit
def _jacobians(problem: Problem, z):
    xs, us = _split(problem, z)
    jacobian = problem.over_stages(jax.jacfwd(functools.partial(_stage_rows, problem)))
    stages = jacobian(_stage_variables(xs, us), problem.stages)
    return stages, jax.jacfwd(lambda x: problem.terminal_constraint(x)[0])(xs[-1])[None]


@eqx.filter_jit
def _hessians(problem: Problem, z, cost_factor, multipliers):
    N, n, m = problem.horizon, problem.dynamics.nx, problem.dynamics.nu
    xs, us = _split(problem, z)
    constraint_multipliers, terminal = problem.split_rows(multipliers[N * n :])
    multipliers = jnp.concatenate([multipliers[: N * n].reshape(N, n), constraint_multipliers], axis=1)

    def stage(w, k, v):
        return cost_factor * problem.stage_cost(w[:n], w[n : n + m], k) + v @ _stage_rows(problem, w, k)

    def end(x):
        return cost_factor * problem.terminal_cost(x) + terminal @ problem.terminal_constraint(x)[0]

    hessian = problem.over_stages(jax.jacfwd(jax.grad(stage)))
    stages = hessian(_stage_variables(xs, us), problem.stages, multipliers)
    return stages, jax.jacfwd(jax.grad(end))(xs[-1])[None]


def _block_indices(rows: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The indices of the entries of blocks `[k, a, b]`, from those of their rows `[k, a]` and columns `[k, b]`."""
    shape = (*rows.shape, columns.shape[1])
    return np.broadcast_to(rows[:, :, None], shape).ravel(), np.broadcast_to(columns[:, None], shape).ravel()


def _sparse_matrix(indices, blocks: tuple[Any, Any], shape: tuple[int, int]):
    """The sum of the blocks at their indices; negative indices are left out."""
    i, j = (np.concatenate(x) for x in zip(*indices, strict=True))
    value = np.concatenate([np.asarray(block).ravel() for block in blocks])
    variable = (i >= 0) & (j >= 0)
    return sparse.csr_matrix((value[variable], (i[variable], j[variable])), shape=shape)


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
