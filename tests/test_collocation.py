"""Direct collocation has exact derivatives, the same optimum as shooting, and a true status."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdyn import ModelError
from jaxdyn.trajopt import (
    CollocationOptions,
    Constraint,
    ContinuousDynamics,
    ControlResidual,
    DDPOptions,
    DiscreteDynamics,
    Problem,
    QuadraticCost,
    Selected,
    StateResidual,
    Status,
    collocation,
    ddp,
)
from jaxdyn.trajopt.collocation import NonlinearProgram

HORIZON = 20


def rate(x, u, t, params):
    return jnp.array([x[1], u[0] - params * jnp.sin(x[0]) - 0.1 * x[1] ** 3])


@pytest.fixture(scope="module")
def problem() -> Problem:
    """A motor that saturates brings a pendulum to rest at the top; its speed has a limit."""
    goal = np.array([np.pi, 0.0])
    return Problem(
        ContinuousDynamics(rate, 2, 1, jnp.asarray(4.0), dt=0.1),
        np.zeros(2),
        HORIZON,
        stage_costs=[QuadraticCost(ControlResidual(), 0.1), QuadraticCost(StateResidual(goal), 0.01)],
        control_lower=-8.0,
        control_upper=8.0,
        stage_constraints=[Constraint(Selected(StateResidual(), [1]), -2.0, 2.0)],
        terminal_constraints=[Constraint(StateResidual(goal))],
    )


def simpson_defects(problem, xs, us):
    """The state's change in a stage minus its change by Simpson's rule, over the cubic between the ends."""
    h, x, after, params = 0.1, xs[:-1], xs[1:], jnp.asarray(4.0)
    f = jax.vmap(lambda x, u: rate(x, u, 0.0, params))
    first, last = f(x, us), f(after, us)
    middle = f((x + after) / 2 + h / 8 * (first - last), us)
    return after - x - h / 6 * (first + 4 * middle + last)


def test_derivatives_are_those_of_the_whole(problem):
    program = NonlinearProgram(problem)
    rng = np.random.default_rng(0)
    z = rng.standard_normal(program.size)
    v = rng.standard_normal(program.rows)

    def rows(z):
        # The defects follow their definition in one function that JAX differentiates.
        xs, us = program.split(z)
        return jnp.concatenate([simpson_defects(problem, xs, us).ravel(), problem.constraints(xs, us)[0]])

    cost = lambda z: problem.total_cost(*program.split(z))  # noqa: E731
    np.testing.assert_allclose(program.constraints(z), jax.jit(rows)(z))
    np.testing.assert_allclose(program.jacobian(z).toarray(), jax.jit(jax.jacfwd(rows))(z), atol=1e-12)
    np.testing.assert_allclose(program.gradient(z), jax.jit(jax.grad(cost))(z), atol=1e-12)
    whole = jax.jit(jax.hessian(lambda z: 0.7 * cost(z) + v @ rows(z)))(z)
    np.testing.assert_allclose(program.hessian(z, 0.7, v).toarray(), whole, atol=1e-10)
    assert program.jacobian(z).nnz < 0.2 * program.rows * program.size


@pytest.mark.slow
def test_the_optimum_is_that_of_shooting(problem):
    """Hermite-Simpson and Runge-Kutta are of the same order, so optima and trajectories agree to about `dt^4`."""
    solution = collocation(problem, 2.0)
    assert solution.status == Status.CONVERGED, solution.aux
    assert float(solution.residuals.gap) < 1e-6
    assert float(solution.residuals.violation) < 1e-6
    assert float(jnp.abs(problem.gaps(solution.xs, solution.us)).max()) < 1e-3
    shooting = ddp(problem, 2.0, options=DDPOptions(max_iterations=500))
    assert float(solution.cost) == pytest.approx(float(shooting.cost), rel=1e-3)
    np.testing.assert_allclose(solution.xs, shooting.xs, atol=0.02)
    # The limit of the speed is active, and its multipliers have the right sign.
    assert float(solution.xs[:, 1].max()) == pytest.approx(2.0, abs=1e-4)
    assert float(solution.multipliers.stage.max()) > 1e-3
    assert float(solution.multipliers.stage.min()) > -1e-3


def test_statuses_are_true(problem):
    few = collocation(problem, options=CollocationOptions(max_iterations=3))
    assert few.status == Status.OUT_OF_ITERATIONS
    assert few.message.startswith("out of iterations")


def test_mistakes_are_named(problem):
    discrete = DiscreteDynamics(lambda x, u, t, p: x + u, 1, 1)
    costs = [QuadraticCost(ControlResidual())]
    with pytest.raises(ModelError, match="no rate of the state"):
        collocation(Problem(discrete, np.zeros(1), 3, stage_costs=costs))
    with pytest.raises(ModelError, match="not finite"):
        collocation(problem, xs=np.full((HORIZON + 1, 2), np.nan))
