"""Guesses: geodesics on manifolds, controls that hold or follow, trajectories on other grids."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import ModelError, ShapeError
from jaxdyn.trajopt import (
    MPC,
    ContinuousDynamics,
    ControlResidual,
    DiscreteDynamics,
    FreeTimeDynamics,
    FunctionCost,
    Guess,
    ModelDynamics,
    PredictiveSamplingOptions,
    PreviousControlDynamics,
    Problem,
    QuadraticCost,
    ddp,
    interpolated_guess,
    resampled_guess,
    static_guess,
)
from tests import draws

ARM = ModelDynamics(jaxdyn.samples.arm(), 0.02)
FLOATING = ModelDynamics(jaxdyn.samples.random_tree(jax.random.key(0), 3, ("free", "ball", "revolute")), 0.02)
HORIZON = 12


def problem(dynamics, x0=None, horizon=HORIZON, **box) -> Problem:
    x0 = dynamics.neutral() if x0 is None else x0
    return Problem(dynamics, x0, horizon, stage_costs=[QuadraticCost(ControlResidual())], **box)


def made(guess, p: Problem, *arrays, **options) -> Guess:
    """A guess, compiled as one program, in NumPy arrays."""
    return jax.tree.map(np.asarray, jax.jit(lambda *arrays: guess(p, *arrays, **options))(*arrays))


def gaps(p: Problem, guess, us=None) -> np.ndarray:
    """The gaps of a guess, also with other controls."""
    return np.asarray(jax.jit(lambda xs, us: p.gaps(xs, us))(guess.xs, guess.us if us is None else us))


def test_states_go_along_the_geodesic():
    """Each step of a constant rate is the same displacement, also of rotations, and the last state is the goal."""
    p = problem(FLOATING)
    goal = jax.jit(lambda dx: FLOATING.integrate(FLOATING.neutral(), dx))(0.7 * draws.normal(1, FLOATING.ndx))
    guess = made(interpolated_guess, p, goal, velocities="interpolated")
    between = jax.jit(jax.vmap(FLOATING.difference))
    assert guess.us.shape == (HORIZON, FLOATING.nu)
    np.testing.assert_allclose(guess.xs[0], p.x0)
    starts, goals = (np.broadcast_to(x, (HORIZON, FLOATING.nx)) for x in (p.x0, goal))
    np.testing.assert_allclose(between(np.broadcast_to(guess.xs[-1], goals.shape), goals), 0, atol=1e-12)
    np.testing.assert_allclose(between(guess.xs[:-1], guess.xs[1:]), between(starts, goals) / HORIZON, atol=1e-12)


@pytest.mark.parametrize("dynamics", [ARM, FLOATING])
def test_inverse_dynamics_along_differences_close_all_gaps(dynamics):
    """Velocities are differences over dt, so under steps of first order the guess is a roll-out."""
    model = dynamics.model
    goal = model.integrate(model.neutral(), 0.5 * draws.normal(2, model.nv))
    p = problem(dynamics)
    guess = made(interpolated_guess, p, goal, timing="smooth", controls="inverse_dynamics")
    np.testing.assert_allclose(gaps(p, guess), 0, atol=1e-9)
    np.testing.assert_allclose(model.difference(guess.xs[-1, : model.nq], goal), 0, atol=1e-9)
    # Without the torques, only positions have no gaps.
    assert np.abs(gaps(p, guess, np.zeros_like(guess.us))[:, : model.nv]).max() > 1e-6


def test_way_points_are_reached_at_their_stages():
    p = problem(ARM)
    ways = np.stack([np.linspace(0.1, 0.5, ARM.model.nq), np.linspace(0.5, -0.2, ARM.model.nq)])
    guess = made(interpolated_guess, p, ways, stages=[3, 9])
    np.testing.assert_allclose(guess.xs[3, : ARM.model.nq], ways[0], atol=1e-12)
    np.testing.assert_allclose(guess.xs[9:, : ARM.model.nq], np.broadcast_to(ways[1], (4, ARM.model.nq)), atol=1e-12)
    np.testing.assert_allclose(guess.xs[10:, ARM.model.nq :], 0, atol=1e-12)
    even = made(interpolated_guess, p, ways)
    np.testing.assert_allclose(even.xs[6, : ARM.model.nq], ways[0], atol=1e-12)


def test_controls_that_hold_a_robot():
    x0 = np.concatenate([np.linspace(-0.5, 0.5, ARM.model.nq), 0.3 * np.ones(ARM.model.nv)])
    p = problem(ARM, x0)
    guess = static_guess(p)
    gravity = jaxdyn.generalized_gravity(ARM.model, x0[: ARM.model.nq])
    np.testing.assert_allclose(guess.us, np.broadcast_to(gravity, guess.us.shape), atol=1e-10)
    np.testing.assert_allclose(gaps(p, guess)[2:], 0, atol=1e-10)
    limited = problem(ARM, x0, control_lower=-1.0, control_upper=1.0)
    np.testing.assert_allclose(static_guess(limited).us, np.clip(guess.us, -1, 1), atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("bound", [None, 2.0])
def test_controls_of_an_underactuated_robot_are_least_squares(bound):
    """They equal SciPy's bounded least squares through the actuation matrix."""
    from scipy.optimize import lsq_linear

    model = jaxdyn.samples.arm()
    B = np.random.default_rng(0).normal(size=(model.nv, 3))
    x0 = np.concatenate([np.linspace(-0.5, 0.5, model.nq), np.zeros(model.nv)])
    box = {} if bound is None else {"control_lower": -bound, "control_upper": bound}
    gravity = np.asarray(jaxdyn.generalized_gravity(model, x0[: model.nq]))
    limit = np.inf if bound is None else bound
    best = lsq_linear(B, gravity, (-limit, limit), tol=1e-14).x
    assert bound is None or np.abs(best).max() > 0.99 * bound
    us = static_guess(problem(ModelDynamics(model, 0.02, actuation=B), x0, **box)).us
    np.testing.assert_allclose(us, np.broadcast_to(best, us.shape), atol=1e-6)


