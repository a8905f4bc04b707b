"""Problems of ALTRO (Howell, Jackson & Manchester, ALTRO: A Fast Solver for Constrained Trajectory Optimization, IROS
2019): RoboticExplorationLab/Altro.jl, folder `problems`, with the models of RoboticExplorationLab/RobotZoo.jl.

The costs of stages are multiplied by the time step, as the library did itself at first and the files do later. Steps
are of the classical Runge-Kutta method with constant controls. Constraints on states act from the second knot on.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from experiments._optimal_control._benchmark import (
    Benchmark,
    Guess,
    constant,
    constants,
    interpolated,
    squared_clearances,
)
from jaxdyn.trajopt import (
    Constraint,
    ContinuousDynamics,
    ControlResidual,
    FunctionResidual,
    Problem,
    QuadraticCost,
    StateResidual,
)


def regulated(dynamics, x0, goal, horizon: int, weights, *, constraints=(), low=None, high=None, end=True) -> Problem:
    """Return the problem of `LQRObjective` with the goal as terminal constraint (unless `end` is false). `weights`: of
    state and control at a stage, and of the last state."""
    of_state, of_control, of_end = weights
    off = StateResidual(np.asarray(goal, float))
    return Problem(
        dynamics,
        np.asarray(x0, float),
        horizon,
        stage_costs=[QuadraticCost(off, of_state), QuadraticCost(ControlResidual(), of_control)],
        terminal_costs=[QuadraticCost(off, of_end)],
        control_lower=low,
        control_upper=high,
        stage_constraints=constraints,
        terminal_constraints=[Constraint(off)] if end else (),
    )


def outside(circles) -> Constraint:
    """Return the constraint that keeps the position outside of circles `[n, 3]` (center and radius)."""
    return Constraint(FunctionResidual(squared_clearances, jnp.asarray(circles), of_state=True), 0.0, np.inf)


def double_integrator_rate(x, u, t, params):
    """Return the rate of a point mass in one or more dimensions; `params` is the acceleration of gravity."""
    return jnp.concatenate([x[len(u) :], u + params])


def double_integrator() -> Problem:
    """Return `DoubleIntegrator`: a rest-to-rest motion by 1 m in 2 s with limits of speed and force."""
    dt = 2.0 / 20
    speed = Constraint(StateResidual(), np.array([-np.inf, -0.6]), np.array([np.inf, 0.6]))
    return regulated(
        ContinuousDynamics(double_integrator_rate, 2, 1, jnp.zeros(1), dt=dt),
        [0, 0],
        [1, 0],
        20,
        (dt, 0.1 * dt, 1.0),
        constraints=[speed],
        low=-3.0,
        high=3.0,
    )


def square_norm(x, u, t, params):
    """Return the squared norm of the control."""
    return jnp.sum(u * u)[None]


def rocket_landing() -> Problem:
    """Return the landing of a point mass under gravity with a bound on the norm of its thrust (`test/rocket_test.jl`).
    The cone is written as a bound on the squared norm."""
    dt = 0.1
    thrust = Constraint(FunctionResidual(square_norm), -np.inf, 100.0**2)
    return regulated(
        ContinuousDynamics(double_integrator_rate, 6, 3, jnp.array([0, 0, -9.81]), dt=dt),
        [10, 10, 100, 0, 0, -10],
        np.zeros(6),
        100,
        (dt, 0.1 * dt, 100 * dt * 100),
        constraints=[thrust],
    )


def pendulum_rate(x, u, t, params):
    """Return the rate of RobotZoo's pendulum; `params`: mass, length to the center, friction, gravity."""
    mass, length, friction, gravity = params
    inertia = mass * length**2
    return jnp.array([x[1], u[0] / inertia - gravity * jnp.sin(x[0]) / length - friction * x[1] / inertia])


def pendulum() -> Problem:
    """Return `Pendulum`: a swing-up with limited torque."""
    dt = 3.0 / 50
    dynamics = ContinuousDynamics(pendulum_rate, 2, 1, constants(1.0, 0.5, 0.1, 9.81), dt=dt)
    return regulated(dynamics, [0, 0], [np.pi, 0], 50, (1e-3 * dt, 1e-3 * dt, 1.0), low=-3.0, high=3.0)


