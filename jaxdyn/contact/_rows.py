"""The equations of a step with contact, on rows with the contact or the degree of freedom first and the batch last.

Accelerations are in the axes at the start of the step, also those of free joints, whose velocities are in axes that
turn (`turning_accelerations`). With the accelerations `b` without contact a step has the accelerations `b + x`, where
`x` minimizes

    1/2 x^T (M + dt D) x + 1/dt sum Phi_c(w_c + dt J_c x)

for the damping `D` of joints, the velocities `w_c` of the contacts that `b` leads to, and the potentials `Phi` of
contact forces. Dry friction in joints, and their stops, are contacts of one direction. Loops, couplings and joints that
mimic others hold all accelerations, by `J a + gamma = 0`. `_linear.py` solves the equations of a step of Newton's
method (Castro, Permenter & Han 2023).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdyn._roots import following_point
from jaxdyn.algorithms.recursions import (
    ConstraintRows,
    Factors,
    Kinematics,
    Robot,
    constraint_rows,
    equations_and_velocities,
    inverse,
    kinematics_and_poses,
    spring_rows,
    turning_accelerations,
)
from jaxdyn.constraints import mimic_rows
from jaxdyn.contact._contacts import ContactRows
from jaxdyn.contact._law import Push, line_of, normal_force, push
from jaxdyn.contact._linear import (
    DenseFactors,
    Held,
    Points,
    System,
    forces_on_dofs,
    hold,
    solve_system,
    substitute,
    velocities_at,
)
from jaxdyn.friction import Coulomb
from jaxdyn.spatial import Motion, Pose, Vec3
from jaxdyn.tree import sum_down, sum_up, take_rows

SEARCH_STEPS = 16
"""The most steps of the search along a line."""


class Stops(NamedTuple):
    """The distances of the coordinates from their limits, rows `[nv, *batch]`; far for those without."""

    below: Any
    above: Any


class StepProblem(NamedTuple):
    """A step, before its contact forces are known. Rows `[nv, *batch]` of degrees of freedom and `[nc, *batch]` of
    contacts."""

    system: System
    armature: Any
    """With the resistance `dt damping` of joints."""
    b: Any
    """The accelerations without contact."""
    velocity: Vec3
    """The velocities of the contact points after the step without contact."""
    lagged: Any
    """The normal forces at the start of the step."""
    speeds: Any
    """The velocities of the degrees of freedom after the step without contact."""
    stops: Stops | None = None
    least: Any = None
    """With loops or joints that mimic others, the least accelerations that these allow."""


class Unknown(NamedTuple):
    """The unknowns of a step, and the rows of their equations."""

    a: Any
    """The accelerations in the axes at the start, `[nv]`."""
    multipliers: Any = None
    """With loops or joints that mimic others, those of their equations, `[m]`."""


_FAR = 1e6
"""The largest distance from a stop, m or rad: infinite numbers have no derivatives."""


def stops_of(robot: Robot, contacts: ContactRows, q) -> Stops | None:
    """Return the distances from the joints' limits, where the contacts have a law for them."""
    if contacts.contacts.limits is None:
        return None
    topology = robot.topology
    coordinate = np.full(robot.nv, -1)
    for joint in range(len(topology.joint_names)):
        first, last = topology.v_starts[joint : joint + 2]
        # The velocities of other joints are not the rates of coordinates.
        if topology.q_starts[joint + 1] - topology.q_starts[joint] == last - first:
            coordinate[first:last] = topology.q_starts[joint] + np.arange(last - first)
    free = robot.constant(np.where(coordinate < 0, _FAR, 0.0))
    lower, upper, q = (take_rows(x, coordinate) for x in (robot.position_lower, robot.position_upper, q))
    return Stops(*(robot.broadcast(jnp.minimum(x, _FAR) + free) for x in (q - lower, upper - q)))


