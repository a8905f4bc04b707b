"""Wrapped dynamics, soft constraints and limits from models: derivatives by differentiation, values by hand."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import SE3, ModelError, ShapeError, UnknownNameError
from jaxdyn.trajopt import (
    AbstractCost,
    AbstractDynamics,
    AbstractResidual,
    Constraint,
    ContinuousDynamics,
    ControlRateResidual,
    ControlResidual,
    DurationCost,
    FirstStateDynamics,
    FramePoseResidual,
    FrameVelocityResidual,
    FreeTimeDynamics,
    FunctionResidual,
    InnerResidual,
    ModelDynamics,
    ParameterDynamics,
    ParameterResidual,
    PeriodicResidual,
    PhasedDynamics,
    PreviousControlDynamics,
    Problem,
    QuadraticCost,
    RelaxedBarrierCost,
    RollingVelocityResidual,
    Selected,
    SmoothAbsCost,
    SoftConstraintCost,
    StateResidual,
    StepLengthResidual,
    TimeVarying,
    UprightResidual,
    ddp,
    effort_bounds,
    limit_constraints,
)
from jaxdyn.trajopt.problem import quadratic_expansion, with_disturbance
from tests import draws
from tests.trajopt.trajopt_problems import pendulum_rate


def double_integrator(x, u, t, params):
    return jnp.array([x[1], u[0]])


def with_length_of_step(dynamics, p):
    return eqx.tree_at(lambda d: d.dt, dynamics, p[0])


PENDULUM = ContinuousDynamics(pendulum_rate, 2, 1, dt=0.1)
FREE_BASE = ModelDynamics(jaxdyn.samples.random_tree(jax.random.key(0), 2, ("free", "revolute")), 0.05)
TIP = list(FREE_BASE.model.frames)[-1]
WRAPPED = {
    "memory": PreviousControlDynamics(PENDULUM),
    "free time": FreeTimeDynamics(PENDULUM),
    "both": PreviousControlDynamics(FreeTimeDynamics(PENDULUM)),
    "memory of a robot": PreviousControlDynamics(FREE_BASE),
    "free time of a robot": FreeTimeDynamics(FREE_BASE),
    "parameter": ParameterDynamics(PENDULUM, with_length_of_step, [0.1]),
    "first state": PreviousControlDynamics(FirstStateDynamics(PENDULUM)),
    "first state of a robot": FirstStateDynamics(FREE_BASE),
    "parameter of a robot": ParameterDynamics(FREE_BASE, with_length_of_step, [0.05]),
}


def point(dynamics, seed=1):
    """A state and a control with positive step lengths."""
    dx, du = draws.normal(seed, dynamics.ndx), draws.normal(seed + 1, dynamics.nu)
    x = jax.jit(lambda dx: dynamics.integrate(dynamics.neutral(), dx))(0.3 * dx)
    return x, jax.device_put(1.0 + 0.2 * du)


def assert_linear(residual, dynamics):
    """The residual's own derivatives are those by differentiation."""
    x, u = point(dynamics)
    ours, exact = jax.jit(
        lambda x, u: (residual.linearize(dynamics, x, u, 2), AbstractResidual.linearize(residual, dynamics, x, u, 2))
    )(x, u)
    for a, b, n in zip(ours, exact, (None, dynamics.ndx, dynamics.nu), strict=True):
        if a is None:
            assert b is None or not np.abs(b).max() > 1e-12
        else:
            np.testing.assert_allclose(a, b, atol=1e-9)
            assert n is None or a.shape[1] == n


@pytest.mark.parametrize("name", WRAPPED)
def test_wrapped_dynamics_linearize(name):
    dynamics = WRAPPED[name]
    x, u = point(dynamics)
    dx = 0.1 * np.arange(1.0, dynamics.ndx + 1) / dynamics.ndx

    @jax.jit
    def both(x, u):
        after = dynamics.step(x, u, 0)
        linearized = dynamics.linearize(x, u, 0, after), AbstractDynamics.linearize(dynamics, x, u, 0, after)
        return after, *linearized, dynamics.difference(x, dynamics.integrate(x, dx))

    after, closed, exact, back = both(x, u)
    assert after.shape == (dynamics.nx,)
    for ours, theirs in zip(closed, exact, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-8)
    np.testing.assert_allclose(back, dx, atol=1e-9)


