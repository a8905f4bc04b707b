"""Initial states and parameters as unknowns: optima, bounds, derivatives, periodic motions."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from jaxdyn import ModelError, ShapeError, samples
from jaxdyn.sysid import LinkLength, Parametrization
from jaxdyn.trajopt import (
    MPC,
    AbstractDynamics,
    Constraint,
    ContinuousDynamics,
    ControlResidual,
    DDPOptions,
    DiscreteDynamics,
    EnsembleCost,
    EnsembleDynamics,
    EnsembleResidual,
    FirstStateDynamics,
    FramePositionResidual,
    FunctionCost,
    FunctionResidual,
    InnerResidual,
    ModelDynamics,
    ParameterDynamics,
    ParameterResidual,
    PeriodicResidual,
    Problem,
    QuadraticCost,
    Selected,
    StateResidual,
    ddp,
    mppi,
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


def test_single_precision_stays_single():
    problem = linear_quadratic(np.float32)
    solution = ddp(problem)
    (H, g), _ = dense(linear_quadratic())
    assert solution.success, solution.message
    assert solution.xs.dtype == solution.us.dtype == solution.cost.dtype == np.float32
    np.testing.assert_allclose(unknowns_of(solution), -np.linalg.solve(H, g), atol=1e-4)


def van_der_pol(x, u, t, mu):
    return jnp.array([x[1], mu * (1 - x[0] ** 2) * x[1] - x[0] + u[0]])


def with_step(dynamics, p):
    return eqx.tree_at(lambda d: d.dt, dynamics, p[0])


def test_a_periodic_oscillation_with_a_free_period():
    n = 50
    inner = FirstStateDynamics(ContinuousDynamics(van_der_pol, 2, 1, jnp.asarray(1.0), dt=6.0 / n))
    dynamics = ParameterDynamics(inner, with_step, [6.0 / n])
    problem = Problem(
        dynamics,
        dynamics.join(inner.join(np.array([1.5, 0.2]))),
        n,
        free_x0=True,
        stage_costs=[QuadraticCost(ControlResidual())],
        # A phase, and not the state of rest, which is periodic as well.
        initial_constraints=[
            Constraint(Selected(StateResidual(), [0, 1]), np.array([1.0, 0.0]), np.array([np.inf, 0]))
        ],
        terminal_constraints=[Constraint(PeriodicResidual())],
    )
    solution = ddp(problem)
    assert solution.success, solution.message
    assert np.abs(solution.xs[-1, :2] - solution.xs[0, :2]).max() <= 1e-8
    assert np.abs(problem.gaps(solution.xs, solution.us)).max() <= 1e-8
    # Without controls, the period and the amplitude are those of the limit cycle.
    assert solution.cost <= 1e-8
    np.testing.assert_allclose(n * dynamics.parameters_of(solution.xs[0]), 6.6632868593, rtol=1e-4)
    np.testing.assert_allclose(solution.xs[0, :2], [2.0086198609, 0.0], atol=1e-3)


def pendulum_rate(x, u, t, params):
    length, mass = params
    return jnp.array([x[1], u[0] / (mass * length**2) - 9.81 / length * jnp.sin(x[0])])


def pendulum_with_length(mass) -> Problem:
    """A pendulum whose length is chosen comes to rest at an angle, with a bound on its first speed."""
    inner = ContinuousDynamics(pendulum_rate, 2, 1, (jnp.asarray(1.0), jnp.asarray(mass)), dt=0.1)
    dynamics = ParameterDynamics(inner, lambda d, p: eqx.tree_at(lambda d: d.params[0], d, p[0]), [1.0])
    return Problem(
        dynamics,
        dynamics.join(np.zeros(2)),
        10,
        free_x0=[False, True, True],
        stage_costs=[QuadraticCost(ControlResidual(), 0.1)],
        initial_costs=[QuadraticCost(ParameterResidual(1.0), 20.0)],
        stage_constraints=[Constraint(Selected(StateResidual(), [1]), -1.0, 1.0)],
        terminal_constraints=[Constraint(InnerResidual(StateResidual(np.array([0.7, 0.0]))))],
    )


def arm_with_length(mass) -> Problem:
    """A two-link arm, whose first link may have another length at a price, comes to rest with its tip at a point."""
    model = samples.double_pendulum().with_joint_friction(damping=0.02, friction=0.0)
    lengths = Parametrization(model, LinkLength([model.joint_names[1]]))

    def with_length(dynamics, p):
        return eqx.tree_at(lambda d: d.model, dynamics, lengths.about(dynamics.model).model(p))

    dynamics = ParameterDynamics(ModelDynamics(model.scaled(mass=mass), 0.05), with_length, [0.0])
    tip = InnerResidual(FramePositionResidual("tip", np.array([-0.5, 0.0, 0.1])))
    return Problem(
        dynamics,
        dynamics.join(np.array([0.6, 0.6, 0.0, 0.0])),
        12,
        stage_costs=[QuadraticCost(ControlResidual(), 0.1)],
        initial_costs=[QuadraticCost(ParameterResidual(), 2.0)],
        terminal_costs=[QuadraticCost(tip, 100.0)],
        terminal_constraints=[Constraint(InnerResidual(Selected(StateResidual(), [2, 3])))],
    )


@pytest.mark.parametrize("make", [pendulum_with_length, pytest.param(arm_with_length, marks=pytest.mark.slow)])
def test_a_length_with_its_motion_and_their_derivatives(make):
    weights = np.array([1.0, -2.0, 0.5, 3.0])

    def outcome(mass):
        solution = ddp(make(mass), options=TIGHT)
        values = jnp.stack([solution.xs[0, -1], solution.us[0, 0], solution.xs[6, 1], solution.cost])
        return weights @ values, (solution, values)

    both = jax.jit(
        lambda m: (jax.jvp(outcome, (m,), (jnp.ones_like(m),), has_aux=False), jax.grad(outcome, has_aux=True)(m)[0])
    )
    ((_, (solution, values)), (forward, (_, slopes))), reverse = both(1.0)
    assert solution.success, solution.message
    assert abs(values[0] - make(1.0).dynamics.initial[0]) > 0.01
    assert abs(slopes[0]) > 0.01
    h = 1e-4
    central = (both(1.0 + h)[0][0][1][1] - both(1.0 - h)[0][0][1][1]) / (2 * h)
    np.testing.assert_allclose(slopes, central, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(reverse, forward, rtol=1e-9)


@pytest.mark.slow
def test_a_free_pose_of_a_base_and_its_derivative():
    """The base's pose is free and the other joint is not: on a group, with part of the initial state fixed."""
    model = samples.random_tree(jax.random.key(0), 2, ("free", "revolute"))
    base, (angle_at, _) = model.topology.quaternion_dofs, np.concatenate(model.topology.scalar_coordinates)
    dynamics = ModelDynamics(model, 0.05)
    free = np.isin(np.arange(dynamics.ndx), base)
    goal = model.integrate(model.neutral(), jnp.array([0.3, -0.2, 0.1, 0.9, -0.6, 0.4, 0.5]))
    goal = jnp.concatenate([goal, jnp.zeros(model.nv)])
    start = jnp.concatenate([model.neutral(), 0.1 * jnp.ones(model.nv)])

    def solve(weight, angle):
        problem = Problem(
            dynamics,
            start.at[angle_at].add(angle),
            5,
            free_x0=free,
            stage_costs=[QuadraticCost(ControlResidual(), 0.1), QuadraticCost(StateResidual(goal), weight)],
            initial_costs=[QuadraticCost(StateResidual(start), 3.0)],
        )
        solution = ddp(problem, options=TIGHT)
        return (solution.xs * jnp.cos(jnp.arange(solution.xs.size).reshape(solution.xs.shape))).sum(), solution

    both = jax.jit(jax.value_and_grad(solve, (0, 1), has_aux=True))
    (_, solution), slopes = both(1.0, 0.0)
    assert solution.success, solution.message
    displacement = dynamics.difference(start, solution.xs[0])
    np.testing.assert_allclose(displacement[~free], 0.0, atol=1e-14)
    assert np.abs(displacement[free]).min() > 0.01
    h = 1e-5
    for i, slope in enumerate(slopes):
        plus, minus = (both(*(np.array([1.0, 0.0]) + s * np.eye(2)[i]))[0][0] for s in (h, -h))
        np.testing.assert_allclose(slope, (plus - minus) / (2 * h), rtol=1e-5)


