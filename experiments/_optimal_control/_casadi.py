"""Problems of CasADi's examples and of its relative FATROP (Vanroye et al., FATROP: A Fast Constrained Optimal Control
Problem Solver for Robot Trajectory Optimization and Control, IROS 2023)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from experiments._optimal_control._benchmark import Benchmark, Guess, constant, interpolated
from jaxdyn.trajopt import (
    Constraint,
    ContinuousDynamics,
    ControlResidual,
    DiscreteDynamics,
    FunctionCost,
    FunctionResidual,
    Problem,
    QuadraticCost,
    Selected,
    StateResidual,
)


def runge_kutta(f, x, h):
    """Return the state after a classical Runge-Kutta step of `h` s."""
    k1 = f(x)
    k2 = f(x + h / 2 * k1)
    k3 = f(x + h / 2 * k2)
    k4 = f(x + h * k3)
    return x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def van_der_pol_rate(x, u, t, params):
    """Return the rate of the oscillator, whose damping is negative near the origin."""
    return jnp.array([(1 - x[1] ** 2) * x[0] - x[1] + u[0], x[0]])


def _integrated_cost(x, u, t, params):
    """Return the integral of `x^2 + u^2` over a stage, by four Runge-Kutta steps as for the state."""
    if u is None:
        return jnp.zeros(())

    def rate(z):
        return jnp.append(van_der_pol_rate(z[:2], u, t, None), z[0] ** 2 + z[1] ** 2 + u[0] ** 2)

    return jax.lax.fori_loop(0, 4, lambda i, z: runge_kutta(rate, z, 0.125), jnp.append(x, 0.0))[2]


def van_der_pol() -> Problem:
    """Return `direct_multiple_shooting.py`: the Van der Pol oscillator with bounds on the control and on a state."""
    low = Constraint(Selected(StateResidual(), (0,)), -0.25, np.inf)
    return Problem(
        ContinuousDynamics(van_der_pol_rate, 2, 1, dt=0.5, substeps=4),
        np.array([0.0, 1.0]),
        20,
        stage_costs=[FunctionCost(_integrated_cost)],
        terminal_costs=[],
        control_lower=-1.0,
        control_upper=1.0,
        stage_constraints=[low],
        terminal_constraints=[low],
    )


def van_der_pol_guess(problem: Problem) -> Guess:
    """Return controls of zero and states at the origin, except for the first."""
    xs = np.zeros((problem.horizon + 1, 2))
    xs[0] = problem.x0
    return Guess(0.0, xs)


RACE = 100
"""The number of control intervals of the race."""


def _race_step(x, u, t, params):
    """Return position, speed and duration after a stage. The control of stage 0 is the duration."""

    def rate(z):
        return jnp.array([z[1], u[0] - z[1]])

    after = runge_kutta(rate, x[:2], x[2] / RACE)
    return jnp.where(t == 0, jnp.array([x[0], x[1], u[0]]), jnp.append(after, x[2]))


def _within_speed_limit(x, u, t, params):
    return (1 - jnp.sin(2 * jnp.pi * x[0]) / 2 - x[1])[None]


def race_car() -> Problem:
    """Return `race_car.py`: one round in least time, under a speed limit that depends on the position.

    The duration is free: it is a state, and the control of a stage before the others chooses it.
    """
    low, high = np.zeros((RACE + 1, 1)), np.ones((RACE + 1, 1))
    high[0] = np.inf
    limit = Constraint(FunctionResidual(_within_speed_limit, of_state=True), 0.0, np.inf)
    finish = Constraint(Selected(StateResidual(np.array([1.0, 0.0, 0.0])), (0,)))
    return Problem(
        DiscreteDynamics(_race_step, 3, 1),  # pyright: ignore[reportCallIssue]
        np.zeros(3),
        RACE + 1,
        terminal_costs=[FunctionCost(lambda x, u, t, params: x[2])],
        control_lower=low,
        control_upper=high,
        stage_constraints=[limit],
        terminal_constraints=[limit, finish],
    )


def race_guess(problem: Problem) -> Guess:
    """Return a duration of 1, a speed of 1 at all knots and no throttle."""
    us, xs = np.zeros((RACE + 1, 1)), np.zeros((RACE + 2, 3))
    us[0], xs[1:, 1:] = 1.0, 1.0
    return Guess(us, xs)


def rocket_rate(x, u, t, params):
    """Return the rates of position, speed and mass of a rocket with drag."""
    return jnp.array([x[1], (u[0] - 0.05 * x[1] ** 2) / x[2], -0.1 * u[0] ** 2])


def rocket() -> Problem:
    """Return `rocket.py`: 10 m up and at rest after 10 s, with the least sum of squared controls."""
    goal = Selected(StateResidual(np.array([10.0, 0.0, 0.0])), (0, 1))
    return Problem(
        ContinuousDynamics(rocket_rate, 3, 1, dt=0.2, integrator="euler", substeps=20),
        np.array([0.0, 0.0, 1.0]),
        50,
        stage_costs=[QuadraticCost(ControlResidual(), 2.0)],
        control_lower=-0.5,
        control_upper=0.5,
        terminal_constraints=[Constraint(goal)],
    )


def _point_mass_step(x, u, t, params):
    dt = 0.05
    return x + dt * jnp.array([x[2], x[3], u[0] + 0.5 * u[1] ** 2, u[1]])


def point_mass() -> Problem:
    """Return FATROP's `ocp_impl_example_opti.py`: a point mass with a quadratic input, to a given state. The controls
    are within 50 and 100."""
    most = np.array([50.0, 100.0])
    return Problem(
        DiscreteDynamics(_point_mass_step, 4, 2, dt=0.05),  # pyright: ignore[reportCallIssue]
        np.zeros(4),
        99,
        stage_costs=[QuadraticCost(ControlResidual(), 2.0)],
        control_lower=-most,
        control_upper=most,
        terminal_constraints=[Constraint(StateResidual(np.array([1.0, 2.0, 3.0, 4.0])))],
    )


OMEGA_MAX, HOVER_OMEGA = 600.0, np.sqrt(9.81 / (4 * 1e-5))
FLIGHT_GOAL = np.array([5.0, 5.0, 2.0] + [0.0] * 9)


def rotor_speeds_rate(x, u, t, params):
    """Return the rate of FATROP's quadrotor: position, velocity, roll, pitch and yaw, angular velocity (body axes). The
    controls are the rotors' speeds (rad/s). As published, the thrust is turned by the transposed rotation."""
    mass, gravity, arm, lift, drag, ix, iy, iz = 1.0, 9.81, 0.25, 1e-5, 1e-6, 0.01, 0.01, 0.02
    (roll, pitch), (p, q, r) = x[6:8], x[9:12]
    w1, w2, w3, w4 = u * u
    sr, cr, sp, cp = (f(a) for a in (roll, pitch) for f in (jnp.sin, jnp.cos))
    thrust = lift * (w1 + w2 + w3 + w4) / mass
    # The last row of Rz(yaw) Ry(pitch) Rx(roll), in which yaw does not occur.
    acceleration = thrust * jnp.array([-sp, cp * sr, cp * cr]) - jnp.array([0.0, 0.0, gravity])
    turning = jnp.array(
        [p + (q * sr + r * cr) * sp / cp, q * cr - r * sr, (q * sr + r * cr) / cp],
    )
    moments = arm * lift * (w2 - w4), arm * lift * (w3 - w1), drag * (w1 - w2 + w3 - w4)
    spinning = jnp.array(
        [
            (moments[0] + (iy - iz) * q * r) / ix,
            (moments[1] + (iz - ix) * p * r) / iy,
            (moments[2] + (ix - iy) * p * q) / iz,
        ]
    )
    return jnp.concatenate([x[3:6], acceleration, turning, spinning])