@pytest.mark.parametrize("name", ["memory of a robot", "first state of a robot"])
def test_jacobians_of_the_manifold_of_wrapped_dynamics(name):
    dynamics = WRAPPED[name]
    (x, _), (y, _) = point(dynamics), point(dynamics, 5)
    dx = 0.3 * jnp.ones(dynamics.ndx)
    for method, *args in (("integrate_jacobian", x, dx), ("difference_jacobian", x, y), ("displacement_rates", x)):
        ours, exact = jax.jit(
            lambda *a, method=method: (getattr(dynamics, method)(*a), getattr(AbstractDynamics, method)(dynamics, *a))
        )(*args)
        np.testing.assert_allclose(ours, exact, atol=1e-9)


def test_the_state_has_the_control_before():
    dynamics = PreviousControlDynamics(PENDULUM)
    x = dynamics.join(jnp.array([0.2, 0.1]), 0.7)
    after = dynamics.step(x, jnp.array([0.5]), 0)
    np.testing.assert_allclose(after, [*PENDULUM.step(x[:2], jnp.array([0.5]), 0), 0.5])
    np.testing.assert_allclose(ControlRateResidual()(dynamics, x, jnp.array([0.5]), 0), [(0.5 - 0.7) / 0.1])


def test_smooth_absolute_costs_are_square_near_zero_and_linear_far_from_it():
    weight, width = np.array([2.0, 0.5]), 0.1
    cost, r = SmoothAbsCost(StateResidual(), weight, width), jnp.array([3.0, -1e-6])
    value, slope, curvature = cost.penalty(r)
    # For small r it is w r^2 / (2 width).
    np.testing.assert_allclose(value, 2 * (np.hypot(3.0, width) - width) + 0.5 * 1e-12 / (2 * width), rtol=1e-14)
    expected = jax.grad(lambda r: cost.penalty(r)[0]), jax.hessian(lambda r: cost.penalty(r)[0])
    np.testing.assert_allclose(slope, expected[0](r), rtol=1e-12)
    np.testing.assert_allclose(np.diag(curvature), expected[1](r), rtol=1e-9)
    with pytest.raises(ShapeError, match=r"has shape \(2, 2\); a number or \[m\] is needed"):
        SmoothAbsCost(StateResidual(), np.eye(2)).penalty(r)


def test_steps_have_their_lengths():
    dynamics = FreeTimeDynamics(PENDULUM)
    x, u = jnp.array([0.2, 0.1]), jnp.array([0.5])
    shorter = ContinuousDynamics(pendulum_rate, 2, 1, dt=0.03)
    np.testing.assert_allclose(dynamics.step(x, dynamics.join(u, 0.3), 0), shorter.step(x, u, 0), rtol=1e-12)
    us = dynamics.join(jnp.zeros((3, 1)), jnp.array([1.0, 0.5, 2.0]))
    np.testing.assert_allclose(dynamics.times(us), [0, 0.1, 0.15, 0.35], rtol=1e-12)
    low, high = dynamics.control_box(-2, 2, shortest=0.5, longest=3)
    np.testing.assert_allclose([low, high], [[-2, 0.5], [2, 3]])