def joint_torques(robot: Robot, contacts: ContactRows, stops: Stops | None, speeds, dt) -> tuple[Any, Any] | None:
    """Return the torques of dry friction and of the stops on the joints at these velocities at the end of a step, and
    minus their derivatives; None for a robot without either."""
    laws = []
    if "friction" not in robot.zero:
        law = Coulomb(robot.friction, robot.friction_velocity)
        laws.append((-law.torque(speeds), law.slope(speeds)))
    if stops is not None:
        below, at_below = normal_force(contacts.stop_law, stops.below, speeds, dt)
        above, at_above = normal_force(contacts.stop_law, stops.above, -speeds, dt)
        laws.append((below - above, at_below + at_above))
    if not laws:
        return None
    torques, resistances = zip(*laws, strict=True)
    return sum(torques), sum(resistances)


def contact_points(robot: Robot, contacts: ContactRows, world: Pose, poses: Pose) -> Points:
    """Return the contacts where the frames behind the degrees of freedom have these poses in the world, and in
    `Kinematics`."""
    witnesses = contacts.witnesses(world)
    arm, other_arm = witnesses.point + _to_reference(world, poses, contacts.dofs), None
    if contacts.other_dofs is not None:
        other_arm = witnesses.point + _to_reference(world, poses, contacts.other_dofs)
    return jax.tree.map(robot.broadcast, Points(witnesses.gap, witnesses.normal, arm, other_arm))


def _to_reference(world: Pose, poses: Pose, dofs: np.ndarray) -> Vec3:
    """Return the world's origin from the points of reference of the trees of degrees of freedom."""
    return take_rows(poses.translation, dofs) - take_rows(world.translation, dofs)


def setup(robot: Robot, contacts: ContactRows, q, v, tau, dt, f_ext=None) -> StepProblem:
    """Return the problem of a step from a state under the torques of actuators."""
    at, world = kinematics_and_poses(robot, q)
    equations, moving = equations_and_velocities(robot, *at, v, f_ext)
    armature = robot.broadcast(equations.armature + dt * robot.damping)
    points = contact_points(robot, contacts, world, at.poses)
    held = _held(robot, at, q, v, moving.velocity, equations.c)
    system = System(at.S, equations.inertia, points, held)
    rest = (
        tau
        - spring_rows(robot, q)
        - robot.damping * v
        - inverse(robot.tree, equations, -turning_accelerations(robot, v))
    )
    b, motion, factors = solve_system(robot, contacts, system, armature, None, robot.broadcast(rest))
    least = None
    if held is not None:
        b, least = (hold(robot, held, factors, y, -held.gamma)[0] for y in (rest, jnp.zeros_like(rest)))
        motion = sum_down(robot.tree, at.S * b)
    now = velocities_at(contacts, points, moving.velocity)
    lagged = normal_force(contacts.law, points.gap, points.normal.dot(now), 0.0)[0]
    velocity = now + velocities_at(contacts, points, motion) * dt
    stops = stops_of(robot, contacts, q)
    return StepProblem(system, armature, b, velocity, lagged, robot.broadcast(v + dt * b), stops, least)


def _held(robot: Robot, at: Kinematics, q, v, velocity: Motion, c: Motion) -> Held | None:
    """Return the equations that hold accelerations in the axes at the start."""
    rows = constraint_rows(robot, q, at, v, velocity, c)
    if rows is None:
        if robot.mimics is None:
            return None
        C = robot.broadcast(mimic_rows(robot.mimics, robot.mimic_multiplier))
        rows = ConstraintRows(C, jnp.zeros_like(C[:, 0]))
    J = robot.broadcast(rows.J)
    gamma = robot.broadcast(rows.gamma) - (J * jnp.asarray(turning_accelerations(robot, v))[None]).sum(axis=1)
    return Held(J.reshape(-1, *J.shape[2:]), gamma)


