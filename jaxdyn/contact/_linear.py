"""The linear equations of a step of Newton's method: `H x = y` with `H = M + dt D + dt J^T G J`.

Contacts with the world add `dt K^T G K` to the inertia of a body, so for these the equations are those of a tree, and
are solved by the articulated-body recursion. Contacts of two moving bodies couple branches, and loops and joints that
mimic others are equations beside the tree: with any of them `H` is a matrix.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import solve_triangular

from jaxdyn.algorithms.recursions import DofMatrices, Factors, Robot, substitute_forces
from jaxdyn.constraints import proximal_steps
from jaxdyn.contact._contacts import ContactRows
from jaxdyn.spatial import ArticulatedInertia, Force, Inertia, Mat3, Motion, Sym3, Vec3
from jaxdyn.tree import scan_down, scan_up, sum_down, sum_up, take_rows


class Points(NamedTuple):
    """The contacts of a configuration, rows `[nc, *batch]`."""

    gap: Any
    normal: Vec3
    arm: Vec3
    """The point at which the force acts, from the point of reference of its body's tree."""
    other_arm: Any
    """With pairs, the same point from the point of reference of the first body's tree."""


class Held(NamedTuple):
    """The equations `J a + gamma = 0` of loops, couplings and joints that mimic others on the accelerations `a` in the
    axes at the start, as rows."""

    J: Any
    """`[m * nv, *batch]`"""
    gamma: Any
    """`[m, *batch]`"""

    def matrix(self):
        """Return `J` as `[m, nv, *batch]`."""
        return self.J.reshape(self.gamma.shape[0], -1, *self.gamma.shape[1:])


class DenseFactors(NamedTuple):
    """The factors of `H` as a matrix."""

    root: Any
    """`[nv * nv, *batch]`: Cholesky's factor of `H` with its rows and columns in reverse order, in which those of a
    tree have no fill-in (Featherstone 2008, section 6.5)."""


class System(NamedTuple):
    """The parts of `H` that are the same in all steps of Newton's method."""

    S: Motion
    inertia: Inertia
    points: Points
    held: Held | None


def is_dense(robot: Robot, contacts: ContactRows) -> bool:
    """Return whether `H` is not that of a tree."""
    return len(contacts.paired) > 0 or robot.topology.has_loops or robot.mimics is not None


def velocities_at(contacts: ContactRows, points: Points, motion: Motion) -> Vec3:
    """Return the velocities of the contact points, those of a pair relative to the first body, from the velocities
    behind the degrees of freedom."""
    found = _at(points.arm, take_rows(motion, contacts.dofs))
    if contacts.other_dofs is None:
        return found
    return found - _at(points.other_arm, take_rows(motion, contacts.other_dofs))


def _at(arm: Vec3, motion: Motion) -> Vec3:
    return motion.linear + motion.angular.cross(arm)


def forces_on_dofs(robot: Robot, contacts: ContactRows, points: Points, force: Vec3) -> Force:
    """Return the wrenches of the contact forces on what the degrees of freedom carry, rows `[nv]`."""
    total = _on_dofs(robot, contacts.dofs, Force(points.arm.cross(force), force))
    if contacts.other_dofs is None:
        return total
    return total - _on_dofs(robot, contacts.other_dofs, Force(points.other_arm.cross(force), force))


def _on_dofs(robot: Robot, dofs: np.ndarray, x):
    """Return the sums, rows `[nv]`, of rows of contacts over those of each degree of freedom; -1 is the world."""
    order = [np.flatnonzero(dofs == i) for i in range(robot.nv)]
    most = max(1, *map(len, order))
    table = np.array([[*k, *[-1] * (most - len(k))] for k in order])
    total = take_rows(x, table[:, 0])
    for k in range(1, most):
        total = jax.tree.map(jnp.add, total, take_rows(x, table[:, k]))
    return total


def _added_inertia(robot: Robot, contacts: ContactRows, points: Points, resistance: Sym3) -> ArticulatedInertia:
    """Return the sums of `K^T G K` over the contacts of a body with the world, rows `[nv]`, with the velocity `K m` of
    a point under a motion `m` of its body."""
    dofs, arm = contacts.dofs, points.arm
    if len(contacts.paired):
        alone = np.setdiff1d(np.arange(len(dofs)), contacts.paired)
        dofs, (arm, resistance) = dofs[alone], take_rows((arm, resistance), alone)
    G = resistance.to_mat3()
    coupling = Mat3(arm.cross(G.x), arm.cross(G.y), arm.cross(G.z))
    zero = jnp.zeros_like(arm.x)
    # The columns of [P] G [P]^T are P x G (e_i x P).
    turns = (Vec3(zero, -arm.z, arm.y), Vec3(arm.z, zero, -arm.x), Vec3(-arm.y, arm.x, zero))
    a, b, c = (arm.cross(resistance.apply(turn)) for turn in turns)
    return _on_dofs(robot, dofs, ArticulatedInertia(Sym3(a.x, a.y, b.y, a.z, b.z, c.z), coupling, resistance))


def solve_system(
    robot: Robot, contacts: ContactRows, system: System, armature, resistance: Sym3 | None, tau
) -> tuple[Any, Motion, Factors | DenseFactors]:
    """Return `H^-1 tau`, or with loops the part of it that they allow, the motions of the bodies under these
    accelerations, and the factors of `H`.

    `armature` is the diagonal that `H` has besides, and `resistance` is `dt G`, or None without contact forces.
    """
    added = None if resistance is None else _added_inertia(robot, contacts, system.points, resistance)
    if not is_dense(robot, contacts):
        return _eliminated(robot, system.S, system.inertia, armature, added, tau)
    factors = _dense_factors(robot, contacts, system, armature, added, resistance)
    x = substitute(robot, system.S, factors, tau) if system.held is None else hold(robot, system.held, factors, tau)[0]
    return x, sum_down(robot.tree, system.S * x), factors


