"""The equations of a step with contact, on rows with the contact or the degree of freedom first and the batch last.

Joint friction acts as in the integrator `implicit_velocity`: by its secant `D` at the start of the step, times the
velocity at its end. Accelerations are in the axes at the start of the step, also those of free joints, whose
velocities are in axes that turn (`turning_accelerations`). With the accelerations `b` without contact a step has the
accelerations `b + x`, where `x` minimizes

    1/2 x^T (M + dt D) x + 1/dt sum Phi_c(w_c + dt J_c x)

for the velocities `w_c` of the contacts that `b` leads to, and the potentials `Phi` of contact forces. Stops of joints
are contacts of one direction. Newton's method adds `dt J^T G J` of each contact to the inertia of its body, so that
each of its steps is one pass of the articulated-body recursion (Castro, Permenter & Han 2023; Featherstone 2008,
table 7.1).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.algorithms.recursions import (
    Factors,
    Robot,
    absolute_poses,
    equations_and_velocities,
    inverse,
    joint_friction_law,
    kinematics,
    spring_rows,
    turning_accelerations,
)
from jaxdyn.contact._contacts import ContactRows
from jaxdyn.contact._law import Push, line_of, normal_force, push
from jaxdyn.spatial import ArticulatedInertia, Force, Inertia, Mat3, Motion, Sym3, Vec3
from jaxdyn.tree import scan_down, scan_up, sum_down, sum_up, take_rows

SEARCH_STEPS = 16
"""Steps of the search along a line."""


class Points(NamedTuple):
    """The contacts of a configuration, rows `[nc, *batch]`."""

    gap: Any
    normal: Vec3
    arm: Vec3
    """The point at which the force acts, from the point of reference of its body's tree."""


class Stops(NamedTuple):
    """The distances of the coordinates from their limits, rows `[nv, *batch]`; far for those without."""

    below: Any
    above: Any


class StepProblem(NamedTuple):
    """A step, before its contact forces are known. Rows `[nv, *batch]` of degrees of freedom and `[nc, *batch]` of
    contacts."""

    S: Motion
    inertia: Inertia
    armature: Any
    """With the resistance `dt D` of joint friction."""
    b: Any
    """The accelerations without contact."""
    points: Points
    velocity: Vec3
    """The velocities of the contact points after the step without contact."""
    lagged: Any
    """The normal forces at the start of the step."""
    speeds: Any = None
    """With stops of joints, the velocities of the degrees of freedom after the step without contact."""
    stops: Stops | None = None


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


def stop_torque(contacts: ContactRows, stops: Stops, speeds, dt) -> tuple[Any, Any]:
    """Return the torques of the stops on the joints at these velocities at the end of a step, and minus their
    derivatives."""
    below, at_below = normal_force(contacts.stop_law, stops.below, speeds, dt)
    above, at_above = normal_force(contacts.stop_law, stops.above, -speeds, dt)
    return below - above, at_below + at_above


def contact_points(robot: Robot, contacts: ContactRows, q, poses) -> Points:
    """Return the contacts at a configuration; `poses` are those of its `Kinematics`."""
    world = absolute_poses(robot, q)
    dofs = contacts.dofs
    witnesses = contacts.witnesses(world)
    arm = witnesses.point - take_rows(world.translation, dofs) + take_rows(poses.translation, dofs)
    return jax.tree.map(robot.broadcast, Points(witnesses.gap, witnesses.normal, arm))


def setup(robot: Robot, contacts: ContactRows, q, v, tau, dt, f_ext=None) -> StepProblem:
    """Return the problem of a step from a state under the torques of actuators."""
    at = kinematics(robot, q)
    equations, moving = equations_and_velocities(robot, *at, v, f_ext)
    resistance = joint_friction_law(robot).secant(v)
    armature = robot.broadcast(equations.armature + dt * resistance)
    rest = (
        tau - spring_rows(robot, q) - resistance * v - inverse(robot.tree, equations, -turning_accelerations(robot, v))
    )
    b, motion, _ = _factorized(robot, at.S, equations.inertia, armature, None, rest)
    points = contact_points(robot, contacts, q, at.poses)
    now = _at_points(points, take_rows(moving.velocity, contacts.dofs))
    lagged = normal_force(contacts.law, points.gap, points.normal.dot(now), 0.0)[0]
    velocity = now + _at_points(points, take_rows(motion, contacts.dofs)) * dt
    stops = stops_of(robot, contacts, q)
    speeds = None if stops is None else robot.broadcast(v + dt * b)
    return StepProblem(at.S, equations.inertia, armature, b, points, velocity, lagged, speeds, stops)


def _at_points(points: Points, motion: Motion) -> Vec3:
    return motion.linear + motion.angular.cross(points.arm)


