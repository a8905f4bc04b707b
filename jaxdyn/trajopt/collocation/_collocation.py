"""Direct collocation: states and controls of all stages as the variables of one sparse nonlinear program."""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, NonlinearConstraint, minimize

from jaxdyn._errors import ModelError
from jaxdyn._types import ArrayLike
from jaxdyn.trajopt._solution import Multipliers, Residuals, Solution, Status
from jaxdyn.trajopt.problem._problem import Problem


@dataclasses.dataclass(frozen=True)
class CollocationOptions:
    """How `collocation` goes about it."""

    max_iterations: int = 1000
    tolerance: float = 1e-6
    """Of the gradient of the Lagrangian, and of what collocation leaves open between states."""
    constraint_tolerance: float = 1e-6
    """Of the largest violation of a constraint."""
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

    The problem's own step is not used, but its rate: within a stage the control is held, and the state is the cubic
    that satisfies the differential equation at both ends and in the middle, of fourth order in `dt`. So `problem.gaps`
    of the solution is the difference between that and the step; `residuals.gap` is what collocation leaves open.

    - `us`, `xs`: the guess; the roll-out of `us` where no states are given.

    Runs on the host, in double precision: not under `jit`, `vmap` or `grad`. **Raises** `ModelError` for states that
    are no plain vectors, for dynamics without a rate, and for a cost or constraint of the guess that is not finite;
    `ShapeError`.

    `us` is `[horizon, nu]`, `xs` `[horizon + 1, nx]`.
    """
    options = CollocationOptions() if options is None else options
    dynamics, N = problem.dynamics, problem.horizon
    if not dynamics.euclidean:
        raise ModelError("collocation is for states that are plain vectors; for free bases and quaternions take ddp")
    xs, us = problem.guess(us, xs)
    program = _Program(problem)
    z0 = np.concatenate([np.asarray(xs[1:], float).ravel(), np.asarray(us, float).ravel()])
    low, high = (np.asarray(b, float) for b in problem.control_box)
    free = np.full(N * dynamics.nx, np.inf)
    # SciPy is typed for numbers only.
    bounds = Bounds(np.concatenate([-free, low.ravel()]), np.concatenate([free, high.ravel()]))  # pyright: ignore[reportArgumentType]
    value, constraint = program.value(z0), program.constraints(z0)
    if not (np.isfinite(value) and np.isfinite(constraint).all()):
        raise ModelError("the cost or a constraint of the guess is not finite; start from another guess")
    result = minimize(
        program.value,
        z0,
        jac=program.gradient,
        hess=lambda z: program.hessian(z, 1.0, np.zeros(program.rows)),
        constraints=[
            NonlinearConstraint(
                program.constraints,
                *program.bounds,
                jac=program.jacobian,  # pyright: ignore[reportArgumentType]
                hess=lambda z, v: program.hessian(z, 0.0, v),
            )
        ],
        bounds=bounds,
        method="trust-constr",
        options={
            "maxiter": options.max_iterations,
            "gtol": options.tolerance,
            "xtol": options.smallest_step,
            "barrier_tol": options.tolerance,
        },
    )
    xs, us = program.split(jnp.asarray(result.x))
    # An interior point may lie outside of a bound by a rounding error.
    us = jnp.clip(us, *problem.control_box)
    rows = program.constraints(np.asarray(program.joined(xs, us)))
    gap = float(np.abs(rows[: N * dynamics.nx]).max())
    violation = float(problem.violation(xs, us))
    met = gap <= options.tolerance and violation <= options.constraint_tolerance
    if not np.isfinite(result.fun):
        status = Status.DIVERGED
    elif met and result.optimality <= 10 * options.tolerance:
        status = Status.CONVERGED
    else:
        status = Status.OUT_OF_ITERATIONS if result.status == 0 else Status.STALLED
    of_rows = np.asarray(result.v[0])
    n_stage, n_terminal = problem.constraint_sizes
    start, end = N * dynamics.nx, N * (dynamics.nx + n_stage)
    multipliers = Multipliers(
        None, jnp.asarray(of_rows[start:end].reshape(N, n_stage)), jnp.asarray(of_rows[end : end + n_terminal])
    )
    return Solution(
        xs=xs,
        us=us,
        cost=problem.total_cost(xs, us),
        status=jnp.asarray(int(status), jnp.int32),
        iterations=jnp.asarray(result.nit),
        residuals=Residuals(*(jnp.asarray(r) for r in (gap, float(result.optimality), violation))),
        multipliers=multipliers,
        aux={"message": result.message},
    )


class _Program:
    """The nonlinear program in `z = (x_1, ..., x_N, u_0, ..., u_(N-1))`, its rows those of collocation `[N nx]`, of the
    stage constraints and of the terminal ones; SciPy's functions of `z`, compiled."""

    def __init__(self, problem: Problem):
        self.problem = problem
        N, n, m = problem.horizon, problem.dynamics.nx, problem.dynamics.nu
        n_stage, n_terminal = problem.constraint_sizes
        self.rows = N * (n + n_stage) + n_terminal
        x, u = np.arange(N * n).reshape(N, n), N * n + np.arange(N * m).reshape(N, m)
        # Columns of the variables (x_k, u_k, x_(k+1)) of each stage; those of the given x_0 are cut off.
        before = np.concatenate([np.full((1, n), -1), x[:-1]])
        columns = np.concatenate([before, u, x], axis=1)
        rows = np.concatenate([x, N * n + np.arange(N * n_stage).reshape(N, n_stage)], axis=1)
        self.pattern = _blocks(rows, columns)
        self.end = _blocks(self.rows - n_terminal + np.arange(n_terminal)[None], x[-1:])
        self.square, self.square_end = _blocks(columns, columns), _blocks(x[-1:], x[-1:])
        self.size = N * (n + m)
        us = jnp.zeros((N, m), problem.dtype)
        xs = jnp.broadcast_to(problem.x0, (N, n))
        _, *stage = jax.vmap(problem.stage_constraint)(xs, us, problem.stages)
        _, *terminal = problem.terminal_constraint(xs[-1])
        self.bounds = tuple(
            np.concatenate([np.zeros(N * n), np.asarray(s, float).ravel(), np.asarray(t, float)])
            for s, t in zip(stage, terminal, strict=True)
        )

    def split(self, z):
        problem = self.problem
        N, n = problem.horizon, problem.dynamics.nx
        xs = jnp.concatenate([problem.x0[None].astype(z.dtype), z[: N * n].reshape(N, n)])
        return xs, z[N * n :].reshape(N, problem.dynamics.nu)

    @staticmethod
    def joined(xs, us):
        return jnp.concatenate([xs[1:].ravel(), us.ravel()])

    def value(self, z) -> float:
        return float(_value(self.problem, *self.split(jnp.asarray(z))))

    def gradient(self, z) -> np.ndarray:
        by_x, by_u = _gradient(self.problem, *self.split(jnp.asarray(z)))
        return np.asarray(self.joined(by_x, by_u))

    def constraints(self, z) -> np.ndarray:
        stage, end = _rows(self.problem, *self.split(jnp.asarray(z)))
        n = self.problem.dynamics.nx
        stage = np.asarray(stage)
        return np.concatenate([stage[:, :n].ravel(), stage[:, n:].ravel(), np.asarray(end)])

    def jacobian(self, z):
        stage, end = _jacobians(self.problem, *self.split(jnp.asarray(z)))
        return _assembled([(self.pattern, stage), (self.end, end)], (self.rows, self.size))

    def hessian(self, z, of_cost: float, multipliers):
        problem, v = self.problem, jnp.asarray(multipliers)
        N, n = problem.horizon, problem.dynamics.nx
        n_stage = problem.constraint_sizes[0]
        own = jnp.concatenate([v[: N * n].reshape(N, n), v[N * n : N * (n + n_stage)].reshape(N, n_stage)], axis=1)
        xs, us = self.split(jnp.asarray(z))
        stage, end = _hessians(problem, xs, us, jnp.asarray(of_cost), own, v[N * (n + n_stage) :])
        return _assembled([(self.square, stage), (self.square_end, end)], (self.size, self.size))


