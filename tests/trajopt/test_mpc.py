"""Model predictive control compiles once, starts warm, follows moving references and tolerates wrong models."""

import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdyn import ModelError, ShapeError
from jaxdyn.trajopt import (
    MPC,
    AbstractDynamics,
    Constraint,
    ContinuousDynamics,
    ControlResidual,
    DDPOptions,
    FunctionCost,
    FunctionResidual,
    Latency,
    PredictiveSamplingOptions,
    Problem,
    QuadraticCost,
    Selected,
    StateResidual,
    Status,
    closed_loop,
    ddp,
)
from jaxdyn.trajopt.ddp import host_microseconds
from jaxdyn.trajopt.problem import with_disturbance
from tests.compilations import compilations
from tests.trajopt.optimality import assert_optimal

DT, HORIZON = 0.05, 12
traces = 0


def rate(x, u, t, mass):
    """Return the rate of a pendulum of 1 m; the angle is zero where it hangs."""
    return jnp.array([x[1], (u[0] - 9.81 * mass * jnp.sin(x[0])) / mass])


def off_reference(x, u, t, amplitude):
    global traces
    traces += 1
    return jnp.array([x[0] - amplitude * jnp.sin(2 * t), 0.1 * (x[1] - 2 * amplitude * jnp.cos(2 * t))])


def problem(mass=1.0, amplitude=0.3, effort=1e-4, x0=(0.0, 0.0)) -> Problem:
    off = FunctionResidual(off_reference, jnp.asarray(amplitude), of_state=True)
    speed = Constraint(Selected(StateResidual(), [1]), -2.0, 2.0)
    return Problem(
        ContinuousDynamics(rate, 2, 1, jnp.asarray(mass), dt=DT),
        np.array(x0),
        HORIZON,
        stage_costs=[QuadraticCost(off, DT), QuadraticCost(ControlResidual(), effort * DT)],
        terminal_costs=[QuadraticCost(off, 1.0)],
        control_lower=-20.0,
        control_upper=20.0,
        stage_constraints=[speed],
    )


ITERATIONS = 8
"""After four from a cold start no multiplier is known yet."""
OPTIONS = DDPOptions(max_iterations=ITERATIONS)


@pytest.fixture(scope="module")
def mpc() -> MPC:
    return MPC(problem(), OPTIONS)


def plant(mass):
    dynamics = problem(mass).dynamics
    return jax.jit(lambda x, u: dynamics.step(x, u, 0))


def test_one_compilation_serves_all_steps_and_other_numbers(mpc):
    plan = mpc.start(np.array([0.1, 0.0]))
    _, plan, _ = mpc.step(plan, np.array([0.1, 0.0]))
    before = traces
    for k in range(3):
        u, plan, solution = mpc.step(plan, np.array([0.1 * k, 0.2]))
        assert u.shape == (1,)
        assert int(solution.iterations) <= ITERATIONS
    assert traces == before
    controller = MPC(problem(1.3, 0.2, 1e-3), DDPOptions(max_iterations=2))
    plan = controller.start(np.zeros(2))
    # The checks of a new problem trace its costs; the steps do not.
    before = traces
    _, _, solution = controller.step(plan, np.array([0.5, 0.0]))
    assert int(solution.iterations) <= 2
    assert traces == before


def test_the_plan_is_the_solution_shifted(mpc):
    x = np.array([1.0, -1.9])
    plan = mpc.start(x, 0.5, t=0.2)
    u, after, solution = mpc.step(plan, x)
    np.testing.assert_array_equal(u, solution.us[0])
    np.testing.assert_array_equal(after.us[:-1], solution.us[1:])
    np.testing.assert_array_equal(after.us[-1], solution.us[-1])
    np.testing.assert_array_equal(after.xs[:-1], solution.xs[1:])
    np.testing.assert_allclose(after.xs[-1], problem().step(solution.xs[-1], solution.us[-1], 0), rtol=1e-12)
    np.testing.assert_array_equal(after.multipliers.stage[:-1], solution.multipliers.stage[1:])
    assert float(jnp.abs(after.multipliers.stage).max()) > 0
    assert float(after.t) == pytest.approx(0.2 + DT)
    np.testing.assert_allclose(after.nominal, problem().step(jnp.asarray(x), u, 0), rtol=1e-12)