def _eliminated(robot: Robot, S: Motion, inertia: Inertia, armature, added: ArticulatedInertia | None, tau):
    def up(children, x):
        (IA, p), (S, inertia, armature, tau, *added) = children, x
        IA = inertia.articulated() + IA
        for more in added:
            IA = IA + more
        U = IA.apply(S)
        Dinv = 1 / (S.dot(U) + armature)
        u = tau - S.dot(p)
        return (IA.minus_outer(U, U * Dinv), p + U * (Dinv * u)), (U, Dinv, u)

    def down(parent, x):
        S, U, Dinv, u = x
        a = Dinv * (u - parent.dot(U))
        motion = parent + S * a
        return motion, (a, motion)

    leaf = ArticulatedInertia(Sym3.zero(), Mat3.zero(), Sym3.zero()), Force.zero()
    rows = (S, inertia, armature, tau) if added is None else (S, inertia, armature, tau, added)
    U, Dinv, u = scan_up(robot.tree, up, leaf, rows)
    a, motion = scan_down(robot.tree, down, Motion.zero(), (S, U, Dinv, u))
    return a, motion, Factors(U, Dinv)


def _dense_factors(
    robot: Robot,
    contacts: ContactRows,
    system: System,
    armature,
    added: ArticulatedInertia | None,
    resistance: Sym3 | None,
) -> DenseFactors:
    composite = sum_up(robot.tree, system.inertia).articulated()
    composite = composite if added is None else composite + sum_up(robot.tree, added)
    matrices = DofMatrices(robot)
    H = matrices.symmetric(matrices.products(composite.apply(system.S), system.S)) + matrices.diagonal(armature)
    H = robot.broadcast(matrices.to_rows(H))
    if resistance is not None and len(contacts.paired):
        J = _pair_jacobian(robot, contacts, system)
        GJ = jax.tree.map(lambda x: x[:, None], take_rows(resistance, contacts.paired)).apply(J)
        for a, b in zip(jax.tree.leaves(J), jax.tree.leaves(GJ), strict=True):
            H = H + (a[:, :, None] * b[:, None]).sum(axis=0)
    root = jnp.linalg.cholesky(jnp.moveaxis(H[::-1, ::-1], (0, 1), (-2, -1)))
    return DenseFactors(jnp.moveaxis(root, (-2, -1), (0, 1)).reshape(-1, *H.shape[2:]))


def _pair_jacobian(robot: Robot, contacts: ContactRows, system: System) -> Vec3:
    """Return the derivatives of the velocities of the contacts of two moving bodies, components `[np, nv, *batch]`."""
    where, touching = contacts.paired, contacts.contacts.touching
    moves1, moves2 = (robot.topology.moves_body[x[where]] for x in (touching.bodies1, touching.bodies2))
    S = jax.tree.map(lambda x: robot.broadcast(x)[None], system.S)
    points = take_rows(system.points, where)
    arm, other_arm = (jax.tree.map(lambda x: x[:, None], x) for x in (points.arm, points.other_arm))
    # What moves both bodies changes nothing.
    own, other = (robot.constant(x.astype(float)) for x in (moves2 & ~moves1, moves1 & ~moves2))
    return _at(arm, S) * own - _at(other_arm, S) * other


def _dense_solve(root, b):
    """Return `H^-1 b` for `b` `[nv, k, *batch]`."""
    root = root.reshape(len(b), len(b), *root.shape[1:])
    root, b = (jnp.moveaxis(x, (0, 1), (-2, -1)) for x in (root, b[::-1]))
    x = solve_triangular(root, solve_triangular(root, b, lower=True), lower=True, trans=1)
    return jnp.moveaxis(x, (-2, -1), (0, 1))[::-1]


def substitute(robot: Robot, S: Motion, factors: Factors | DenseFactors, y):
    """Return `H^-1 y` from the factors of `H`."""
    if isinstance(factors, DenseFactors):
        return _dense_solve(factors.root, robot.broadcast(y)[:, None])[:, 0]
    return substitute_forces(robot.tree, S, factors, y)


def hold(robot: Robot, held: Held, factors: Any, y, e=None) -> tuple[Any, Any]:
    """Return `x` and `l` with `H x + J^T l = y` and `J x = e`, zero by default, from the `DenseFactors` of `H`."""
    J = robot.broadcast(held.matrix())
    both = _dense_solve(factors.root, jnp.concatenate([robot.broadcast(y)[:, None], jnp.swapaxes(J, 0, 1)], axis=1))
    x, Y = both[:, 0], both[:, 1:]
    e = (J * x[None]).sum(axis=1) if e is None else (J * x[None]).sum(axis=1) - e
    C, Y, b = (jnp.moveaxis(z, (0, 1), (-2, -1)) for z in (J, Y, e[:, None]))
    l = proximal_steps(jnp.matmul(C, Y, precision=lax.Precision.HIGHEST), b)
    taken = jnp.matmul(Y, l, precision=lax.Precision.HIGHEST)
    return x - jnp.moveaxis(taken[..., 0], -1, 0), jnp.moveaxis(l[..., 0], -1, 0)
