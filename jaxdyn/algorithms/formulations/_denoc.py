"""The DeNOC form: the decoupled natural orthogonal complement of a tree, and the equations of motion made with it.

Saha, Dynamics of serial multibody systems using the decoupled natural orthogonal complement matrices, Journal of
Applied Mechanics 1999; Shah, Saha & Dutt, Dynamics of Tree-Type Robotic Systems, 2013, chapters 4 and 5. Each body's
reference point is the origin of its frame, which lies on its joint.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxdyn._types import Array, Configuration, Float, Velocity, Wrenches
from jaxdyn.algorithms.formulations._articulated_bodies import by_dof, matrices
from jaxdyn.algorithms.recursions import Kinematics, Robot, algorithm, kinematics, product, row_vectors, velocities
from jaxdyn.spatial import Force, Inertia, Motion, Pose, Sym3, Vec3
from jaxdyn.tree import Tree, columns_of, take_rows


class DeNOC(NamedTuple):
    """The matrices of the DeNOC form at one state. Twists `[linear, angular]` of the bodies' origins and wrenches
    `[force, moment]` about them, in world axes, body after body: `6 nb` numbers. (The literature has angular parts
    first: rows and columns of each body then change places in threes.)

    With them the equations of motion are

        t = N v,   N = N_l N_d,   dt/dt = N a + N_dot v,   M dt/dt + Omega M E t = w
        generalized_inertia a + convective_inertia v = tau + generalized_force
    """

    N_l: Float[Array, "*batch six_nb six_nb"]
    """The twist propagation from each body to those that it carries, lower block triangular."""
    N_d: Float[Array, "*batch six_nb nv"]
    """The motion propagation of the joints, block diagonal."""
    N_l_dot: Float[Array, "*batch six_nb six_nb"]
    N_d_dot: Float[Array, "*batch six_nb nv"]
    twist: Float[Array, "*batch six_nb"]
    """`t`"""
    M: Float[Array, "*batch nb 6 6"]
    """The blocks of the extended mass matrix."""
    OmegaME: Float[Array, "*batch nb 6 6"]
    """The blocks of `Omega M E`, with `Omega` the cross product with the angular velocity, and `E` the angular part."""
    wrench: Float[Array, "*batch six_nb"]
    """`w`: weights and external wrenches; those of constraints and drives are not in it."""
    generalized_inertia: Float[Array, "*batch nv nv"]
    """`N^T M N`, armature included: the mass matrix of `crba`."""
    convective_inertia: Float[Array, "*batch nv nv"]
    """`N^T (M N_dot + Omega M E N)`: times `v` the velocity terms of `rnea`. It differs from `coriolis_matrix`."""
    generalized_force: Float[Array, "*batch nv"]
    """`N^T w`: minus `generalized_gravity`, plus the generalized forces of the external wrenches."""


@algorithm()
def denoc_matrices(
    robot: Robot, q: Configuration
) -> tuple[Float[Array, "*batch six_nb six_nb"], Float[Array, "*batch six_nb nv"]]:
    """The decoupled natural orthogonal complement `(N_l, N_d)` `[*batch, 6 nb, 6 nb]`, `[*batch, 6 nb, nv]`.

    `N_l N_d v` are the twists of all bodies, `[linear, angular]` of the origins of their frames in world axes. `N_l`
    depends on the geometry between the bodies' origins, `N_d` on the joints' axes alone (see `DeNOC`). Columns of
    joints that mimic others are added to those of the joints that they follow.

    **Raises** `ShapeError` where a shape does not fit.
    """
    poses, S = kinematics(robot, q)
    origins = take_rows(poses.translation, robot.topology.body_dofs)
    return _propagation(robot, origins), _joint_columns(robot, S.at(by_dof(robot, origins)))


@algorithm()
def denoc(robot: Robot, q: Configuration, v: Velocity, f_ext: Wrenches | None = None) -> DeNOC:
    """The equations of motion in the DeNOC form at one state, as `DeNOC`: dense matrices of `6 nb` rows, to look at and
    to compare with. `crba` and `rnea` compute the same by recursion.

    **Arguments**: `q` `[*batch, nq]`, `v` `[*batch, nv]`, and `f_ext` `[*batch, nb, 6]` as for `rnea`.

    **Raises** `ShapeError` where a shape does not fit.
    """
    nb = robot.nb
    poses, twist, (N_l, N_l_dot), (N_d, N_d_dot), N, N_dot = complement(robot, kinematics(robot, q), v)
    m, x, y, z, *moments = columns_of(robot.inertial_parameters)
    h = poses.rotation.apply(Vec3(x, y, z))
    inertia = Inertia(m, h, Sym3(*moments).rotated(poses.rotation))
    # M = [[m 1, -[h x]], [[h x], I]],  Omega M E = [[0, -[w x] [h x]], [0, [w x] I]]
    M = matrices(robot, lambda x, inertia: inertia.apply(x), inertia)

    def turned(x: Motion, inertia: Inertia, w: Vec3) -> Force:
        momentum = inertia.apply(Motion(x.angular, x.linear * 0))
        return Force(w.cross(momentum.moment), w.cross(momentum.force))

    OmegaME = matrices(robot, turned, inertia, twist.angular)
    g = robot.gravity_vector
    wrench = row_vectors(robot, Force(moment=h.cross(g), force=g * m))
    if f_ext is not None:
        wrench = wrench + f_ext
    N_b, N_dot_b = (x.reshape((nb, 6, *x.shape[1:])) for x in (N, N_dot))
    force = product("bij...,bjk...->bik...", M, N_dot_b) + product("bij...,bjk...->bik...", OmegaME, N_b)
    generalized_inertia = product("bki...,bkl...,blj...->ij...", N_b, M, N_b)
    return DeNOC(
        N_l=N_l,
        N_d=N_d,
        N_l_dot=N_l_dot,
        N_d_dot=N_d_dot,
        twist=_flat(row_vectors(robot, twist)),
        M=M,
        OmegaME=OmegaME,
        wrench=_flat(wrench),
        generalized_inertia=generalized_inertia + robot.constant(np.eye(robot.nv)) * robot.armature,
        convective_inertia=product("bki...,bkj...->ij...", N_b, force),
        generalized_force=product("bki...,bk...->i...", N_b, wrench),
    )


class Complement(NamedTuple):
    """The natural orthogonal complement and its rate, `[6 nb, nv, *batch]`, with the factors of both."""

    poses: Pose
    """The poses of the bodies, rows `[nb]`."""
    twist: Motion
    """The twists of their origins, rows `[nb]`."""
    N_l: tuple[Any, Any]
    """The twist propagation and its rate."""
    N_d: tuple[Any, Any]
    """The motion propagation of the joints and its rate."""
    N: Any
    N_dot: Any


def complement(robot: Robot, at: Kinematics, v) -> Complement:
    """Return the natural orthogonal complement of the tree at a state."""
    topology, S = robot.topology, at.S
    _, velocity = velocities(robot, S, v)
    poses, bodies_velocity = take_rows((at.poses, velocity), topology.body_dofs)
    origins, twist = poses.translation, bodies_velocity.at(poses.translation)
    # The rate of a column at a fixed point, and the motion of its reference, the origin of its body.
    rate = take_rows(velocity, topology.mover).cross(S).at(by_dof(robot, origins))
    rate = Motion(rate.angular, rate.linear + S.angular.cross(by_dof(robot, twist.linear)))
    N_l, N_l_dot = _propagation(robot, origins), _propagation(robot, twist.linear, rate=True)
    N_d, N_d_dot = _joint_columns(robot, S.at(by_dof(robot, origins))), _joint_columns(robot, rate)
    N = product("ij...,jk...->ik...", N_l, N_d)
    N_dot = product("ij...,jk...->ik...", N_l_dot, N_d) + product("ij...,jk...->ik...", N_l, N_d_dot)
    return Complement(poses, twist, (N_l, N_l_dot), (N_d, N_d_dot), N, N_dot)


def _propagation(robot: Robot, x: Vec3, *, rate: bool = False):
    """Return `N_l` `[6 nb, 6 nb, *batch]` from the bodies' origins, rows `[nb]`, or its rate from their velocities. The
    block from `j` to `i`, `j` carrying `i`, is `[[1, -[r x]], [0, 1]]` with `r = o_i - o_j`."""

    def carry(x: Motion, r: Vec3) -> Motion:
        out = Motion(x.angular, x.linear + x.angular.cross(r))
        return out - x if rate else out

    i, j = np.nonzero(Tree(robot.topology.parents).ancestors)
    blocks = matrices(robot, carry, take_rows(x, i) - take_rows(x, j))
    out = jnp.zeros((robot.nb, 6, robot.nb, 6, *robot.batch), blocks.dtype).at[i, :, j].set(blocks)
    return out.reshape((6 * robot.nb, 6 * robot.nb, *robot.batch))


def _joint_columns(robot: Robot, motions: Motion):
    """Return `N_d` `[6 nb, nv, *batch]` from its columns, rows `[nv]`."""
    columns = jnp.swapaxes(row_vectors(robot, motions), 0, 1)
    moves = by_dof(robot, robot.constant(np.eye(robot.nb)))
    return _flat(columns[None] * jnp.swapaxes(moves, 0, 1)[:, None])


def _flat(x):
    """Return `[nb, 6, ...]` as `[6 nb, ...]`."""
    return x.reshape((-1, *x.shape[2:]))
