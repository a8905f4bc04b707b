"""Textbook problems whose costs have no curvature in the controls, or whose motion is unstable, against IPOPT."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from optimality import assert_optimal

from experiments._optimal_control._ipopt import Ipopt
from jaxdyn.trajopt import (
    Constraint,
    ContinuousDynamics,
    ControlResidual,
    FunctionCost,
    FunctionResidual,
    Problem,
    QuadraticCost,
    StateResidual,
    ddp,
)


def largest_orbit() -> Problem:
    """Return the transfer to the largest circular orbit with a given small thrust, whose direction is the control
    (Bryson & Ho, Applied Optimal Control, 1975, section 2.5)."""

    def rate(x, u, t, params):
        radius, outward, along = x
        push = 0.1405 / (1 - 0.0749 * t)
        return jnp.array(
            [
                outward,
                (along**2 - 1 / radius) / radius + push * jnp.sin(u[0]),
                push * jnp.cos(u[0]) - outward * along / radius,
            ]
        )

    def off_circle(x, u, t, params):
        return jnp.array([x[1], x[2] - jax.lax.rsqrt(x[0])])

    return Problem(
        ContinuousDynamics(rate, 3, 1, dt=3.32 / 60),
        np.array([1.0, 0.0, 1.0]),
        60,
        terminal_costs=[FunctionCost(lambda x, u, t, params: -x[0])],
        terminal_constraints=[Constraint(FunctionResidual(off_circle, of_state=True))],
    )


def unstable_regulator() -> Problem:
    """Return a problem in which an error grows by 1e21 over the horizon, and costates that are not exact as well."""

    def rate(x, u, t, params):
        return jnp.array([x[1], 6 * x[0] + x[1] + u[0]])

    return Problem(
        ContinuousDynamics(rate, 2, 1, dt=0.1),
        np.array([1.0, 0.0]),
        160,
        stage_costs=[QuadraticCost(StateResidual(), 0.1), QuadraticCost(ControlResidual(), 0.01)],
        stage_constraints=[
            Constraint(FunctionResidual(lambda x, u, t, params: x[:1] + x[1:], of_state=True), -1.0, 2.0)
        ],
        terminal_constraints=[Constraint(StateResidual(np.array([0.5, 0.0])))],
    )


@pytest.mark.parametrize(("make", "guess"), [(largest_orbit, 0.0), (largest_orbit, 1.0), (unstable_regulator, 0.0)])
def test_optimum_is_that_of_ipopt(make, guess):
    problem = make()
    us, xs = problem.guess(guess)[::-1]
    found = jax.jit(ddp)(problem, us, xs)
    assert_optimal(problem, found)
    np.testing.assert_allclose(found.cost, Ipopt(problem)(us, xs).cost, rtol=1e-6)
