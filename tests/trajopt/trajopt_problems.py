"""Problems whose outcomes other solvers have published or found, in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

# Problems with constraints are among those that the experiments solve.
from experiments._optimal_control import acrobot, cartpole  # noqa: F401
from jaxdyn import SE3, load_urdf
from jaxdyn.trajopt import (
    ControlResidual,
    FramePoseResidual,
    FunctionResidual,
    ModelDynamics,
    Problem,
    QuadraticCost,
    StateResidual,
)
from tests.robots import robot_path


@functools.cache
def robot(name: str):
    return load_urdf(robot_path(name))


def of_dtype(tree, dtype):
    """Return the tree with all arrays of real numbers in another precision."""
    return jax.tree.map(lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)


def pendulum_rate(x, u, t, params):
    return jnp.array([x[1], u[0] - jnp.sin(x[0])])


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