def test_a_warm_start_needs_fewer_iterations_and_follows_a_moving_reference(mpc):
    """Stages see the true time, so the error stays small for a reference that is a function of time."""
    loop = closed_loop(mpc, plant(1.0), np.zeros(2), 60)
    t = DT * np.arange(61)
    assert np.abs(loop.xs[:, 0] - 0.3 * np.sin(2 * t))[20:].max() < 0.01
    assert loop.compilations == 0
    assert loop.iterations[20:].mean() < loop.iterations[0]
    assert (loop.status[20:] == Status.CONVERGED).mean() > 0.9
    assert "steps converged" in loop.message
    assert loop.latency.seconds.shape == (60,)
    assert 0 < loop.latency.p50 <= loop.latency.p99 <= loop.latency.worst
    assert "p99" in str(loop.latency)


def test_a_state_that_is_not_a_number_leaves_the_plan(mpc):
    x = np.array([0.1, 0.0])
    _, plan, _ = mpc.step(mpc.start(x), x)
    u, after, solution = mpc.step(plan, np.array([np.nan, 0.0]))
    assert solution.status == Status.DIVERGED
    np.testing.assert_array_equal(u, plan.us[0])
    assert np.isfinite(after.us).all()
    assert np.isfinite(after.xs).all()
    _, _, solution = mpc.step(after, x)
    assert solution.status != Status.DIVERGED


def test_steps_that_converge_are_solutions_of_the_problems_at_their_times(mpc):
    x, advance = np.zeros(2), plant(1.0)
    plan = mpc.start(x)
    converged = 0
    for _ in range(10):
        t = plan.t
        u, plan, solution = mpc.step(plan, x)
        if solution.status == Status.CONVERGED:
            assert_optimal(eqx.tree_at(lambda p: p.dynamics.t0, problem(x0=x), t), solution)
            converged += 1
        x = np.asarray(advance(x, u))
    assert converged >= 5


def at_time(p: Problem, t) -> Problem:
    """Return the problem with another amplitude from 1 s on."""
    return eqx.tree_at(lambda p: p.stage_costs[0].residual.params, p, jnp.where(t < 1.0, 0.3, 0.1))


# Predictive sampling compiles in a fraction of the time of DDP.
SAMPLES = PredictiveSamplingOptions(samples=16, max_iterations=2, sigma=2.0, knots=4)


@pytest.mark.slow
def test_leaves_move_by_a_function_of_time_or_by_another_problem():
    x = np.array([0.2, 0.1])
    moving, fixed = MPC(problem(), SAMPLES, at_time=at_time), MPC(problem(), SAMPLES)
    u, _, solution = moving.step(moving.start(x, t=1.5), x)
    later = at_time(problem(), jnp.asarray(1.5))
    same, _, _ = fixed.step(fixed.start(x, t=1.5), x, later)
    np.testing.assert_allclose(u, same, rtol=1e-9)
    _, _, before = fixed.step(fixed.start(x, t=1.5), x, problem())
    assert abs(float(solution.cost - before.cost)) > 1e-5


@pytest.mark.slow
def test_a_wrong_mass_is_made_up_for(mpc):
    """Estimating the disturbance more than halves the error when the plant is 30 % heavier than the model."""
    t = DT * np.arange(81)
    errors = []
    for controller in (mpc, MPC(problem(), OPTIONS, disturbance_gain=0.5)):
        loop = closed_loop(controller, plant(1.3), np.zeros(2), 80)
        errors.append(np.sqrt(np.mean((loop.xs[:, 0] - 0.3 * np.sin(2 * t))[40:] ** 2)))
        assert loop.compilations == 0
    assert errors[1] < 0.5 * errors[0]


@pytest.mark.slow
def test_steps_under_scan_and_vmap():
    """A closed loop that runs as one program for a batch of plants equals the loop on the host."""
    masses = jnp.array([0.9, 1.3])
    controller = MPC(problem(), SAMPLES)
    dynamics = problem().dynamics

    def loop(mass):
        plant_dynamics = eqx.tree_at(lambda d: d.params, dynamics, mass)

        def advance(carry, k):
            plan, x = carry
            u, plan, _ = controller.step(plan, x)
            return (plan, plant_dynamics.step(x, u, k)), u

        x0 = jnp.zeros(2)
        return jax.lax.scan(advance, (controller.start(x0), x0), jnp.zeros(6))[1]

    us = jax.jit(jax.vmap(loop))(masses)
    host = closed_loop(controller, plant(1.3), np.zeros(2), 6)
    np.testing.assert_allclose(us[1], host.us, rtol=1e-6, atol=1e-9)
    assert not np.allclose(us[0], us[1])
    assert host.compilations == 0


