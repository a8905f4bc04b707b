"""Differential dynamic programming reaches published outcomes, solves batches, and has right derivatives."""

import dataclasses
import functools
import time
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from numpy.testing import assert_allclose

from jaxdyn import (
    BodyInertia,
    Joint,
    ModelBuilder,
    ModelError,
    NotConvergedWarning,
    ShapeError,
    UnknownNameError,
    _waits,
    samples,
)
from jaxdyn.spatial import Quaternion, Vec3
from jaxdyn.trajopt import (
    AbstractDynamics,
    Constraint,
    ContinuousDynamics,
    ControlResidual,
    DDPOptions,
    DiscreteDynamics,
    FramePositionResidual,
    FunctionCost,
    FunctionResidual,
    ModelDynamics,
    Problem,
    QuadraticCost,
    Selected,
    StateResidual,
    Status,
    TimeVarying,
    ddp,
)
from jaxdyn.trajopt.ddp import Expansion, backward, backward_associative, backward_in_box
from jaxdyn.trajopt.ddp._filter import Filter, Point, search
from jaxdyn.trajopt.ddp._riccati import backward_with_active_set, linear_roll_out
from jaxdyn.trajopt.problem import Quadratic, with_disturbance
from tests.derivatives import check_derivatives
from tests.trajopt.optimality import assert_optimal
from tests.trajopt.trajopt_problems import acrobot, cartpole, double_pendulum, kinova, of_dtype

TIGHT = DDPOptions(tolerance=1e-12, constraint_tolerance=1e-11, complementarity_tolerance=1e-13)


def pendulum_rate(x, u, t, params):
    return jnp.array([x[1], u[0] - params * jnp.sin(x[0])])


def pendulum() -> Problem:
    """Return a short swing to a goal with limits of torque and speed."""
    goal = np.array([1.0, 0.0])
    return Problem(
        ContinuousDynamics(pendulum_rate, 2, 1, jnp.asarray(2.0), dt=0.1),
        np.array([0.2, -0.1]),
        15,
        stage_costs=[QuadraticCost(ControlResidual(), 0.1), QuadraticCost(StateResidual(), np.array([0.1, 0.01]))],
        terminal_costs=[QuadraticCost(StateResidual(goal), 1.0)],
        control_lower=-2.5,
        control_upper=2.0,
        stage_constraints=[Constraint(StateResidual(), np.array([-np.inf, -10.0]), np.array([np.inf, 0.8]))],
        terminal_constraints=[Constraint(StateResidual(goal))],
    )


@pytest.mark.slow
def test_double_pendulum_as_crocoddyl_solves_it():
    problem = double_pendulum()
    s = ddp(problem, np.zeros((100, 1)), np.zeros((101, 4)))
    assert_optimal(problem, s)
    np.testing.assert_allclose(s.cost, 2.058751e-2, rtol=1e-6)
    assert s.iterations <= 1.2 * 54
    assert s.residuals.gap == 0
    # The motion amplifies differences in rounding between the two programs.
    np.testing.assert_allclose(s.xs, problem.rollout(s.us), atol=1e-7)


@pytest.mark.slow
def test_cartpole_with_limits():
    problem = cartpole()
    s = ddp(problem, 0.01)
    assert_optimal(problem, s)
    np.testing.assert_allclose(s.cost, 1.486187, rtol=1e-4)
    assert s.iterations <= 1.2 * 44
    assert problem.violation(s.xs, s.us) <= 1e-6
    assert jnp.abs(s.us).max() <= 3.0


@pytest.mark.slow
def test_acrobot_with_limits():
    problem = acrobot()
    s = ddp(problem, 0.0)
    assert_optimal(problem, s)
    np.testing.assert_allclose(s.cost, 50.046611, rtol=1e-4)
    assert s.iterations <= 1.2 * 50
    assert s.residuals.violation <= 1e-6


@pytest.mark.slow
def test_kinova_reaches():
    problem = kinova()
    s = ddp(problem, np.zeros((100, 6)), np.zeros((101, 12)))
    assert_optimal(problem, s)
    np.testing.assert_allclose(s.cost, 8.125078, rtol=1e-6)
    assert s.iterations <= 1.2 * 73


@pytest.mark.slow
@pytest.mark.parametrize("weight", [1e-1, 1e-2])
def test_light_links_without_friction(weight):
    """The curvature of the dynamics outweighs that of the cost, so that Gauss-Newton alone takes hundreds of
    iterations or does not arrive. Iterations differ much between weights: 23 and 81 with these, 35 and 44 with 2e-2 and
    5e-3."""
    model, dt = samples.arm(), 0.02
    rest = Selected(StateResidual(), range(7, 14))
    start = jnp.array([0.0, -0.5, 0.0, -2.0, 0.0, 1.5, 0.0])
    limit = 0.5 * model.effort_limit
    hand = FramePositionResidual("flange", jnp.array([0.4, 0.4, 0.3]))
    problem = Problem(
        ModelDynamics(model, dt),
        jnp.concatenate([start, jnp.zeros(7)]),
        40,
        stage_costs=[QuadraticCost(ControlResidual(), 1e-3 * dt), QuadraticCost(rest, weight * dt)],
        terminal_constraints=[Constraint(hand), Constraint(rest)],
        control_lower=-limit,
        control_upper=limit,
    )
    s = ddp(problem)
    assert_optimal(problem, s)
    assert s.iterations <= 100


@pytest.mark.slow
@pytest.mark.parametrize("make", [double_pendulum, kinova, cartpole, acrobot])
def test_single_precision_is_right_or_says_that_it_is_not(make):
    """Where it claims a minimum, double precision finds none but that near by. Rounding decides which one it reaches:
    the arm, whose angles are not wrapped, has several."""
    problem = make()
    n = problem.dynamics.nx
    xs = np.zeros((101, n)) if make in (double_pendulum, kinova) else None
    s = ddp(of_dtype(problem, jnp.float32), {cartpole: 0.01}.get(make, 0.0), xs)
    assert s.xs.dtype == jnp.float32
    if s.success:
        exact = ddp(problem, np.asarray(s.us, np.float64), np.asarray(s.xs, np.float64))
        assert_optimal(problem, exact)
        assert abs(s.cost - exact.cost) <= 1e-2 * exact.cost


def test_single_precision_stays_where_double_precision_is_enabled():
    solution = eqx.filter_eval_shape(ddp, of_dtype(pendulum(), jnp.float32))
    assert {x.dtype for x in jax.tree.leaves((solution.xs, solution.us, solution.cost, solution.multipliers))} == {
        jnp.dtype("float32")
    }


