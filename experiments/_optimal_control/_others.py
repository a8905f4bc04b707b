"""Problems of acados, of OCS2 and of the code of control-limited DDP."""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np
import scipy.optimize

from experiments._optimal_control._benchmark import Benchmark, Guess, constants
from jaxdyn.trajopt import (
    Constraint,
    ContinuousDynamics,
    ControlResidual,
    DiscreteDynamics,
    Problem,
    QuadraticCost,
    Selected,
    SmoothAbsCost,
    StateResidual,
)


def pendulum_on_cart_rate(x, u, t, params):
    """Return the rate of acados' pendulum on a cart, upright at the angle 0."""
    cart, ball, gravity, length = params
    s, c, rate = jnp.sin(x[1]), jnp.cos(x[1]), x[3]
    denominator = cart + ball - ball * c * c
    a = (-ball * length * s * rate**2 + ball * gravity * c * s + u[0]) / denominator
    turn = (-ball * length * c * s * rate**2 + u[0] * c + (cart + ball) * gravity * s) / (length * denominator)
    return jnp.array([x[2], rate, a, turn])


def pendulum_on_cart() -> Problem:
    """Return `minimal_example_ocp.py`: a swing-up within 1 s. The costs of stages are multiplied by the time step, as
    acados does. Its implicit Runge-Kutta steps are four classical ones here."""
    dt = 0.05
    # The cost is x^T Q x with twice these numbers.
    weight = 4 * np.array([1e3, 1e3, 1e-2, 1e-2])
    return Problem(
        ContinuousDynamics(pendulum_on_cart_rate, 4, 1, constants(1.0, 0.1, 9.81, 0.8), dt=dt, substeps=4),
        np.array([0.0, np.pi, 0.0, 0.0]),
        20,
        stage_costs=[QuadraticCost(StateResidual(), dt * weight), QuadraticCost(ControlResidual(), dt * 4e-2)],
        terminal_costs=[QuadraticCost(StateResidual(), weight)],
        control_lower=-80.0,
        control_upper=80.0,
    )


FREE = 3
"""The number of masses between the two ends of the chain."""
SPRING, MASS, REST = 1.0, 0.033, 0.033


def chain_rate(x, u, t, params):
    """Return the rate of a chain of masses: positions of the free masses and of the end, which moves with the velocity
    `u`, then velocities of the free masses."""
    positions = jnp.concatenate([jnp.zeros((1, 3)), x[: 3 * FREE + 3].reshape(-1, 3)])
    spans = positions[1:] - positions[:-1]
    lengths = jnp.sqrt(jnp.sum(spans**2, axis=1, keepdims=True))
    pulls = SPRING / MASS * (1 - REST / lengths) * spans
    accelerations = pulls[1:] - pulls[:-1] - jnp.array([0.0, 0.0, 9.81])
    return jnp.concatenate([x[3 * FREE + 3 :], u, accelerations.ravel()])


@functools.cache
def chain_at_rest() -> np.ndarray:
    """Return the state in which the chain hangs at rest, its end 0.792 m from its beginning."""
    end = np.array([REST * (FREE + 1) * 6, 0.0, 0.0])

    def accelerations(free):
        x = jnp.concatenate([free, end, jnp.zeros(3 * FREE)])
        return np.asarray(chain_rate(x, jnp.zeros(3), 0.0, None)[-3 * FREE :])

    straight = np.linspace(0, end, FREE + 2)[1:-1]
    found = scipy.optimize.root(accelerations, straight.ravel(), tol=1e-13)
    return np.concatenate([found.x, end, np.zeros(3 * FREE)])


def hanging_chain() -> Problem:
    """Return `chain_mass` with five masses: back to rest without touching a wall.

    It starts as published, after five steps of 0.2 s at the velocity (-1, 1, 1) from rest. The wall is soft there, with
    slacks, and hard here. The steps are two classical Runge-Kutta steps each.
    """
    dt, n = 0.2, 6 * FREE + 3
    rest = chain_at_rest()
    dynamics = ContinuousDynamics(chain_rate, n, 3, dt=dt, substeps=2)
    start = jnp.asarray(rest)
    for k in range(5):
        start = dynamics.step(start, jnp.array([-1.0, 1.0, 1.0]), k)
    weight = 2 * np.ones(n)
    weight[3 * FREE : 3 * FREE + 3] *= FREE + 1
    wall = Constraint(Selected(StateResidual(), tuple(range(1, 3 * FREE + 3, 3))), -0.05, np.inf)
    off = StateResidual(rest)
    return Problem(
        dynamics,
        np.asarray(start),
        40,
        stage_costs=[QuadraticCost(off, dt * weight), QuadraticCost(ControlResidual(), dt * 2e-2)],
        terminal_costs=[QuadraticCost(off, weight)],
        control_lower=-1.0,
        control_upper=1.0,
        stage_constraints=[wall],
    )


