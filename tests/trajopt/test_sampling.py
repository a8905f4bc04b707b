"""Sampling solvers come close to a known optimum, stay within bounds and report the right status."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.interpolate import CubicSpline

from jaxdyn import ModelError, ShapeError
from jaxdyn.trajopt import (
    CEMOptions,
    Constraint,
    DiscreteDynamics,
    FunctionCost,
    MPPIOptions,
    PredictiveSamplingOptions,
    Problem,
    QuadraticCost,
    Selected,
    StateResidual,
    Status,
    cem,
    mppi,
    predictive_sampling,
)
from jaxdyn.trajopt.sampling import spline_matrix

HORIZON = 12
SOLVERS = {
    "mppi": (mppi, MPPIOptions(samples=128, max_iterations=100, sigma=0.3, patience=10)),
    "cem": (cem, CEMOptions(samples=128, elites=16, max_iterations=100, patience=10)),
    "predictive_sampling": (predictive_sampling, PredictiveSamplingOptions(samples=64, sigma=0.2, knots=8)),
}


def push(x, u, t, params):
    return jnp.array([x[0] + 0.1 * x[1], x[1] + params * u[0]])


def problem(limit=1.0, dtype=jnp.float64, constraints=(), costs=()) -> Problem:
    """Return the problem of pushing a mass to the origin."""
    dynamics = DiscreteDynamics(push, 2, 1, jnp.asarray(0.5, dtype), dt=jnp.asarray(0.1, dtype))
    return Problem(
        dynamics,
        jnp.array([1.0, 0.0], dtype),
        HORIZON,
        stage_costs=[QuadraticCost(StateResidual(), jnp.array([1.0, 0.1], dtype)), *costs],
        terminal_costs=[QuadraticCost(StateResidual(), jnp.asarray(10.0, dtype))],
        control_lower=jnp.full(1, -limit, dtype),
        control_upper=jnp.full(1, limit, dtype),
        terminal_constraints=constraints,
    )


@functools.cache
def optimum() -> float:
    """Return the optimal cost by projected gradient descent with momentum, a method that differs from the solvers'."""
    p = problem()

    def cost(us):
        return p.total_cost(p.rollout(us), us)

    def descend(carry, k):
        us, before = carry
        ahead = us + k / (k + 3) * (us - before)
        return (jnp.clip(ahead - 0.002 * jax.grad(cost)(ahead), *p.control_box), us), None

    us = jnp.zeros((HORIZON, 1))
    (us, _), _ = jax.jit(lambda us: jax.lax.scan(descend, (us, us), jnp.arange(4000.0)))(us)
    return float(cost(us))


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[pytest.mark.slow] * (x == "predictive_sampling")) for x in SOLVERS]
)
def test_near_the_optimum_and_within_bounds(name):
    solve, options = SOLVERS[name]
    p = problem()
    solution = solve(p, key=jax.random.key(0), options=options)
    best = optimum()
    # A spline of eight knots has less freedom than twelve controls.
    assert best * (1 - 1e-9) <= float(solution.cost) <= (1.03 if name == "predictive_sampling" else 1.01) * best
    assert float(jnp.abs(solution.us).max()) == 1.0
    assert solution.status == Status.CONVERGED
    assert solution.message.startswith("converged")
    assert np.isnan(solution.residuals.stationarity)
    np.testing.assert_allclose(solution.xs, p.rollout(solution.us))
    assert float(solution.cost) == pytest.approx(float(p.total_cost(solution.xs, solution.us)), rel=1e-12)
    same = solve(p, key=jax.random.key(0), options=options)
    np.testing.assert_array_equal(same.us, solution.us)


@pytest.mark.parametrize("name", [pytest.param(x, marks=[pytest.mark.slow] * (x != "cem")) for x in SOLVERS])
def test_batches_are_the_single_solves(name):
    """Elements of a `vmap` over starts and keys equal single solves: an element that has ended does not change."""
    solve, options = SOLVERS[name]
    p, starts, keys = problem(), jnp.array([[1.0, 0.0], [-0.3, 0.2]]), jax.random.split(jax.random.key(3), 2)
    batch = jax.vmap(lambda x0, key: solve(p.starting_at(x0), key=key, options=options))(starts, keys)
    assert int(batch.iterations[0]) != int(batch.iterations[1])
    for i in range(2):
        single = solve(p.starting_at(starts[i]), key=keys[i], options=options)
        assert int(batch.status[i]) == int(single.status)
        assert int(batch.iterations[i]) == int(single.iterations)
        np.testing.assert_allclose(batch.us[i], single.us, atol=1e-9)


