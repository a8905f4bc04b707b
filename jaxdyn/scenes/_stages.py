"""The quantities from which the accelerations of a scene are made, in their order: to compare with MuJoCo."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from jaxdyn._compile import compiled
from jaxdyn.algorithms.recursions import Robot, RobotAndParts
from jaxdyn.scenes._equations import acting, mass_matrix, natural, rows_at
from jaxdyn.scenes._parts import PartRows
from jaxdyn.scenes._scene import Scene
from jaxdyn.scenes._slopes import bias_force
from jaxdyn.scenes._states import SceneState, as_in, given_of
from jaxdyn.scenes._steps import sensed, solved, step_from


class Stages(NamedTuple):
    """Quantities of states, with batch axes in front, and the velocities of free joints in body axes. The rows of
    constraints stand in the order of `scene.parts.pattern.kinds`."""

    tendon_lengths: Any
    """`[nt]`"""
    mass_matrix: Any
    """`[nv, nv]`; only its lower triangle is right, and only where a column moves the body of the row."""
    passive: Any
    """`[nv]`"""
    bias: Any
    """`[nv]`"""
    actuator_forces: Any
    """`[nu]`"""
    actuator_torque: Any
    """`[nv]`"""
    activation_rates: Any
    """`[na]`"""
    J: Any
    """`[rows, nv]`"""
    aref: Any
    """`[rows]`"""
    D: Any
    """`[rows]`: zero for rows that do not act."""


@compiled()
def scene_stages(scene: Scene, state: SceneState, control: Any) -> Stages:
    """Return what the accelerations of states are made of; the arguments have the same batch axes."""
    scene = as_in(scene, state)
    bound, operands = RobotAndParts.of(scene.model, scene.parts, state.q.dtype, "scene")
    found = bound.call(_stages, operands, state.q, state.v, control, state.activation)
    batch, nv = state.q.shape[:-1], scene.model.nv
    return found._replace(mass_matrix=found.mass_matrix.reshape(*batch, nv, nv), J=found.J.reshape(*batch, -1, nv))


@compiled()
def accelerations_step_and_sensors(scene: Scene, state: SceneState, control: Any) -> tuple[Any, SceneState, Any]:
    """Return what `Scene.accelerations` and `Scene.step` do, and the values of all sensors `[*batch, n]` one after the
    other, with one program that solves the constraints once."""
    given = given_of(scene, state, control, None, None)
    bound, operands = given.bound()
    found = solved(given)
    a = bound.call(natural, operands, found.a, given.arguments.v)
    return a, step_from(given, state, found.a), sensed(given, state, found)


def _stages(robot: Robot, scene: PartRows, q, v, control, activation) -> Stages:
    now = acting(robot, scene, q, v, control, activation, robot.zeros())
    rows = rows_at(robot, scene, now)
    J = rows.jacobian(robot, now.at)
    M = mass_matrix(robot, now.equations)
    bias = bias_force(robot, now.equations, now.at.v)
    stages = Stages(
        robot.zeros()[:0] if now.tendons is None else now.tendons.length,
        M.reshape(-1, *M.shape[2:]),
        now.passive.torque,
        bias,
        now.actuators.force,
        now.actuators.torque,
        now.actuators.rate,
        J.reshape(-1, *J.shape[2:]),
        rows.aref,
        rows.numbers.D,
    )
    return jax.tree.map(robot.broadcast, stages)
