"""The equations of a step with contact, on rows with the contact or the degree of freedom first and the batch last.

Accelerations are in the axes at the start of the step, also those of free joints, whose velocities are in axes that
turn (`turning_accelerations`). Residuals of contacts, of dry friction in joints and of their stops are velocities at
the end of the step (Castro, Permenter & Han 2023). Loops, couplings and joints that mimic others hold all
accelerations, by `J a + gamma = 0`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.algorithms.recursions import (
    EquationsOfMotion,
    Kinematics,
    Robot,
    equations_and_velocities,
    inverse,
    kinematics_and_poses,
    spring_rows,
    turning_accelerations,
)
from jaxdyn.contact._contacts import ContactRows
from jaxdyn.geometry import Witness
from jaxdyn.laws import HuntCrossley, JointDryFriction, Stop, normal_force
from jaxdyn.rows import DofRows, Ends, PointRows
from jaxdyn.solve import (
    Equations,
    Held,
    MatrixForm,
    MovingBodies,
    Problem,
    Term,
    TreeForm,
    Unknown,
    forces_of,
    problem_of,
    pushes_at,
)
from jaxdyn.spatial import Motion, Pose, Vec3
from jaxdyn.tree import sum_down, take_rows

_FAR = 1e6
"""The largest distance from a stop, m or rad: infinite numbers have no derivatives."""


class StepStart(NamedTuple):
    """All at the start of a step that does not depend on its accelerations."""

    equations: EquationsOfMotion
    terms: tuple[Term, ...]
    held: Held | None
    v: Any
    torque: Any
    """The torques of actuators and springs, rows `[nv]`."""
    dt: Any


def step_start(robot: Robot, contacts: ContactRows, q, v, tau, dt) -> StepStart:
    """Return the start of a step from a state under the torques of actuators."""
    at, world = kinematics_and_poses(robot, q)
    equations, moving = equations_and_velocities(robot, *at, v)
    terms = _joint_terms(robot, contacts, q, v, dt)
    if contacts.contacts.names:
        terms = [contact_term(robot, contacts, world, at, moving.velocity, dt)[1], *terms]
    held = Held.of(robot, at, q, v, moving.velocity, equations.c)
    return StepStart(equations, tuple(terms), held, v, tau - spring_rows(robot, q), dt)


def contact_term(
    robot: Robot, contacts: ContactRows, world: Pose, at: Kinematics, velocity: Motion, dt
) -> tuple[Witness, Term]:
    """Return the contacts where the frames behind the degrees of freedom have these poses in the world and velocities,
    and their rows."""
    found = jax.tree.map(robot.broadcast, contacts.witnesses(world))

    def arm(dofs: np.ndarray) -> Vec3:
        reference, origin = take_rows((at.poses.translation, world.translation), dofs)
        return jax.tree.map(robot.broadcast, found.point + (reference - origin))

    one, two = contacts.other_dofs, contacts.dofs
    first = (np.full(len(two), -1), None) if one is None else (one, arm(one))
    rows = PointRows(Ends.of(*first, two, arm(two), shared=True), None)
    now = rows.rates(robot, velocity, None)
    approach = found.normal.dot(Vec3(*jnp.split(now, 3)))
    lagged = normal_force(contacts.law, found.gap, approach, 0.0)[0]
    return found, Term(rows, HuntCrossley(contacts.law, found.gap, found.normal, lagged, dt[None]), now, dt[None])


def _joint_terms(robot: Robot, contacts: ContactRows, q, v, dt) -> list[Term]:
    """Return the rows of dry friction and of stops of joints, where the robot and its contacts have them."""
    laws = []
    if "friction" not in robot.zero:
        laws.append(JointDryFriction(robot.friction, robot.friction_velocity))
    if contacts.contacts.limits is not None:
        laws.append(_stops(robot, contacts, q, dt))
    return [Term(DofRows.of_all(robot), law, v, dt[None]) for law in laws]


def _stops(robot: Robot, contacts: ContactRows, q, dt) -> Stop:
    """Return the stops of the joints at their limits."""
    topology = robot.topology
    coordinate = np.full(robot.nv, -1)
    for joint in range(len(topology.joint_names)):
        first, last = topology.v_starts[joint : joint + 2]
        # The velocities of other joints are not the rates of coordinates.
        if topology.q_starts[joint + 1] - topology.q_starts[joint] == last - first:
            coordinate[first:last] = topology.q_starts[joint] + np.arange(last - first)
    free = robot.constant(np.where(coordinate < 0, _FAR, 0.0))
    lower, upper, q = (take_rows(x, coordinate) for x in (robot.position_lower, robot.position_upper, q))
    below, above = (robot.broadcast(jnp.minimum(x, _FAR) + free) for x in (q - lower, upper - q))
    return Stop(contacts.stop_law, below, above, dt[None])


def torques_of_stops(robot: Robot, contacts: ContactRows, q, v):
    """Return the torques of the joints' stops at a state, rows `[nv]`."""
    v = robot.broadcast(v)
    return _stops(robot, contacts, q, 0 * v[0]).force(v)