def newton_step(robot: Robot, contacts: ContactRows, problem: StepProblem, x, dt):
    """Return `x` after a step of Newton's method with a search along its line, and the relative error of `x`.

    The error is the length of Newton's step, which is the distance to the solution to first order, over that of the
    larger of the accelerations with and without contact, in the metric of the mass matrix.
    """
    system, tree = _sparse(robot, problem.system), robot.tree
    S, inertia, points = system.S, system.inertia, system.points
    moved = sum_down(tree, S * x)
    velocity, pushes = _pushes_at(contacts, problem, moved, dt)
    # H step = J^T f - M x, summed body by body: its terms are of the size of the forces, and cancel.
    unbalanced = forces_on_dofs(robot, contacts, points, pushes.force) - inertia.apply(moved)
    tau = S.dot(sum_up(tree, unbalanced)) - problem.armature * x
    armature = problem.armature
    if (in_joints := joint_torques(robot, contacts, problem.stops, problem.speeds + dt * x, dt)) is not None:
        tau, armature = tau + in_joints[0], armature + dt * in_joints[1]
    step, motion, _ = solve_system(robot, contacts, system, armature, pushes.resistance * dt, robot.broadcast(tau))
    free = sum_down(tree, S * problem.b)

    def product(a, m: Motion, b, n: Motion):
        """`a^T M b` for accelerations that move the bodies by `m` and `n`."""
        return (m.dot(inertia.apply(n)) + problem.armature * a * b).sum(axis=0)

    shift = velocities_at(contacts, points, motion) * dt
    curvature, start = product(step, motion, step, motion), product(step, motion, x, moved)
    line = line_of(contacts.law, points.gap, points.normal, velocity, shift, problem.lagged, dt)
    per_time, speeds, change = 1 / dt, problem.speeds + dt * x, dt * step

    def slope(length):
        """The derivative along the line, its own, and the rounding error of the first."""
        powers = [tuple(x * per_time for x in line(length))]
        if (in_joints := joint_torques(robot, contacts, problem.stops, speeds + length * change, dt)) is not None:
            torque, resistance = in_joints
            powers.append((torque * step, resistance * (change * step)))
        first, second = (sum(x.sum(axis=0) for x in parts) for parts in zip(*powers, strict=True))
        terms = jnp.abs(start) + sum(jnp.abs(power).sum(axis=0) for power, _ in powers)
        rounding = 4 * jnp.finfo(terms.dtype).eps * terms
        return start + length * curvature - first, curvature + second, rounding

    size = jnp.maximum(
        product(problem.b, free, problem.b, free),
        product(problem.b + x, free + moved, problem.b + x, free + moved),
    )
    error = jnp.sqrt(curvature / jnp.maximum(size, jnp.finfo(size.dtype).tiny))
    return x + step * _search(slope, curvature), error


def _sparse(robot: Robot, system: System) -> System:
    """Return the same system, with the zeros that it has for all robots of this structure as constants.

    They are lost where one program hands the system to the next. Native code leaves out what they multiply.
    """

    def kept(where: np.ndarray, x):
        chosen = robot.constant(where.astype(float)) > 0
        return jax.tree.map(lambda x: jnp.where(chosen, x, 0.0), x)

    angular = kept(robot.topology.rotating_dofs, system.S.angular)
    inertia = kept(robot.topology.body_of_dof >= 0, system.inertia)
    return system._replace(S=Motion(angular, system.S.linear), inertia=inertia)


def _search(slope, like):
    """Return the zero between 0 and 1 of an increasing function that is negative at 0, or 1 if there is none; `slope`
    also gives its derivative, and its rounding error. Newton's method, with bisections of the interval that has the
    zero where it makes no progress, until no element of the batch moves."""

    def turn(state):
        length, low, high, last, count = state
        value, rate, rounding = slope(length)
        low, high = jnp.where(value < 0, length, low), jnp.where(value < 0, high, length)
        following = following_point(length, length - value / jnp.where(rate > 0, rate, 1.0), low, high, last)
        following = jnp.where(jnp.abs(value) > rounding, following, length)
        return following, low, high, jnp.abs(following - length), count + 1

    one, zero = jnp.ones_like(like), jnp.zeros_like(like)
    start = one, zero, one, jnp.full_like(one, jnp.inf), jnp.zeros((), like.dtype)
    # The steps are counted in the precision of all else, which native code can carry.
    return lax.while_loop(lambda state: (state[3] > 0).any() & (state[4] < SEARCH_STEPS), turn, start)[0]


def _pushes_at(contacts: ContactRows, problem: StepProblem, moved: Motion, dt) -> tuple[Vec3, Push]:
    """Return the velocities of the contact points, and the action of the contacts, at accelerations `b + x` of which
    `x` moves the bodies by `moved`."""
    points = problem.system.points
    velocity = problem.velocity + velocities_at(contacts, points, moved) * dt
    return velocity, push(contacts.law, points.gap, points.normal, velocity, problem.lagged, dt)


