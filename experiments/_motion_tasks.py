"""Motions of robots to be found: problems with their guesses, and the shapes that are drawn with the robots."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxdyn import (
    BodyInertia,
    Capsule,
    ContactShape,
    DataError,
    Joint,
    Model,
    ModelBuilder,
    Sphere,
    World,
    frame_pose,
    generalized_gravity,
    samples,
    trajopt,
)

type Costs = list[tuple[Any, Any]]
"""Residuals and their weights."""


class MotionTask(NamedTuple):
    """A problem with a guess of its controls and the distance of a state from its goal."""

    problem: trajopt.Problem
    us: Any
    """The guess of the controls."""
    error: Callable[[np.ndarray], float]
    """Returns the distance of a state from the goal."""
    unit: str
    """The unit of `error`."""
    world: World | None = None
    """The robot with an obstacle and what avoids it, to be drawn."""


HOME = np.array([0.0, -0.6, 0.0, -2.2, 0.0, 1.6, 0.8])
"""A posture of the arm, rad."""
OBSTACLE = ((0.55, 0.0, 0.45), 0.12)
"""Center and radius of the sphere that the arm avoids, m."""
ARM_CAPSULES = (
    ContactShape("link3", *Capsule.between((0, 0, -0.2), (0, 0, 0), 0.08)),
    ContactShape("link4", *Capsule.between((0, 0, 0), (-0.0825, 0.2, 0), 0.08)),
    ContactShape("link5", *Capsule.between((0, 0, -0.2), (0, 0, 0), 0.07)),
    ContactShape("link7", *Capsule.between((0, 0, 0), (0, 0, 0.107), 0.06)),
)


def quadratic_problem(
    dynamics: trajopt.ModelDynamics, x0, horizon: int, running: Costs, end: Costs, limits: Any, constraints: Any = ()
) -> trajopt.Problem:
    """Return a problem with the weighted squares of residuals on the way and at the end, with the lower and upper
    limits of the controls, and with constraints of all its states."""
    return trajopt.Problem(
        dynamics,
        x0,
        horizon,
        stage_costs=[trajopt.QuadraticCost(*cost) for cost in running],
        terminal_costs=[trajopt.QuadraticCost(*cost) for cost in end],
        control_lower=limits[0],
        control_upper=limits[1],
        stage_constraints=constraints,
        terminal_constraints=constraints,
    )


@functools.cache
def _upright(angles: int) -> Callable[..., Any]:
    """Return the residual of joints that are upright at pi (the first) and 0 (the others), up to full turns."""

    def residual(x, u, t, params):
        return jnp.concatenate([jnp.sin(x[:angles]), 1 - jnp.cos(x[:angles] - params), x[angles:]])

    return residual


def pendulum(horizon: int) -> MotionTask:
    """Swing-up of a rod with a motor of 2 N m, which cannot lift it: its weight needs 4.9 N m."""
    dt = 4.0 / horizon
    up = trajopt.FunctionResidual(_upright(1), jnp.array([np.pi]), of_state=True)
    running = [(up, dt * np.array([1, 1, 0.05])), (trajopt.ControlResidual(), 0.02 * dt)]
    end = [(up, np.array([200.0, 200, 50]))]
    dynamics = trajopt.ModelDynamics(samples.pendulum(), dt)
    problem = quadratic_problem(dynamics, np.zeros(2), horizon, running, end, (-2.0, 2.0))
    guess = 0.1 * np.sin(np.linspace(0, 8, horizon))[:, None]
    return MotionTask(problem, guess, lambda x: _off(x[0], np.pi), "rad")


def cartpole(horizon: int) -> MotionTask:
    """Swing-up of a pole by a cart with 10 N that comes to rest in the middle of the track."""
    dt = 3.0 / horizon
    hanging, away = np.array([0, np.pi, 0, 0]), trajopt.StateResidual(np.zeros(4))
    dynamics = trajopt.ModelDynamics(samples.cartpole(), dt, actuation=np.array([[1.0], [0.0]]))
    running = [(away, dt * np.array([1, 1, 0.1, 0.1])), (trajopt.ControlResidual(), 0.01 * dt)]
    problem = quadratic_problem(dynamics, hanging, horizon, running, [(away, 100.0)], (-10.0, 10.0))
    return MotionTask(problem, 0.01, lambda x: float(np.hypot(x[0], x[1])), "rad and m")


def acrobot(horizon: int) -> MotionTask:
    """Swing-up of two links by a motor at the elbow, 10 N m."""
    dt = 4.0 / horizon
    up = trajopt.FunctionResidual(_upright(2), jnp.array([np.pi, 0.0]), of_state=True)
    weights = np.array([1.0, 1, 1, 1, 0.1, 0.1])
    dynamics = trajopt.ModelDynamics(samples.acrobot(), dt, actuation=np.array([[0.0], [1.0]]))
    running = [(up, 0.1 * dt * weights), (trajopt.ControlResidual(), 0.002 * dt)]
    problem = quadratic_problem(dynamics, np.zeros(4), horizon, running, [(up, 200 * weights)], (-10.0, 10.0))
    guess = 0.5 * np.sin(np.linspace(0, 12, horizon))[:, None]

    def error(x: np.ndarray) -> float:
        return float(np.hypot(_off(x[0], np.pi), _off(x[1], 0.0)))

    return MotionTask(problem, guess, error, "rad")


def arm(horizon: int) -> MotionTask:
    """Reaching past a sphere on the path of least effort; four capsules keep 2 cm away from it."""
    dt, model = 1.5 / horizon, samples.arm()
    start = HOME.copy()
    start[0] = -0.8
    target = np.array([0.45, 0.42, 0.35])
    x0 = np.concatenate([start, np.zeros(7)])
    ball = ContactShape("world", Sphere(OBSTACLE[1]), OBSTACLE[0])
    obstacle = trajopt.ClearanceResidual(ARM_CAPSULES, [ball])
    clearance = trajopt.Constraint(obstacle, 0.02, np.inf)
    reach, from_start = trajopt.FramePositionResidual("flange", target), trajopt.StateResidual(x0)
    posture, limit = np.array([0.1] * 7 + [1.0] * 7), np.asarray(model.effort_limit)
    running = [(reach, dt), (from_start, 0.1 * dt * posture), (trajopt.ControlResidual(), 1e-3 * dt)]
    end = [(reach, 1e4), (from_start, np.array([0.0] * 7 + [10.0] * 7))]
    dynamics = trajopt.ModelDynamics(model, dt)
    problem = quadratic_problem(dynamics, x0, horizon, running, end, (-limit, limit), [clearance])
    hold = np.asarray(generalized_gravity(model, jnp.asarray(start)))

    def error(x: np.ndarray) -> float:
        position = frame_pose(model, jnp.asarray(x[:7]), "flange").translation
        return float(np.linalg.norm(np.asarray(position) - target))

    pairs = [("world", capsule.link) for capsule in ARM_CAPSULES]
    world = World(model, [*ARM_CAPSULES, ball], None, pairs)
    return MotionTask(problem, hold, error, "m", world)


QUADROTOR_ARM = 0.17
"""Distance from the center to a rotor, m."""


def quadrotor_model() -> Model:
    """An invented vehicle of 1 kg with four rotors on the x and y axes."""
    body = BodyInertia(1.0, (0, 0, 0), (0.01, 0.01, 0.02))
    return ModelBuilder().add_body("body", joint=Joint("free", name="base"), inertia=body).build()


def quadrotor_actuation() -> np.ndarray:
    """Return the matrix `[6, 4]` from four thrusts along the body's z axis to the wrench in body axes. The drag of the
    rotors on the x axis turns the body one way, and the drag of the rotors on the y axis turns it the other way."""
    l, drag = QUADROTOR_ARM, 0.02
    B = np.zeros((6, 4))
    B[2] = 1.0
    B[3], B[4], B[5] = (0, l, 0, -l), (-l, 0, l, 0), (drag, -drag, drag, -drag)
    return B


def quadrotor(horizon: int) -> MotionTask:
    """A flight from upside down to a point 2 m ahead, 1 m to the left and 1 m up."""
    dt, model = 2.0 / horizon, quadrotor_model()
    goal = np.array([2.0, 1.0, 1.0, 1, 0, 0, 0] + [0.0] * 6)
    x0 = np.array([0.0, 0, 0, 0, 1, 0, 0] + [0.0] * 6)
    off, hover = trajopt.StateResidual(goal), np.full(4, 9.81 / 4)
    weights = np.array([1.0] * 6 + [0.1] * 6)
    dynamics = trajopt.ModelDynamics(model, dt, actuation=quadrotor_actuation())
    running = [(off, dt * weights), (trajopt.ControlResidual(hover), 0.05 * dt)]
    problem = quadratic_problem(dynamics, x0, horizon, running, [(off, 100 * weights)], (0.0, 6.0))
    # Thrusts that turn it a little: at half a turn all directions are equally good.
    guess = hover + np.array([0.0, 0.01, 0.0, -0.01])
    return MotionTask(problem, guess, lambda x: float(np.linalg.norm(x[:3] - goal[:3])), "m")


TASKS = {task.__name__: task for task in (pendulum, cartpole, acrobot, arm, quadrotor)}


def motion_task(name: str, horizon: int) -> MotionTask:
    """Return a task of `TASKS`. **Raises** `DataError` for an unknown name."""
    if name not in TASKS:
        raise DataError(f"task is {name!r}; it must be one of {', '.join(map(repr, TASKS))}")
    return TASKS[name](horizon)


def _off(angle: float, goal: float) -> float:
    """The distance between two angles, up to full turns."""
    return float(abs((angle - goal + np.pi) % (2 * np.pi) - np.pi))


def solver_options(solver: str, iterations: int, samples: int, knots: int) -> Any:
    """Return the options of a solver of `jaxdyn.trajopt`, by its name; `samples` and `knots` are those of samplers."""
    if solver == "ddp":
        return trajopt.DDPOptions(max_iterations=iterations)
    kinds: dict[str, Any] = {"mppi": trajopt.MPPIOptions, "cem": trajopt.CEMOptions}
    kinds["predictive_sampling"] = trajopt.PredictiveSamplingOptions
    return kinds[solver](max_iterations=iterations, samples=samples, knots=knots)