def _wrenches(points: Points, force: Vec3) -> Force:
    return Force(points.arm.cross(force), force)


def _on_dofs(robot: Robot, dofs: np.ndarray, x):
    """Return the sums, rows `[nv]`, of rows of contacts over those of each degree of freedom."""
    order = [np.flatnonzero(dofs == i) for i in range(robot.nv)]
    most = max(map(len, order))
    table = np.array([[*k, *[-1] * (most - len(k))] for k in order])
    total = take_rows(x, table[:, 0])
    for k in range(1, most):
        total = jax.tree.map(jnp.add, total, take_rows(x, table[:, k]))
    return total


def _added_inertia(points: Points, resistance: Sym3) -> ArticulatedInertia:
    """Return `K^T G K` with the velocity `K m` of the point under a motion `m` of its body."""
    arm, G = points.arm, resistance.to_mat3()
    coupling = Mat3(arm.cross(G.x), arm.cross(G.y), arm.cross(G.z))
    zero = jnp.zeros_like(arm.x)
    # The columns of [P] G [P]^T are P x G (e_i x P).
    turns = (Vec3(zero, -arm.z, arm.y), Vec3(arm.z, zero, -arm.x), Vec3(-arm.y, arm.x, zero))
    a, b, c = (arm.cross(resistance.apply(turn)) for turn in turns)
    return ArticulatedInertia(Sym3(a.x, a.y, b.y, a.z, b.z, c.z), coupling, resistance)


def _factorized(robot: Robot, S: Motion, inertia: Inertia, armature, added: ArticulatedInertia | None, tau):
    """Return `(M + added)^-1 tau`, the motions of the bodies under these accelerations, and the factors."""

    def up(children, x):
        (IA, p), (S, inertia, armature, tau, *added) = children, x
        IA = inertia.articulated() + IA
        for more in added:
            IA = IA + more
        U = IA.apply(S)
        Dinv = 1 / (S.dot(U) + armature)
        u = tau - S.dot(p)
        return (IA.minus_outer(U, U * Dinv), p + U * (Dinv * u)), (U, Dinv, u)

    leaf = ArticulatedInertia(Sym3.zero(), Mat3.zero(), Sym3.zero()), Force.zero()
    rows = (S, inertia, armature, tau) if added is None else (S, inertia, armature, tau, added)
    U, Dinv, u = scan_up(robot.tree, up, leaf, rows)
    return (*_substituted(robot, S, Factors(U, Dinv), u), Factors(U, Dinv))


def _substituted(robot: Robot, S: Motion, factors: Factors, u):
    def down(parent, x):
        S, U, Dinv, u = x
        a = Dinv * (u - parent.dot(U))
        motion = parent + S * a
        return motion, (a, motion)

    return scan_down(robot.tree, down, Motion.zero(), (S, *factors, u))


def newton_step(robot: Robot, contacts: ContactRows, problem: StepProblem, x, dt):
    """Return `x` after a step of Newton's method with a search along its line, and the relative error of `x`.

    The error is the length of Newton's step, which is the distance to the solution to first order, over that of the
    larger of the accelerations with and without contact, in the metric of the mass matrix.
    """
    points, tree, dofs = problem.points, robot.tree, contacts.dofs
    moved = sum_down(tree, problem.S * x)
    velocity, pushes = _pushes_at(contacts, problem, moved, dt)
    # H step = J^T f - M x, summed body by body: its terms are of the size of the forces, and cancel.
    unbalanced = _on_dofs(robot, dofs, _wrenches(points, pushes.force)) - problem.inertia.apply(moved)
    tau = problem.S.dot(sum_up(tree, unbalanced)) - problem.armature * x
    armature = problem.armature
    if problem.stops is not None:
        torque, resistance = stop_torque(contacts, problem.stops, problem.speeds + dt * x, dt)
        tau, armature = tau + torque, armature + dt * resistance
    added = _on_dofs(robot, dofs, _added_inertia(points, pushes.resistance * dt))
    step, motion, _ = _factorized(robot, problem.S, problem.inertia, armature, added, robot.broadcast(tau))
    free = sum_down(tree, problem.S * problem.b)

    def product(a, m: Motion, b, n: Motion):
        """`a^T M b` for accelerations that move the bodies by `m` and `n`."""
        return (m.dot(problem.inertia.apply(n)) + problem.armature * a * b).sum(axis=0)

    shift = _at_points(points, take_rows(motion, dofs)) * dt
    curvature, start = product(step, motion, step, motion), product(step, motion, x, moved)
    line = line_of(contacts.law, points.gap, points.normal, velocity, shift, problem.lagged, dt)

    def slope(length):
        """The derivative along the line, its own, and the rounding error of the first."""
        powers = [tuple(x / dt for x in line(length))]
        if problem.stops is not None:
            speeds = problem.speeds + dt * (x + length * step)
            torque, resistance = stop_torque(contacts, problem.stops, speeds, dt)
            powers.append((torque * step, dt * resistance * step * step))
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