def residual(robot: Robot, contacts: ContactRows, unknown: Unknown, q, v, tau, dt, f_ext=None) -> Unknown:
    """Return `M (a - turning) + h + D (v + dt a) + F - tau - J^T f` at the accelerations `a` in the axes at the start,
    with dry friction `F`; with loops that plus `J^T l`, and `J a + gamma`. They are zero for the unknown of a step."""
    x = unknown.a
    at, world = kinematics_and_poses(robot, q)
    equations, moving = equations_and_velocities(robot, *at, v, f_ext)
    points = contact_points(robot, contacts, world, at.poses)
    pushes = _pushes(contacts, points, moving.velocity, sum_down(robot.tree, at.S * x), dt)
    with_contact = equations._replace(p=equations.p - forces_on_dofs(robot, contacts, points, pushes.force))
    after = v + dt * x
    resisting = robot.damping * after + spring_rows(robot, q)
    if (in_joints := joint_torques(robot, contacts, stops_of(robot, contacts, q), after, dt)) is not None:
        resisting = resisting - in_joints[0]
    unbalanced = inverse(robot.tree, with_contact, x - turning_accelerations(robot, v)) + resisting - tau
    held = _held(robot, at, q, v, moving.velocity, equations.c)
    if held is None:
        return Unknown(unbalanced)
    J = held.matrix()
    rates = (J * x[None]).sum(axis=1) + held.gamma
    return Unknown(unbalanced + (J * unknown.multipliers[:, None]).sum(axis=0), rates)


def _pushes(contacts: ContactRows, points: Points, velocity: Motion, change: Motion, dt) -> Push:
    """Return what the contacts do where bodies move with `velocity` and are accelerated by `change`."""
    law, now = contacts.law, velocities_at(contacts, points, velocity)
    lagged = normal_force(law, points.gap, points.normal.dot(now), 0.0)[0]
    after = now + velocities_at(contacts, points, change) * dt
    return push(law, points.gap, points.normal, after, lagged, dt)


def residual_product(
    robot: Robot, contacts: ContactRows, y: Unknown, unknown: Unknown, q, v, tau, dt, f_ext=None
) -> Unknown:
    """Return the product of `y` with the derivative of `residual` by the unknown, which is symmetric."""
    return jax.jvp(lambda x: residual(robot, contacts, x, q, v, tau, dt, f_ext), (unknown,), (y,))[1]


def factors(robot: Robot, contacts: ContactRows, problem: StepProblem, x, dt) -> Factors | DenseFactors:
    """Return the factors of `H` at accelerations `b + x`."""
    system = _sparse(robot, problem.system)
    pushes = _pushes_at(contacts, problem, sum_down(robot.tree, system.S * x), dt)[1]
    armature = problem.armature
    if (in_joints := joint_torques(robot, contacts, problem.stops, problem.speeds + dt * x, dt)) is not None:
        armature = armature + dt * in_joints[1]
    return solve_system(robot, contacts, system, armature, pushes.resistance * dt, jnp.zeros_like(x))[2]


def solve_residual(robot: Robot, contacts: ContactRows, system: System, factors, y: Unknown) -> Unknown:
    """Return the unknown whose `residual_product` is `y`, from the factors of `H`."""
    if system.held is None:
        return Unknown(substitute(robot, system.S, factors, y.a))
    return Unknown(*hold(robot, system.held, factors, y.a, y.multipliers))


def forces(robot: Robot, contacts: ContactRows, a, q, v, dt):
    """Return the gaps, the normals, the points in the world, and the forces of a step with the accelerations `a`."""
    at, world = kinematics_and_poses(robot, q)
    velocity = sum_down(robot.tree, at.S * v)
    points = contact_points(robot, contacts, world, at.poses)
    pushes = _pushes(contacts, points, velocity, sum_down(robot.tree, at.S * a), dt)
    place = points.arm - _to_reference(world, at.poses, contacts.dofs)
    return points.gap, points.normal, place, pushes.force
