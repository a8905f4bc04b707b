"""Problems of google/trajax: the tests of its iLQR with an augmented Lagrangian, and those of its shooting SQP (Singh,
Slotine & Sindhwani, Optimizing Trajectories with Closed-Loop Dynamic SQP, ICRA 2022)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from experiments._optimal_control._altro import car_rate, outside
from experiments._optimal_control._benchmark import Benchmark, constant, constants
from jaxdyn.trajopt import (
    Constraint,
    ContinuousDynamics,
    ControlResidual,
    FunctionCost,
    FunctionResidual,
    Problem,
    QuadraticCost,
    Selected,
    StateResidual,
)


def acrobot_rate(x, u, t, params):
    """Return the rate of the acrobot of Sutton's book, which hangs at the angles 0."""
    m1, m2, l1, lc1, lc2, i1, i2, g = params
    s1, s2, c2, s12 = jnp.sin(x[0]), jnp.sin(x[1]), jnp.cos(x[1]), jnp.sin(x[0] + x[1])
    v1, v2 = x[2], x[3]
    d1 = m1 * lc1**2 + m2 * (l1**2 + lc2**2 + 2 * l1 * lc2 * c2) + i1 + i2
    d2 = m2 * (lc2**2 + l1 * lc2 * c2) + i2
    phi2 = m2 * lc2 * g * s12
    phi1 = -m2 * l1 * lc2 * (v2**2 + 2 * v2 * v1) * s2 + (m1 * lc1 + m2 * l1) * g * s1 + phi2
    a2 = (u[0] + d2 / d1 * phi1 - m2 * l1 * lc2 * v1**2 * s2 - phi2) / (m2 * lc2**2 + i2 - d2**2 / d1)
    return jnp.array([v1, v2, -(d2 * a2 + phi1) / d1, a2])


def elbow_acrobot() -> Problem:
    """Return `testConstrainedAcrobotSolve` from rest: a swing-up to a given state with limited torque, by Euler steps
    of 0.1 s."""
    params = constants(1.0, 1.0, 1.0, 0.5, 0.5, 1.0, 1.0, 9.8)
    off = StateResidual(np.array([np.pi, 0, 0, 0]))
    return Problem(
        ContinuousDynamics(acrobot_rate, 4, 1, params, dt=0.1, integrator="euler"),
        np.zeros(4),
        50,
        stage_costs=[QuadraticCost(off, 0.1), QuadraticCost(ControlResidual(), 0.01)],
        control_lower=-5.0,
        control_upper=5.0,
        terminal_constraints=[Constraint(off)],
    )


def _clearance(x, u, t, params):
    return jnp.sqrt((x[0] - 0.5) ** 2 + (x[1] - 0.01) ** 2)[None]


def car_past_circle() -> Problem:
    """Return `testConstrainedCarSolve`: a circle almost in the middle of the straight line to the goal."""
    off = StateResidual(np.array([1.0, 0.0, 0.0]))
    clear = Constraint(FunctionResidual(_clearance, of_state=True), 0.25, np.inf)
    return Problem(
        ContinuousDynamics(car_rate, 3, 2, dt=0.1),
        np.zeros(3),
        25,
        stage_costs=[QuadraticCost(off, 0.1), QuadraticCost(ControlResidual(), 1.0)],
        control_lower=-1.0,
        control_upper=1.0,
        stage_constraints=[clear],
        terminal_constraints=[clear, Constraint(off)],
    )


def wrapped(angle):
    """Return the angle without full turns."""
    return jnp.arctan2(jnp.sin(angle), jnp.cos(angle))


def steered_car_rate(x, u, t, params):
    """Return the rate of a car with the controls curvature and acceleration; the angle is measured from the y axis."""
    return jnp.array([x[3] * jnp.sin(x[2]), x[3] * jnp.cos(x[2]), x[3] * u[0], u[1]])


def _off_parked(x, u, t, params):
    off = x - jnp.array([3.0, 3.0, jnp.pi / 2, 0.0])
    return off.at[2].set(wrapped(off[2]))


def steered_car() -> Problem:
    """Return `_setupCar4D`: between three circles to a parking place, with limited curvature and acceleration."""
    dt = 0.05
    clear = outside([(1.0, 1.0, 0.5), (1.0, 2.5, 0.5), (2.5, 2.5, 0.5)])
    parked = QuadraticCost(FunctionResidual(_off_parked, of_state=True), 2 * np.array([50.0, 50.0, 50.0, 10.0]))
    most = np.array([np.pi / 3, 6.0])
    return Problem(
        ContinuousDynamics(steered_car_rate, 4, 2, dt=dt, integrator="euler"),
        np.array([0.25, 1.75, 0.0, 0.0]),
        40,
        stage_costs=[QuadraticCost(ControlResidual(), 2 * dt * np.array([0.2, 0.1]))],
        terminal_costs=[parked],
        control_lower=-most,
        control_upper=most,
        stage_constraints=[clear],
        terminal_constraints=[clear],
    )


BODY, POLE, GRAVITY, HALF, LENGTH = 0.486, 0.2 * 0.486, 9.81, 0.25, 0.5
"""Masses of quadrotor and pole, gravity, half the width of the quadrotor, length of the pole."""
HOVER = 0.5 * (BODY + POLE) * GRAVITY
CIRCLES = ((-1.0, 0.5, 0.5), (0.75, -1.0, 0.75), (-2.0, -1.0, 0.5), (2.0, 1.0, 0.5))


