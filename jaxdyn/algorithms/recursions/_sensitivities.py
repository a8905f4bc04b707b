"""How inverse dynamics changes with the configuration and the velocity: the vectors that every derivative consists of.

In world axes (Singh, Russo & Wensing, Efficient analytical derivatives of rigid-body dynamics using spatial vector
algebra, RA-L 2022; see also Carpentier & Mansard, RSS 2018). A small motion `S_k` of a joint moves everything behind
it. With `v_p`, `a_p` the velocity and acceleration before the joint and `v` the velocity behind it, a body's force
changes, apart from turning with it, by

    dS = v_p x S,   ddS = a_p x S + v_p x dS,   eS = v x S
    for q:   2 B dS + I ddS,                for v:   2 B S + I (dS + eS)

where `2 B x = v x* I x - I (v x x) + x x* (I v)`. Written out, `2 B` maps the angular part `w'` of a motion to the
moment `K w' - n x w'` and the force `-2 p x w'`, with `(n, p) = I v` the momentum and `K` symmetric; its linear part
does not enter. All columns of a joint with several are fixed in the moving body, and turn with each other.

External wrenches do not turn with the bodies, only their points move. What turning the moment `n` and the force `f` at
`r` by `x` would add to the force on a body, `E x` with the moment `x x n + (r.f) x - (r.x) f` and the force `x x f`, is
taken off them, and so adds to the force that the joints exert.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdyn._compile import once
from jaxdyn.algorithms.recursions._dof_matrices import DofMatrices
from jaxdyn.algorithms.recursions._equations_of_motion import (
    EquationsOfMotion,
    Velocities,
    forces_at_origins,
    joint_friction_law,
    spring_rows,
    sum_before_joint,
)
from jaxdyn.algorithms.recursions._robot import Robot
from jaxdyn.joints import coordinate_cotangent, integrate
from jaxdyn.spatial import Force, Inertia, Mat3, Motion, Pose, Sym3, Vec3
from jaxdyn.tree import sum_down, sum_up, take_rows


class Operator(NamedTuple):
    """The operator `2 B`, from an angular part `x` to the moment `K x - n x x` and the force `-2 p x x`. Sums over
    bodies are sums of its fields."""

    K: Sym3
    n: Vec3
    p: Vec3

    def apply(self, x: Vec3) -> Force:
        return Force(self.K.apply(x) - self.n.cross(x), self.p.cross(x) * -2)

    def apply_transpose(self, y: Motion) -> Vec3:
        """Return the angular part, for the linear one is zero: `y . (2 B x) = apply_transpose(y) . x`."""
        return self.K.apply(y.angular) + self.n.cross(y.angular) + self.p.cross(y.linear) * 2


class Turning(NamedTuple):
    """The operator `E`, from an angular part `x` to the moment `K x + x x n` and the force `x x f`. Sums over bodies
    are sums of its fields."""

    K: Mat3
    n: Vec3
    f: Vec3

    def apply(self, x: Vec3) -> Force:
        return Force(self.K.apply(x) + x.cross(self.n), x.cross(self.f))

    def apply_transpose(self, y: Motion) -> Vec3:
        """Return the angular part: `y . (E x) = apply_transpose(y) . x`."""
        return self.K.apply_transpose(y.angular) + self.n.cross(y.angular) + self.f.cross(y.linear)


def turning(robot: Robot, poses: Pose, f_ext) -> Turning | None:
    """Return the operator `E` of the external wrenches `[nb, 6, *batch]` on each body; None without wrenches."""
    if f_ext is None:
        return None
    return turning_of(forces_at_origins(robot, f_ext), poses.translation)


def turning_of(wrench: Force, r: Vec3) -> Turning:
    """Return the operator `E` of wrenches that act at the points `r` of bodies."""
    n, f = wrench.moment, wrench.force
    # (r.f) 1 - f r^T, by its columns.
    d = r.dot(f)
    columns = (Vec3(d, 0.0, 0.0) - f * r.x, Vec3(0.0, d, 0.0) - f * r.y, Vec3(0.0, 0.0, d) - f * r.z)
    return Turning(Mat3(*columns), n, f)


class Sensitivities(NamedTuple):
    """The vectors of the module's docstring, rows `[nv, *batch]`, one a degree of freedom."""

    S: Motion
    dS: Motion  # noqa: N815
    ddS: Motion  # noqa: N815
    rate: Motion
    """`dS + eS`"""
    inertia: Inertia
    B: Operator
    """`2 B`"""
    force: Force
    """The force on each body, `I a + v x* I v`, less the external one."""
    E: Turning | None = None


def sensitivities(
    robot: Robot, equations: EquationsOfMotion, moving: Velocities, a, E: Turning | None = None
) -> Sensitivities:
    """Return the sensitivities at the accelerations `a`; `E` is that of the external wrenches in the equations."""
    S, inertia, c, p, gravity, _ = equations
    joint, velocity, momentum = moving
    across = S * a + c
    behind = sum_down(robot.tree, across)
    acceleration = Motion(behind.angular, behind.linear - gravity)
    a_p = sum_before_joint(robot, behind, across)
    a_p = Motion(a_p.angular, a_p.linear - gravity)
    v_p = sum_before_joint(robot, velocity, joint)
    dS = v_p.cross(S)
    ddS = a_p.cross(S) + v_p.cross(dS)
    # The velocity behind the whole joint.
    v = take_rows(velocity, robot.topology.mover)
    force = inertia.apply(acceleration) + p
    return Sensitivities(S, dS, ddS, dS + v.cross(S), inertia, operator(inertia, velocity, momentum), force, E)