@pytest.mark.slow
def test_optimum_is_that_of_a_general_solver():
    problem = pendulum()
    s = ddp(problem, options=TIGHT)
    assert_optimal(problem, s)

    @jax.jit
    def of_controls(us):
        xs = problem.rollout(us[:, None])
        return problem.total_cost(xs, us[:, None]), xs[-1] - jnp.array([1.0, 0.0]), 0.8 - xs[1:-1, 1]

    slopes = jax.jit(jax.jacrev(of_controls))
    kinds = ("eq", 1), ("ineq", 2)
    best = scipy.optimize.minimize(
        lambda us: of_controls(us)[0],
        np.zeros(15),
        jac=lambda us: slopes(us)[0],
        method="SLSQP",
        bounds=[(-2.5, 2.0)] * 15,
        constraints=[
            {"type": k, "fun": lambda us, i=i: of_controls(us)[i], "jac": lambda us, i=i: slopes(us)[i]}
            for k, i in kinds
        ],
        options={"maxiter": 200, "ftol": 1e-14},
    )
    np.testing.assert_allclose(s.cost, best.fun, rtol=1e-7)
    np.testing.assert_allclose(s.us[:, 0], best.x, atol=1e-4)
    # A bound of the torque and one of the speed are active, and their multipliers push inwards.
    assert (s.us == 2.0).any()
    assert s.multipliers is not None
    of_speed = np.asarray(s.multipliers.stage)[:, 1]
    assert (of_speed > 0).any()
    assert (of_speed >= 0).all()


def two_steps(**constraints) -> Problem:
    """Return a problem that compiles quickly and is not linear-quadratic, so that it takes several iterations."""
    return Problem(
        DiscreteDynamics(lambda x, u, t, params: x + jnp.sin(u), 1, 1),
        np.zeros(1),
        2,
        stage_costs=[QuadraticCost(ControlResidual(), 0.1)],
        terminal_costs=[QuadraticCost(StateResidual(np.array([1.5])), 1.0)],
        **constraints,
    )


@pytest.mark.parametrize("make", [pytest.param(pendulum, marks=pytest.mark.slow), two_steps])
def test_batches_are_single_solves_and_what_has_ended_stays(make):
    problem = make()
    starts = problem.x0 + jnp.array([[0.0, 0.0], [0.1, 0.2], [-0.05, 0.1]])[:, : problem.dynamics.nx]
    batch = jax.jit(jax.vmap(lambda x0: ddp(problem.starting_at(x0), options=TIGHT)))(starts)
    assert batch.success.all(), batch.message
    # The element with the fewest iterations waits for the others and equals its single solve.
    for start, xs, n in zip(starts, batch.xs, batch.iterations, strict=True):
        single = ddp(problem.starting_at(start), options=TIGHT)
        np.testing.assert_allclose(xs, single.xs, atol=1e-10)
        assert n == single.iterations
        assert_optimal(problem.starting_at(start), single)
    assert len(set(batch.iterations.tolist())) > 1