def step_problem(robot: Robot, contacts: ContactRows, start: StepStart) -> Problem:
    """Return the problem of a step."""
    equations, held, v = start.equations, start.held, start.v
    bodies = MovingBodies(
        equations.S, equations.inertia, robot.broadcast(equations.armature + start.dt * robot.damping)
    )
    bias = inverse(robot.tree, equations, -turning_accelerations(robot, v))
    rest = robot.broadcast(start.torque - robot.damping * v - bias)
    # The accelerations start at zero, or as near as loops allow: at rest, and where little changes, that is nearly the
    # solution.
    if held is None:
        free = TreeForm(bodies, ()).step(robot, (), rest)[0].x
        least = 0.0
    else:
        factors = MatrixForm.of(robot, bodies, (), held).step(robot, (), rest)[1]
        free, least = (factors.solve(robot, y, -held.gamma)[0] for y in (rest, jnp.zeros_like(rest)))
    return problem_of(robot, bodies, start.terms, free, least - free, held)


def step_residual(robot: Robot, contacts: ContactRows, start: StepStart, unknown: Unknown) -> Unknown:
    """Return `M (a - turning) + h + D (v + dt a) + F - tau - J^T f` at the accelerations `a` in the axes at the start,
    with dry friction `F`; with loops that plus `J^T l`, and `J a + gamma`. They are zero for the unknown of a step."""
    a, equations, v, terms = unknown.a, start.equations, start.v, start.terms
    pushes = pushes_at(robot, terms, sum_down(robot.tree, equations.S * a), a)
    wrench, torque = forces_of(robot, [term.rows for term in terms], pushes)
    pushed = equations if wrench is None else equations._replace(p=equations.p - wrench)
    own = inverse(robot.tree, pushed, a - turning_accelerations(robot, v))
    unbalanced = own + robot.damping * (v + start.dt * a) - start.torque
    unbalanced = unbalanced if torque is None else unbalanced - torque
    if start.held is None:
        return Unknown(unbalanced)
    pull, rates = start.held.unbalanced(a, unknown.multipliers)
    return Unknown(unbalanced + pull, rates)


STEP = Equations(step_start, step_problem, step_residual)
"""The equations of a step."""


def forces(robot: Robot, contacts: ContactRows, a, q, v, dt):
    """Return the gaps, the normals, the points in the world, and the forces of a step with the accelerations `a`."""
    at, world = kinematics_and_poses(robot, q)
    found, term = contact_term(robot, contacts, world, at, sum_down(robot.tree, at.S * v), dt)
    after = term.residual(robot, sum_down(robot.tree, at.S * a), a)
    return found.gap, found.normal, found.point, Vec3(*jnp.split(term.law.force(after), 3))