def quadrotor_flight() -> Problem:
    """Return FATROP's `ocp_quadrotor_example.py`: from rest to rest with limits of the rotors' speeds and of roll and
    pitch."""
    tilt = Constraint(Selected(StateResidual(), (6, 7)), -np.pi / 4, np.pi / 4)
    return Problem(
        ContinuousDynamics(rotor_speeds_rate, 12, 4, dt=0.05, integrator="euler"),
        np.zeros(12),
        99,
        stage_costs=[QuadraticCost(ControlResidual(), 2.0 / OMEGA_MAX**2)],
        control_lower=0.0,
        control_upper=OMEGA_MAX,
        stage_constraints=[tilt],
        terminal_constraints=[Constraint(StateResidual(FLIGHT_GOAL))],
    )


def flight_guess(problem: Problem) -> Guess:
    """Return hovering speeds, and states on the straight line to the goal, moved by 0.1."""
    return Guess(HOVER_OMEGA, interpolated([np.zeros(12), FLIGHT_GOAL], problem.horizon) + 0.1)


CASADI = {
    "van_der_pol": Benchmark(
        van_der_pol, "casadi/casadi, docs/examples/python/direct_multiple_shooting.py", van_der_pol_guess, best=3.732969
    ),
    "race_car": Benchmark(
        race_car, "casadi/casadi, docs/examples/python/race_car.py", race_guess, scale=2.0, best=1.904634
    ),
    "rocket": Benchmark(rocket, "casadi/casadi, docs/examples/python/rocket.py", constant(0.4), best=5.601132),
    "point_mass": Benchmark(point_mass, "meco-group/fatrop, examples/ocp_impl_example_opti.py", best=195.7344),
    "quadrotor_flight": Benchmark(
        quadrotor_flight, "meco-group/fatrop, examples/ocp_quadrotor_example.py", flight_guess, best=270.8378
    ),
}