@pytest.mark.parametrize("constrained", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_history_and_progress_have_every_iteration(constrained):
    limit = {"terminal_constraints": [Constraint(StateResidual(), -np.inf, 1.0)]} if constrained else {}
    problem, seen = two_steps(**limit), []
    options = DDPOptions(history=50, progress=lambda *numbers: seen.append(numbers))
    s = ddp(problem, options=options)
    jax.effects_barrier()
    n = int(s.iterations)
    assert_optimal(problem, s)
    assert 3 < n < 50
    assert s.history is not None
    assert s.history.iterations == n
    assert s.history.cost.shape == (50,)
    last, after = s.history.record(n - 1), s.history.record(n)
    assert np.isfinite(s.history.cost[:n]).all()
    assert np.isnan(after.cost)
    # The solution is the iterate from which the last iteration starts.
    for name in ("gap", "stationarity", "violation") + ("complementarity",) * constrained:
        np.testing.assert_array_equal(getattr(last, name), getattr(s.residuals, name), err_msg=name)
    np.testing.assert_allclose(last.cost, s.cost, rtol=1e-7)
    seen.sort(key=lambda numbers: int(numbers[0]))
    assert [int(i) for i, _, _ in seen] == list(range(n))
    np.testing.assert_array_equal([record.cost for _, record, _ in seen], s.history.cost[:n])
    assert [int(status) for *_, status in seen] == [Status.RUNNING] * (n - 1) + [Status.CONVERGED]


def test_whole_steps_of_the_linear_model_leave_gaps():
    goal = QuadraticCost(StateResidual(np.array([2.0, 0.0])), 10.0)
    swing = Problem(
        ContinuousDynamics(pendulum_rate, 2, 1, jnp.asarray(2.0), dt=0.1),
        np.zeros(2),
        20,
        stage_costs=[QuadraticCost(ControlResidual(), 0.1)],
        terminal_costs=[goal],
        control_lower=-2.5,
        control_upper=2.5,
    )
    us, xs = np.zeros((20, 1)), np.linspace([0.0, 0.0], [2.0, 0.0], 21)
    found = ddp(swing, us, xs, options=DDPOptions(history=100))
    gap, step = found.history.gap[: found.iterations], found.history.step_length
    assert found.success
    assert step[0] == 1  # A roll-out with this length would have closed the gap.
    assert 0 < gap[1] < 0.5 * gap[0]
    assert gap[-1] <= 1e-14
    # A roll-out has no gaps, and its steps leave none.
    known = ddp(swing, us, swing.rollout(us), options=DDPOptions(history=100))
    assert known.success
    assert (known.history.gap[: known.iterations] == 0).all()
    assert_allclose(known.cost, found.cost, rtol=1e-9)


def test_where_steps_of_the_linear_model_end_roll_outs_begin_at_the_guess():
    # The linear model leads to a control of about one, where the cost is high and its derivative NaN.
    def cost(x, u, t, params):
        away = u[0] - 1
        bad = jnp.abs(away) < 0.1
        root = jnp.sqrt(jnp.where(bad, jnp.maximum(-(away**2), 0.0), 1.0))
        return 1e-2 * u[0] ** 2 + jnp.where(bad, 1e3, 0.0) + root

    problem = Problem(
        DiscreteDynamics(lambda x, u, t, params: u + u**2 / 2, 1, 1),
        np.zeros(1),
        1,
        stage_costs=[FunctionCost(cost)],
        terminal_costs=[QuadraticCost(StateResidual(np.ones(1)), 100.0)],
    )
    found = ddp(problem, xs=np.array([[0.0], [5.0]]), options=DDPOptions(history=100))
    gap = np.asarray(found.history.gap)[: found.iterations]
    assert found.success
    assert gap[1] < gap[0]
    assert (gap[2:] == gap[0]).any()
    assert_allclose(found.us[0, 0], np.sqrt(3) - 1, rtol=1e-3)


@pytest.mark.slow
def test_history_is_bounded():
    s = ddp(two_steps(), options=DDPOptions(history=2))
    assert s.history is not None
    assert s.history.cost.shape == (2,)
    assert s.history.iterations == s.iterations
    assert f"and {int(s.iterations) - 2} more iterations" in str(s.history)


WAYS = {
    "gravity": lambda p, s: eqx.tree_at(lambda p: p.dynamics.params, p, 2.0 + s),
    "weight": lambda p, s: eqx.tree_at(lambda p: p.stage_costs[0].weight, p, 0.1 + s),
    "start": lambda p, s: p.starting_at(p.x0 + s * jnp.array([0.5, 1.0])),
    "box": lambda p, s: eqx.tree_at(lambda p: p.control_upper, p, p.control_upper + s),
    "speed": lambda p, s: eqx.tree_at(lambda p: p.stage_constraints[0].upper, p, jnp.array([jnp.inf, 0.8 + s])),
}


def problem_with(parameters):
    problem = pendulum()
    for way, s in zip(WAYS.values(), parameters, strict=True):
        problem = way(problem, s)
    return problem


def test_derivatives_of_a_solution_are_central_differences():
    rng = np.random.default_rng(0)
    by_x, by_u = rng.normal(size=(16, 2)), rng.normal(size=(15, 1))

    def outcome(parameters):
        s = ddp(problem_with(parameters), options=TIGHT)
        return (by_x * s.xs).sum() + (by_u * s.us).sum() + s.cost

    check_derivatives(outcome, np.zeros(len(WAYS)), modes=["reverse"], step=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mode", [pytest.param("forward", marks=pytest.mark.slow), "reverse"])
def test_derivatives_without_convergence_are_nan_and_say_so(mode):
    problem = two_steps()

    def outcome(target, iterations):
        goal = eqx.tree_at(lambda p: p.terminal_costs[0].residual.target, problem, target[None])
        return ddp(goal, options=DDPOptions(max_iterations=iterations)).us.sum()

    transform = jax.jacfwd if mode == "forward" else jax.grad
    # One program of both, because the solver takes long to compile.
    both = jax.jit(lambda *x: (outcome(*x), transform(outcome)(*x)))

    def ended(iterations, target=2.0):
        result = jax.block_until_ready(both(jnp.asarray(target), iterations))
        # The warning comes from a callback, which may run after the result is there.
        jax.effects_barrier()
        return result

    with pytest.warns(NotConvergedWarning, match=r"out of iterations.*raise max_iterations"):
        _, slope = ended(1)
    assert np.isnan(slope)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, slope = ended(100)
    h = 1e-4
    plus, minus = (ended(100, 2.0 + s)[0] for s in (h, -h))
    np.testing.assert_allclose(slope, (plus - minus) / (2 * h), rtol=1e-5)


@pytest.mark.slow
def test_derivative_by_an_inertia_with_a_bound_that_holds():
    pendulum = samples.pendulum()

    def outcome(heavier):
        dynamics = ModelDynamics(pendulum.scaled(mass=heavier), 0.1)
        target = QuadraticCost(StateResidual(np.array([1.2, 0.0])), 5.0)
        problem = Problem(
            dynamics,
            np.array([0.3, -0.2]),
            12,
            stage_costs=[QuadraticCost(ControlResidual(), 0.01)],
            terminal_costs=[target],
            control_lower=-2.0,
            control_upper=2.0,
        )
        s = ddp(problem, options=TIGHT)
        return s.cost + (jnp.linspace(0, 1, 13)[:, None] * s.xs).sum() + (s.us**2).sum(), (s, problem)

    both = jax.jit(jax.value_and_grad(outcome, has_aux=True))
    (_, (s, problem)), slope = both(1.1)
    assert_optimal(problem, s)
    held = jnp.abs(s.us) == 2.0
    assert held.any()
    assert not held.all()
    plus, minus = (both(1.1 + h)[0][0] for h in (1e-5, -1e-5))
    np.testing.assert_allclose(slope, (plus - minus) / 2e-5, rtol=1e-5)


@pytest.mark.slow
def test_random_acrobots_in_one_batch():
    """More than 80 % of 256 starts near the hanging state succeed within 100 iterations; `-s` shows the counts."""
    problem = acrobot()
    spread = 0.3 * np.random.default_rng(0).normal(size=(256, 4)) * np.array([1, 1, 0.5, 0.5])
    options = DDPOptions(max_iterations=100)
    starts = jnp.asarray(problem.x0 + spread)
    solve = jax.jit(jax.vmap(lambda x0: ddp(problem.starting_at(x0), 0.0, options=options))).lower(starts).compile()
    began = time.process_time(), time.perf_counter()
    s = jax.block_until_ready(solve(starts))
    spent = time.process_time() - began[0], time.perf_counter() - began[1]
    least, median, most = np.sort(s.iterations)[[0, 128, -1]]
    print(f"\n{s.message}\n{spent[0]:.1f} s of CPU time, {spent[1]:.1f} s; {least}, {median}, {most} iterations")
    assert s.success.mean() > 0.8
    violation = jax.vmap(lambda x0, xs, us: problem.starting_at(x0).violation(xs, us))(starts, s.xs, s.us)
    assert (violation[s.success] <= 1e-6).all()
    for i in np.flatnonzero(s.success)[:10]:
        assert_optimal(problem.starting_at(starts[i]), jax.tree.map(lambda a, i=i: a[i], s))


class Turning(AbstractDynamics):
    """A rotation as a quaternion, which a control and a drift turn."""

    dt: jax.Array
    t0: jax.Array
    drift: jax.Array

    nx = property(lambda self: 4)
    ndx = property(lambda self: 3)
    nu = property(lambda self: 3)

    def neutral(self):
        return jnp.array([1.0, 0.0, 0.0, 0.0])

    def integrate(self, x, dx):
        return Quaternion(*x).multiply(Quaternion.exp(Vec3(*dx))).to_array()

    def difference(self, x0, x1):
        return Quaternion(*x0).conjugate().multiply(Quaternion(*x1)).log().to_array()

    def step(self, x, u, k):
        return self.integrate(x, self.dt * (u + self.drift))


@pytest.mark.slow
def test_derivatives_on_a_group():
    rng = np.random.default_rng(0)
    by_x, by_u = rng.normal(size=(11, 4)), rng.normal(size=(10, 3))

    def outcome(parameters):
        drift, weight, turn = parameters
        dynamics = Turning(jnp.asarray(0.1), jnp.asarray(0.0), drift * jnp.array([0.5, -1.0, 2.0]))
        target = StateResidual(dynamics.integrate(dynamics.neutral(), jnp.array([0.8, -0.4, 1.2])))
        x0 = dynamics.integrate(dynamics.neutral(), turn * jnp.array([0.4, 1.0, -0.6]))
        parts = [QuadraticCost(ControlResidual(), 0.1), QuadraticCost(target, 0.3 * weight)]
        ends = [QuadraticCost(target, 5.0)]
        problem = Problem(
            dynamics, x0, 10, stage_costs=parts, terminal_costs=ends, control_lower=-1.2, control_upper=1.2
        )
        s = ddp(problem, options=dataclasses.replace(TIGHT, hessian="adaptive"))
        return (by_x * s.xs).sum() + (by_u * s.us).sum(), (s, problem)

    both = jax.jit(jax.value_and_grad(outcome, has_aux=True))
    parameter_values, h = jnp.array([0.7, 1.0, 0.9]), 1e-5
    (_, (s, problem)), gradient = both(parameter_values)
    assert_optimal(problem, s)
    assert (jnp.abs(s.us) == 1.2).any()
    for i in range(3):
        plus, minus = (both(parameter_values.at[i].add(s))[0][0] for s in (h, -h))
        np.testing.assert_allclose(gradient[i], (plus - minus) / (2 * h), rtol=1e-5)


T, N, M = 7, 3, 2


@functools.cache
def linear_quadratic() -> Expansion:
    """Return a random convex problem with gaps."""
    rng = np.random.default_rng(1)

    def definite(k, size):
        a = rng.normal(size=(k, size, size))
        return a @ np.swapaxes(a, 1, 2) + np.eye(size)

    both = definite(T, N + M)
    stage = Quadratic(
        np.zeros(T), rng.normal(size=(T, N)), rng.normal(size=(T, M)), both[:, :N, :N], both[:, N:, :N], both[:, N:, N:]
    )
    zero = np.zeros(())
    end = Quadratic(zero, rng.normal(size=N), np.zeros(0), definite(1, N)[0], np.zeros((0, N)), np.zeros((0, 0)))
    A, B, gaps = rng.normal(size=(T, N, N)), rng.normal(size=(T, N, M)), rng.normal(size=(T + 1, N))
    return jax.tree.map(jnp.asarray, Expansion(A, B, gaps, stage, end))


@pytest.mark.slow
def test_associative_scan_is_the_recursion():
    e = linear_quadratic()
    for recursive, associative in zip(jax.jit(backward)(e, 1e-2), jax.jit(backward_associative)(e, 1e-2), strict=True):
        np.testing.assert_allclose(recursive, associative, rtol=1e-8, atol=1e-8)


def test_an_active_set_is_known_to_have_settled():
    e, bound = linear_quadratic(), np.full((T, M), 0.3)
    none = np.zeros((T, M), bool)

    def next_active(dxs, dus, active):
        return dxs[:, 0] > 0

    @jax.jit
    def solve(e, bound, sweeps):
        start = (none, none), np.zeros(T + 1, bool)
        policy, active, settled = backward_with_active_set(
            lambda _: e, next_active, 0.0, (-bound, bound), start, sweeps
        )
        return active, settled, *linear_roll_out(e, policy)

    for sweeps, enough in ((1, False), (20, True)):
        active, settled, dxs, dus = jax.tree.map(np.asarray, solve(e, bound, sweeps))
        assert bool(settled) == enough
        assert bool((np.abs(dus) <= 0.3 + 1e-9).all()) == enough
        np.testing.assert_array_equal(active, dxs[:, 0] > 0)


def cost_of_steps(e: Expansion) -> tuple[np.ndarray, np.ndarray]:
    """Return the matrix `H` and the vector `g` of the cost `us H us / 2 + g us` of steps `us`, `[horizon * nu]`, of the
    controls, without what does not depend on them."""
    e = jax.tree.map(np.asarray, e)
    horizon, nx, nu = e.B.shape
    H, g = np.zeros((horizon * nu, horizon * nu)), np.zeros(horizon * nu)
    # The displacement of a state is `dx + S us`.
    dx, S = e.gaps[0], np.zeros((nx, horizon * nu))
    for k in range(horizon):
        l = jax.tree.map(lambda a, k=k: a[k], e.stage)
        U = np.eye(horizon * nu)[k * nu : (k + 1) * nu]
        H += S.T @ l.xx @ S + U.T @ l.uu @ U + U.T @ l.ux @ S + S.T @ l.ux.T @ U
        g += S.T @ (l.x + l.xx @ dx) + U.T @ (l.u + l.ux @ dx)
        dx, S = e.A[k] @ dx + e.gaps[k + 1], e.A[k] @ S + e.B[k] @ U
    return H + S.T @ e.terminal.xx @ S, g + S.T @ (e.terminal.x + e.terminal.xx @ dx)


@jax.jit
def steps_in_a_box(e: Expansion, lower, upper):
    return linear_roll_out(e, backward_in_box(e, 0.0, lower, upper))[1]


def test_step_in_a_box_is_that_of_a_general_solver():
    e = linear_quadratic()
    width = np.random.default_rng(2).uniform(0.3, 3.0, size=(2, T, M))
    width[0, 2], width[:, 4, 0], width[1, 5] = 0.0, 0.0, np.inf
    lower, upper = -width[0], width[1]
    us = np.asarray(steps_in_a_box(e, lower, upper))
    H, g = cost_of_steps(e)
    best = scipy.optimize.minimize(
        lambda us: 0.5 * us @ H @ us + g @ us,
        np.zeros(T * M),
        jac=lambda us: H @ us + g,
        method="L-BFGS-B",
        bounds=list(zip(lower.ravel(), upper.ravel(), strict=True)),
        options={"ftol": 1e-15, "gtol": 1e-10, "maxiter": 2000},
    )
    held = (us == lower) | (us == upper)
    assert 3 < held.sum() < T * M - 3
    np.testing.assert_allclose(us.ravel(), best.x, atol=1e-6)


@pytest.mark.parametrize(("growth", "seed"), [(1.2, 30), (1.6, 42)])
def test_active_sets_of_an_unstable_motion_do_not_cycle(growth, seed):
    """Sets that change at all stages at once cycle in both cases."""
    rng, (horizon, n, m, bound) = np.random.default_rng(seed), (10, 3, 2, 0.3)
    A, B = growth * rng.normal(size=(horizon, n, n)) / np.sqrt(n), rng.normal(size=(horizon, n, m))
    zeros = (np.zeros((horizon, *shape)) for shape in ((), (n,), (m,), (n, n), (m, n)))
    stage = Quadratic(*zeros, np.broadcast_to(1e-2 * np.eye(m), (horizon, m, m)))
    end = Quadratic(np.zeros(()), rng.normal(size=n), np.zeros(0), np.eye(n), np.zeros((0, n)), np.zeros((0, 0)))
    gaps = np.zeros((horizon + 1, n))
    gaps[0] = rng.normal(size=n)
    e = Expansion(A, B, gaps, stage, end)
    box = np.full((horizon, m), bound)
    us = np.asarray(steps_in_a_box(e, -box, box))
    H, g = cost_of_steps(e)
    slopes = (H @ us.ravel() + g).reshape(us.shape)
    low, high = us <= -bound, us >= bound
    assert (low | high).any()
    assert (np.abs(us) <= bound * (1 + 1e-12)).all()
    assert (np.where(low, slopes, 1.0) >= 0).all()
    assert (np.where(high, slopes, -1.0) <= 0).all()
    assert (np.where(low | high, 0.0, np.abs(slopes)) <= 1e-8 * np.abs(slopes).max()).all()


@pytest.mark.slow
@pytest.mark.parametrize("disturbed", [False, True])
def test_analytic_derivatives_of_steps_are_those_on_the_manifold(disturbed):
    model = samples.random_tree(jax.random.key(3), 2, ("ball", "revolute"))
    matrix = np.random.default_rng(2).normal(size=(model.nv, 2))
    f_ext = np.random.default_rng(3).normal(size=(model.nb, 6))
    dynamics = ModelDynamics(model, 0.05, actuation=matrix, f_ext=f_ext)
    assert dynamics.nx > dynamics.ndx
    if disturbed:
        dynamics = with_disturbance(dynamics, jnp.linspace(-0.1, 0.2, dynamics.ndx))
    x = jnp.concatenate([model.random_configuration(jax.random.key(0)), jnp.linspace(-1, 1, model.nv)])
    u = jnp.array([0.4, -0.7])

    @jax.jit
    def both(x, u):
        after = dynamics.step(x, u, 0)
        return dynamics.linearize(x, u, 0, after), AbstractDynamics.linearize(dynamics, x, u, 0, after)

    for analytic, general in zip(*both(x, u), strict=True):
        np.testing.assert_allclose(analytic, general, atol=1e-10)


@pytest.mark.slow
def test_derivatives_of_residuals_on_a_manifold():
    """Those of a state's displacement from a target, and of a function of the coordinates, are those along
    displacements."""
    model = samples.random_tree(jax.random.key(3), 2, ("free", "revolute"))
    dynamics = ModelDynamics(model, 0.05)
    q0, q1 = model.random_configuration(jax.random.key(0), (2,))
    x, target = (jnp.concatenate([q, jnp.linspace(-1, 1, model.nv)]) for q in (q0, q1))
    squares = FunctionResidual(lambda x, u, t, params: x * x, of_state=True)
    for residual in (StateResidual(target), squares):

        def displaced(dx, residual=residual):
            return residual(dynamics, dynamics.integrate(x, dx), None, 0)

        general = jax.jit(jax.jacfwd(displaced))(jnp.zeros(dynamics.ndx))
        np.testing.assert_allclose(residual.linearize(dynamics, x, None, 0).by_x, general, atol=1e-12)


def test_whole_turns_of_continuous_joints_cost_nothing():
    builder = ModelBuilder()
    builder.add_body("rod", joint=Joint("continuous"), inertia=BodyInertia.sphere(1.0, 0.1, (0.0, 0.0, -0.5)))
    goal = QuadraticCost(StateResidual(np.array([0.0, 0.0])), 1.0)
    x0 = np.array([2 * np.pi, 0.0])
    problem = Problem(ModelDynamics(builder.build(), 0.05), x0, 5, stage_costs=[goal], terminal_costs=[goal])
    cost = jax.jit(lambda us: problem.total_cost(*problem.guess(us)))
    np.testing.assert_allclose(cost(np.zeros((5, 1))), 0.0, atol=1e-20)


def test_divergence_is_told_and_the_iterate_kept():
    grows = DiscreteDynamics(lambda x, u, t, p: x + x**3 + u, 1, 1)
    cost = QuadraticCost(StateResidual(), 1.0)
    problem, us = Problem(grows, np.ones(1), 30, stage_costs=[cost]), np.full((30, 1), 10.0)
    s = ddp(problem, us, problem.rollout(us))
    assert s.status == Status.DIVERGED
    assert "diverged" in s.message
    np.testing.assert_array_equal(s.us, 10.0)
    # Without states to start from, the solver starts from x0 repeated, because the roll-out diverges.
    found = ddp(problem, us)
    assert found.success, found.message
    # The controls cost nothing, so only the cost of the first state remains.
    np.testing.assert_allclose(found.cost, 0.5, rtol=1e-9)


def test_contradicting_constraints_are_told():
    problem = pendulum()
    problem = eqx.tree_at(lambda p: p.terminal_constraints[0].residual.target, problem, jnp.array([9.0, 0.0]))
    s = ddp(problem, options=TIGHT)
    assert not s.success
    assert s.residuals.violation > 1
    assert f"violation of a constraint is {s.residuals.violation:.2g}" in s.message
    assert np.isfinite(s.cost)


def two_forces(x, u, t, params):
    return jnp.array([x[1], u[0] + u[1]])


def scaled_speed(x, u, t, unit):
    return x[1:] / unit


def with_constant(x, u, t, constant):
    return constant + 5e-5 * u @ u


@functools.cache
def limited_body() -> Problem:
    """Return a body that two forces push along a line at a limited speed."""
    low = np.full((20, 2), -2.0)
    return Problem(
        ContinuousDynamics(two_forces, 2, 2, dt=0.1, integrator="rk4"),
        np.zeros(2),
        20,
        stage_costs=[FunctionCost(with_constant, jnp.asarray(0.0))],
        terminal_costs=[QuadraticCost(StateResidual(np.array([1.0, 0.0])), 0.01)],
        stage_constraints=[Constraint(FunctionResidual(scaled_speed, jnp.asarray(1.0), of_state=True), -0.4, 0.4)],
        control_lower=low,
        control_upper=-low,
    )


def changed(constant=0.0, unit=1.0, fixed=None, stages=slice(1)) -> Problem:
    """Return the problem with a constant in the cost of each stage, the speed in another unit, and forces that are
    fixed at some stages; all of them share one program."""
    p = limited_body()
    if fixed is None:
        low, high = p.control_lower, p.control_upper
    else:
        low, high = (bound.at[stages].set(fixed) for bound in (p.control_lower, p.control_upper))
    speed = Constraint(FunctionResidual(scaled_speed, jnp.asarray(unit), of_state=True), -0.4 / unit, 0.4 / unit)
    cost = FunctionCost(with_constant, jnp.asarray(constant))
    return eqx.tree_at(
        lambda p: (p.stage_costs, p.stage_constraints, p.control_lower, p.control_upper),
        p,
        ((cost,), (speed,), low, high),
    )


@pytest.mark.parametrize("change", [{"constant": 1e4}, {"constant": -1e6}, {"unit": 1e-6}, {"unit": 1e6}])
def test_a_constant_in_the_cost_and_units_of_constraints_change_no_solution(change):
    reference, s = ddp(limited_body()), ddp(changed(**change))
    # Judged without the constant, and with violations in meters per second.
    assert_optimal(limited_body(), s)
    assert s.iterations == reference.iterations
    assert_allclose(s.us, reference.us, atol=1e-8)


def rate_in_units(x, u, t, units):
    angle, speed = x / units[0]
    return units[0] * jnp.array([speed, 9.81 * jnp.sin(angle) + 3 * u[0] / units[1]])


def effort_in_units(x, u, t, units):
    return units[2] * 0.01 * ((u @ u) / units[1] ** 2 + (x @ x) / units[0] ** 2)


def distance_in_units(x, u, t, units):
    return units[2] * 10 * (x @ x) / units[0] ** 2


def in_units(state=1.0, control=1.0, cost=1.0) -> Problem:
    """Return the way of a pendulum from 3 rad to rest, in units of these sizes; all share one program."""
    units = jnp.array([state, control, cost])
    return Problem(
        ContinuousDynamics(rate_in_units, 2, 1, units, dt=0.1, integrator="rk4"),
        state * np.array([3.0, 0.0]),
        20,
        stage_costs=[FunctionCost(effort_in_units, units)],
        terminal_costs=[FunctionCost(distance_in_units, units)],
        control_lower=-3.0 * control,
        control_upper=3.0 * control,
    )


@pytest.mark.parametrize("units", [{"cost": 1e-12}, {"state": 1e6}, {"state": 1e-6, "cost": 1e-12}, {"control": 1e6}])
def test_units_change_no_solution_of_a_problem_with_bounds_on_controls_only(units):
    reference, s = ddp(in_units()), ddp(in_units(**units))
    assert reference.success
    assert s.success, s.message
    assert abs(s.iterations - reference.iterations) <= 2
    assert_allclose(s.us / units.get("control", 1.0), reference.us, atol=1e-7)


@pytest.mark.parametrize("stages", [slice(1), (slice(None), 1)])
def test_controls_with_equal_bounds_need_no_stationarity(stages):
    """The first controls are on their way; one actuator is broken."""
    problem = changed(fixed=0.3, stages=stages)
    s = ddp(problem)
    assert_optimal(problem, s)
    assert (s.us[stages] == 0.3).all()

    def cost(force):
        return ddp(changed(fixed=force, stages=stages), options=TIGHT).cost

    h = 1e-4
    assert_allclose(jax.grad(cost)(0.3), (cost(0.3 + h) - cost(0.3 - h)) / (2 * h), rtol=1e-5)


def test_contradicting_constraints_are_named_with_their_stages():
    """Fixed forces lead beyond the limit of the speed, at the fourth state."""
    problem = changed(fixed=-0.7, stages=slice(3))
    s = ddp(problem)
    assert s.status == Status.INFEASIBLE
    assert s.iterations < 300
    assert "contradict each other" in s.message
    assert_allclose(s.residuals.violation, 0.02, rtol=1e-6)
    assert "below its lower bound, at stage 3, stage_constraints[0] (FunctionResidual), component 0" in s.describe(
        problem
    )


@pytest.mark.parametrize("apart", [1e-3, 1e-5])
def test_constraints_that_contradict_each_other_by_little_are_infeasible(apart):
    """The solve ends at a stationary point of the violation: half of it on each side."""
    place = Selected(StateResidual(), [0])
    problem = Problem(
        ContinuousDynamics(two_forces, 2, 2, dt=0.1),
        np.zeros(2),
        20,
        stage_costs=[QuadraticCost(ControlResidual(), 0.01)],
        terminal_constraints=[Constraint(place, 1 + apart, np.inf), Constraint(place, -np.inf, 1.0)],
        control_lower=-2.0,
        control_upper=2.0,
    )
    s = ddp(problem)
    assert s.status == Status.INFEASIBLE
    assert_allclose(s.residuals.violation, apart / 2, rtol=1e-2)
    for i in range(2):
        assert f"at the end, terminal_constraints[{i}]" in s.describe(problem)
    possible = eqx.tree_at(lambda p: p.terminal_constraints[0].lower, problem, jnp.asarray(1 - apart))
    assert ddp(possible).success


def test_a_solve_that_takes_long_says_so(monkeypatch, caplog):
    monkeypatch.setattr("jaxdyn._waits.PATIENCE", 0.3)
    monkeypatch.setattr("jaxdyn._waits._threads", _waits._Threads())
    asleep = []

    def report(iteration, record, status):
        if asleep:
            time.sleep(asleep.pop())

    options = DDPOptions(progress=report)
    ddp(pendulum(), options=options)
    time.sleep(0.6)
    caplog.clear()
    asleep.append(0.6)
    ddp(pendulum(), options=options)
    (message,) = caplog.messages
    assert message.startswith("jaxdyn has been solving a problem of optimal control for ")


def pulled(x, u, t, params):
    return u[0] + params * u[0] ** 2


@pytest.mark.parametrize("limited", [False, True])
def test_costs_without_a_lower_bound_are_named(limited):
    problem = Problem(
        ContinuousDynamics(two_forces, 2, 2, dt=0.1),
        np.zeros(2),
        5,
        stage_costs=[FunctionCost(pulled, jnp.asarray(0.0)), QuadraticCost(Selected(ControlResidual(), [1]))],
        stage_constraints=[Constraint(Selected(StateResidual(), [1]), -np.inf, 1.0)] if limited else [],
    )
    s = ddp(problem)
    assert s.status == Status.UNBOUNDED
    assert "fall without end" in s.message
    # A little curvature gives it a least value, far away.
    curved = eqx.tree_at(lambda p: p.stage_costs[0].params, problem, jnp.asarray(1e-4))
    found = ddp(curved)
    assert found.status != Status.UNBOUNDED
    assert_allclose(found.cost, -5 / 4e-4, rtol=1e-6)


def test_bad_input():
    dynamics = ContinuousDynamics(pendulum_rate, 2, 1, jnp.asarray(3.0), dt=0.1)
    cost = QuadraticCost(StateResidual(), 1.0)
    x0 = np.zeros(2)
    make = functools.partial(Problem, dynamics, x0, 5, stage_costs=[cost])
    with pytest.raises(ModelError, match="horizon is 0"):
        Problem(dynamics, x0, 0, stage_costs=[cost])
    with pytest.raises(ModelError, match=r"box of the controls is infeasible.*lower 1, upper -1"):
        make(control_lower=1.0, control_upper=-1.0)
    with pytest.raises(ModelError, match="no costs"):
        Problem(dynamics, x0, 5)
    with pytest.raises(ModelError, match=r"stage_costs\[0\].weight has NaN"):
        Problem(dynamics, x0, 5, stage_costs=[QuadraticCost(StateResidual(), np.nan)])
    with pytest.raises(ModelError, match="infeasible"):
        Constraint(StateResidual(), 1.0, 0.0)
    with pytest.raises(ShapeError, match="x0 has shape"):
        Problem(dynamics, np.zeros(3), 5, stage_costs=[cost])
    with pytest.raises(ShapeError, match="control_upper has shape"):
        make(control_upper=np.ones(2))
    with pytest.raises(ShapeError, match="a weight has shape"):
        make(terminal_costs=[QuadraticCost(StateResidual(), np.ones(3))])
    with pytest.raises(ShapeError, match="first axis of length 5"):
        make(terminal_costs=[], stage_constraints=[TimeVarying(Constraint(StateResidual(np.zeros(2))))])
    with pytest.raises(ModelError, match="end of the horizon"):
        make(terminal_costs=[QuadraticCost(ControlResidual())])
    with pytest.raises(ModelError, match="needs ModelDynamics"):
        make(terminal_costs=[QuadraticCost(FramePositionResidual("tool", np.zeros(3)))])
    with pytest.raises(ShapeError, match="return"):
        ContinuousDynamics(lambda x, u, t, p: x[:1], 2, 1, dt=0.1)
    model = samples.chain(1)
    target = QuadraticCost(FramePositionResidual("no such", np.zeros(3)))
    with pytest.raises(UnknownNameError, match="no frame named 'no such'"):
        Problem(ModelDynamics(model, 0.1), np.zeros(2), 5, terminal_costs=[target])
    with pytest.raises(ModelError, match="integrator is 'rk5'"):
        ModelDynamics(model, 0.1, integrator="rk5")
    with pytest.raises(ShapeError, match="us has shape"):
        ddp(make(), np.zeros((4, 1)))
    with pytest.raises(ModelError, match="hessian is"):
        DDPOptions(hessian="exact")
    with pytest.raises(ModelError, match="not finite at stage 0"):
        ddp(Problem(dynamics, x0, 5, stage_costs=[FunctionCost(lambda x, u, t, p: jnp.log(x[0] - 1))]))


def pushed_pendulum(f_ext) -> Problem:
    """Return a short swing of a double pendulum under external wrenches."""
    up = QuadraticCost(StateResidual(np.array([0.4, -0.2, 0.0, 0.0])), 2.0)
    dynamics = ModelDynamics(samples.double_pendulum(), 0.05, f_ext=f_ext)
    effort = QuadraticCost(ControlResidual(), 0.1)
    return Problem(dynamics, np.array([0.1, 0.2, 0.0, 0.3]), 4, stage_costs=[effort], terminal_costs=[up])


@pytest.mark.slow
def test_external_wrenches_act_on_the_robot():
    """Zero wrenches change nothing, each row acts in its own stage, and gradients equal central differences."""
    rng = np.random.default_rng(0)
    x, u = jnp.array([0.1, 0.2, -0.3, 0.3]), jnp.array([0.5, -0.2])
    nb = samples.double_pendulum().nb
    plain, zero = pushed_pendulum(None).dynamics, pushed_pendulum(np.zeros((nb, 6))).dynamics
    np.testing.assert_allclose(zero.step(x, u, 0), plain.step(x, u, 0), atol=1e-14)
    for ours, theirs in zip(zero.linearize(x, u, 0, x), plain.linearize(x, u, 0, x), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-12)
    wrenches, us = rng.normal(size=(4, nb, 6)), jnp.asarray(rng.normal(size=(4, 2)))
    varying = pushed_pendulum(wrenches)
    constant = pushed_pendulum(wrenches[2]).dynamics
    np.testing.assert_allclose(varying.dynamics.step(x, u, 2), constant.step(x, u, 0), atol=1e-14)
    assert np.abs(varying.dynamics.step(x, u, 2) - plain.step(x, u, 2)).max() > 1e-3

    def cost(f_ext):
        problem = eqx.tree_at(lambda p: p.dynamics.f_ext, varying, f_ext)
        return problem.total_cost(problem.rollout(us), us)

    check_derivatives(cost, wrenches, rtol=1e-7)
    with pytest.raises(ShapeError, match="f_ext has shape"):
        pushed_pendulum(np.zeros((nb + 1, 6)))
    with pytest.raises(ShapeError, match="f_ext has 3 rows, but the horizon has 4 stages"):
        pushed_pendulum(wrenches[:3])


@pytest.mark.slow
def test_derivative_of_a_solution_by_external_wrenches():
    wrenches = jnp.asarray(np.random.default_rng(1).normal(size=(samples.double_pendulum().nb, 6)))

    def outcome(s):
        solution = ddp(pushed_pendulum(s * wrenches), options=TIGHT)
        return solution.cost + solution.us.sum()

    check_derivatives(outcome, 1.0, modes=["reverse"], step=1e-5, rtol=1e-5)


def test_wrong_input_is_named():
    rod = samples.pendulum()
    with pytest.raises(ModelError, match=r"dt is -0.05; a positive, finite number is needed"):
        ModelDynamics(rod, dt=-0.05)
    with pytest.raises(ModelError, match="tolerance is -1e-09"):
        DDPOptions(tolerance=-1e-9)
    with pytest.raises(ModelError, match="max_iterations is 0; a positive integer"):
        DDPOptions(max_iterations=0)
    costs = [QuadraticCost(FunctionResidual(lambda x, u, t, p: x + u[0], of_state=True))]
    with pytest.raises(ModelError, match=r"of_state=True, so its function gets None as u"):
        Problem(ModelDynamics(rod, dt=0.05), x0=jnp.zeros(2), horizon=5, stage_costs=costs)
    costs = [QuadraticCost(FunctionResidual(lambda x, u, t, p: x if u is None else x + u[0], of_state=True))]
    with pytest.raises(ModelError, match=r"of_state=True, but its value depends on the control"):
        Problem(ModelDynamics(rod, dt=0.05), x0=jnp.zeros(2), horizon=5, stage_costs=costs)


def test_contradicting_constraints_are_not_blamed_where_there_are_none():
    bad = FunctionResidual(lambda x, u, t, p: jnp.sqrt(x[:1] ** 2), of_state=True)
    dynamics = DiscreteDynamics(lambda x, u, t, params: x + jnp.sin(u), 1, 1)
    problem = Problem(dynamics, x0=jnp.zeros(1), horizon=2, stage_costs=[QuadraticCost(bad)])
    with pytest.warns(NotConvergedWarning, match=r"derivative of stage_costs\[0\] \(FunctionResidual\)"):
        solution = ddp(problem)
    assert solution.status == Status.DIVERGED
    assert "contradict" not in solution.message
    assert "derivative of stage_costs[0]" in solution.describe(problem)


def test_steps_are_not_paid_by_infeasibility():
    """A step lowers the objective and increases the infeasibility; half of it decreases both. The whole step is taken
    only where the lower objective is worth what the infeasibility costs at the multipliers, and where infeasibilities
    of this size are common."""

    @jax.jit
    def part(price, common):
        def point(infeasibility, objective):
            merits = objective + price * infeasibility * jnp.array([1.0, 2.0])
            return Point(jnp.zeros(1), jnp.zeros(1), jnp.zeros(1), infeasibility, objective, merits)

        def step(alpha):
            return point(jnp.where(alpha > 0.5, 1.0, 0.0), -alpha), -alpha

        start = point(jnp.asarray(0.1), jnp.asarray(0.0))
        yes, no = jnp.array(True), jnp.array(False)
        rules = {"watched": no, "priced": no, "forced": no}
        return search(start, Filter.empty(jnp.float64), common, step, jnp.asarray(1.0), yes, 1.0, **rules).alpha

    assert part(0.5, 1.0) == 1.0
    assert part(4.0, 1.0) == 0.5
    assert part(0.5, 0.3) == 0.5


def hanging(**more) -> Problem:
    """Return the swing-up of a pendulum that hangs at rest. Without a torque, the derivatives of its cost are zero, and
    Gauss-Newton does not see that its curvature is negative."""
    below = FunctionResidual(lambda x, u, t, _: 1 + jnp.cos(x[:1]), of_state=True)
    return Problem(
        ContinuousDynamics(pendulum_rate, 2, 1, jnp.asarray(9.81), dt=0.1),
        np.zeros(2),
        20,
        stage_costs=[QuadraticCost(ControlResidual(), 1e-2)],
        terminal_costs=[QuadraticCost(below, 100.0)],
        **more,
    )


@pytest.mark.parametrize("limits", ["none", "box", pytest.param("one_sided", marks=pytest.mark.slow), "constraint"])
def test_a_maximum_is_left(limits):
    more = {
        "none": {},
        "box": {"control_lower": -8.0, "control_upper": 8.0},
        "one_sided": {"control_lower": 0.0, "control_upper": 8.0},
        "constraint": {"stage_constraints": [Constraint(Selected(StateResidual(), [1]), -4.0, 4.0)]},
    }
    problem = hanging(**more[limits])
    s = ddp(problem)
    assert s.success, s.message
    # The cost is 200 where it hangs.
    assert s.cost < 150
    assert problem.violation(s.xs, s.us) <= 1e-6
    if limits == "constraint":
        # Where a speed is at its limit, the cost may be concave along directions that are not allowed.
        return
    hessian = jax.jit(jax.hessian(lambda us: problem.total_cost(problem.rollout(us), us)))
    us = np.asarray(s.us)[:, 0]
    free = np.flatnonzero((us > problem.control_lower) & (us < problem.control_upper))
    assert np.linalg.eigvalsh(np.asarray(hessian(s.us))[:, 0, :, 0][np.ix_(free, free)])[0] > 0


def idle(weight) -> Problem:
    """Return a problem with a control that moves nothing, and has a cost of this weight."""
    return Problem(
        ContinuousDynamics(pendulum_rate, 2, 2, jnp.asarray(2.0), dt=0.1),
        np.array([0.4, 0.0]),
        5,
        stage_costs=[QuadraticCost(StateResidual()), QuadraticCost(ControlResidual(), jnp.stack([0.1, weight]))],
        terminal_costs=[QuadraticCost(StateResidual(), 10.0)],
    )


def test_a_minimum_without_curvature_is_one_and_derivatives_say_that_it_is_not_the_only_one():
    slope = jax.jit(jax.grad(lambda x, weight: ddp(idle(weight).starting_at(x)).cost))

    def ended(weight):
        result = jax.block_until_ready(slope(jnp.array([0.4, 0.0]), weight))
        jax.effects_barrier()
        return result

    assert ddp(idle(jnp.asarray(0.0))).success
    with pytest.warns(NotConvergedWarning, match="not unique"):
        missing = ended(0.0)
    assert np.isnan(missing).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isfinite(ended(0.1)).all()


def crane(limit=2.0) -> Problem:
    """Return a load on a rope that a trolley moves by 3 m; swinging costs, and controls do not."""

    def rate(x, u, t, _):
        x, v, angle, turn = x
        return jnp.array([v, u[0], turn, -9.81 * jnp.sin(angle) - u[0] * jnp.cos(angle)])

    return Problem(
        ContinuousDynamics(rate, 4, 1, dt=0.1),
        np.zeros(4),
        40,
        stage_costs=[QuadraticCost(Selected(StateResidual(), [2, 3]))],
        terminal_constraints=[Constraint(StateResidual(np.array([3.0, 0.0, 0.0, 0.0])))],
        control_lower=None if limit is None else -limit,
        control_upper=limit,
    )


def crane_without_bounds() -> Problem:
    return crane(None)


def past_obstacles() -> Problem:
    """Return a motion at constant speed past two circles, whose cost is the same for all controls (PSOPT's example
    obstacle, Becerra, Solving complex optimal control problems at no cost with PSOPT, 2010)."""
    speed, stages = 2.138, 50

    def velocity(u):
        return speed * jnp.array([jnp.cos(u[0]), jnp.sin(u[0])])

    def clearance(x, u, t, _):
        return ((x - jnp.array([[0.4, 0.5], [0.8, 1.5]])) ** 2).sum(axis=1)

    return Problem(
        ContinuousDynamics(lambda x, u, t, _: velocity(u), 2, 1, dt=1 / stages),
        np.zeros(2),
        stages,
        stage_costs=[FunctionCost(lambda x, u, t, _: (velocity(u) ** 2).sum() / stages)],
        stage_constraints=[Constraint(FunctionResidual(clearance, of_state=True), 0.1, np.inf)],
        terminal_constraints=[Constraint(StateResidual(np.array([1.2, 1.6])))],
        control_lower=-10.0,
        control_upper=10.0,
    )


@pytest.mark.parametrize(
    ("make", "guess"),
    [(crane, 0.0), pytest.param(crane_without_bounds, 0.0, marks=pytest.mark.slow), (past_obstacles, 0.5)],
)
def test_controls_without_a_cost(make, guess):
    problem = make()
    s = ddp(problem, guess)
    assert s.success, s.message
    assert problem.violation(s.xs, s.us) <= 1e-6
    assert s.iterations <= 150
