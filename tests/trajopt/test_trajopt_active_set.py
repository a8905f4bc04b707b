"""Guesses with multipliers: steps with an active set near a solution, and the barrier method where these fail."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdyn.trajopt import (
    Constraint,
    ContinuousDynamics,
    ControlResidual,
    DDPOptions,
    Multipliers,
    Problem,
    QuadraticCost,
    Solution,
    StateResidual,
    Status,
    ddp,
)
from jaxdyn.trajopt.ddp import Expansion
from jaxdyn.trajopt.ddp._active_set import next_active_set
from jaxdyn.trajopt.ddp._barrier import Sides
from jaxdyn.trajopt.ddp._constrained_state import ActiveSet
from jaxdyn.trajopt.ddp._expansion import ConstraintComponents, expand
from jaxdyn.trajopt.ddp._interior_point import Bounded, interior_point_sets
from tests.trajopt.optimality import assert_optimal
from tests.trajopt.trajopt_problems import of_dtype, pendulum_rate


@functools.cache
def pendulum() -> Problem:
    """Return a pendulum that swings to one side as fast as its bounds and its limit of speed allow."""
    speed = Constraint(StateResidual(), np.array([-np.inf, -0.6]), np.array([np.inf, 0.6]))
    goal = StateResidual(np.array([1.0, 0.0]))
    return Problem(
        ContinuousDynamics(pendulum_rate, 2, 1, dt=0.1),
        np.zeros(2),
        20,
        stage_costs=[QuadraticCost(ControlResidual(), 1e-3), QuadraticCost(goal, 1.0)],
        terminal_costs=[QuadraticCost(goal, 10.0)],
        stage_constraints=[speed],
        control_lower=-2.0,
        control_upper=2.0,
    )


@functools.cache
def solution() -> Solution:
    s = ddp(pendulum())
    assert_optimal(pendulum(), s)
    at_bound, at_limit = np.split(active(pendulum(), s), 2)
    assert at_bound.any()
    assert at_limit.any()
    return s


def active(problem: Problem, s: Solution) -> np.ndarray:
    """Return which controls are at their bounds, and which speeds at their limit."""
    at_bound = np.isclose(np.abs(s.us[:, 0]), float(problem.control_upper[0]), atol=1e-6)
    return np.concatenate([at_bound, np.abs(s.multipliers.stage[:, 1]) > 0])


@pytest.mark.slow
@pytest.mark.parametrize(("move", "most"), [(0.0, 2), (0.002, 3), (0.2, 3), (-0.2, 3)])
def test_few_steps_lead_to_the_solution_of_a_moved_start(move, most):
    problem = pendulum().starting_at(pendulum().x0 + move)
    warm = warm_solve(problem, solution().us, solution().xs, solution().multipliers)
    assert_optimal(problem, warm)
    cold = ddp(problem)
    assert_optimal(problem, cold)
    np.testing.assert_allclose(warm.cost, cold.cost, rtol=1e-7)
    np.testing.assert_allclose(warm.multipliers.stage, cold.multipliers.stage, atol=1e-4)
    assert warm.iterations <= most
    assert (warm.history.barrier[: int(warm.iterations)] == 0).all()
    # A larger move forwards frees components, and one backwards holds more of them.
    before, after = active(pendulum(), solution()), active(problem, warm)
    assert (before & ~after).any() == (move == 0.2)
    assert (after & ~before).any() == (abs(move) == 0.2)


def wrong_multipliers(factor: float) -> Multipliers:
    """Return multipliers of the opposite limit of the speed, too large by a factor. They make the second derivatives of
    the Lagrangian indefinite."""
    right = solution().multipliers
    assert right.stage is not None
    return Multipliers(right.dynamics, -factor * right.stage, right.terminal)


@jax.jit
def warm_solve(problem, us, xs, multipliers) -> Solution:
    return ddp(problem, us, xs, multipliers=multipliers, options=DDPOptions(history=60))


def general_solver_sets(e: Expansion, rows: ConstraintComponents, box) -> Bounded:
    """Return the active sets of a linear-quadratic problem by a general solver, from its multipliers."""
    cp = pytest.importorskip("cvxpy")
    horizon, n, m = e.B.shape
    dxs, dus = cp.Variable((horizon + 1, n)), cp.Variable((horizon, m))
    cost = e.terminal.x @ dxs[-1] + cp.quad_form(dxs[-1], e.terminal.xx) / 2
    motion, change = [dxs[0] == e.gaps[0]], []
    for k in range(horizon):
        l, z = jax.tree.map(lambda a, k=k: np.asarray(a[k]), e.stage), cp.hstack([dxs[k], dus[k]])
        H = np.block([[l.xx, l.ux.T], [l.ux, l.uu]])
        cost += np.concatenate([l.x, l.u]) @ z + cp.quad_form(z, 0.5 * (H + H.T)) / 2
        motion.append(dxs[k + 1] == e.A[k] @ dxs[k] + e.B[k] @ dus[k] + e.gaps[k + 1])
        change.append(rows.by_x[k] @ dxs[k] + rows.by_u[k] @ dus[k])
    value, number = rows.value + cp.hstack(change), np.isfinite(rows.upper)
    bounds = [value[number] >= rows.lower[number], value[number] <= rows.upper[number], dus >= box[0], dus <= box[1]]
    cp.Problem(cp.Minimize(cost), motion + bounds).solve(solver=cp.CLARABEL)
    found = [np.abs(b.dual_value) > 1e-6 for b in bounds]
    for k in (0, 1):
        found[k], held = np.zeros(number.shape, bool), found[k]
        found[k][number] = held
    return Bounded(Sides(*found[:2]), Sides(*found[2:]))


@jax.jit
def interior_sets(problem: Problem):
    """The active sets of the linear-quadratic problem about a pendulum at rest, and this problem."""
    us, xs = jnp.zeros((20, 1), problem.dtype), jnp.zeros((21, 2), problem.dtype)
    e, rows = expand(problem, xs, us, problem.gaps(xs, us))
    none = Bounded(Sides(*(jnp.zeros_like(rows.value),) * 2), Sides(*(jnp.zeros_like(us),) * 2))
    one = jax.tree.map(jnp.ones_like, none)
    return interior_point_sets(problem, e, rows, us, none, one, problem.total_cost(xs, us), 0.0), e, rows


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_interior_points_lead_to_the_active_set_of_a_general_solver(dtype):
    problem = of_dtype(pendulum(), dtype)
    found, e, rows = interior_sets(problem)
    expected = general_solver_sets(*jax.tree.map(lambda x: np.asarray(x, float), (e, rows)), problem.control_box)
    held_rows, held_controls = (sum(held.sum() for held in sides) for sides in expected)
    assert held_rows >= 3
    assert held_controls >= 2
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.slow
def test_a_regularization_leads_on_where_second_derivatives_have_no_active_set():
    solved = warm_solve(pendulum(), solution().us, solution().xs, wrong_multipliers(1e4))
    assert_optimal(pendulum(), solved)
    assert (solved.history.barrier[: int(solved.iterations)] == 0).all()
    assert solved.history.regularization[0] > 0
    assert solved.iterations <= 5


@pytest.mark.slow
def test_the_barrier_method_takes_over_where_no_active_set_helps():
    """The second derivatives are so wrong that a regularization that would help is too large; with multipliers that are
    a hundredth of these, one of 0.2 helps."""
    solved = warm_solve(pendulum(), solution().us, solution().xs, wrong_multipliers(1e8))
    assert_optimal(pendulum(), solved)
    barriers = np.asarray(solved.history.barrier[: int(solved.iterations)])
    assert barriers[0] == 0
    assert barriers[-1] > 0
    # The barrier method begins at the guess.
    first = int(np.flatnonzero(barriers)[0])
    assert solved.history.cost[first] == solved.history.cost[0]


@pytest.mark.slow
def test_single_precision_and_batches():
    problem, s = of_dtype((pendulum(), solution()), jnp.float32)
    starts = problem.x0 + jnp.array([[0.0], [0.002], [0.05]], jnp.float32)
    solve = jax.jit(jax.vmap(lambda x0: ddp(problem.starting_at(x0), s.us, s.xs, multipliers=s.multipliers)))
    batch = solve(starts)
    assert batch.us.dtype == jnp.float32
    assert (batch.status == Status.CONVERGED).all()
    # Where rounding hides the active set, the barrier method goes on.
    assert (batch.iterations <= np.array([2, 4, 15])).all(), batch.iterations


def test_errors_may_grow_four_times():
    progress = ActiveSet(jnp.array(True), jnp.asarray(jnp.inf), jnp.zeros((), jnp.int32))
    growing = [(2.0, False), (2.1, False), (1.0, False), (0.95, False), (3.0, False), (2.8, True)]
    for error, fails in [(1.0, False), *growing]:
        progress, failed = next_active_set(progress, jnp.asarray(error), jnp.array(True))
        assert bool(failed) == fails
    # Steps that are not tried do not fail.
    assert not next_active_set(progress._replace(on=jnp.array(False)), jnp.asarray(9.0), jnp.array(True))[1]


def test_a_step_that_is_not_possible_fails_at_once():
    progress = ActiveSet(jnp.array(True), jnp.asarray(jnp.inf), jnp.zeros((), jnp.int32))
    assert next_active_set(progress, jnp.asarray(1.0), jnp.array(False))[1]


@pytest.mark.slow
def test_multipliers_of_the_guess_stay_where_no_iterations_are_left():
    """No active set is found, and in the last iteration no barrier begins."""
    wrong, options = wrong_multipliers(1e8), DDPOptions(max_iterations=1)
    stopped = ddp(pendulum(), solution().us, solution().xs, multipliers=wrong, options=options)
    assert stopped.status == Status.OUT_OF_ITERATIONS
    np.testing.assert_allclose(stopped.multipliers.stage, wrong.stage)
