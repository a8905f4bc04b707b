"""How far a trajectory is from the first-order conditions of optimality, without a solver and without its multipliers.

The conditions are those in all variables, states and controls: the gradient of the cost is balanced by multipliers of
the steps (free), of equalities (free) and of inequalities and bounds that are active (of one sign). The multipliers are
found here, by bounded least squares. The gradient by the controls alone would be the same condition after the states
are eliminated, but where the motion is unstable it amplifies the rounding of a good solution by the growth of errors
over the horizon, which is 1e9 for a pendulum that stands upright for five seconds.

The residual compares the imbalance with the terms that balance: for each component of the state and of the control, the
root mean square over the horizon of the sum, divided by that of the sum of absolute values. It does not depend on the
units of states, controls or cost, and a component with small terms counts as much as one with large terms.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
import scipy.sparse
import scipy.sparse.linalg

from jaxdyn.trajopt import Problem

FLOOR = 1e-6
"""Part of the largest component's terms below which a component's own terms do not count: components that stay at zero
by symmetry have terms of rounding."""


class Optimality(NamedTuple):
    residual: float
    """Relative residual of stationarity; zero at a point that meets the first-order conditions, about one at a feasible
    point that does not."""
    violation: float
    """Largest violation of a constraint or bound."""
    gap: float
    """Largest difference between a state and the step that should lead to it."""
    active: int
    """Number of active constraints and bounds, equalities included."""


def stationarity(problem: Problem, solution, active: float = 1e-5) -> Optimality:
    """Return how well `solution`, with the fields `xs` and `us`, meets the conditions. An inequality or bound is active
    within `active` (1 + |bound|) of its bound."""
    xs, us = jnp.asarray(solution.xs, problem.dtype), jnp.asarray(solution.us, problem.dtype)
    parts = jax.tree.map(np.asarray, _parts(problem, xs, us))
    steps, gradient, normals = _rows(problem, parts, active)
    residual = min(_residual(problem, steps, gradient, normals))
    return Optimality(residual, float(parts["violation"]), float(np.abs(parts["gaps"]).max()), normals.shape[1])


@eqx.filter_jit
def _parts(problem: Problem, xs, us):
    """Return gaps, constraints, and all derivatives by the displacements of states and by controls."""
    dynamics = problem.dynamics
    zero = jnp.zeros(dynamics.ndx, problem.dtype)

    def of_stage(dx, u, x, after, k):
        x = dynamics.integrate(x, dx)
        step = dynamics.difference(after, problem.step(x, u, k))
        return step, problem.stage_cost(x, u, k), problem.stage_constraint(x, u, k)[0]

    def of_end(dx):
        x = dynamics.integrate(xs[-1], dx)
        return problem.terminal_cost(x), problem.terminal_constraint(x)[0]

    stages = jax.lax.map(lambda a: jax.jacfwd(of_stage, (0, 1))(zero, *a), (us, xs[:-1], xs[1:], problem.stages))
    box = problem.control_box
    return {
        "stages": stages,
        "end": jax.jacfwd(of_end)(zero),
        "constraints": [problem.split_rows(rows) for rows in problem.constraints(xs, us)],
        "box": (us, *box),
        "gaps": problem.gaps(xs, us),
        "violation": problem.violation(xs, us),
    }


def _rows(problem: Problem, parts, active: float):
    """Return the transposed Jacobian of the steps, the gradient of the cost, and the columns of the active constraints
    with the signs of their multipliers. Rows are the states 1 ... N, then the controls."""
    n, nx, nu = problem.horizon, problem.dynamics.ndx, problem.dynamics.nu
    (A, B), (lx, lu), (Cx, Cu) = ((pair[0], pair[1]) for pair in parts["stages"])
    end_gradient, end_normals = parts["end"]
    rows = n * (nx + nu)

    def state(k):
        return (k - 1) * nx

    def control(k):
        return n * nx + k * nu

    gradient = np.concatenate([lx[1:].ravel(), end_gradient, lu.ravel()])
    blocks = scipy.sparse.lil_matrix((rows, n * nx))
    for k in range(n):
        # The step k leads to the state k + 1: its row is f(x_k, u_k) - x_(k + 1).
        at = slice(k * nx, (k + 1) * nx)
        blocks[state(k + 1) : state(k + 1) + nx, at] = -np.eye(nx)
        blocks[control(k) : control(k) + nu, at] = B[k].T
        if k:
            blocks[state(k) : state(k) + nx, at] = A[k].T
    columns = []

    def add(r, low, high, entries):
        equal = low == high
        for bound, sign in ((high, 1.0), (low, -1.0)):
            if np.isfinite(bound) and (equal or sign * (r - bound) >= -active * (1 + abs(bound))):
                column = np.zeros(rows)
                for place, values in entries:
                    column[place : place + len(values)] = sign * values
                columns.append(column)

    stage, end = [x for x, _ in parts["constraints"]], [x for _, x in parts["constraints"]]
    for k, i in np.ndindex(stage[0].shape):
        entries = [(control(k), Cu[k, i])] + ([(state(k), Cx[k, i])] if k else [])
        add(stage[0][k, i], stage[1][k, i], stage[2][k, i], entries)
    for i in range(len(end[0])):
        add(end[0][i], end[1][i], end[2][i], [(state(n), end_normals[i])])
    us, low, high = parts["box"]
    for k, i in np.ndindex(us.shape):
        add(us[k, i], low[k, i], high[k, i], [(control(k) + i, np.ones(1))])
    return blocks.tocsc(), gradient, np.array(columns).reshape(-1, rows).T


def _residual(problem: Problem, steps, gradient, normals):
    """Yield relative residuals for multipliers from least squares with the rows in three scales: as they are, and then
    twice divided by the sizes of the terms that were found before."""
    n, nx, nu = problem.horizon, problem.dynamics.ndx, problem.dynamics.nu
    component = np.concatenate([np.tile(np.arange(nx), n), nx + np.tile(np.arange(nu), n)])

    def size(rows):
        return np.sqrt(np.bincount(component, rows**2) / np.bincount(component))

    scale = np.ones(nx + nu)
    for _ in range(3):
        weight = 1 / scale[component]
        multipliers, normal_multipliers = _least_squares(
            scipy.sparse.diags(weight) @ steps, weight * gradient, weight[:, None] * normals
        )
        pushes = normals * normal_multipliers
        terms = np.abs(gradient) + abs(steps) @ np.abs(multipliers) + np.abs(pushes).sum(axis=1)
        imbalance = gradient + steps @ multipliers + pushes.sum(axis=1)
        scale = size(terms)
        scale = scale + FLOOR * scale.max() + np.finfo(float).tiny
        yield float((size(imbalance) / scale).max())


def _least_squares(steps, gradient, normals):
    """Return `y` and `z >= 0` that minimize `|gradient + steps y + normals z|`."""
    rows, m = steps.shape
    # Least squares in y alone, by the augmented system, which keeps its accuracy where the steps are unstable.
    system = scipy.sparse.bmat([[scipy.sparse.identity(rows), steps], [steps.T, None]], format="csc")
    solve = scipy.sparse.linalg.splu(system).solve

    def projected(b):
        full = np.concatenate([b, np.zeros((m, *b.shape[1:]))])
        x = solve(full)
        x = x + solve(full - system @ x)
        return x[:rows], x[rows:]

    rest, y = projected(gradient)
    if not normals.shape[1]:
        return -y, np.zeros(0)
    rests, ys = projected(normals)
    # Columns of unit length, so that all multipliers are found as well; a triangular matrix, so that it is fast.
    length = np.linalg.norm(rests, axis=0) + np.finfo(float).tiny
    q, r = np.linalg.qr(rests / length)
    z = scipy.optimize.nnls(r, -q.T @ rest, maxiter=10 * r.shape[1])[0] / length
    return -y - ys @ z, z