@pytest.mark.slow
def test_controls_that_hold_function_dynamics():
    """The control balances gravity and a force that is known at each time."""

    def rate(x, u, t, params):
        return jnp.array([x[1], jnp.tanh(u[0]) - 0.5 * jnp.sin(x[0]) + 0.1 * t])

    p = problem(ContinuousDynamics(rate, 2, 1, dt=0.1, integrator="euler"), np.array([0.8, 0.0]))
    guess = made(static_guess, p)
    np.testing.assert_allclose(gaps(p, guess), 0, atol=1e-9)
    np.testing.assert_allclose(guess.us[:, 0], np.arctanh(0.5 * np.sin(0.8) - 0.01 * np.arange(HORIZON)), atol=1e-8)
    twice = DiscreteDynamics(lambda x, u, t, p: 2 * x + u, 2, 2)
    np.testing.assert_allclose(made(static_guess, problem(twice, np.array([1.0, -3.0]))).us[0], [-1, 3], atol=1e-8)
    # No control holds it: the nearest one, at the bound, is found.
    bounded = problem(twice, np.array([1.0, -3.0]), control_upper=2.0)
    np.testing.assert_allclose(made(static_guess, bounded).us[0], [-1, 2], atol=1e-8)


def test_guesses_of_wrapped_dynamics():
    dynamics = PreviousControlDynamics(FreeTimeDynamics(ARM))
    p = problem(dynamics)
    goal = 0.3 * np.ones(ARM.model.nq)
    for guess in (made(static_guess, p), made(interpolated_guess, p, goal, controls="inverse_dynamics")):
        np.testing.assert_array_equal(guess.us[:, -1], 1)
        assert np.abs(guess.us[:, :-1]).max() > 0.1
        np.testing.assert_allclose(gaps(p, guess), 0, atol=1e-9)
    p = problem(FreeTimeDynamics(PreviousControlDynamics(ARM)))
    guess = made(static_guess, p)
    np.testing.assert_allclose(gaps(p, guess), 0, atol=1e-9)


def test_a_trajectory_on_another_grid():
    p = problem(ARM)
    guess = made(interpolated_guess, p, np.ones(ARM.model.nq), controls="inverse_dynamics")
    same, grid = made(resampled_guess, p, guess), 0.02 * np.arange(HORIZON + 1)
    np.testing.assert_allclose(same.xs, guess.xs, atol=1e-12)
    np.testing.assert_allclose(same.us, guess.us, atol=1e-12)
    half = ModelDynamics(ARM.model, 0.01)
    finer = made(resampled_guess, problem(half, horizon=2 * HORIZON), guess, times=grid)
    np.testing.assert_allclose(finer.xs[::2], guess.xs, atol=1e-12)
    np.testing.assert_allclose(finer.us[::2], guess.us, atol=1e-12)
    np.testing.assert_allclose(finer.us[1::2], guess.us, atol=1e-12)
    np.testing.assert_allclose(finer.xs[1], 0.5 * (guess.xs[0] + guess.xs[1]), atol=1e-12)
    longer = made(resampled_guess, problem(ARM, horizon=HORIZON + 3), guess, times=grid)
    np.testing.assert_allclose(longer.xs[: HORIZON + 1], guess.xs, atol=1e-12)
    np.testing.assert_allclose(longer.xs[-3:], np.broadcast_to(guess.xs[-1], (3, ARM.nx)), atol=1e-12)
    stretched = made(resampled_guess, problem(ARM, horizon=2 * HORIZON), guess)
    np.testing.assert_allclose(stretched.xs[::2], guess.xs, atol=1e-12)


