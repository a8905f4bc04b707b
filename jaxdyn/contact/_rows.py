"""The equations of a step with contact, on rows with the contact or the degree of freedom first and the batch last.

With the accelerations `b` without contact and joint friction, a step has the accelerations `b + x`, where `x` minimizes

    1/2 x^T M x + 1/dt sum Phi_c(w_c + dt J_c x) + 1/dt sum Psi_i(u_i + dt x_i)

for the velocities `w_c` of the contacts and `u_i` of the joints that `b` leads to, with the potentials `Phi` of contact
forces and `Psi` of joint friction. Newton's method adds `dt J^T G J` of each contact to the inertia of its body, so
that each of its steps is one pass of the articulated-body recursion (Castro, Permenter & Han 2023; Featherstone 2008,
table 7.1).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.algorithms.recursions import (
    EquationsOfMotion,
    Factors,
    Robot,
    absolute_poses,
    equations_and_velocities,
    inverse,
    joint_friction_law,
    kinematics,
    spring_rows,
)
from jaxdyn.contact._contacts import ContactRows
from jaxdyn.contact._law import Push, normal_force, push
from jaxdyn.spatial import ArticulatedInertia, Force, Inertia, Mat3, Motion, Sym3, Vec3
from jaxdyn.tree import scan_down, scan_up, sum_down, sum_up, take_rows

SEARCH_STEPS = 12
"""Newton steps of the search along a line."""
LONGEST = 4.0
"""The longest step along a line, in units of Newton's step."""
SHORTER = 0.2
"""By what the search shortens a step as long as all that it has tried are too long. What begins to stick stops after a
small part of Newton's step, which halving would not reach."""


class Points(NamedTuple):
    """The contacts of a configuration, rows `[nc, *batch]`."""

    gap: Any
    normal: Vec3
    arm: Vec3
    """The point at which the force acts, from the point of reference of its body's tree."""


class StepProblem(NamedTuple):
    """A step, before its contact forces are known. Rows `[nv, *batch]` of degrees of freedom and `[nc, *batch]` of
    contacts."""

    S: Motion
    inertia: Inertia
    u: Any
    """The velocities after the step without contact and joint friction."""
    b: Any
    """The accelerations without contact and joint friction."""
    points: Points
    velocity: Vec3
    """The velocities of the contact points after the step without contact and joint friction."""
    lagged: Any
    """The normal forces at the start of the step."""


def contact_points(robot: Robot, contacts: ContactRows, q, poses) -> Points:
    """Return the contacts at a configuration; `poses` are those of its `Kinematics`."""
    world = absolute_poses(robot, q)
    dofs = contacts.dofs
    witnesses = contacts.witnesses(world)
    arm = witnesses.point - take_rows(world.translation, dofs) + take_rows(poses.translation, dofs)
    return jax.tree.map(robot.broadcast, Points(witnesses.gap, witnesses.normal, arm))


def setup(robot: Robot, contacts: ContactRows, q, v, tau, dt, f_ext=None) -> StepProblem:
    """Return the problem of a step from a state under the torques of actuators."""
    law = contacts.law
    at = kinematics(robot, q)
    equations, moving = equations_and_velocities(robot, *at, v, f_ext)
    b = _free_accelerations(robot, equations, tau - spring_rows(robot, q))
    points = contact_points(robot, contacts, q, at.poses)
    dofs = contacts.dofs
    now = _at_points(points, take_rows(moving.velocity, dofs))
    lagged = normal_force(law, points.gap, points.normal.dot(now), 0.0)[0]
    # The motion that b adds to the velocities of the bodies; c of the equations is not part of it.
    velocity = now + _at_points(points, take_rows(sum_down(robot.tree, at.S * b), dofs)) * dt
    return StepProblem(at.S, equations.inertia, v + dt * b, b, points, velocity, lagged)


def _free_accelerations(robot: Robot, equations: EquationsOfMotion, tau):
    """Return `M^-1 (tau - h)`."""
    rest = tau - inverse(robot.tree, equations, robot.zeros())
    return _factorized(robot, equations.S, equations.inertia, equations.armature, None, rest)[0]


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


class _Point(NamedTuple):
    """What acts at accelerations `b + x`, and the equations of Newton's step there."""

    pushes: Push
    velocity: Vec3
    joint_force: Any
    """The torque of joint friction."""
    joint_resistance: Any


def _acting(robot: Robot, contacts: ContactRows, problem: StepProblem, x, dt) -> _Point:
    points = problem.points
    moved = take_rows(sum_down(robot.tree, problem.S * x), contacts.dofs)
    velocity = problem.velocity + _at_points(points, moved) * dt
    pushes = push(contacts.law, points.gap, points.normal, velocity, problem.lagged, dt)
    friction, speeds = joint_friction_law(robot), problem.u + dt * x
    return _Point(pushes, velocity, -friction.torque(speeds), friction.slope(speeds))