def _search(slope, like):
    """Return the zero between 0 and 1 of an increasing function that is negative at 0, or 1 if there is none; `slope`
    also gives its derivative, and its rounding error. Newton's method, with a bisection where it leaves the interval
    that has the zero."""
    length = jnp.ones_like(like)
    low, high = jnp.zeros_like(like), jnp.ones_like(like)
    for _ in range(SEARCH_STEPS):
        value, rate, rounding = slope(length)
        low, high = jnp.where(value < 0, length, low), jnp.where(value < 0, high, length)
        following = length - value / jnp.where(rate > 0, rate, 1.0)
        inside = (following >= low) & (following <= high)
        following = jnp.where(inside, following, 0.5 * (low + high))
        length = jnp.where(jnp.abs(value) > rounding, following, length)
    return length


def _pushes_at(contacts: ContactRows, problem: StepProblem, moved: Motion, dt) -> tuple[Vec3, Push]:
    """Return the velocities of the contact points, and the action of the contacts, at accelerations `b + x` of which
    `x` moves the bodies by `moved`."""
    points = problem.points
    velocity = problem.velocity + _at_points(points, take_rows(moved, contacts.dofs)) * dt
    return velocity, push(contacts.law, points.gap, points.normal, velocity, problem.lagged, dt)


def residual(robot: Robot, contacts: ContactRows, x, q, v, tau, dt, f_ext=None):
    """Return `M (a - turning) + h + D (v + dt a) - tau - J^T f` at the accelerations `a`, here `x`, in the axes at the
    start; zero for those of a step."""
    at = kinematics(robot, q)
    equations, moving = equations_and_velocities(robot, *at, v, f_ext)
    points, dofs = contact_points(robot, contacts, q, at.poses), contacts.dofs
    pushes = _pushes(robot, contacts, points, moving.velocity, sum_down(robot.tree, at.S * x), dt)
    on_bodies = _on_dofs(robot, dofs, _wrenches(points, pushes.force))
    with_contact = equations._replace(p=equations.p - on_bodies)
    resisting = joint_friction_law(robot).secant(v) * (v + dt * x) + spring_rows(robot, q)
    stops = stops_of(robot, contacts, q)
    if stops is not None:
        resisting = resisting - stop_torque(contacts, stops, v + dt * x, dt)[0]
    return inverse(robot.tree, with_contact, x - turning_accelerations(robot, v)) + resisting - tau


def _pushes(robot: Robot, contacts: ContactRows, points: Points, velocity: Motion, change: Motion, dt) -> Push:
    """Return what the contacts do where bodies move with `velocity` and are accelerated by `change`."""
    dofs, law = contacts.dofs, contacts.law
    now = _at_points(points, take_rows(velocity, dofs))
    lagged = normal_force(law, points.gap, points.normal.dot(now), 0.0)[0]
    after = now + _at_points(points, take_rows(change, dofs)) * dt
    return push(law, points.gap, points.normal, after, lagged, dt)


def hessian_product(robot: Robot, contacts: ContactRows, y, x, q, v, tau, dt, f_ext=None):
    """Return `H y` with the derivative `H` of `residual` by the accelerations, at `x`."""
    return jax.jvp(lambda a: residual(robot, contacts, a, q, v, tau, dt, f_ext), (x,), (y,))[1]


def factors(robot: Robot, contacts: ContactRows, problem: StepProblem, x, dt) -> Factors:
    """Return the factors of `H` at accelerations `b + x`."""
    pushes = _pushes_at(contacts, problem, sum_down(robot.tree, problem.S * x), dt)[1]
    added = _on_dofs(robot, contacts.dofs, _added_inertia(problem.points, pushes.resistance * dt))
    armature = problem.armature
    if problem.stops is not None:
        armature = armature + dt * stop_torque(contacts, problem.stops, problem.speeds + dt * x, dt)[1]
    return _factorized(robot, problem.S, problem.inertia, armature, added, jnp.zeros_like(x))[2]


def forces(robot: Robot, contacts: ContactRows, a, q, v, dt):
    """Return the gaps, the normals, the points in the world, and the forces of a step with the accelerations `a`."""
    at = kinematics(robot, q)
    velocity = sum_down(robot.tree, at.S * v)
    points = contact_points(robot, contacts, q, at.poses)
    pushes = _pushes(robot, contacts, points, velocity, sum_down(robot.tree, at.S * a), dt)
    dofs = contacts.dofs
    world = points.arm + take_rows(absolute_poses(robot, q).translation, dofs) - take_rows(at.poses.translation, dofs)
    return points.gap, points.normal, world, pushes.force