def _mass_matrix(q):
    c, s = POLE * LENGTH * jnp.cos(q[3]), POLE * LENGTH * jnp.sin(q[3])
    total = BODY + POLE
    return jnp.array(
        [[total, 0.0, 0.0, c], [0.0, total, 0.0, s], [0.0, 0.0, 0.00383, 0.0], [c, s, 0.0, POLE * LENGTH**2]]
    )


def _inverse_mass_matrix(q):
    total, d = BODY + POLE, POLE * LENGTH**2
    b, c = POLE * LENGTH * jnp.cos(q[3]), POLE * LENGTH * jnp.sin(q[3])
    den = (POLE * LENGTH) ** 2 - total * d
    return jnp.array(
        [
            [(c * c - total * d) / (total * den), -b * c / (total * den), 0.0, b / den],
            [-b * c / (total * den), (b * b - total * d) / (total * den), 0.0, c / den],
            [0.0, 0.0, 1 / 0.00383, 0.0],
            [b / den, c / den, 0.0, -total / den],
        ]
    )


def _lagrangian(q, v):
    potential = BODY * GRAVITY * q[1] + POLE * GRAVITY * (q[1] - LENGTH * jnp.cos(q[3]))
    return 0.5 * v @ (_mass_matrix(q) @ v) - potential


def pole_carrier_rate(x, u, t, params):
    """Return the rate of a planar quadrotor with a hanging pole: position, angle, angle of the pole, velocities."""
    q, v = x[:4], x[4:]
    matrix_rate = jax.jvp(_mass_matrix, (q,), (v,))[1]
    friction = -0.01 * (v[3] - v[2])
    total = u[0] + u[1]
    force = jnp.array([-total * jnp.sin(q[2]), total * jnp.cos(q[2]), (u[0] - u[1]) * HALF - friction, friction])
    return jnp.append(v, _inverse_mass_matrix(q) @ (force + jax.grad(_lagrangian)(q, v) - matrix_rate @ v))


def _off_inverted(x, u, t, params):
    off = x - jnp.array([3.0, -1.5, 0.0, jnp.pi, 0, 0, 0, 0])
    return off.at[2:4].set(wrapped(off[2:4]))


def _running(x, u, t, params):
    off = jnp.array([x[0] - 3.0, x[1] + 1.5, wrapped(x[2])])
    return 0.5 * (0.01 * (off @ off + 1 + jnp.cos(x[3])) + 0.05 * jnp.sum((u - HOVER) ** 2))


def _pole_clearances(x, u, t, params):
    """Return the squared distances of body and pole from the circles, minus the squared radii."""
    position, s, c = x[:2], jnp.sin(x[2]), jnp.cos(x[2])
    body = position + 0.15 * HALF * jnp.array([-s, c])
    pole = LENGTH * jnp.array([jnp.sin(x[3]), -jnp.cos(x[3])])
    out = []
    for cx, cy, radius in CIRCLES:
        center = jnp.array([cx, cy])
        along = (center - position) @ pole / (pole @ pole)
        nearest = position + jnp.minimum(1.0, jnp.maximum(0.0, along)) * pole
        out += [jnp.sum((body - center) ** 2) - (radius + HALF) ** 2, jnp.sum((nearest - center) ** 2) - radius**2]
    return jnp.stack(out)


def pole_carrier() -> Problem:
    """Return `QuadPend.ipynb`: a planar quadrotor carries a pole past circles and swings it up at the goal."""
    weights = 5.0 * np.array([10.0, 10.0, 1, 1, 1, 1, 1, 1])
    room = np.array([4.0, 2.0, 3 * np.pi / 4])
    constraints = [
        Constraint(Selected(StateResidual(), (0, 1, 2)), -room, room),
        Constraint(FunctionResidual(_pole_clearances, of_state=True), 0.0, np.inf),
    ]
    return Problem(
        ContinuousDynamics(pole_carrier_rate, 8, 2, dt=0.025, integrator="euler"),
        np.array([-2.5, 1.5, 0.0, 0.0, 0, 0, 0, 0]),
        160,
        stage_costs=[FunctionCost(_running)],
        terminal_costs=[QuadraticCost(FunctionResidual(_off_inverted, of_state=True), weights)],
        control_lower=0.1 * BODY * GRAVITY,
        control_upper=3.0 * BODY * GRAVITY,
        stage_constraints=constraints,
        terminal_constraints=constraints,
    )


TRAJAX = {
    "elbow_acrobot": Benchmark(elbow_acrobot, "google/trajax, tests/optimizers_test.py", best=44.41068),
    "car_past_circle": Benchmark(car_past_circle, "google/trajax, tests/optimizers_test.py", best=15.11031),
    "steered_car": Benchmark(steered_car, "google/trajax, trajax/experimental/sqp/shootsqp_test.py", best=2.061164),
    "pole_carrier": Benchmark(
        pole_carrier, "google/trajax, notebooks/l4dc/QuadPend.ipynb", constant(HOVER), best=8.247929
    ),
}