def _augmented(robot: Robot, contacts: ContactRows, problem: StepProblem, at: _Point, dt):
    """Return the armature and the inertia that contacts and joint friction add to."""
    added = _added_inertia(problem.points, at.pushes.resistance * dt)
    armature = robot.broadcast(robot.armature + dt * at.joint_resistance)
    return armature, _on_dofs(robot, contacts.dofs, added)


def newton_step(robot: Robot, contacts: ContactRows, problem: StepProblem, x, dt):
    """Return `x` after a step of Newton's method with an exact search along its line, and the relative error of `x`.

    The error is the length of Newton's step in the metric `H` of the second derivative, `sqrt(r^T H^-1 r)` for the
    gradient `r`, over the length of the larger of the accelerations with and without contact in the metric of the mass
    matrix. To first order it is the distance to the solution in the metric `H`, which is above that in the metric `M`.
    """
    at = _acting(robot, contacts, problem, x, dt)
    dofs, points = contacts.dofs, problem.points
    armature, added = _augmented(robot, contacts, problem, at, dt)
    moved, free = (sum_down(robot.tree, problem.S * a) for a in (x, problem.b))
    # (M + dt J^T G J) step = J^T f - M x. Rounding in the factors is relative to the step, so that it dies out.
    on_bodies = _on_dofs(robot, dofs, _wrenches(points, at.pushes.force)) - problem.inertia.apply(moved)
    tau = problem.S.dot(sum_up(robot.tree, on_bodies)) + at.joint_force - robot.armature * x
    step, motion, _ = _factorized(robot, problem.S, problem.inertia, armature, added, robot.broadcast(tau))

    def product(a, m: Motion, b, n: Motion):
        """`a^T M b` for accelerations that move the bodies by `m` and `n`."""
        return (m.dot(problem.inertia.apply(n)) + robot.armature * a * b).sum(axis=0)

    shift = _at_points(points, take_rows(motion, dofs)) * dt
    curvature, start = product(step, motion, step, motion), product(step, motion, x, moved)

    def slope(length):
        """The derivative along the line, and its own."""
        law, speeds = contacts.law, problem.u + dt * (x + step * length)
        acting = push(law, points.gap, points.normal, at.velocity + shift * length, problem.lagged, dt)
        friction = joint_friction_law(robot)
        first = acting.force.dot(shift).sum(axis=0) / dt - (friction.torque(speeds) * step).sum(axis=0)
        second = acting.resistance.apply(shift).dot(shift).sum(axis=0) / dt
        second = second + dt * (friction.slope(speeds) * step * step).sum(axis=0)
        return start + length * curvature - first, curvature + second

    # r^T H^-1 r = step^T H step, which does not cancel near the solution.
    decrement = slope(jnp.zeros_like(curvature))[1]
    with_contact = problem.b + x
    size = jnp.maximum(
        product(problem.b, free, problem.b, free), product(with_contact, free + moved, with_contact, free + moved)
    )
    error = jnp.sqrt(decrement / jnp.maximum(size, jnp.finfo(size.dtype).tiny))
    return x + step * _search(slope, curvature), error


def _search(slope, like):
    """Return the zero of an increasing function that is negative at 0, of which `slope` also gives the derivative."""
    length = jnp.ones_like(like)
    low, high = jnp.zeros_like(like), jnp.full_like(like, LONGEST)
    for _ in range(SEARCH_STEPS):
        value, rate = slope(length)
        low, high = jnp.where(value < 0, length, low), jnp.where(value < 0, high, length)
        rate = jnp.where(rate > 0, rate, 1.0)
        following = length - value / rate
        between = jnp.where(low > 0, 0.5 * (low + high), SHORTER * high)
        length = jnp.where((following >= low) & (following <= high), following, between)
    return length


def residual(robot: Robot, contacts: ContactRows, x, q, v, tau, dt, f_ext=None):
    """Return `M a + h - tau - J^T f - (joint friction)` at the accelerations `a`, here `x`; zero for those of a
    step."""
    at = kinematics(robot, q)
    equations, moving = equations_and_velocities(robot, *at, v, f_ext)
    points, dofs = contact_points(robot, contacts, q, at.poses), contacts.dofs
    pushes = _pushes(robot, contacts, points, moving.velocity, sum_down(robot.tree, at.S * x), dt)
    on_bodies = _on_dofs(robot, dofs, _wrenches(points, pushes.force))
    with_contact = equations._replace(p=equations.p - on_bodies)
    resisting = joint_friction_law(robot).torque(v + dt * x) + spring_rows(robot, q)
    return inverse(robot.tree, with_contact, x) + resisting - tau


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
    at = _acting(robot, contacts, problem, x, dt)
    armature, added = _augmented(robot, contacts, problem, at, dt)
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
