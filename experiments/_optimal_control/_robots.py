"""Problems of robots loaded from files: aligator's and Crocoddyl's examples, and an arm with all its limits."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments._benchmark_models import model_of
from experiments._motion_tasks import ARM_CAPSULES, OBSTACLE, motion_task
from experiments._optimal_control._benchmark import Benchmark, Guess
from jaxdyn import SE3, ContactShape, Model, Sphere, generalized_gravity
from jaxdyn.trajopt import (
    ClearanceResidual,
    Constraint,
    ControlResidual,
    FramePoseResidual,
    FramePositionResidual,
    FrameVelocityResidual,
    ModelDynamics,
    Problem,
    QuadraticCost,
    Selected,
    StateResidual,
    TimeVarying,
)


@functools.cache
def robot(name: str) -> Model:
    """Return a robot of example-robot-data without friction, which Pinocchio's dynamics leave out."""
    return model_of(name).with_joint_friction(damping=0.0, friction=0.0)


def at_rest(problem: Problem) -> Guess:
    """Return the torques that hold the robot at its start, and their roll-out."""
    dynamics = problem.dynamics
    assert isinstance(dynamics, ModelDynamics)
    return Guess(generalized_gravity(dynamics.model, problem.x0[: dynamics.model.nq]))


def at_start(problem: Problem) -> Guess:
    """Return the torques of `at_rest` and the start at all knots."""
    return Guess(at_rest(problem).us, jnp.broadcast_to(problem.x0, (problem.horizon + 1, problem.dynamics.nx)))


def ur5_reach() -> Problem:
    """Return aligator's `ur5_reach.py --bounds`: a point to be reached at rest, with limits of the torques. As
    published, the weight of the last state is a full matrix of equal numbers."""
    model, dt = robot("ur5"), 0.01
    limit = np.asarray(model.effort_limit)
    end = FramePositionResidual("tool0", np.array([0.15, 0.65, 0.5]))
    return Problem(
        ModelDynamics(model, dt),
        np.zeros(12),
        100,
        stage_costs=[
            QuadraticCost(StateResidual(), dt * np.repeat([1e-4, 1e-2], 6)),
            QuadraticCost(ControlResidual(), dt * 1e-4),
        ],
        terminal_costs=[
            QuadraticCost(StateResidual(), np.full((12, 12), 1e-4)),
            QuadraticCost(end, 10.0),
            QuadraticCost(FrameVelocityResidual("tool0", reference="local"), 100.0),
        ],
        control_lower=-limit,
        control_upper=limit,
    )


def ur5_below_table() -> Problem:
    """Return aligator's `ur5_table_halfspace.py`: the tool tracks a point above a plane, but stays below the plane from
    stage 37 on."""
    model, dt, horizon, height = robot("ur5"), 0.01, 120, 0.65
    tool = FramePositionResidual("tool0", np.array([0.2, 0.3, height + 0.1]))
    of_height = Selected(FramePositionResidual("tool0", np.zeros(3)), (2,))
    most = np.full(horizon, np.inf)
    most[int(0.3 * horizon) + 1 :] = height
    below = jax.vmap(lambda upper: Constraint(of_height, jnp.asarray(-jnp.inf), upper))(jnp.asarray(most))
    # The target of `of_height` gets the leading axis of stages like every other number.
    return Problem(
        ModelDynamics(model, dt),
        np.zeros(12),
        horizon,
        stage_costs=[
            QuadraticCost(StateResidual(), dt * np.repeat([1e-6, 1e-2], 6)),
            QuadraticCost(ControlResidual(), dt * 1e-3),
            QuadraticCost(tool, dt * 5.0),
        ],
        terminal_costs=[QuadraticCost(tool, 10.0)],
        stage_constraints=[TimeVarying(below)],
        terminal_constraints=[Constraint(of_height, -np.inf, height)],
    )


def rotors(distance: float, drag: float) -> np.ndarray:
    """Return the matrix `[6, 4]` from the thrusts of four rotors to the wrench on the body, linear part first."""
    B = np.zeros((6, 4))
    B[2] = 1.0
    B[3], B[4], B[5] = (0, distance, 0, -distance), (-distance, 0, distance, 0), (-drag, drag, -drag, drag)
    return B


def hovering(x: float, y: float, z: float) -> np.ndarray:
    """Return the state at rest at a point, `[q, v]` with the quaternion `w x y z`."""
    return np.array([x, y, z, 1.0] + [0.0] * 9)