def test_functions_get_the_nominal_time():
    forced = ContinuousDynamics(lambda x, u, t, p: u + t, 1, 1, dt=0.1, t0=2.0, integrator="euler")
    dynamics = FreeTimeDynamics(forced)
    after = dynamics.step(jnp.zeros(1), jnp.array([0.0, 0.5]), 4)
    np.testing.assert_allclose(after, [0.05 * 2.4], rtol=1e-12)
    clock = InnerResidual(FunctionResidual(lambda x, u, t, p: t[None] + 0 * u))
    np.testing.assert_allclose(clock(dynamics, jnp.zeros(1), jnp.array([0.0, 0.5]), 4), [2.4], rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "residual"),
    [
        ("memory", ControlRateResidual()),
        ("both", ControlRateResidual()),
        ("memory", InnerResidual(StateResidual(jnp.array([1.0, 2.0])))),
        ("free time", InnerResidual(ControlResidual(jnp.array([0.4])))),
        ("free time", StepLengthResidual(0.2)),
        ("both", InnerResidual(InnerResidual(StateResidual(jnp.array([1.0, 2.0]))))),
        ("parameter", ParameterResidual(0.3)),
        ("parameter", InnerResidual(StateResidual(jnp.array([1.0, 2.0])))),
        ("first state", PeriodicResidual(mirror=-np.eye(2), travel=np.array([0.1, 0.0]), free=[1])),
        ("first state of a robot", PeriodicResidual(free=[0])),
        ("parameter of a robot", InnerResidual(FramePoseResidual(TIP, SE3.identity()))),
        pytest.param("memory of a robot", FramePoseResidual(TIP, SE3.identity()), marks=pytest.mark.slow),
        pytest.param("memory of a robot", FrameVelocityResidual(TIP), marks=pytest.mark.slow),
        pytest.param("memory of a robot", InnerResidual(StateResidual()), marks=pytest.mark.slow),
    ],
)
def test_residuals_of_wrapped_dynamics(name, residual):
    assert_linear(residual, WRAPPED[name])


def test_the_rate_of_controls_has_the_true_step():
    """Within an `InnerResidual` a residual sees the step length, and has a derivative by it."""
    dynamics = FreeTimeDynamics(PreviousControlDynamics(PENDULUM))
    residual = InnerResidual(ControlRateResidual())
    assert_linear(residual, dynamics)
    x, u = dynamics.inner.join(jnp.zeros(2), 0.2), jnp.array([0.5, 0.4])
    np.testing.assert_allclose(residual(dynamics, x, u, 0), [0.3 / 0.04])
    displaced = with_disturbance(dynamics, jnp.zeros(dynamics.ndx))
    np.testing.assert_allclose(residual(displaced, x, u, 0), [0.3 / 0.04])


@pytest.mark.slow
def test_controls_change_no_faster_than_allowed():
    dynamics = PreviousControlDynamics(ContinuousDynamics(double_integrator, 2, 1, dt=0.1))
    problem = Problem(
        dynamics,
        dynamics.join(jnp.zeros(2), 0.0),
        20,
        stage_costs=[QuadraticCost(InnerResidual(ControlResidual()), 1e-3)],
        terminal_costs=[QuadraticCost(InnerResidual(StateResidual(jnp.array([1.0, 0.0]))), 100.0)],
        stage_constraints=[Constraint(ControlRateResidual(), -5.0, 5.0)],
    )
    solution = ddp(problem)
    rates = np.diff(np.append(0.0, solution.us[:, 0])) / 0.1
    assert solution.success
    assert 4.99 < np.abs(rates).max() < 5 + 1e-5
    assert abs(solution.xs[-1, 0] - 1) < 0.05
    np.testing.assert_allclose(solution.xs[1:, 2], solution.us[:, 0], atol=1e-7)


