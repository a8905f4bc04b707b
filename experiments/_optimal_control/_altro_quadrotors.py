"""The quadrotor problems of ALTRO: RoboticExplorationLab/Altro.jl, with the model of RoboticExplorationLab/RobotZoo.jl.

The rotation is in modified Rodrigues parameters, the choice of these files with the fewest numbers (12 states). The
model keeps thrusts from being negative; the bounds on the controls do that here.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from experiments._optimal_control._altro import outside
from experiments._optimal_control._benchmark import Benchmark, Guess, constant, interpolated
from jaxdyn.trajopt import (
    Constraint,
    ContinuousDynamics,
    ControlResidual,
    Problem,
    QuadraticCost,
    Selected,
    StateResidual,
    TimeVarying,
)

MASS, INERTIA, ARM, DRAG, GRAVITY = 0.5, np.array([0.0023, 0.0023, 0.004]), 0.175, 0.0245, 9.81
HOVER = MASS * GRAVITY / 4
HORIZON, DT = 100, 0.05


def mrp_rotation(p):
    """Return the rotation matrix of modified Rodrigues parameters, from body to world axes."""
    square, skew = p @ p, _skew(p)
    return jnp.eye(3) + (8 * skew @ skew + 4 * (1 - square) * skew) / (1 + square) ** 2


def mrp_rate(p, w):
    """Return the rate of modified Rodrigues parameters at the angular velocity `w`, body axes."""
    return 0.25 * ((1 - p @ p) * w + 2 * jnp.cross(p, w) + 2 * p * (p @ w))


def _skew(p):
    return jnp.array([[0.0, -p[2], p[1]], [p[2], 0.0, -p[0]], [-p[1], p[0], 0.0]])


def quadrotor_rate(x, u, t, params):
    """Return the rate of RobotZoo's quadrotor: position, rotation, velocity (world axes), angular velocity (body axes).
    The controls are the rotors' thrusts (N)."""
    p, v, w = x[3:6], x[6:9], x[9:12]
    inertia = jnp.asarray(INERTIA)
    moment = jnp.array([ARM * (u[1] - u[3]), ARM * (u[2] - u[0]), DRAG * (u[0] - u[1] + u[2] - u[3])])
    acceleration = mrp_rotation(p)[:, 2] * jnp.sum(u) / MASS - jnp.array([0.0, 0.0, GRAVITY])
    return jnp.concatenate([v, mrp_rate(p, w), acceleration, (moment - jnp.cross(w, inertia * w)) / inertia])


def state(x: float, y: float, z: float) -> np.ndarray:
    """Return the state of hovering at a point."""
    return np.array([x, y, z] + [0.0] * 9)


def fill(position: float, rotation: float, velocity: float, turning: float) -> np.ndarray:
    """Return a number for each component of the state."""
    return np.repeat([position, rotation, velocity, turning], 3)


def _dynamics() -> ContinuousDynamics:
    return ContinuousDynamics(quadrotor_rate, 12, 4, dt=DT)


def quadrotor_zigzag() -> Problem:
    """Return `Quadrotor(:zigzag)`: past two points to the left and right within 5 s, each weighted at one knot."""
    targets = np.tile(state(0, 0, 0), (HORIZON, 1))
    of_state = np.tile(DT * fill(1e-5, 1e-5, 1e-3, 1e-3), (HORIZON, 1))
    of_control = np.full((HORIZON, 1), 1e-4 * DT)
    # Knots 33 and 66, counted from 1. There the weight of the control is not multiplied by the time step.
    for k, point in ((32, state(10, 0, 1)), (65, state(-10, 0, 1))):
        targets[k], of_state[k], of_control[k] = point, 1e-3 * DT * fill(1e3, 1, 1, 1), 1e-4

    def off(target, weight):
        return QuadraticCost(StateResidual(target), weight)

    def effort(weight):
        return QuadraticCost(ControlResidual(), weight)

    return Problem(
        _dynamics(),
        state(0, -10, 1),
        HORIZON,
        stage_costs=[
            TimeVarying(jax.vmap(off)(jnp.asarray(targets), jnp.asarray(of_state))),
            TimeVarying(jax.vmap(effort)(jnp.asarray(of_control[:, 0]))),
        ],
        terminal_costs=[off(state(0, 10, 1), fill(10, 100, 10, 10))],
        control_lower=0.0,
        control_upper=12.0,
    )


def maze_circles() -> np.ndarray:
    """Return the circles `[47, 3]` of the maze: walls with doors, a middle obstacle, and side walls."""
    radius, enter, leave, wide, door, middle = 1.2, -10.0, 10.0, 10.0, 3.0, 3.0
    sides = np.linspace(enter + 2 * radius, leave - 2 * radius, 10)
    points = []
    for y, spans in ((enter, 1), (0.0, 0), (leave, 1)):
        across = (
            [np.linspace(-wide, -door, 5), np.linspace(door, wide, 5)] if spans else [np.linspace(-middle, middle, 7)]
        )
        points += [(x, y) for part in across for x in part]
    points += [(x, y) for x in (-wide, wide) for y in sides]
    # The quadrotor's own radius is 1 m.
    return np.array([(x, y, radius + 1.0) for x, y in points])


def quadrotor_maze() -> Problem:
    """Return `QuadrotorMaze(MRP)`: through two doors and around an obstacle. All stages and the end have the same cost,
    and the rotation at the end is free, as published."""
    goal, free = state(0, 15, 1), np.full(3, np.inf)
    off = StateResidual(goal)
    weight = DT * fill(1e-3, 1e-2, 1e-3, 1e-3)
    low = np.concatenate([[-25.0, -np.inf, 0.0], -free, -free, -free])
    high = np.concatenate([[25.0, np.inf, 20.0], free, np.full(3, 30.0), free])
    return Problem(
        _dynamics(),
        state(0, -15, 1),
        HORIZON,
        stage_costs=[QuadraticCost(off, weight), QuadraticCost(ControlResidual(), 1e-4 * DT)],
        terminal_costs=[QuadraticCost(off, weight)],
        control_lower=0.0,
        control_upper=50.0,
        stage_constraints=[outside(maze_circles()), Constraint(StateResidual(), low, high)],
        terminal_constraints=[Constraint(Selected(off, (0, 1, 2, 6, 7, 8, 9, 10, 11)))],
    )


def maze_guess(problem: Problem) -> Guess:
    """Return hovering thrusts and the published states, which the controls do not reach."""
    points = [(0, -15, 1), (2, -7, 1), (5, -5, 1), (7, 0, 1), (5, 5, 1), (2, 7, 1), (0, 15, 1)]
    return Guess(HOVER, interpolated([state(*point) for point in points], problem.horizon))


QUADROTORS = {
    "quadrotor_zigzag": Benchmark(
        quadrotor_zigzag, "RoboticExplorationLab/Altro.jl, problems/quadrotor.jl", constant(HOVER), best=0.2923624
    ),
    "quadrotor_maze": Benchmark(
        quadrotor_maze, "RoboticExplorationLab/Altro.jl, problems/quadrotor_maze.jl", maze_guess, best=0.6073651
    ),
}