class Positive(AbstractDynamics):
    """Dynamics of positive numbers that factors displace; the states do not form a vector space."""

    dt: jax.Array
    t0: jax.Array
    nx, ndx, nu = 2, 2, 1
    euclidean = False

    def step(self, x, u, k):
        return jnp.array([x[0] * jnp.exp(0.3 * x[1]), x[1] * jnp.exp(u[0] * x[0])])

    def neutral(self):
        return jnp.ones(2)

    def integrate(self, x, dx):
        # These displacements do not commute, like those of rotations.
        first = x[0] * jnp.exp(dx[0])
        return jnp.stack([first, x[1] * jnp.exp(dx[1] * (1 + first))])

    def difference(self, x0, x1):
        return jnp.stack([jnp.log(x1[0] / x0[0]), jnp.log(x1[1] / x0[1]) / (1 + x1[0])])


@pytest.mark.parametrize("inner", [Positive(jnp.asarray(DT), jnp.asarray(0.0)), problem().dynamics])
def test_disturbed_dynamics_arrive_displaced(inner):
    """The disturbance displaces the next state in the tangent space, and the derivatives include it."""
    off = with_disturbance(inner, jnp.array([0.1, -0.2]))
    x, u = jnp.array([0.7, 1.2]), jnp.array([0.4])

    @jax.jit
    def computed(off, inner, x, u):
        after = off.step(x, u, 0)
        exact = AbstractDynamics.linearize(off, x, u, 0, after)
        return inner.difference(inner.step(x, u, 0), after), off.linearize(x, u, 0, after), exact

    moved, linearized, exact = computed(off, inner, x, u)
    np.testing.assert_allclose(moved, [0.1, -0.2], atol=1e-12)
    for ours, theirs in zip(linearized, exact, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-10)
    assert off.euclidean == inner.euclidean


def test_latency():
    latency = Latency(np.arange(1, 101) * 1e-3)
    assert latency.p50 == pytest.approx(0.0505)
    assert latency.p99 == pytest.approx(0.09901)
    assert latency.worst == pytest.approx(0.1)
    assert str(latency) == "p50 50.50 ms, p99 99.01 ms, worst 100.00 ms"


def test_mistakes_are_named(mpc):
    with pytest.raises(ShapeError, match="`solver` is a str"):
        MPC(problem(), "ddp")
    with pytest.raises(ModelError, match="an MPC needs a Problem"):
        MPC(OPTIONS)
    with pytest.raises(ModelError, match="disturbance_gain is 2"):
        MPC(problem(), disturbance_gain=2)
    with pytest.raises(ShapeError, match="x0 has shape"):
        mpc.start(np.zeros(3))
    with pytest.raises(ShapeError, match="x0 has shape"):
        mpc.step(mpc.start(np.zeros(2)), np.zeros(3))
    with pytest.raises(ModelError, match="steps is 0"):
        closed_loop(mpc, plant(1.0), np.zeros(2), 0)
    with pytest.raises(ShapeError, match="the plant returned the shape"):
        closed_loop(mpc, lambda x, u: x[:1], np.zeros(2), 1)
    with pytest.raises(ModelError, match="not finite after step 0"):
        closed_loop(mpc, lambda x, u: x * np.nan, np.zeros(2), 1)


def test_no_time_ends_after_an_iteration_and_enough_time_changes_nothing():
    """The limit is a number of the compiled step, and the iterate that is returned has been measured."""
    x = np.array([0.6, 1.0])
    ended = []
    for limit in (1e-9, 1e3):
        controller = MPC(problem(), DDPOptions(max_iterations=40, time_limit=limit))
        ended.append(controller.step(controller.start(x), x)[2])
    assert ended[0].status == Status.OUT_OF_TIME
    assert ended[0].iterations == 1
    assert np.isfinite(ended[0].us).all()
    assert ended[1].success
    assert ended[1].iterations > 1


def test_the_time_limit_is_that_of_the_whole_step(monkeypatch):
    """The call of the step has taken two seconds when the solve begins."""
    x = np.array([0.6, 1.0])
    controller = MPC(problem(), DDPOptions(max_iterations=40, time_limit=1.0))
    plan = controller.start(x)
    delays = iter([np.int32(2_000_000)])
    monkeypatch.setattr(
        "jaxdyn.trajopt.mpc._mpc.host_microseconds", lambda: host_microseconds() - next(delays, np.int32(0))
    )
    _, after, solution = controller.step(plan, x)
    assert solution.status == Status.OUT_OF_TIME
    assert solution.iterations == 1
    # Such a delay, as of a compilation, takes little time from the next step.
    assert after.reserve == pytest.approx(0.05)