def test_a_maximum_at_the_start_is_left():
    """Both the slope by the free initial state and that by the controls are zero at the guess, a maximum."""
    still = DiscreteDynamics(lambda x, u, t, p: x + u, 1, 1)
    hill = FunctionCost(lambda x, u, t, p: (x[0] ** 2 - 1) ** 2)
    problem = Problem(
        still, np.zeros(1), 2, free_x0=True, stage_costs=[QuadraticCost(ControlResidual(), 100.0)], initial_costs=[hill]
    )
    solution = ddp(problem)
    assert solution.success, solution.message
    np.testing.assert_allclose(np.abs(solution.xs[0]), 1.0, atol=1e-5)


def test_who_takes_free_initial_states_and_what_is_wrong_with_them():
    problem = linear_quadratic()
    with pytest.raises(ModelError, match="4 components of the initial state are free"):
        mppi(problem)
    with pytest.raises(ModelError, match="an MPC"):
        MPC(problem)
    dynamics, costs = problem.dynamics, [QuadraticCost(ControlResidual())]
    with pytest.raises(ShapeError, match="free_x0 has shape"):
        Problem(dynamics, problem.x0, 3, stage_costs=costs, free_x0=[True])
    with pytest.raises(ModelError, match="True or False"):
        Problem(dynamics, problem.x0, 3, stage_costs=costs, free_x0=np.arange(5))
    at_start = [Constraint(Selected(StateResidual(), [0]))]
    with pytest.raises(ModelError, match="set free_x0"):
        Problem(dynamics, problem.x0, 3, stage_costs=costs, free_x0=False, initial_constraints=at_start)
    base = ModelDynamics(samples.cube(), 0.1)
    with pytest.raises(ModelError, match="one joint with a quaternion"):
        Problem(base, base.neutral(), 3, stage_costs=costs, free_x0=np.arange(12) < 4)
    with pytest.raises(ModelError, match="two halves"):
        Problem(FirstStateDynamics(dynamics.inner), np.arange(6.0), 3, stage_costs=costs)
    robot = ParameterDynamics(ModelDynamics(samples.pendulum(), 0.1), lambda d, p: d, [1.0])
    pose = QuadraticCost(FramePositionResidual("rod", np.zeros(3)))
    with pytest.raises(ModelError, match="InnerResidual"):
        Problem(robot, robot.join(np.zeros(2)), 3, stage_costs=[pose])
    with pytest.raises(ModelError, match="function of ParameterDynamics returns"):
        ParameterDynamics(dynamics.inner, lambda d, p: p, [1.0])