def swing_up_rate(x, u, t, params):
    """Return the rate of OCS2's cartpole: angle, position and their rates; upright at the angle 0."""
    cart, pole, length, gravity = params
    half = length / 2
    s, c = jnp.sin(x[0]), jnp.cos(x[0])
    inertia = pole * length**2 / 12 + pole * half**2
    coupling = pole * half * c
    torque, force = pole * half * gravity * s, u[0] + pole * half * x[2] ** 2 * s
    determinant = inertia * (cart + pole) - coupling**2
    turn = ((cart + pole) * torque - coupling * force) / determinant
    return jnp.array([x[2], x[3], turn, (inertia * force - coupling * torque) / determinant])


def swing_up() -> Problem:
    """Return `ocs2_cartpole`: a swing-up with limited force over its horizon of 5 s. The problem is one of continuous
    time; here it has 100 Runge-Kutta steps."""
    dt = 0.05
    return Problem(
        ContinuousDynamics(swing_up_rate, 4, 1, constants(2.0, 0.2, 1.0, 9.81), dt=dt),
        np.array([3.14, 0.0, 0.0, 0.0]),
        100,
        stage_costs=[QuadraticCost(ControlResidual(), 0.1 * dt)],
        terminal_costs=[QuadraticCost(StateResidual(), np.array([5.0, 1.0, 1.0, 1.0]))],
        control_lower=-5.0,
        control_upper=5.0,
    )


def parking_step(x, u, t, params):
    """Return the state of a car (position, angle, velocity of the front wheels) after a step with the steering angle
    and the acceleration `u`. `params`: distance between the axles (m), length of a step (s)."""
    axles, h = params
    angle, rolled = x[2], h * x[3]
    across = rolled * jnp.sin(u[0])
    back = axles + rolled * jnp.cos(u[0]) - jnp.sqrt(axles**2 - across**2)
    return x + jnp.array([back * jnp.cos(angle), back * jnp.sin(angle), jnp.arcsin(across / axles), h * u[1]])


def car_parking() -> Problem:
    """Return the car parking of control-limited DDP: 500 steps, limited steering and acceleration."""
    position, state = Selected(StateResidual(), (0, 1)), StateResidual()
    near = SmoothAbsCost(position, 1e-3, 0.1)
    parked = SmoothAbsCost(state, np.array([0.1, 0.1, 1.0, 0.3]), np.array([0.01, 0.01, 0.01, 1.0]))
    most = np.array([0.5, 2.0])
    return Problem(
        DiscreteDynamics(parking_step, 4, 2, constants(2.0, 0.03)),  # pyright: ignore[reportCallIssue]
        np.array([1.0, 1.0, 1.5 * np.pi, 0.0]),
        500,
        stage_costs=[near, QuadraticCost(ControlResidual(), 2 * np.array([1e-2, 1e-4]))],
        terminal_costs=[near, parked],
        control_lower=-most,
        control_upper=most,
    )


def parking_guess(problem: Problem) -> Guess:
    """Return normal random controls of standard deviation 0.1, as published; their seed is chosen here."""
    return Guess(0.1 * np.random.default_rng(0).normal(size=(problem.horizon, 2)))


OTHERS = {
    "pendulum_on_cart": Benchmark(
        pendulum_on_cart, "acados/acados, examples/acados_python/getting_started/minimal_example_ocp.py", best=4484.337
    ),
    "hanging_chain": Benchmark(hanging_chain, "acados/acados, examples/acados_python/chain_mass", best=20.51895),
    "swing_up": Benchmark(swing_up, "leggedrobotics/ocs2, ocs2_robotic_examples/ocs2_cartpole", best=4.683978),
    "car_parking": Benchmark(
        car_parking,
        "Tassa, Mansard & Todorov, Control-Limited Differential Dynamic Programming, ICRA 2014, and its `demo_car.m`",
        parking_guess,
        best=1.436101,
    ),
}