def test_searches_within_an_iteration_end_when_the_time_is_up(monkeypatch):
    """Each look at the clock takes a second. The concave cost needs a regularization of about its curvature."""
    seconds = iter(range(1000))
    # The package's name is that of its function.
    clock = sys.modules["jaxdyn.trajopt.ddp._clock"]
    monkeypatch.setattr(clock, "host_microseconds", lambda: np.array(next(seconds) * 10**6, np.int32))
    concave = Problem(
        ContinuousDynamics(lambda x, u, t, _: u, 1, 1, dt=1.0),
        np.ones(1),
        3,
        stage_costs=[FunctionCost(lambda x, u, t, _: u @ u - 10 * x @ x)],
    )
    found = ddp(concave, options=DDPOptions(time_limit=1.5, hessian="full", history=1))
    assert found.status == Status.OUT_OF_TIME
    assert found.iterations == 1
    assert 0 < found.history.regularization[0] < 1e-6


def test_time_by_which_a_step_ends_late_is_kept_free_in_the_next_one(monkeypatch):
    """The clock says that the step has ended ten seconds after its limit, and with so much less there is no time."""
    x, late = np.array([0.6, 1.0]), iter((0, 60))
    controller = MPC(problem(), DDPOptions(max_iterations=40, time_limit=50.0))
    plan = controller.start(x)
    monkeypatch.setattr(
        "jaxdyn.trajopt.mpc._mpc.host_microseconds", lambda: host_microseconds() + np.int32(next(late) * 10**6)
    )
    _, after, solution = controller.step(plan, x)
    assert solution.success
    assert after.reserve == pytest.approx(2.5)
    monkeypatch.undo()
    _, later, solution = controller.step(eqx.tree_at(lambda p: p.reserve, plan, 20 * after.reserve), x)
    assert solution.status == Status.OUT_OF_TIME
    assert solution.iterations == 1
    assert 49 < later.reserve < 50


def test_a_plant_outside_of_what_the_model_allows_is_led_back():
    """No control keeps the limit of speed at once, so the violation is small instead of zero."""
    x = np.array([0.0, 4.0])
    controller = MPC(problem(), DDPOptions(max_iterations=30))
    u, plan, solution = controller.step(controller.start(x), x)
    assert not solution.success
    # The torque's limit is 20, which slows the pendulum by about 1 rad/s in each step.
    assert u[0] < -19
    assert jnp.abs(plan.xs[2:, 1]).max() <= 2.1
    assert solution.status == Status.LEAST_VIOLATION
    assert solution.residuals.violation == pytest.approx(float(jnp.abs(plan.xs[0, 1])) - 2, rel=1e-6)
    # A heavier plant comes back as well, and the record says when it was outside.
    loop = closed_loop(controller, plant(1.3), x, 20)
    assert jnp.abs(loop.xs[5:, 1]).max() <= 2.05
    assert loop.status[0] == Status.LEAST_VIOLATION
    assert loop.violation[0] > 0.5
    assert loop.violation[-1] < 1e-6
    assert "steps least violation" in loop.message


# Real-time iterations.


def free_problem(x0=(0.0, 0.0), target=0.3, weight=1.0) -> Problem:
    """A pendulum that is led to an angle, with bounds on its torque only."""
    off = StateResidual(np.array([target, 0.0]))
    return Problem(
        ContinuousDynamics(rate, 2, 1, jnp.asarray(1.0), dt=DT),
        np.array(x0),
        HORIZON,
        stage_costs=[
            QuadraticCost(off, weight * DT * np.array([10.0, 0.1])),
            QuadraticCost(ControlResidual(), 1e-3 * DT),
        ],
        terminal_costs=[QuadraticCost(off, weight * np.array([10.0, 0.1]))],
        control_lower=-6.0,
        control_upper=6.0,
    )


@pytest.fixture(scope="module")
def real_time() -> MPC:
    return MPC(free_problem(), DDPOptions(max_iterations=1, hessian="gauss_newton"))


def test_feedback_is_the_step_of_a_full_iteration(real_time):
    """An iteration from the measured state takes the same step of the linear model."""
    # Weights with which no torque comes to its bounds.
    plan, gentle = real_time.start(np.zeros(2), 0.5), free_problem(weight=0.01)
    prepared = real_time.prepare(plan, gentle)
    for size in (0.05, 0.2):
        x = size * np.array([1.0, -0.5])
        u, after, found = real_time.feedback(prepared, x)
        wanted, _, full = real_time.step(plan, x, gentle)
        np.testing.assert_allclose(u, wanted, rtol=1e-9)
        np.testing.assert_allclose(found.us, full.us, rtol=1e-9)
        np.testing.assert_allclose(found.xs, full.xs, rtol=1e-9, atol=1e-12)
        np.testing.assert_array_equal(found.xs[0], x)
        np.testing.assert_array_equal(after.us[:-1], found.us[1:])
        assert float(after.t) == pytest.approx(DT)