def test_guesses_under_transformations():
    @jax.jit
    def make(x0, goal):
        p = problem(ARM).starting_at(x0)
        return static_guess(p), interpolated_guess(p, goal), resampled_guess(p, static_guess(p))

    x0 = jnp.zeros((2, ARM.nx)).at[1].set(0.1)
    static, moving, _ = jax.vmap(make)(x0, jnp.ones((2, ARM.model.nq)))
    np.testing.assert_allclose(static.us[1], static_guess(problem(ARM, x0[1])).us, atol=1e-9)
    np.testing.assert_allclose(moving.xs[1], interpolated_guess(problem(ARM, x0[1]), jnp.ones(ARM.model.nq)).xs)


@pytest.mark.slow
def test_a_controller_with_the_control_before_in_its_state():
    """The time of the plan reaches the inner dynamics, and the plan starts from the control before."""
    inner = ContinuousDynamics(lambda x, u, t, p: u + t, 1, 1, dt=0.1)
    dynamics = PreviousControlDynamics(inner)
    options = PredictiveSamplingOptions(samples=4, max_iterations=1, knots=4, sigma=1.0)
    mpc = MPC(problem(dynamics), options, disturbance_gain=0.5)
    x = dynamics.join(jnp.array([0.5]), 0.2)
    _, _, solution = mpc.step(mpc.start(x, t=2.0), x)
    np.testing.assert_allclose(solution.xs[0], [0.5, 0.2])
    np.testing.assert_allclose(solution.xs[1], [0.5 + 0.1 * (solution.us[0, 0] + 2.05), solution.us[0, 0]], rtol=1e-9)


def test_mistakes_are_named():
    p = problem(ARM)
    nq = ARM.model.nq
    with pytest.raises(ShapeError, match=rf"\(3,\), but \[{ARM.nx}\] is needed for a state, or \[{nq}\]"):
        interpolated_guess(p, np.zeros(3))
    with pytest.raises(ModelError, match="not finite"):
        interpolated_guess(p, np.full(nq, np.nan))
    with pytest.raises(ModelError, match="stages has 1 numbers, but there are 2 way points"):
        interpolated_guess(p, np.zeros((2, nq)), stages=[3])
    with pytest.raises(ModelError, match="ascending integers from 1 to 12"):
        interpolated_guess(p, np.zeros((2, nq)), stages=[0, 3])
    with pytest.raises(ModelError, match="20 way points are more than the horizon's 12 stages"):
        interpolated_guess(p, np.zeros((20, nq)))
    with pytest.raises(ModelError, match="timing is 'quick'"):
        interpolated_guess(p, np.zeros(nq), timing="quick")
    discrete = problem(DiscreteDynamics(lambda x, u, t, p: x + u, 2, 2))
    with pytest.raises(ModelError, match="inverse dynamics are those of ModelDynamics, not of DiscreteDynamics"):
        interpolated_guess(discrete, np.zeros(2), controls="inverse_dynamics")
    guess = Guess(np.zeros((3, ARM.nu)), np.zeros((3, ARM.nx)))
    with pytest.raises(ShapeError, match="a state more than controls"):
        resampled_guess(p, guess)
    guess = Guess(np.zeros((2, ARM.nu)), np.zeros((3, ARM.nx)))
    with pytest.raises(ModelError, match="times must ascend"):
        resampled_guess(p, guess, times=[0.0, 2.0, 1.0])


def test_the_best_of_several_starts():
    """A double well, whose lower side the guess does not lead to; the derivative is that of the solution."""
    dynamics = DiscreteDynamics(lambda x, u, t, _: x + u, 1, 1)

    def solved(tilt, starts):
        well = FunctionCost(lambda x, u, t, tilt: ((x**2 - 1) ** 2 + tilt * x).sum(), tilt)
        costs = [QuadraticCost(ControlResidual(), 1e-2)]
        p = Problem(dynamics, np.array([0.8]), 2, stage_costs=costs, terminal_costs=[well])
        return ddp(p, starts=starts)

    single, several = (solved(jnp.asarray(0.5), n) for n in (1, 6))
    assert single.success
    assert several.success
    assert single.xs[-1, 0] > 0 > several.xs[-1, 0]
    assert several.cost < single.cost
    slope = jax.jit(jax.grad(lambda tilt: solved(tilt, 6).cost))(0.5)
    np.testing.assert_allclose(slope, several.xs[-1, 0], rtol=1e-6)
    with pytest.raises(ModelError, match="starts is 3, but multipliers"):
        ddp(problem(dynamics, np.zeros(1), 2), multipliers=several.multipliers, starts=3)
