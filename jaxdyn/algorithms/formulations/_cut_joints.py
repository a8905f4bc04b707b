"""Closed loops in the DeNOC form: the joints at which the loops are cut, as conditions on the twists of the bodies.

Saha & Schiehlen, Recursive kinematics and dynamics for parallel structured closed-loop multibody systems, Mechanics of
Structures and Machines 2001; Bae & Haug, A recursive formulation for constrained mechanical system dynamics, part II:
closed-loop systems, Mechanics of Structures and Machines 1987. The Jacobian is made of the twists of the two sides of
each cut joint. The recursions make it of forces instead, so each is a check of the other.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._types import Array, Configuration, Float, Velocity
from jaxdyn.algorithms.formulations._articulated_bodies import matrices
from jaxdyn.algorithms.formulations._denoc import Complement, complement
from jaxdyn.algorithms.recursions import (
    LoopEnds,
    LoopGroup,
    Robot,
    algorithm,
    coupling_rows,
    kinematics,
    loop_ends,
    loop_groups,
    loop_order,
    product,
    row_vectors,
)
from jaxdyn.spatial import Mat3, Motion, Vec3
from jaxdyn.tree import columns_of, take_rows


class CutJoints(NamedTuple):
    """The conditions of closed loops and couplings on the velocities and accelerations of the tree, which is what is
    left when the loops are cut.

    With the matrices `t = N_l N_d v` of `DeNOC` for the twists of the bodies,

        A t + P v = J v = 0,   J = A N_l N_d + P,   J a + gamma = 0
    """

    A: Float[Array, "*batch nc six_nb"]
    """The twist of the second side of each cut joint less that of the first, in the axes of the first, along the
    directions in which the joint does not move. Zero for couplings."""
    P: Float[Array, "*batch nc nv"]
    """The rows of couplings. Zero for loops."""
    J: Float[Array, "*batch nc nv"]
    """The Jacobian: `constraint_jacobian`."""
    gamma: Float[Array, "*batch nc"]
    """The rate of `J v` at `a = 0`: `A N_dot v + A_dot t + P_dot v`."""


@algorithm()
def cut_joints(robot: Robot, q: Configuration, v: Velocity) -> CutJoints:
    """The closed loops of the model in the DeNOC form, as `CutJoints`: dense matrices, to look at and to compare with.

    Each equation of a loop says that a component of the relative twist of its two frames is zero: the linear part is
    the rate of the second origin as seen from the first frame, the angular part the relative angular velocity, both in
    the axes of the first frame. The rows have the order of `constraint_error`.

    **Arguments**: `q` `[*batch, nq]`, `v` `[*batch, nv]`. **Raises** `ShapeError` where a shape does not fit.
    """
    topology, at = robot.topology, kinematics(robot, q)
    tree = complement(robot, at, v)
    rate = product("ij...,j...->i...", tree.N_dot, robot.broadcast(v)).reshape((robot.nb, 6, *robot.batch))
    A = [robot.broadcast(robot.constant(np.zeros((0, 6 * robot.nb))))]
    gamma = [robot.broadcast(robot.constant(np.zeros(0)))]
    for group in loop_groups(topology):
        of_group = _conditions(robot, tree, _motion(rate), group, loop_ends(robot, group, at.poses, q))
        A, gamma = A + of_group[0], gamma + of_group[1]
    A, gamma = (take_rows(jnp.concatenate(x), loop_order(topology)) for x in (A, gamma))
    P = robot.broadcast(robot.constant(np.zeros((topology.nc, robot.nv))))
    if topology.couplings:
        rows, rates = coupling_rows(robot, q, v)
        P = P.at[len(A) :].set(rows)
        A = jnp.concatenate([A, jnp.zeros((len(rows), *A.shape[1:]), A.dtype)])
        gamma = jnp.concatenate([gamma, rates])
    return CutJoints(A, P, product("ij...,jk...->ik...", A, tree.N) + P, gamma)


def _conditions(robot: Robot, tree: Complement, rate: Motion, group: LoopGroup, ends: LoopEnds) -> tuple[list, list]:
    """Return the rows of `A` `[n, 6 nb, *batch]` and of `gamma` `[n, *batch]` of each equation of a group of loops.
    `rate` has the rates of the twists at `a = 0`."""
    bodies1, bodies2 = group.bodies
    R1, R2, d, length = ends.frames
    # From the origin of each body to the origin of the second frame. A frame in the world has no body, and no twist.
    arm1 = ends.r1 + d - take_rows(tree.poses.translation, bodies1)
    arm2 = ends.r2 - take_rows(tree.poses.translation, bodies2)

    def seen(t: Motion, arm: Vec3, R1: Mat3 = R1) -> Motion:
        """Return the twist of the second frame's origin as a part of a body, in the axes of the first frame."""
        return Motion(R1.apply_transpose(t.angular), R1.apply_transpose(t.linear + t.angular.cross(arm)))

    t1, t2 = take_rows(tree.twist, bodies1), take_rows(tree.twist, bodies2)
    rate1, rate2 = take_rows(rate, bodies1), take_rows(rate, bodies2)
    relative = seen(t2, arm2) - seen(t1, arm1)
    # The rate of the relative twist at a = 0. The second arm turns with its body; the first one follows the point.
    arm2_rate = t2.angular.cross(arm2)
    arm1_rate = t2.linear + arm2_rate - t1.linear
    linear = t2.angular.cross(arm2_rate) - t1.angular.cross(arm1_rate)
    linear = linear - t1.angular.cross(arm1_rate - t1.angular.cross(arm1))
    angular = -t1.angular.cross(t2.angular)
    change = seen(rate2, arm2) - seen(rate1, arm1)
    change = change + Motion(R1.apply_transpose(angular), R1.apply_transpose(linear))

    z, d = R1.apply_transpose(R2.z), R1.apply_transpose(d)
    rates = (relative.angular.cross(z), relative.linear)
    along, turning = jax.jvp(lambda z, d: _directions(group.kind, z, d, length), (z, d), rates)
    sides = [
        (matrices(robot, seen, arm, R1), robot.constant(np.eye(robot.nb)[bodies] * (bodies >= 0)[:, None])[:, :, None])
        for arm, bodies in ((arm1, bodies1), (arm2, bodies2))
    ]
    A, gamma = [], []
    for direction, turn in zip(along, turning, strict=True):
        rows = [product("ni...,nij...->nj...", row_vectors(robot, direction), x)[:, None] * at for x, at in sides]
        A.append((rows[1] - rows[0]).reshape((len(bodies1), 6 * robot.nb, *robot.batch)))
        gamma.append(robot.broadcast(_dot(direction, change) + _dot(turn, relative)))
    return A, gamma