def test_real_time_iterations_lead_to_the_target_and_compile_once(real_time):
    """The plant is another one, targets and weights change, and nothing compiles after the first cycle. Between two
    controls the gains of the solution serve."""
    x, advance, plan = np.array([-0.4, 0.5]), plant(1.1), real_time.start(np.array([-0.4, 0.5]))

    def cycle(plan, x, problem):
        u, plan, solution = real_time.feedback(real_time.prepare(plan, problem), x)
        np.testing.assert_allclose(real_time.track(solution, x, 0.0), u, atol=1e-9)
        return plan, np.asarray(advance(x, u)), solution

    plan, x, _ = cycle(plan, x, free_problem())
    others = [free_problem(target=0.3 if k < 30 else -0.2, weight=2.0) for k in range(60)]
    with compilations() as compiled:
        for k, other in enumerate(others):
            plan, x, solution = cycle(plan, x, other)
            if k == 29:
                assert abs(x[0] - 0.3) < 0.05
    assert not compiled
    assert abs(x[0] + 0.2) < 0.05
    assert abs(x[1]) < 0.02
    assert np.abs(solution.us).max() <= 6.0
    # The reference moves to the next state within the period, and the bounds hold there, too.
    between = real_time.problem.dynamics.integrate(
        solution.xs[0], 0.5 * real_time.problem.dynamics.difference(*solution.xs[:2])
    )
    np.testing.assert_allclose(real_time.track(solution, between, 0.5 * DT), solution.us[0], atol=1e-9)
    assert real_time.track(solution, between - 10.0, 0.5 * DT) == 6.0


def test_a_state_far_away_keeps_the_bounds_and_one_that_is_not_a_number_the_plan(real_time):
    plan = real_time.start(np.zeros(2), 0.5)
    prepared = real_time.prepare(plan)
    u, after, _ = real_time.feedback(prepared, np.array([-3.0, -8.0]))
    assert u[0] == 6.0
    assert np.abs(after.us).max() <= 6.0
    u, after, solution = real_time.feedback(prepared, np.array([np.nan, 0.0]))
    assert solution.status == Status.DIVERGED
    np.testing.assert_array_equal(u, plan.us[0])
    np.testing.assert_array_equal(real_time.track(solution, np.zeros(2), 0.01), u)
    assert np.isfinite(after.xs).all()


def test_a_preparation_improves_the_plan_until_its_time_is_up():
    """With no time one iteration and the linearization are done, with enough the plan is a solution from the predicted
    state, whose feedback there is zero."""
    x, options = np.array([0.6, 1.0]), DDPOptions(max_iterations=40, hessian="gauss_newton")
    ended = []
    for limit in (1e-9, 1e3):
        controller = MPC(
            free_problem(), eqx.tree_at(lambda o: o.time_limit, options, limit, is_leaf=lambda a: a is None)
        )
        prepared = controller.prepare(controller.start(x, 0.5))
        u, after, solution = controller.feedback(prepared, x)
        assert np.isfinite(after.us).all()
        ended.append((prepared, np.abs(solution.gains.feedforward).max(), float(u[0])))
    exact = ddp(free_problem(x), 0.5 * np.ones((HORIZON, 1)), options=options)
    assert ended[1][1] < 1e-5
    assert ended[0][1] > 100 * ended[1][1]
    assert ended[1][2] == pytest.approx(float(exact.us[0, 0]), rel=1e-6)
    # The time beyond the limit is kept free by the next preparations.
    assert ended[0][0].plan.reserve > 0


def test_mistakes_of_real_time_iterations_are_named(mpc, real_time):
    with pytest.raises(ModelError, match="prepare needs a problem without constraints"):
        mpc.prepare(mpc.start(np.zeros(2)))
    sampling = MPC(free_problem(), SAMPLES)
    with pytest.raises(ModelError, match="prepare needs DDPOptions"):
        sampling.prepare(sampling.start(np.zeros(2)))
    prepared = real_time.prepare(real_time.start(np.zeros(2)))
    with pytest.raises(ShapeError, match="x0 has shape"):
        real_time.feedback(prepared, np.zeros(3))
    solution = real_time.feedback(prepared, np.zeros(2))[2]
    with pytest.raises(ModelError, match="track needs a solution with gains"):
        real_time.track(eqx.tree_at(lambda s: s.gains, solution, None), np.zeros(2), 0.0)