def with_mass(dynamics, mass):
    return eqx.tree_at(lambda d: d.model, dynamics, dynamics.model.scaled(mass=mass))


def test_an_ensemble_is_its_members():
    """Steps, derivatives and the manifold of an ensemble of free bodies are those of each of them."""
    model = samples.random_tree(jax.random.key(0), 1, ("free",))
    dynamics = EnsembleDynamics(ModelDynamics(model, 0.05), with_mass, [0.5, 2.0])
    rng = np.random.default_rng(0)
    u, dx, away = (jnp.asarray(0.3 * rng.normal(size=n)) for n in (6, dynamics.ndx, dynamics.ndx))

    @jax.jit
    def both(dynamics, u, dx, away):
        x = dynamics.integrate(dynamics.neutral(), away)
        after = dynamics.step(x, u, 0)
        arguments = {
            "linearize": (x, u, 0, after),
            "integrate_jacobian": (x, dx),
            "difference_jacobian": (x, after),
            "displacement_rates": (x,),
        }
        ours = {name: getattr(dynamics, name)(*a) for name, a in arguments.items()}
        generic = {name: getattr(AbstractDynamics, name)(dynamics, *a) for name, a in arguments.items()}
        alone = jnp.stack(
            [with_mass(dynamics.inner, m).step(dynamics.states_of(x)[i], u, 0) for i, m in enumerate((0.5, 2.0))]
        )
        return ours, generic, dynamics.states_of(after), alone, dynamics.difference(x, dynamics.integrate(x, dx))

    ours, generic, after, alone, back = both(dynamics, u, dx, away)
    np.testing.assert_allclose(after, alone, rtol=1e-12, atol=1e-12)
    assert np.abs(np.diff(after, axis=0)).max() > 1e-2
    np.testing.assert_allclose(back, dx, atol=1e-12)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(generic), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-9)
    x = dynamics.neutral()
    with pytest.raises(ModelError, match="needs WrappedDynamics, but the dynamics are EnsembleDynamics"):
        InnerResidual(StateResidual())(dynamics, x, u, 0)
    with pytest.raises(ShapeError, match="members"):
        EnsembleDynamics(dynamics.inner, with_mass, 1.0)


MASSES = np.linspace(0.7, 1.3, 10)
PENDULUM = ModelDynamics(samples.pendulum(), 0.05)
RAISED = np.array([0.7, 0.0])