def _directions(kind: str, z: Vec3, d: Vec3, length) -> list[Motion]:
    """Return the directions of the relative twist that each equation of a kind of loop holds at zero: `z` is the axis z
    of the second frame, and `d` its origin, in the axes of the first frame."""
    zero, one = jnp.zeros_like(z.x), jnp.ones_like(z.x)
    nothing, axes = Vec3(zero, zero, zero), (Vec3(one, zero, zero), Vec3(zero, one, zero), Vec3(zero, zero, one))
    if kind == "distance":
        return [Motion(nothing, d * (1 / length))]
    origin = [Motion(nothing, axis) for axis in axes]
    if kind == "connect":
        return origin
    if kind == "weld":
        return origin + [Motion(axis, nothing) for axis in axes]
    # The rates of the components x and y of z are those of w x z.
    hinge = [Motion(Vec3(zero, z.z, -z.y), nothing), Motion(Vec3(-z.z, zero, z.x), nothing)]
    return origin[:2] + hinge if kind == "cylindrical" else origin + hinge


def _motion(rows) -> Motion:
    """Return `[n, 6, *batch]` as rows `[n]`."""
    x = columns_of(rows)
    return Motion(Vec3(*x[3:]), Vec3(*x[:3]))


def _dot(x: Motion, y: Motion):
    return x.linear.dot(y.linear) + x.angular.dot(y.angular)
