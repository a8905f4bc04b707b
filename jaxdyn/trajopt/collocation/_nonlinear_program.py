"""The nonlinear program of direct collocation, with sparse derivatives."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy import sparse

from jaxdyn.trajopt.problem import Problem


class NonlinearProgram:
    """The functions that SciPy minimizes and constrains, of the variables `z = (x_1, ..., x_N, u_0, ..., u_(N-1))`.

    Its constraint rows are the defects of collocation `[N nx]`, the stage constraints and the terminal ones.
    """

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
        problem = self.problem
        N, n = problem.horizon, problem.dynamics.nx
        xs = jnp.concatenate([problem.x0[None].astype(z.dtype), z[: N * n].reshape(N, n)])
        return xs, z[N * n :].reshape(N, problem.dynamics.nu)

    @staticmethod
    def join(xs, us):
        """The variables of states and controls."""
        return jnp.concatenate([xs[1:].ravel(), us.ravel()])

    def value(self, z) -> float:
        return float(_value(self.problem, *self.split(jnp.asarray(z))))

    def gradient(self, z) -> np.ndarray:
        return np.asarray(self.join(*_gradient(self.problem, *self.split(jnp.asarray(z)))))

    def constraints(self, z) -> np.ndarray:
        return np.asarray(_rows_of_trajectory(self.problem, *self.split(jnp.asarray(z))))

    def jacobian(self, z):
        blocks = _jacobians(self.problem, *self.split(jnp.asarray(z)))
        return _sparse_matrix(self._jacobian_indices, blocks, (self.rows, self.size))

    def hessian(self, z, cost_factor: float, multipliers):
        factors = jnp.asarray(cost_factor), jnp.asarray(multipliers)
        blocks = _hessians(self.problem, *self.split(jnp.asarray(z)), *factors)
        return _sparse_matrix(self._hessian_indices, blocks, (self.size, self.size))


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


_value = eqx.filter_jit(Problem.total_cost)
_gradient = eqx.filter_jit(jax.grad(Problem.total_cost, (1, 2)))


@eqx.filter_jit
def _rows_of_trajectory(problem: Problem, xs, us):
    defects = jax.vmap(lambda w, k: _defect(problem, w, k))(_stage_variables(xs, us), problem.stages)
    return jnp.concatenate([defects.ravel(), problem.constraints(xs, us)[0]])


@eqx.filter_jit
def _jacobians(problem: Problem, xs, us):
    stages = jax.vmap(jax.jacfwd(lambda w, k: _stage_rows(problem, w, k)))(_stage_variables(xs, us), problem.stages)
    return stages, jax.jacfwd(lambda x: problem.terminal_constraint(x)[0])(xs[-1])[None]


@eqx.filter_jit
def _hessians(problem: Problem, xs, us, cost_factor, multipliers):
    N, n, m = problem.horizon, problem.dynamics.nx, problem.dynamics.nu
    constraint_multipliers, terminal = problem.split_rows(multipliers[N * n :])
    multipliers = jnp.concatenate([multipliers[: N * n].reshape(N, n), constraint_multipliers], axis=1)

    def stage(w, k, v):
        return cost_factor * problem.stage_cost(w[:n], w[n : n + m], k) + v @ _stage_rows(problem, w, k)

    def end(x):
        return cost_factor * problem.terminal_cost(x) + terminal @ problem.terminal_constraint(x)[0]

    stages = jax.vmap(jax.jacfwd(jax.grad(stage)))(_stage_variables(xs, us), problem.stages, multipliers)
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