@pytest.mark.slow
def test_minimum_time_of_a_double_integrator():
    """From rest to rest over the distance d with the acceleration a, the shortest time is 2 sqrt(d/a)."""
    horizon, d, a = 20, 1.0, 2.0
    dynamics = FreeTimeDynamics(ContinuousDynamics(double_integrator, 2, 1, dt=2.0 / horizon))
    low, high = dynamics.control_box(-a, a, shortest=0.2, longest=5.0)
    goal = Constraint(StateResidual(jnp.array([d, 0.0])))
    problem = Problem(
        dynamics,
        jnp.zeros(2),
        horizon,
        stage_costs=[DurationCost()],
        terminal_constraints=[goal],
        control_lower=low,
        control_upper=high,
    )
    us = dynamics.join(np.where(np.arange(horizon) < horizon // 2, 1.0, -1.0)[:, None])
    solution = ddp(problem, us)
    duration = float(dynamics.times(solution.us)[-1])
    assert solution.residuals.violation < 1e-6
    assert duration == pytest.approx(2 * np.sqrt(d / a), rel=0.01)
    assert duration >= 2 * np.sqrt(d / a) - 1e-5


def test_the_duration_costs():
    dynamics = FreeTimeDynamics(PENDULUM)
    x, u = point(dynamics)

    @jax.jit
    def expansions(x, u):
        cost = DurationCost(3.0)
        return cost.gauss_newton(dynamics, x, u, 1), AbstractCost.full(cost, dynamics, x, u, 1)

    for a, b in zip(*expansions(x, u), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


def test_soft_constraints_cost_their_excess():
    r = FunctionResidual(lambda x, u, t, p: x, of_state=True)
    x = jnp.array([-2.0, 3.5])
    soft = SoftConstraintCost(r, -1.0, 3.0, weight=np.array([2.0, 4.0]))
    assert soft.value(PENDULUM, x, None, 0) == pytest.approx(0.5 * (2 * 1.0**2 + 4 * 0.5**2))
    assert soft.value(PENDULUM, jnp.array([-1.0, 3.0]), None, 0) == 0
    huber = SoftConstraintCost(Constraint(r, -1.0, 3.0), weight=2.0, width=0.6)
    # One excess of 1 beyond the width, one of 0.5 within it.
    assert huber.value(PENDULUM, x, None, 0) == pytest.approx(2 * (1 - 0.3) + 2 * 0.5**2 / 1.2)
    for cost in (soft, huber):

        @jax.jit
        def expansions(x, cost=cost):
            exact = quadratic_expansion(lambda x, u: cost.value(PENDULUM, x, u, 0), PENDULUM, x, None)
            return cost.gauss_newton(PENDULUM, x, None, 0), exact

        expansion, exact = expansions(x)
        np.testing.assert_allclose(expansion.x, exact.x, rtol=1e-12)
        assert (np.diag(expansion.xx) >= np.diag(exact.xx) - 1e-12).all()
    np.testing.assert_allclose(soft.gauss_newton(PENDULUM, x, None, 0).xx, np.diag([2.0, 4.0]))


def test_relaxed_barriers_are_logarithms_inside_and_parabolas_from_their_width_on():
    """The second component has one bound, which is 0.1 away, and the first one is outside of a bound."""
    r = FunctionResidual(lambda x, u, t, p: x, of_state=True)
    upper = np.array([3.0, np.inf])
    barrier = RelaxedBarrierCost(Constraint(r, -1.0, upper), weight=np.array([2.0, 4.0]), width=0.5)

    @jax.jit
    def expansions(x):
        exact = quadratic_expansion(lambda x, u: barrier.value(PENDULUM, x, u, 0), PENDULUM, x, None)
        return barrier.gauss_newton(PENDULUM, x, None, 0), exact

    for x in ([-1.2, -0.9], [1.0, 2.0], [2.6, 1e3]):
        for ours, theirs in zip(*expansions(jnp.array(x)), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)
    inside = expansions(jnp.array([1.0, 2.0]))[0]
    assert inside.value == pytest.approx(-2 * 2 * np.log(2 / 0.5) - 4 * np.log(3 / 0.5))
    outside = expansions(jnp.array([-1.2, 2.0]))[0]
    parabola = 0.5 * ((-0.2 / 0.5 - 2) ** 2 - 1)
    assert outside.value == pytest.approx(2 * (parabola - np.log(4.2 / 0.5)) - 4 * np.log(3 / 0.5))


def test_a_frame_leans_by_its_roll_and_pitch_wherever_it_heads():
    robot = ModelDynamics(jaxdyn.samples.quadruped(), 0.01)
    base = robot.model.body_names[0]

    @jax.jit
    def lean(turn):
        x = robot.integrate(robot.neutral(), jnp.zeros(robot.ndx).at[3:6].set(turn))
        return UprightResidual(base)(robot, x, None, 0)

    for turn, wanted in (((0, 0, 2.0), (0, 0)), ((1e-4, 0, 0), (0, 1e-4)), ((0, 1e-4, 0), (-1e-4, 0))):
        np.testing.assert_allclose(lean(jnp.array(turn)), wanted, atol=1e-11)
    for frame in FREE_BASE.robot.body_names:
        assert_linear(UprightResidual(frame), FREE_BASE)


def test_a_ball_that_rolls_has_no_velocity_at_its_lowest_point():
    robot = ModelDynamics(jaxdyn.samples.quadruped(), 0.01)
    base, radius, turn = robot.model.body_names[0], 0.03, jnp.array([0.3, -0.2, 0.5])

    @jax.jit
    def slip(rate):
        """Slip of a ball that turns at a rate in world axes and moves along the ground as it rolls, and a meter per
        second more."""
        x = robot.integrate(robot.neutral(), jnp.zeros(robot.ndx).at[3:6].set(turn))
        axes = jaxdyn.frame_pose(robot.model, x[: robot.model.nq], base).rotation
        rolling = jnp.cross(rate, jnp.array([0.0, 0.0, radius]))
        states = [
            x.at[19:25].set(jnp.concatenate([axes.T @ v, axes.T @ rate])) for v in (rolling, rolling + axes[:, 0])
        ]
        return [RollingVelocityResidual(base, radius)(robot, x, None, 0) for x in states]

    rolls, slides = slip(jnp.array([0.4, 0.7, -0.2]))
    np.testing.assert_allclose(rolls, 0, atol=1e-12)
    np.testing.assert_allclose(slides, [1, 0, 0], atol=1e-12)


def test_arguments_of_residuals_may_be_plain_numbers():
    """A stage and the end have the same residual with another number each, so they are linearized together."""

    def difference(x, u, t, goal):
        return x - goal

    before, after = (QuadraticCost(FunctionResidual(difference, goal, of_state=True)) for goal in (0.3, 0.5))
    effort = QuadraticCost(ControlResidual(jnp.zeros(1)))
    costs = {"stage_costs": [before, effort], "terminal_costs": [after]}
    solution = ddp(Problem(PENDULUM, jnp.zeros(2), 2, **costs), jnp.zeros((2, 1)))
    assert solution.status == jaxdyn.Status.CONVERGED
    assert solution.cost > 0


def test_soft_constraints_of_each_stage():
    rows = TimeVarying(jax.vmap(lambda b: SoftConstraintCost(StateResidual(), -b, b, weight=2.0))(jnp.arange(3.0)))
    for k in range(3):
        assert rows.at(k).value(PENDULUM, jnp.array([3.0, 0.0]), None, k) == (3.0 - k) ** 2


@pytest.mark.slow
def test_an_exact_penalty_keeps_the_bound():
    """With a slope above the multiplier of the hard constraint, the violation stays within the width."""
    dynamics = ContinuousDynamics(double_integrator, 2, 1, dt=0.1)

    def solve(bound, weight):
        """With both the constraint and the penalty, one of which does nothing, so that the solver compiles once."""
        target, speed = jnp.array([1.0, 0.0]), Selected(StateResidual(), [1])
        penalty = SoftConstraintCost(Constraint(speed, -0.7, 0.7), weight=weight, width=1e-3)
        problem = Problem(
            dynamics,
            jnp.zeros(2),
            20,
            stage_costs=[QuadraticCost(ControlResidual(), 0.01), penalty],
            terminal_costs=[QuadraticCost(StateResidual(target), 100.0)],
            stage_constraints=[Constraint(speed, -bound, bound)],
        )
        return ddp(problem)

    hard = solve(0.7, 0.0)
    price = float(np.abs(hard.multipliers.stage).max())
    assert price > 0.01
    soft = solve(np.inf, 2 * price)
    assert hard.success
    assert soft.success
    assert 0 < soft.xs[:-1, 1].max() - 0.7 < 1e-3
    np.testing.assert_allclose(soft.us, hard.us, atol=0.05)


def limited_model():
    model = jaxdyn.ModelBuilder()
    box = jaxdyn.BodyInertia.box(1.0, (0.1, 0.1, 0.1))
    model.add_body("base", "world", jaxdyn.Joint("free"), inertia=box)
    model.add_body(
        "a", "base", jaxdyn.Joint(axis=(0, 1, 0), lower=-1, upper=2, velocity_limit=3, effort_limit=8), inertia=box
    )
    model.add_body(
        "b", "a", jaxdyn.Joint("continuous", axis=(0, 1, 0), effort_limit=5), placement=(0, 0, 1), inertia=box
    )
    return model.build()


def test_limits_of_a_model_are_constraints():
    model = limited_model()
    dynamics = ModelDynamics(model, 0.02)
    positions, velocities = limit_constraints(dynamics)
    x, u = point(dynamics)
    np.testing.assert_allclose(positions.evaluate(dynamics, x, u, 3), [[x[7]], [-1], [2]])
    np.testing.assert_allclose(velocities.evaluate(dynamics, x, u, 3), [[x[model.nq + 6]], [-3], [3]])
    assert positions.residual.names == ("a_joint",)
    for constraint in (positions, velocities):
        assert_linear(constraint.residual, dynamics)
        assert_linear(constraint.residual, PreviousControlDynamics(dynamics))
    (narrow,) = limit_constraints(model, velocities=False, margin=0.1)
    np.testing.assert_allclose([narrow.lower, narrow.upper], [[-0.7], [1.7]])
    assert limit_constraints(FREE_BASE) == ()


def test_effort_limits_bound_controls():
    model = limited_model()
    low, high = effort_bounds(ModelDynamics(model, 0.02))
    np.testing.assert_allclose(high, [np.inf] * 6 + [8, 5])
    joints = ModelDynamics(model, 0.02, actuation=["b_joint", "a_joint"]).actuation
    np.testing.assert_array_equal(joints, np.eye(8)[:, [7, 6]])
    low, high = effort_bounds(FreeTimeDynamics(ModelDynamics(model, 0.02, actuation=joints * np.array([-2.0, 4.0]))))
    np.testing.assert_allclose([low, high], [[-2.5, -2, -np.inf], [2.5, 2, np.inf]])
    # Robots with phases of contact have the same limits.
    phased = PhasedDynamics(model, 0.02, [model.body_names[-1]], np.ones((2, 1)))
    np.testing.assert_allclose(effort_bounds(phased), [[-8, -5], [8, 5]])
    with pytest.raises(UnknownNameError, match="b_joint"):
        ModelDynamics(model, 0.02, actuation=["joint_b"])
    with pytest.raises(ShapeError, match="`actuation` is a str"):
        ModelDynamics(model, 0.02, actuation="a_joint")
    mixed = np.zeros((8, 2))
    mixed[6:] = 1.0
    with pytest.raises(ModelError, match="the actuation mixes them"):
        effort_bounds(ModelDynamics(model, 0.02, actuation=mixed))


def test_a_problem_with_the_limits_of_its_model():
    dynamics = ModelDynamics(limited_model(), 0.02)
    bare = Problem(dynamics, dynamics.neutral(), 4, stage_costs=[QuadraticCost(ControlResidual())], control_upper=6.0)
    problem = bare.with_model_limits()
    np.testing.assert_allclose(problem.control_upper, [6.0] * 7 + [5.0])
    np.testing.assert_allclose(problem.control_lower, [-np.inf] * 6 + [-8.0, -5.0])
    assert problem.constraint_sizes == (2, 2)
    free = Problem(
        ModelDynamics(FREE_BASE.model, 0.02), FREE_BASE.neutral(), 4, stage_costs=[QuadraticCost(ControlResidual())]
    )
    assert not free.with_model_limits(positions=False, velocities=False).bounded


def test_limits_behind_parameters_and_of_phases():
    """A robot with parameters has the limits of its model, on its own part of the state; so has one with contacts."""
    inner = ModelDynamics(limited_model(), 0.02)
    scaled = ParameterDynamics(
        inner, lambda d, p: eqx.tree_at(lambda d: d.model, d, d.model.scaled(mass=p[0])), np.ones(1)
    )
    bare = Problem(scaled, scaled.join(inner.neutral()), 4, stage_costs=[QuadraticCost(ControlResidual())])
    problem = bare.with_model_limits()
    np.testing.assert_allclose(problem.control_upper, [np.inf] * 6 + [8.0, 5.0])
    x, _ = point(inner)
    positions, velocities = limit_constraints(scaled)
    np.testing.assert_allclose(positions.evaluate(scaled, scaled.join(x), None, 3), [[x[7]], [-1], [2]])
    assert_linear(velocities.residual, scaled)
    phased = PhasedDynamics(limited_model(), 0.02, ["a"], np.ones((4, 1)))
    np.testing.assert_allclose(effort_bounds(phased)[1], [8, 5])


def test_equal_steps_by_a_constraint_from_the_second_stage_on():
    dynamics = WRAPPED["both"]
    open_first = np.zeros((4, 1))
    open_first[0] = np.inf
    equal = TimeVarying(jax.vmap(lambda b: Constraint(Selected(ControlRateResidual(), [-1]), -b, b))(open_first))
    problem = Problem(dynamics, dynamics.neutral(), 4, stage_costs=[DurationCost()], stage_constraints=[equal])
    us = dynamics.inner.join(jnp.zeros((4, 1)), 0.7)
    violation = jax.jit(lambda us: problem.violation(problem.rollout(us), us))
    assert violation(us) < 1e-12


def test_mistakes_are_named():
    x, u = point(PENDULUM)
    with pytest.raises(ModelError, match="ControlRateResidual needs PreviousControlDynamics, but the dynamics are"):
        ControlRateResidual()(PENDULUM, x, u, 0)
    with pytest.raises(ModelError, match="DurationCost needs FreeTimeDynamics"):
        Problem(PENDULUM, x, 3, stage_costs=[DurationCost()])
    memory = PreviousControlDynamics(PENDULUM)
    with pytest.raises(ModelError, match="cannot stand at the end of the horizon"):
        Problem(memory, memory.neutral(), 3, terminal_costs=[QuadraticCost(ControlRateResidual())])
    outer = FreeTimeDynamics(memory)
    with pytest.raises(ModelError, match="put the ControlRateResidual into an InnerResidual"):
        Problem(outer, outer.neutral(), 3, stage_costs=[QuadraticCost(ControlRateResidual())])
    with pytest.raises(ShapeError, match="a bound of the inner controls"):
        outer.control_box(np.zeros(3))
    with pytest.raises(ModelError, match="shortest is 0"):
        outer.control_box(shortest=0.0)
    with pytest.raises(ModelError, match="needs lower, upper, or both"):
        SoftConstraintCost(StateResidual())
    with pytest.raises(ModelError, match="leave lower and upper out"):
        SoftConstraintCost(Constraint(StateResidual()), 0.0)
    with pytest.raises(ModelError, match="the width of a SoftConstraintCost is 0"):
        SoftConstraintCost(StateResidual(), 0.0, width=0.0)
    with pytest.raises(ModelError, match=r"the margin of limits is 0\.5"):
        limit_constraints(limited_model(), margin=0.5)
    with pytest.raises(ModelError, match="ContinuousDynamics has none"):
        limit_constraints(PENDULUM)
    with pytest.raises(ModelError, match="needs TorqueDynamics"):
        effort_bounds(PENDULUM)