def hector_flight() -> Problem:
    """Return Crocoddyl's `quadrotor_ubound.py`: to a pose 1 m ahead and 1 m up, with limits of the thrusts."""
    dt, off = 0.03, StateResidual()
    pose = FramePoseResidual("base_link", SE3.from_translation(np.array([1.0, 0.0, 1.0])))
    return Problem(
        ModelDynamics(robot("hector"), dt, actuation=rotors(0.1525, 1e-6 / 6.6e-5)),
        hovering(0, 0, 0),
        33,
        stage_costs=[
            QuadraticCost(off, dt * 1e-6 * np.array([0.1] * 3 + [1000.0] * 9)),
            QuadraticCost(ControlResidual(), dt * 1e-6),
            QuadraticCost(pose, dt * 1e-2),
        ],
        terminal_costs=[QuadraticCost(pose, 3.0)],
        control_lower=0.1,
        control_upper=5.0,
    )


def hector_guess(problem: Problem) -> Guess:
    """Return no thrust, and the neutral state at all knots."""
    return Guess(0.0, np.tile(hovering(0, 0, 0), (problem.horizon + 1, 1)))


def hector_waypoints() -> Problem:
    """Return aligator's `quadrotor_obstacles.py` without obstacles: past a point to another one, where it is at rest,
    with limits of the thrusts."""
    dt, horizon, switch = 0.033, 60, 42
    weights = np.repeat([4.0, 1e-2, 1e-3, 1e-3], 3)
    of_state, targets = np.tile(weights, (horizon, 1)), np.tile(hovering(0.9, 0.8, 1.0), (horizon, 1))
    of_state[switch] /= dt
    of_state[switch + 1 :, :3] = 1.0
    targets[switch + 1 :] = last = hovering(1.4, -0.6, 1.0)
    off = StateResidual(last)

    def near(target, weight):
        return QuadraticCost(StateResidual(target), weight)

    return Problem(
        ModelDynamics(robot("hector"), dt, actuation=rotors(0.1525, 1e-6 / 6.6e-5), integrator="euler"),
        hovering(0, 0, 0.2),
        horizon,
        stage_costs=[
            TimeVarying(jax.vmap(near)(jnp.asarray(targets), dt * jnp.asarray(of_state))),
            QuadraticCost(ControlResidual(), dt * 1e-2),
        ],
        terminal_costs=[QuadraticCost(off, np.repeat([4.0, 0.1], 6))],
        control_lower=0.0,
        control_upper=4.5,
        terminal_constraints=[Constraint(off)],
    )


def waypoints_guess(problem: Problem) -> Guess:
    """Return hovering thrusts, and the start at all knots."""
    thrust = 9.81 * float(robot("hector").inertial_parameters[0, 0]) / 4
    return Guess(thrust, np.tile(np.asarray(problem.x0), (problem.horizon + 1, 1)))


def panda_past_sphere() -> Problem:
    """Return the arm's task of `experiments.optimize` with limits of torques, joints and speeds, and with goal and rest
    as terminal constraints."""
    task = motion_task("arm", 75).problem
    dynamics = task.dynamics
    assert isinstance(dynamics, ModelDynamics)
    model = dynamics.model
    speed = np.asarray(model.velocity_limit)
    low = np.concatenate([np.asarray(model.position_lower), -speed])
    high = np.concatenate([np.asarray(model.position_upper), speed])
    ball = ContactShape("world", Sphere(OBSTACLE[1]), OBSTACLE[0])
    clear = Constraint(ClearanceResidual(ARM_CAPSULES, [ball]), 0.02, np.inf)
    goal = Constraint(FramePositionResidual("flange", np.array([0.45, 0.42, 0.35])))
    rest = Constraint(Selected(StateResidual(), tuple(range(7, 14))))
    limits = Constraint(StateResidual(), low, high)
    return Problem(
        dynamics,
        task.x0,
        75,
        stage_costs=task.stage_costs[1:],
        control_lower=task.control_lower,
        control_upper=task.control_upper,
        stage_constraints=[clear, limits],
        terminal_constraints=[clear, goal, rest],
    )


ROBOTS = {
    "ur5_reach": Benchmark(ur5_reach, "Simple-Robotics/aligator, examples/ur5_reach.py", at_rest, best=0.1708492),
    "ur5_below_table": Benchmark(
        ur5_below_table,
        "Simple-Robotics/aligator, examples/ur5_table_halfspace.py",
        at_start,
        scale=20.0,
        best=1.32,
    ),
    "hector_flight": Benchmark(
        hector_flight, "loco-3d/crocoddyl, examples/control/quadrotor_ubound.py", hector_guess, best=0.006481144
    ),
    "hector_waypoints": Benchmark(
        hector_waypoints, "Simple-Robotics/aligator, examples/quadrotor_obstacles.py", waypoints_guess, best=4.068096
    ),
    "panda_past_sphere": Benchmark(
        panda_past_sphere, "this project's `experiments.optimize`, task `arm`", at_rest, best=0.5360371
    ),
}
