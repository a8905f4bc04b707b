"""Problems whose outcomes other solvers have published or found, in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from robots import robot_path

from jaxdyn import SE3, load_urdf
from jaxdyn.trajopt import (
    Constraint,
    ContinuousDynamics,
    ControlResidual,
    FramePoseResidual,
    FunctionResidual,
    ModelDynamics,
    Problem,
    QuadraticCost,
    StateResidual,
)


@functools.cache
def robot(name: str):
    return load_urdf(robot_path(name))


def of_dtype(tree, dtype):
    """Return the tree with all arrays of real numbers in another precision."""
    return jax.tree.map(lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)


def pendulum_residual(x, u, t, params):
    return jnp.array([jnp.sin(x[0]), jnp.sin(x[1]), 1 - jnp.cos(x[0]), 1 - jnp.cos(x[1]), x[2], x[3]])


def double_pendulum() -> Problem:
    """Return Crocoddyl's example. Its FDDP needs 54 iterations from the guess of zeros; the cost is 2.058751e-2."""
    # Crocoddyl's dynamics leave out the damping of the robot's file.
    model = robot("double_pendulum").with_joint_friction(damping=0.0)
    dynamics = ModelDynamics(model, 0.01, actuation=np.array([[1.0], [0.0]]))
    up = FunctionResidual(pendulum_residual, of_state=True)
    weights = np.array([1, 1, 1, 1, 0.1, 0.1])
    return Problem(
        dynamics,
        np.array([3.14, 0, 0, 0]),
        100,
        stage_costs=[QuadraticCost(ControlResidual(), 1e-4), QuadraticCost(up, 1e-5 * weights)],
        terminal_costs=[QuadraticCost(up, 100.0 * weights)],
    )


def kinova() -> Problem:
    """Return Crocoddyl's arm problem. Its FDDP needs 73 iterations from the guess of zeros; the cost is 8.125078."""
    model = robot("kinova")
    # This is the posture `arm_up` of the robot's SRDF.
    x0 = np.zeros(12)
    x0[:6] = 1.5707, 2.618, -1.5707, 3.1415, 2.618, 0.0
    goal = FramePoseResidual("j2s6s200_end_effector", SE3.from_translation(np.array([0.6, 0.2, 0.5])))
    dt = 0.01
    running = [
        QuadraticCost(goal, dt),
        QuadraticCost(StateResidual(x0), 0.1 * dt),
        QuadraticCost(ControlResidual(), 0.1 * dt),
    ]
    return Problem(ModelDynamics(model, dt), x0, 100, stage_costs=running, terminal_costs=[QuadraticCost(goal, 1e3)])


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
    """Return ALTRO's problem. From the roll-out of 0.01, ALTRO needs 44 iterations and ends at the cost 1.539 and the
    violation 5.9e-7; IPOPT ends at 1.486187."""
    dt, goal = 0.05, np.array([0, np.pi, 0, 0])
    params = tuple(jnp.asarray(p) for p in (1.0, 0.2, 0.5, 9.81))
    return Problem(
        ContinuousDynamics(cartpole_rate, 4, 1, params, dt=dt),
        np.zeros(4),
        100,
        stage_costs=[QuadraticCost(StateResidual(goal), 1e-2 * dt), QuadraticCost(ControlResidual(), 1e-1 * dt)],
        terminal_costs=[QuadraticCost(StateResidual(goal), 100.0)],
        control_lower=-3.0,
        control_upper=3.0,
        terminal_constraints=[Constraint(StateResidual(goal))],
    )


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
    """Return ALTRO's problem. From the roll-out of 0, ALTRO needs 50 iterations; IPOPT ends at the cost 50.046611."""
    dt, goal = 0.05, np.array([np.pi / 2, 0, 0, 0])
    params = tuple(jnp.asarray(p) for p in (1.0, 1.0, 1.0, 1.0, 9.81))
    return Problem(
        ContinuousDynamics(acrobot_rate, 4, 1, params, dt=dt),
        np.array([-np.pi / 2, 0, 0, 0]),
        100,
        stage_costs=[QuadraticCost(StateResidual(goal), 1.0 * dt), QuadraticCost(ControlResidual(), 0.01 * dt)],
        terminal_costs=[QuadraticCost(StateResidual(goal), 100.0)],
        control_lower=-15.0,
        control_upper=15.0,
        terminal_constraints=[Constraint(StateResidual(goal))],
    )