def cartpole_rate(x, u, t, params):
    """Return the rate of a cart with a pole, which hangs at the angle 0. `params` are the masses of cart and pole (kg),
    the length (m) and gravity (m/s^2)."""
    mc, mp, l, g = params
    angle, rate = x[1], x[3]
    s, c = jnp.sin(angle), jnp.cos(angle)
    # [mc + mp, mp l c; mp l c, mp l^2] a = [u + mp l s rate^2, -mp g l s]
    f, h = u[0] + mp * l * s * rate**2, -g * s
    cart = (f - mp * c * h) / (mc + mp - mp * c * c)
    return jnp.array([x[2], x[3], cart, (h - c * cart) / l])


def cartpole() -> Problem:
    """Return `Cartpole`. From the roll-out of 0.01, ALTRO needs 44 iterations and ends at the cost 1.539 and the
    violation 5.9e-7; IPOPT ends at 1.486187."""
    dt = 0.05
    dynamics = ContinuousDynamics(cartpole_rate, 4, 1, constants(1.0, 0.2, 0.5, 9.81), dt=dt)
    weights = 1e-2 * dt, 1e-1 * dt, 100.0
    return regulated(dynamics, np.zeros(4), [0, np.pi, 0, 0], 100, weights, low=-3.0, high=3.0)


def acrobot_rate(x, u, t, params):
    """Return the rate of RobotZoo.jl's acrobot: two links with unit lengths, masses, inertias and friction, and a motor
    at the elbow. The first angle is measured from the horizontal."""
    l, m, J, friction, g = params
    s2, c1, c2, c12 = jnp.sin(x[1]), jnp.cos(x[0]), jnp.cos(x[1]), jnp.cos(x[0] + x[1])
    m11 = m * l**2 + J + m * (2 * l**2 + 2 * l**2 * c2) + J
    m12 = m * (l**2 + l**2 * c2 + J)
    m22 = m * l**2 + J
    coupling = m * l**2 * s2
    v1, v2 = x[2], x[3]
    f1 = (2 * v1 * v2 + v2**2) * coupling - friction * v1 - (2 * m * l * c1 + m * l * c12) * g
    f2 = u[0] - coupling * v1**2 - friction * v2 - m * l * c12 * g
    determinant = m11 * m22 - m12 * m12
    return jnp.array([v1, v2, (m22 * f1 - m12 * f2) / determinant, (m11 * f2 - m12 * f1) / determinant])


def acrobot() -> Problem:
    """Return `Acrobot`. From the roll-out of 0, ALTRO needs 50 iterations; IPOPT ends at the cost 50.046611."""
    dt = 0.05
    dynamics = ContinuousDynamics(acrobot_rate, 4, 1, constants(1.0, 1.0, 1.0, 1.0, 9.81), dt=dt)
    start, goal = [-np.pi / 2, 0, 0, 0], [np.pi / 2, 0, 0, 0]
    return regulated(dynamics, start, goal, 100, (1.0 * dt, 0.01 * dt, 100.0), low=-15.0, high=15.0)


def car_rate(x, u, t, params):
    """Return the rate of a car that moves along its axis and turns; the controls are the two speeds."""
    return jnp.array([u[0] * jnp.cos(x[2]), u[0] * jnp.sin(x[2]), u[1]])


def _car(tf: float) -> ContinuousDynamics:
    return ContinuousDynamics(car_rate, 3, 2, dt=tf / 100)


def parallel_park() -> Problem:
    """Return `DubinsCar(:parallel_park)`: 1.5 m sideways in a narrow lane."""
    dt = 0.03
    lane = Constraint(StateResidual(), np.array([-0.25, -0.001, -np.inf]), np.array([0.25, 1.501, np.inf]))
    weights = 1e-2 * dt, 1e-2 * dt, 100.0
    return regulated(_car(3.0), np.zeros(3), [0, 1.5, 0], 100, weights, constraints=[lane], low=-2.0, high=2.0)


CAR_RADIUS = 0.175


def three_obstacles() -> Problem:
    """Return `DubinsCar(:three_obstacles)`: three circles on the straight line to the goal."""
    dt, centers = 0.05, 3 * np.array([0.25, 0.5, 0.75])
    circles = np.stack([centers, centers, np.full(3, 0.25 + CAR_RADIUS)], axis=1)
    return regulated(
        _car(5.0),
        np.zeros(3),
        [3, 3, 0],
        100,
        (dt, 0.5 * dt, 10.0),
        constraints=[outside(circles)],
        low=np.array([0.0, -3.0]),
        high=3.0,
    )


