"""Initial states and parameters as unknowns: optima, bounds, derivatives, periodic motions."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

from jaxdyn.trajopt import (
    Constraint,
    ControlResidual,
    DDPOptions,
    DiscreteDynamics,
    InnerResidual,
    ParameterDynamics,
    ParameterResidual,
    Problem,
    QuadraticCost,
    Selected,
    StateResidual,
    ddp,
)

TIGHT = DDPOptions(tolerance=1e-12, constraint_tolerance=1e-11, complementarity_tolerance=1e-13, regularization=1e-14)
HORIZON = 6
START = np.array([0.3, 0.1, -0.4])
FREE = np.array([True, False, True, True, True])
"""Two components of the initial state, and two parameters."""


def linear_step(x, u, t, params):
    A, B, offset = params
    return A @ x + B @ u + offset


def shifted(dynamics, p):
    shift = jnp.array([[0.5, -1.0], [0.2, 0.3], [-0.7, 0.4]], p.dtype) @ p
    return eqx.tree_at(lambda d: d.params[2], dynamics, shift)


def linear_quadratic(dtype=np.float64, **constraints) -> Problem:
    rng = np.random.default_rng(0)
    A, B = np.eye(3) + 0.3 * rng.normal(size=(3, 3)), rng.normal(size=(3, 1))
    params = jax.tree.map(lambda a: jnp.asarray(a, dtype), (A, B, np.zeros(3)))
    dynamics = ParameterDynamics(
        DiscreteDynamics(linear_step, 3, 1, params, dt=dtype(1), t0=dtype(0)), shifted, np.array([0.1, -0.2], dtype)
    )
    at_start = InnerResidual(StateResidual(START.astype(dtype)))
    return Problem(
        dynamics,
        dynamics.join(START.astype(dtype)),
        HORIZON,
        stage_costs=[
            QuadraticCost(InnerResidual(StateResidual(np.array([1, 2, -1], dtype))), np.array([1, 2, 3], dtype)),
            QuadraticCost(ControlResidual(), dtype(0.5)),
        ],
        terminal_costs=[QuadraticCost(InnerResidual(StateResidual()), dtype(4))],
        initial_costs=[QuadraticCost(at_start, dtype(2)), QuadraticCost(ParameterResidual(dtype(0.5)), dtype(0.3))],
        free_x0=FREE,
        **constraints,
    )


def unknowns_of(solution):
    return jnp.concatenate([solution.xs[0, FREE], solution.us.ravel()])


def dense(problem: Problem):
    """The Hessian and the gradient at zero of the cost by all unknowns, and the cost."""

    def cost(z):
        x0 = problem.x0.at[FREE].set(z[:4])
        us = z[4:].reshape(HORIZON, 1)
        from_there = eqx.tree_at(lambda p: p.x0, problem, x0)
        return problem.total_cost(from_there.rollout(us), us)

    zero = jnp.zeros(4 + HORIZON)
    return jax.jit(lambda: (jax.hessian(cost)(zero), jax.grad(cost)(zero)))(), cost


def test_a_linear_quadratic_problem_has_its_dense_solution():
    problem = linear_quadratic()
    solution = ddp(problem, options=TIGHT)
    (H, g), cost = dense(problem)
    z = -np.linalg.solve(H, g)
    assert solution.success, solution.message
    np.testing.assert_allclose(unknowns_of(solution), z, atol=1e-10)
    np.testing.assert_allclose(solution.cost, cost(z), rtol=1e-13)
    assert solution.xs[0, 1] == START[1]
    assert np.ptp(solution.xs[:, 3:], axis=0).max() == 0
    # The derivative of the optimal cost by the fixed component alone is not zero.
    slopes = solution.multipliers.dynamics[0]
    assert abs(slopes[1]) > 1
    assert np.abs(slopes[FREE]).max() < 1e-9


def test_bounds_on_initial_states_and_parameters_hold():
    constraints = [
        Constraint(Selected(StateResidual(), [0]), -np.inf, 0.2),
        Constraint(ParameterResidual(), -0.1, np.array([0.1, np.inf])),
    ]
    problem = linear_quadratic(initial_constraints=constraints)
    solution = ddp(problem, options=TIGHT)
    (H, g), _ = dense(problem)
    free = np.full(HORIZON, np.inf)
    bounds = np.append([-np.inf, -np.inf, -0.1, -0.1], -free), np.append([0.2, np.inf, 0.1, np.inf], free)
    root = np.linalg.cholesky(H).T
    least = scipy.optimize.lsq_linear(root, -np.linalg.solve(root.T, g), bounds, method="bvls", tol=1e-14)
    assert solution.success, solution.message
    np.testing.assert_allclose(unknowns_of(solution), least.x, atol=1e-9)
    active = solution.multipliers.stage[0] != 0
    np.testing.assert_array_equal(active, least.active_mask[[0, 2, 3]] != 0)
    assert active.any()
    assert not solution.multipliers.stage[1:].any()
    again = ddp(problem, solution.us, solution.xs, multipliers=solution.multipliers, options=TIGHT)
    assert again.success
    assert again.iterations <= 2