@pytest.mark.parametrize("width", [None, 0.5])
def test_costs_of_ensembles(width):
    """The expansion of the mean, and of the worst, of a quadratic cost of linear residuals is exact; the worst is
    between the mean and the largest."""
    dynamics = EnsembleDynamics(PENDULUM, with_mass, MASSES[:3])
    rng = np.random.default_rng(1)
    x, u = jnp.asarray(rng.normal(size=dynamics.nx)), jnp.asarray(rng.normal(size=1))
    both = Selected(FunctionResidual(lambda x, u, t, p: jnp.concatenate([x - 2 * u, u + x[:1]])), (0, 1, 2))
    cost = EnsembleCost(QuadraticCost(both, [1.0, 2.0, 0.5]), width)
    ours, exact = (jax.jit(lambda f=f: f(dynamics, x, u, 0))() for f in (cost.gauss_newton, cost.full))
    for a, b in zip(ours, exact, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)
    each = [cost.cost.value(PENDULUM, part, u, 0) for part in dynamics.states_of(x)]
    assert np.mean(each) <= ours.value + 1e-12 < np.max(each)
    end = EnsembleCost(QuadraticCost(StateResidual(RAISED)), width)
    assert end.gauss_newton(dynamics, x, None, 3).ux.shape == (0, dynamics.ndx)


def test_a_robust_motion():
    """One sequence of torques for ten masses leaves a smaller largest error than that of the mean mass does, and less
    again if the worst counts. A large width is the mean."""

    def problem(masses, width):
        dynamics = EnsembleDynamics(PENDULUM, with_mass, masses)
        return Problem(
            dynamics,
            dynamics.join(np.zeros(2)),
            16,
            stage_costs=[QuadraticCost(ControlResidual(), 1e-4)],
            terminal_costs=[EnsembleCost(QuadraticCost(StateResidual(RAISED), 10.0), width)],
        )

    solve = jax.jit(ddp)
    cases = (np.ones(10), 1e3), (MASSES, 1e3), (MASSES, 0.02)
    nominal, mean, worst = solutions = [solve(problem(*case)) for case in cases]
    assert all(s.success for s in solutions)
    roll_out, robust = jax.jit(lambda p, us: p.rollout(us)[-1]), problem(MASSES, 1.0)

    def largest(solution):
        return np.square(robust.dynamics.states_of(roll_out(robust, solution.us)) - RAISED).sum(axis=1).max()

    assert largest(mean) < 0.75 * largest(nominal)
    assert largest(worst) < 0.95 * largest(mean)


def test_members_keep_a_constraint():
    """A constraint on a residual of the ensemble, and limits of the model, hold for each member."""
    model = eqx.tree_at(lambda m: m.position_upper, samples.pendulum(), jnp.array([0.75]))
    dynamics = EnsembleDynamics(ModelDynamics(model, 0.05), with_mass, [0.7, 1.3])
    problem = Problem(
        dynamics,
        dynamics.join(np.zeros(2)),
        12,
        stage_costs=[QuadraticCost(ControlResidual(), 1e-4)],
        terminal_costs=[EnsembleCost(QuadraticCost(StateResidual(np.array([1.0, 0.0])), 10.0))],
        terminal_constraints=[Constraint(Selected(EnsembleResidual(StateResidual()), (0, 2)), -np.inf, 0.6)],
    ).with_model_limits(velocities=False, efforts=False)
    assert problem.terminal_constraints[1].residual(dynamics, problem.x0, None, 0).shape == (2,)
    solution = jax.jit(ddp)(problem)
    assert solution.success
    assert np.abs(dynamics.states_of(solution.xs)[-1, :, 0]).max() == pytest.approx(0.6, abs=1e-5)


def test_what_is_not_finite_at_a_free_start_is_named():
    """A constraint on the state counts at stage 0 where the initial state is free, also in messages."""
    root = FunctionResidual(lambda x, u, t, p: jnp.sqrt(x - 1), of_state=True)
    problem = Problem(
        ContinuousDynamics(lambda x, u, t, p: u, 1, 1, dt=0.1),
        np.zeros(1),
        3,
        stage_costs=[QuadraticCost(ControlResidual())],
        stage_constraints=[Constraint(root, 0.0, 1.0)],
        free_x0=True,
    )
    with pytest.raises(ModelError, match=r"the value of stage_constraints\[0\].* at stage 0"):
        ddp(problem, xs=[[0.0], [2.0], [2.0], [2.0]])