def test_statuses_are_true():
    """All problems have the same costs and constraints, with other numbers, so that they share a program."""

    def cost(x, u, t, params):
        return jnp.sqrt(params - u[0] ** 2)

    def solved(distance, base, max_iterations):
        away = [Constraint(Selected(StateResidual(), [0]), distance, np.inf)]
        root = FunctionCost(cost, jnp.asarray(base))
        options = MPPIOptions(samples=32, max_iterations=max_iterations, patience=5)
        return mppi(problem(constraints=away, costs=[root]), options=options)

    assert solved(-50.0, 2.0, 3).status == Status.OUT_OF_ITERATIONS
    # The mass cannot get 50 m away in so short a time.
    stalled = solved(50.0, 2.0, 200)
    assert stalled.status == Status.STALLED
    assert float(stalled.residuals.violation) > 40
    diverged = solved(-50.0, -1.0, 3)
    assert diverged.status == Status.DIVERGED
    assert "diverged" in diverged.message


@pytest.mark.slow
def test_a_constraint_that_can_be_met_is():
    away = [Constraint(Selected(StateResidual(), [0]), 0.4, np.inf)]
    free, held = (
        cem(problem(constraints=c), options=CEMOptions(samples=64, elites=8, penalty=1e6)) for c in ((), away)
    )
    assert abs(float(free.xs[-1, 0])) < 0.2
    assert float(held.residuals.violation) < 1e-3
    assert float(held.xs[-1, 0]) < 0.45


def test_numbers_do_not_compile_again():
    traces = 0

    def effort(x, u, t, params):
        nonlocal traces
        traces += 1
        return params * u[0] ** 2

    for k, sigma in enumerate((0.3, 0.2)):
        p = problem(limit=1.0 + k, costs=[FunctionCost(effort, jnp.asarray(0.1 + k))])
        before = traces
        mppi(p, options=MPPIOptions(samples=8, max_iterations=2 + k, sigma=sigma), key=jax.random.key(k))
        # The checks of each new problem trace the cost; the solver traces it only the first time.
        if k == 1:
            assert traces == before


@pytest.mark.slow
def test_single_precision():
    p = problem(dtype=jnp.float32)
    solution = mppi(p, options=SOLVERS["mppi"][1])
    assert solution.us.dtype == solution.xs.dtype == jnp.float32
    assert float(solution.cost) <= 1.01 * optimum()


def test_splines():
    knots = np.random.default_rng(0).normal(size=(6, 2))
    times = np.linspace(0, 5, 40)
    cubic = CubicSpline(np.arange(6), knots, bc_type="natural")(times)
    np.testing.assert_allclose(spline_matrix(40, 6, "cubic") @ knots, cubic, atol=1e-12)
    linear = np.stack([np.interp(times, np.arange(6), knots[:, i]) for i in range(2)], axis=1)
    np.testing.assert_allclose(spline_matrix(40, 6, "linear") @ knots, linear, atol=1e-12)
    zero = spline_matrix(9, 3, "zero") @ np.arange(3)
    np.testing.assert_array_equal(zero, [0, 0, 0, 1, 1, 1, 2, 2, 2])
    np.testing.assert_array_equal(spline_matrix(4, None, "cubic"), np.eye(4))


def test_mistakes_are_named():
    with pytest.raises(ModelError, match="samples is 1"):
        MPPIOptions(samples=1)
    with pytest.raises(ModelError, match="a cubic spline needs 4"):
        PredictiveSamplingOptions(knots=3)
    with pytest.raises(ModelError, match="spline is 'quintic'"):
        CEMOptions(spline="quintic")
    with pytest.raises(ModelError, match="elites is 300"):
        CEMOptions(elites=300)
    with pytest.raises(ModelError, match="more than the horizon"):
        mppi(problem(), options=MPPIOptions(samples=4, knots=HORIZON + 1))
    with pytest.raises(ShapeError, match="sigma has shape"):
        mppi(problem(), options=MPPIOptions(samples=4, sigma=np.ones(3)))
    with pytest.raises(ShapeError, match="us has shape"):
        mppi(problem(), np.ones((3, 1)))
