"""Tasks of model predictive control: problems, starts, and the errors that decide on success."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import jaxdyn
from experiments._motion_tasks import HOME, quadratic_problem
from jaxdyn import Model, frame_pose, generalized_gravity
from jaxdyn.trajopt import (
    ControlResidual,
    FramePositionResidual,
    FunctionResidual,
    ModelDynamics,
    Problem,
    QuadraticCost,
    StateResidual,
    TimeVarying,
)


class ControlTask(NamedTuple):
    """A problem of model predictive control with random starts and a measure of success."""

    problem: Problem
    actuation: np.ndarray | None
    """`B` of `tau = B u`."""
    start: Callable[[np.random.Generator], tuple[np.ndarray, Problem, Any]]
    """Draws a start: the state, the problem from there, and a guess of the controls."""
    at_time: Callable[[Problem, Any], Problem] | None
    """Returns the problem at a time, for a goal that moves."""
    error: Callable[[Problem, np.ndarray, np.ndarray], np.ndarray]
    """Returns the distances from the goal for a problem, states and times."""
    tolerance: float
    """Largest error of the last second of a success."""
    unit: str


def cartpole_model() -> Model:
    """Return the sample with a pole of 1 cm radius in place of a line: MuJoCo has no bodies without thickness."""
    model = jaxdyn.samples.cartpole()
    pole = model.body_names.index("pole")
    thick = model.inertial_parameters.at[pole, 9].add(0.5 * model.inertial_parameters[pole, 0] * 0.01**2)
    return dataclasses.replace(model, inertial_parameters=thick)


def _off_upright(x, u, t, params):
    """Return the residual of position, angle (up to full turns) and velocities."""
    return jnp.array([x[0], jnp.sin(x[1]), 1 - jnp.cos(x[1]), x[2], x[3]])


def cartpole(model: Model, dt: float, horizon: int) -> ControlTask:
    """Swing-up from near hanging, and balance in the middle of the track; 10 N."""
    off = FunctionResidual(_off_upright, of_state=True)
    actuation = np.array([[1.0], [0.0]])
    dynamics = ModelDynamics(model, dt, actuation=actuation)
    running = [(off, dt * np.array([2.0, 4.0, 4.0, 0.1, 0.1])), (ControlResidual(), 0.01 * dt)]
    end = [(off, np.array([10.0, 50.0, 50.0, 5.0, 5.0]))]
    problem = quadratic_problem(dynamics, np.zeros(4), horizon, running, end, (-10.0, 10.0))

    def start(rng):
        hanging = np.array([0.0, np.pi, 0.0, 0.0])
        return hanging + rng.uniform(-1, 1, 4) * np.array([0.5, 0.3, 0.2, 0.2]), problem, 0.01

    def error(problem, xs, t):
        return np.hypot(xs[:, 0], (xs[:, 1] + np.pi) % (2 * np.pi) - np.pi)

    return ControlTask(problem, actuation, start, None, error, 0.1, "rad and m")


def _arm_problem(model: Model, dt: float, horizon: int) -> Problem:
    x0 = np.concatenate([HOME, np.zeros(7)])
    reach, from_home = FramePositionResidual("flange", np.zeros(3)), StateResidual(x0)
    hold = ControlResidual(generalized_gravity(model, jnp.asarray(HOME)))
    limit = np.asarray(model.effort_limit)
    moving, posture = np.array([0.0] * 7 + [1.0] * 7), np.array([0.02] * 7 + [0.5] * 7)
    running = [(reach, 100 * dt), (from_home, dt * posture), (hold, 1e-5 * dt)]
    end = [(reach, 100.0), (from_home, moving)]
    return quadratic_problem(ModelDynamics(model, dt), x0, horizon, running, end, (-limit, limit))


def with_goal(problem: Problem, goal) -> Problem:
    """Return the arm's problem with another goal of the flange."""
    goal = jnp.asarray(goal, problem.dtype)
    return eqx.tree_at(
        lambda p: (p.stage_costs[0].residual.target, p.terminal_costs[0].residual.target), problem, (goal, goal)
    )


def _off_flange(problem: Problem, xs: np.ndarray, goals: np.ndarray) -> np.ndarray:
    model = problem.dynamics.model  # type: ignore[attr-defined]
    flange = frame_pose(model, jnp.asarray(xs[:, :7]), "flange").translation
    return np.linalg.norm(np.asarray(flange) - goals, axis=1)


def arm(model: Model, dt: float, horizon: int) -> ControlTask:
    """Reach a random point with the flange and rest there."""
    problem = _arm_problem(model, dt, horizon)

    def start(rng):
        q = HOME + rng.uniform(-0.3, 0.3, 7)
        goal = np.array([0.5, 0.0, 0.45]) + rng.uniform(-1, 1, 3) * np.array([0.12, 0.3, 0.2])
        return np.concatenate([q, np.zeros(7)]), with_goal(problem, goal), _hold(model, q)

    def error(problem, xs, t):
        return _off_flange(problem, xs, np.asarray(problem.stage_costs[0].residual.target))

    return ControlTask(problem, None, start, None, error, 0.01, "m")


def curve(t):
    """Return points `[..., 3]`, m, of a figure of eight at the times `t`; one turn takes 4 s."""
    xp = np if isinstance(t, np.ndarray) else jnp
    w = 2 * np.pi / 4
    return xp.stack([0.5 + 0.0 * t, 0.2 * xp.sin(w * t), 0.5 + 0.1 * xp.sin(2 * w * t)], axis=-1)


def on_curve(problem: Problem, t) -> Problem:
    """Return the problem of `follow` at the time `t`, with the goals of all its stages."""
    ahead = t + problem.dynamics.dt * jnp.arange(problem.horizon + 1)
    goals = curve(ahead)
    return eqx.tree_at(
        lambda p: (p.stage_costs[0].term.residual.target, p.terminal_costs[0].residual.target),
        problem,
        (goals[:-1], goals[-1]),
    )


def follow(model: Model, dt: float, horizon: int) -> ControlTask:
    """Follow `curve`, which the controller knows in advance, with the flange."""
    fixed = _arm_problem(model, dt, horizon)
    ahead = dt * np.arange(horizon)

    def reach(goal):
        return QuadraticCost(FramePositionResidual("flange", goal), 100 * dt)

    problem = Problem(
        fixed.dynamics,
        fixed.x0,
        horizon,
        stage_costs=[TimeVarying(jax.vmap(reach)(curve(jnp.asarray(ahead)))), *fixed.stage_costs[1:]],
        terminal_costs=fixed.terminal_costs[:1],
        control_lower=fixed.control_lower,
        control_upper=fixed.control_upper,
    )

    def start(rng):
        q = HOME + rng.uniform(-0.05, 0.05, 7)
        return np.concatenate([q, np.zeros(7)]), problem, _hold(model, q)

    def error(problem, xs, t):
        return _off_flange(problem, xs, np.asarray(curve(t)))

    return ControlTask(problem, None, start, on_curve, error, 0.02, "m")


def _hold(model: Model, q: np.ndarray) -> np.ndarray:
    return np.asarray(generalized_gravity(model, jnp.asarray(q)))


CONTROL_TASKS: dict[str, tuple[Callable[[Model, float, int], ControlTask], Callable[[], Model]]] = {
    "cartpole": (cartpole, cartpole_model),
    "arm": (arm, jaxdyn.samples.arm),
    "follow": (follow, jaxdyn.samples.arm),
}
