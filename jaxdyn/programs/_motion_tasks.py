"""Tasks of trajectory optimization: problems, guesses, and the lines as which robots are drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxdyn import samples
from jaxdyn._errors import DataError, require_choice
from jaxdyn.algorithms import frame_pose, generalized_gravity
from jaxdyn.model import BodyInertia, Joint, Model, ModelBuilder
from jaxdyn.trajopt import (
    Capsule,
    ClearanceResidual,
    Constraint,
    ControlResidual,
    FramePositionResidual,
    FunctionResidual,
    ModelDynamics,
    Problem,
    QuadraticCost,
    StateResidual,
)

type Point = tuple[str | None, tuple[float, float, float]]
"""A body, or None for the world, and a point in its axes, m."""


class StickFigure(NamedTuple):
    """Lines through points of bodies, and spheres that are obstacles."""

    lines: tuple[tuple[Point, ...], ...]
    flat: bool
    """Whether the motion is in the x-z plane."""
    spheres: tuple[tuple[tuple[float, float, float], float], ...] = ()


class MotionTask(NamedTuple):
    """A problem with a guess of its controls and the distance of a state from its goal."""

    problem: Problem
    us: Any
    """The guess of the controls."""
    figure: StickFigure
    error: Callable[[np.ndarray], float]
    """Returns the distance of a state from the goal."""
    unit: str
    """The unit of `error`."""


HOME = np.array([0.0, -0.6, 0.0, -2.2, 0.0, 1.6, 0.8])
"""A posture of the arm, rad."""
OBSTACLE = ((0.55, 0.0, 0.45), 0.12)
"""Center and radius of the sphere that the arm avoids, m."""
ARM_CAPSULES = (
    ("link3", Capsule((0, 0, -0.2), (0, 0, 0), 0.08)),
    ("link4", Capsule((0, 0, 0), (-0.0825, 0.2, 0), 0.08)),
    ("link5", Capsule((0, 0, -0.2), (0, 0, 0), 0.07)),
    ("link7", Capsule((0, 0, 0), (0, 0, 0.107), 0.06)),
)
_ARM_LINES = ((
    (None, (0.0, 0.0, 0.0)), ("link1", (0.0, 0.0, 0.0)), ("link3", (0.0, 0.0, 0.0)), ("link4", (0.0, 0.0, 0.0)),
    ("link4", (-0.0825, 0.0, 0.0)), ("link5", (0.0, 0.0, 0.0)), ("link6", (0.0, 0.0, 0.0)),
    ("link7", (0.0, 0.0, 0.0)), ("link7", (0.0, 0.0, 0.107)),
),)  # fmt: skip


def upright(angles: int) -> Callable[..., Any]:
    """Return the residual of joints that are upright at pi (the first) and 0 (the others), up to full turns."""

    def residual(x, u, t, params):
        return jnp.concatenate([jnp.sin(x[:angles]), 1 - jnp.cos(x[:angles] - params), x[angles:]])

    return residual


_UPRIGHT = {1: upright(1), 2: upright(2)}


def pendulum(horizon: int) -> MotionTask:
    """Swing-up of a rod with a motor of 2 N m, which cannot lift it: its weight needs 4.9 N m."""
    dt, limit = 4.0 / horizon, 2.0
    up = FunctionResidual(_UPRIGHT[1], jnp.array([np.pi]), of_state=True)
    problem = Problem(
        ModelDynamics(samples.pendulum(), dt),
        np.zeros(2),
        horizon,
        stage_costs=[QuadraticCost(up, dt * np.array([1, 1, 0.05])), QuadraticCost(ControlResidual(), 0.02 * dt)],
        terminal_costs=[QuadraticCost(up, np.array([200.0, 200, 50]))],
        control_lower=-limit,
        control_upper=limit,
    )
    guess = 0.1 * np.sin(np.linspace(0, 8, horizon))[:, None]
    lines = (((None, (0.0, 0.0, 0.0)), ("rod", (0.0, 0.0, -1.0))),)
    return MotionTask(problem, guess, StickFigure(lines, True), lambda x: _off(x[0], np.pi), "rad")


def cartpole(horizon: int) -> MotionTask:
    """Swing-up of a pole by a cart with 10 N that comes to rest in the middle of the track."""
    dt = 3.0 / horizon
    goal, hanging = np.zeros(4), np.array([0, np.pi, 0, 0])
    problem = Problem(
        ModelDynamics(samples.cartpole(), dt, actuation=np.array([[1.0], [0.0]])),
        hanging,
        horizon,
        stage_costs=[
            QuadraticCost(StateResidual(goal), dt * np.array([1, 1, 0.1, 0.1])),
            QuadraticCost(ControlResidual(), 0.01 * dt),
        ],
        terminal_costs=[QuadraticCost(StateResidual(goal), 100.0)],
        control_lower=-10.0,
        control_upper=10.0,
    )
    ends: tuple[Point, ...] = (("cart", (-0.2, 0.0, 0.0)), ("cart", (0.2, 0.0, 0.0)))
    lines = (ends, (("cart", (0.0, 0.0, 0.0)), ("pole", (0.0, 0.0, 1.0))))
    return MotionTask(problem, 0.01, StickFigure(lines, True), lambda x: float(np.hypot(x[0], x[1])), "rad and m")


def acrobot(horizon: int) -> MotionTask:
    """Swing-up of two links by a motor at the elbow, 10 N m."""
    dt = 4.0 / horizon
    up = FunctionResidual(_UPRIGHT[2], jnp.array([np.pi, 0.0]), of_state=True)
    weights = np.array([1.0, 1, 1, 1, 0.1, 0.1])
    problem = Problem(
        ModelDynamics(samples.acrobot(), dt, actuation=np.array([[0.0], [1.0]])),
        np.zeros(4),
        horizon,
        stage_costs=[QuadraticCost(up, 0.1 * dt * weights), QuadraticCost(ControlResidual(), 0.002 * dt)],
        terminal_costs=[QuadraticCost(up, 200 * weights)],
        control_lower=-10.0,
        control_upper=10.0,
    )
    lines = (((None, (0.0, 0.0, 0.0)), ("lower", (0.0, 0.0, 0.0)), ("lower", (0.0, 0.0, -1.0))),)
    guess = 0.5 * np.sin(np.linspace(0, 12, horizon))[:, None]
    figure = StickFigure(lines, True)
    return MotionTask(problem, guess, figure, lambda x: float(np.hypot(_off(x[0], np.pi), _off(x[1], 0.0))), "rad")


def arm(horizon: int) -> MotionTask:
    """Reaching past a sphere on the path of least effort; four capsules keep 2 cm away from it."""
    dt, model = 1.5 / horizon, samples.arm()
    start = HOME.copy()
    start[0] = -0.8
    target = np.array([0.45, 0.42, 0.35])
    x0 = np.concatenate([start, np.zeros(7)])
    clearance = Constraint(ClearanceResidual(ARM_CAPSULES, [Capsule.sphere(*OBSTACLE)]), 0.02, np.inf)
    reach, from_start = FramePositionResidual("flange", target), StateResidual(x0)
    posture, limit = np.array([0.1] * 7 + [1.0] * 7), np.asarray(model.effort_limit)
    problem = Problem(
        ModelDynamics(model, dt),
        x0,
        horizon,
        stage_costs=[
            QuadraticCost(reach, dt),
            QuadraticCost(from_start, 0.1 * dt * posture),
            QuadraticCost(ControlResidual(), 1e-3 * dt),
        ],
        terminal_costs=[QuadraticCost(reach, 1e4), QuadraticCost(from_start, np.array([0.0] * 7 + [10.0] * 7))],
        control_lower=-limit,
        control_upper=limit,
        stage_constraints=[clearance],
        terminal_constraints=[clearance],
    )
    hold = np.asarray(generalized_gravity(model, jnp.asarray(start)))

    def error(x: np.ndarray) -> float:
        position = frame_pose(model, jnp.asarray(x[:7]), "flange").translation
        return float(np.linalg.norm(np.asarray(position) - target))

    return MotionTask(problem, hold, StickFigure(_ARM_LINES, False, (OBSTACLE,)), error, "m")


QUADROTOR_ARM = 0.17
"""Distance from the center to a rotor, m."""


def quadrotor_model() -> Model:
    """An invented vehicle of 1 kg with four rotors on the x and y axes."""
    body = BodyInertia(1.0, (0, 0, 0), (0.01, 0.01, 0.02))
    return ModelBuilder().add_body("body", joint=Joint("free", name="base"), inertia=body).build()


def quadrotor_actuation() -> np.ndarray:
    """Return the matrix `[6, 4]` from four thrusts along the body's z axis to the wrench in body axes. The drag of the
    rotors on the x axis turns the body one way, that of the rotors on the y axis the other way."""
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
    off, hover = StateResidual(goal), np.full(4, 9.81 / 4)
    weights = np.array([1.0] * 6 + [0.1] * 6)
    problem = Problem(
        ModelDynamics(model, dt, actuation=quadrotor_actuation()),
        x0,
        horizon,
        stage_costs=[QuadraticCost(off, dt * weights), QuadraticCost(ControlResidual(hover), 0.05 * dt)],
        terminal_costs=[QuadraticCost(off, 100 * weights)],
        control_lower=0.0,
        control_upper=6.0,
    )
    l = QUADROTOR_ARM
    lines = (
        (("body", (-l, 0.0, 0.0)), ("body", (l, 0.0, 0.0))),
        (("body", (0.0, -l, 0.0)), ("body", (0.0, l, 0.0))),
        (("body", (0.0, 0.0, 0.0)), ("body", (0.0, 0.0, 0.1))),
    )
    # Thrusts that turn it a little: at half a turn all directions are equally good.
    guess = hover + np.array([0.0, 0.01, 0.0, -0.01])
    return MotionTask(problem, guess, StickFigure(lines, False), lambda x: float(np.linalg.norm(x[:3] - goal[:3])), "m")


TASKS: dict[str, Callable[[int], MotionTask]] = {
    "pendulum": pendulum,
    "cartpole": cartpole,
    "acrobot": acrobot,
    "arm": arm,
    "quadrotor": quadrotor,
}


def motion_task(name: str, horizon: int) -> MotionTask:
    """Return a task of `TASKS`. **Raises** `DataError` for an unknown name."""
    require_choice(name, TASKS, "task", error=DataError)
    return TASKS[name](horizon)


def _off(angle: float, goal: float) -> float:
    """The distance between two angles, up to full turns."""
    return float(abs((angle - goal + np.pi) % (2 * np.pi) - np.pi))