def _stage(problem: Problem, w, k):
    """What Simpson's rule leaves open, and the constraints, of a stage with the variables `w = (x, u, x_next)`."""
    dynamics = problem.dynamics
    n, m = dynamics.nx, dynamics.nu
    x, u, after = w[:n], w[n : n + m], w[n + m :]
    h, t = dynamics.dt, dynamics.time(k)
    first, last = dynamics.rate(x, u, t), dynamics.rate(after, u, t + h)
    middle = dynamics.rate(0.5 * (x + after) + h / 8 * (first - last), u, t + 0.5 * h)
    defect = after - x - h / 6 * (first + 4 * middle + last)
    return jnp.concatenate([defect, problem.stage_constraint(x, u, k)[0]])


def _of_stages(xs, us):
    return jnp.concatenate([xs[:-1], us, xs[1:]], axis=1)


@eqx.filter_jit
def _value(problem: Problem, xs, us):
    return problem.total_cost(xs, us)


@eqx.filter_jit
def _gradient(problem: Problem, xs, us):
    return jax.grad(problem.total_cost, (0, 1))(xs, us)


@eqx.filter_jit
def _rows(problem: Problem, xs, us):
    stages = jax.vmap(lambda w, k: _stage(problem, w, k))(_of_stages(xs, us), problem.stages)
    return stages, problem.terminal_constraint(xs[-1])[0]


@eqx.filter_jit
def _jacobians(problem: Problem, xs, us):
    stages = jax.vmap(jax.jacfwd(lambda w, k: _stage(problem, w, k)))(_of_stages(xs, us), problem.stages)
    return stages, jax.jacfwd(lambda x: problem.terminal_constraint(x)[0])(xs[-1])[None]


@eqx.filter_jit
def _hessians(problem: Problem, xs, us, of_cost, own, terminal):
    n, m = problem.dynamics.nx, problem.dynamics.nu

    def stage(w, k, v):
        return of_cost * problem.stage_cost(w[:n], w[n : n + m], k) + v @ _stage(problem, w, k)

    def end(x):
        return of_cost * problem.terminal_cost(x) + terminal @ problem.terminal_constraint(x)[0]

    stages = jax.vmap(jax.jacfwd(jax.grad(stage)))(_of_stages(xs, us), problem.stages, own)
    return stages, jax.jacfwd(jax.grad(end))(xs[-1])[None]


def _blocks(rows: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices of blocks `[k, a, b]`, from those of their rows `[k, a]` and columns `[k, b]`."""
    shape = (*rows.shape, columns.shape[1])
    return np.broadcast_to(rows[:, :, None], shape).ravel(), np.broadcast_to(columns[:, None], shape).ravel()


def _assembled(parts: list[tuple[Any, Any]], shape: tuple[int, int]):
    i, j, value = (
        np.concatenate(x) for x in zip(*((rows, cols, np.asarray(b).ravel()) for (rows, cols), b in parts), strict=True)
    )
    given = (i >= 0) & (j >= 0)
    return sparse.csr_matrix((value[given], (i[given], j[given])), shape=shape)