def operator(inertia: Inertia, velocity: Motion, momentum: Force) -> Operator:
    """Return `2 B` of each body: with `I = (m, h, J)` and `v = (w, u)`,
    `K = [w x] J - J [w x] - u h^T - h u^T + 2 (u.h) 1`."""
    w, u, h = velocity.angular, velocity.linear, inertia.first_moment
    J = inertia.rotational.to_mat3()
    T = Mat3(w.cross(J.x), w.cross(J.y), w.cross(J.z))
    turning = Sym3(2 * T.x.x, T.x.y + T.y.x, 2 * T.y.y, T.x.z + T.z.x, T.y.z + T.z.y, 2 * T.z.z)
    K = turning - Sym3.outer_pair(u, h) + Sym3.isotropic(2 * u.dot(h))
    return Operator(K, momentum.moment, momentum.force)


class InverseMatrices(NamedTuple):
    """The derivatives of inverse dynamics, as `DofMatrices` holds them."""

    dq: Any
    """The derivative by the tangent space of `q`."""
    dv: Any
    M: Any
    """The mass matrix, the derivative by the accelerations."""


def inverse_matrices(
    robot: Robot, pairs: DofMatrices, equations: EquationsOfMotion, x: Sensitivities, q, v, joint_friction: bool
) -> InverseMatrices:
    """Return the derivatives of inverse dynamics, springs and, with `joint_friction`, friction included."""
    dq, dv, M = body_matrices(pairs, equations, x)
    if robot.stiffness is not None:
        dq = dq + spring_slope(robot, q, pairs)
    if joint_friction:
        dv = dv + pairs.diagonal(joint_friction_law(robot).slope(v))
    return InverseMatrices(dq, dv, M)


def body_matrices(pairs: DofMatrices, equations: EquationsOfMotion, x: Sensitivities) -> InverseMatrices:
    """Return the derivatives of inverse dynamics without springs and friction."""
    robot = pairs.robot
    S, dS, ddS, rate, *_ = x
    inertia, B, force, E = sum_up(robot.tree, (x.inertia, x.B, x.force, x.E))
    # A joint behind j, or j itself, moved by j: its S turns with what it carries.
    w, u = inertia.apply(S), B.apply_transpose(S)
    # A joint before j.
    by_q = B.apply(dS.angular) + inertia.apply(ddS) + S.cross_force(force)
    by_v = B.apply(S.angular) + inertia.apply(rate)
    behind, moved = [u, w], [dS.angular, ddS]
    if E is not None:
        by_q = by_q + E.apply(S.angular)
        behind, moved = [*behind, E.apply_transpose(S)], [*moved, S.angular]
    S, rate, w, u, by_q, by_v, behind, moved = once((S, rate, w, u, by_q, by_v, behind, moved))
    dq = pairs.triangular(pairs.products(behind, moved), pairs.products(S, by_q))
    dv = pairs.triangular(pairs.products((u, w), (S.angular, rate)), pairs.products(S, by_v))
    M = pairs.symmetric(once(pairs.products(w, S))) + pairs.diagonal(equations.armature)
    return InverseMatrices(dq, dv, M)


def spring_slope(robot: Robot, q, pairs: DofMatrices):
    """Return the derivative of the springs' torque by `q`, as `pairs` holds it."""

    def displaced(dv):
        batch = jnp.broadcast_shapes(q.shape[1:], dv.shape[1:])
        q_full, dv = (jnp.broadcast_to(x, (len(x), *batch)) for x in (q, dv))
        return spring_rows(robot, integrate(robot.topology, q_full, dv))

    def along(direction):
        return robot.broadcast(jax.jvp(displaced, (robot.zeros(),), (direction,))[1])

    eye = jnp.eye(robot.nv, dtype=q.dtype).reshape((robot.nv, robot.nv) + (1,) * robot.rank)
    return pairs.from_rows(jax.vmap(along, out_axes=1)(eye))


def inverse_products(robot: Robot, equations: EquationsOfMotion, x: Sensitivities, y, q, v, joint_friction: bool):
    """Return `y`, rows `[nv]`, times the derivatives of inverse dynamics by the coordinates of `q`, by `v` and by `a`,
    rows each; springs and, with `joint_friction`, friction are included."""
    dq, dv, da = body_products(robot, equations, x, y)
    dq = coordinate_cotangent(robot.topology, q, dq)
    if robot.stiffness is not None:
        dq = dq + spring_products(robot, q, y)
    if joint_friction:
        dv = dv + joint_friction_law(robot).slope(v) * y
    return dq, dv, da


def spring_products(robot: Robot, q, y):
    """Return `y`, rows `[nv]`, times the derivatives of the springs' torques by the coordinates of `q`."""
    batch = y.shape[1:]
    return jax.vjp(lambda q: jnp.broadcast_to(spring_rows(robot, q), (robot.nv, *batch)), q)[1](y)[0]


def body_products(robot: Robot, equations: EquationsOfMotion, x: Sensitivities, y):
    """Return `y`, rows `[nv]`, times the derivatives of inverse dynamics without springs and friction by the tangent
    space of `q`, by `v` and by `a`, rows each.

    With `Y` the sum of `S y` down the tree, every body adds `Y . (2 B x + I z)` for the `x`, `z` of each degree of
    freedom that moves it: two sums up the tree, and no matrix.
    """
    S, dS, ddS, rate, inertia, B, force, E = x
    across = S * y
    Y = once(sum_down(robot.tree, across))
    P, Q, force = sum_up(robot.tree, (B.apply_transpose(Y), inertia.apply(Y), force))
    dq = P.dot(dS.angular) + ddS.dot(Q) + sum_before_joint(robot, Y, across).dot(S.cross_force(force))
    if E is not None:
        dq = dq + sum_up(robot.tree, E.apply_transpose(Y)).dot(S.angular)
    return dq, P.dot(S.angular) + rate.dot(Q), S.dot(Q) + equations.armature * y