def walls() -> np.ndarray:
    """Return the circles `[170, 3]` of the two rooms of `car_escape`."""
    across, along, short = np.linspace(0, 5, 30), np.linspace(0, 10, 50), 15
    points = [np.stack([np.full(30, x), across], axis=1) for x in (0.0, 5.0, 10.0)]
    points.append(np.stack([along, np.zeros(50)], axis=1))
    points += [np.stack([np.linspace(a, b, short), np.full(short, 5.0)], axis=1) for a, b in ((0, 3), (5, 8))]
    points = np.concatenate(points)
    return np.concatenate([points, np.full((len(points), 1), 0.5)], axis=1)


def car_escape() -> Problem:
    """Return `DubinsCar(:escape)`: out of one room and into the next through narrow doors, past 170 circles."""
    dt = 0.03
    weights = 1e-3 * dt, 1e-2 * dt, 100.0
    start, goal = [2.5, 2.5, 0], [7.5, 2.5, 0]
    return regulated(_car(3.0), start, goal, 100, weights, constraints=[outside(walls())], low=-5.0, high=5.0)


def escape_guess(problem: Problem) -> Guess:
    """Return controls of 1 and the published states, which the controls do not reach."""
    points = [[2.5, 2.5, 0], [4, 5, 0.785], [5, 6.25, 0], [7.5, 6.25, -0.261], [9, 5, -1.57], [7.5, 2.5, 0]]
    return Guess(1.0, interpolated(points, problem.horizon))


def bicycle_rate(x, u, t, params):
    """Return the rate of RobotZoo's bicycle model at its center of mass; the controls are the speed and the rate of the
    steering angle. `params`: distances from the rear to the front wheel and to the center of mass."""
    wheels, rear = params
    angle, steering = x[2], x[3]
    slip = jnp.arctan2(rear * steering, wheels)
    turn = u[0] * jnp.cos(slip) * jnp.tan(steering) / wheels
    return jnp.array([u[0] * jnp.cos(angle + slip), u[0] * jnp.sin(angle + slip), turn, u[1]])


def bicycle() -> Problem:
    """Return `BicycleCar(:parallel_park)`: 2 m sideways with limited steering."""
    dt, most = 0.03, np.array([10.0, 6.0, np.inf, np.pi / 4])
    dynamics = ContinuousDynamics(bicycle_rate, 4, 2, constants(2.7, 1.5), dt=dt)
    weights = dt * np.array([1.0, 1.0, 1e-2, 1e-2]), 1.0 * dt, np.array([1.0, 1.0, 1.0, 10.0])
    box = Constraint(StateResidual(), -most, most)
    return regulated(dynamics, np.zeros(4), [0, 2, 0, 0], 100, weights, constraints=[box])


def _altro(file: str, **fields) -> Benchmark:
    return Benchmark(source=f"RoboticExplorationLab/Altro.jl, {file}", **fields)


ALTRO = {
    "double_integrator": _altro("problems/doubleintegrator.jl", make=double_integrator, best=0.744087),
    "rocket_landing": _altro("test/rocket_test.jl", make=rocket_landing, scale=20.0, best=6705.789),
    "pendulum": _altro("problems/pendulum.jl", make=pendulum, guess=constant(0.1), best=0.01840463),
    "cartpole": _altro("problems/cartpole.jl", make=cartpole, guess=constant(0.01), best=1.486187),
    "acrobot": _altro("problems/acrobot.jl", make=acrobot, best=47.27388),
    "parallel_park": _altro("problems/dubins_car.jl", make=parallel_park, guess=constant(0.1), best=0.054067),
    "three_obstacles": _altro("problems/dubins_car.jl", make=three_obstacles, guess=constant(0.01), best=9.433750),
    "car_escape": _altro("problems/dubins_car.jl", make=car_escape, guess=escape_guess, best=0.3315086),
    "bicycle": _altro("problems/bicycle.jl", make=bicycle, guess=constant(np.array([-0.1, 0.0])), best=22.57667),
}
