"""Rows that measure how points of two bodies move against each other: contacts."""

from __future__ import annotations

import functools
import operator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.algorithms.recursions import Robot
from jaxdyn.laws import Curvature
from jaxdyn.rows._abstract_rows import AbstractRows, sums
from jaxdyn.spatial import ArticulatedInertia, Force, Mat3, Motion, Sym3, Vec3
from jaxdyn.tree import take_rows


class Ends(eqx.Module):
    """The points of two bodies between which rows act, `n` of them."""

    dofs1: tuple[int, ...] = eqx.field(static=True)
    """The degree of freedom that carries the first body, -1 for the world."""
    arm1: Vec3 | None
    """The point from the point of reference of the tree of the first body; None where all first bodies are the
    world."""
    dofs2: tuple[int, ...] = eqx.field(static=True)
    arm2: Vec3
    shared: bool = eqx.field(static=True)
    """Whether both points are in one place, or the wrenches are moments, which act alike about all points: what moves
    both bodies then changes nothing."""

    @classmethod
    def of(cls, dofs1, arm1: Vec3 | None, dofs2, arm2: Vec3, *, shared: bool) -> Ends:
        """Return points from arrays of degrees of freedom."""
        one, two = (tuple(np.asarray(x, int).tolist()) for x in (dofs1, dofs2))
        return cls(one, arm1 if max(one, default=-1) >= 0 else None, two, arm2, shared)

    def sides(self) -> list[tuple[np.ndarray, Vec3, float]]:
        """Return the degrees of freedom, arms and signs of the bodies on which the rows act, the second ones first."""
        second = np.array(self.dofs2, int), self.arm2, 1.0
        return [second] if self.arm1 is None else [second, (np.array(self.dofs1, int), self.arm1, -1.0)]


class PointRows(AbstractRows):
    """The motions of second bodies against first ones at points that both have in one place, along axes and about axes.

    Products with vectors go over the motions of the bodies, which takes fewer operations, above all in derivatives,
    than with the matrix.
    """

    ends: Ends
    axes: tuple[Vec3, ...] | None
    """The directions along which rows measure; None for the three axes of the world."""
    turns: tuple[Vec3, ...] = ()
    """The directions about which further rows do."""

    def moves(self, robot: Robot) -> np.ndarray:
        own, other = _signs(robot, self.ends)
        return np.tile((own != 0) | (other != 0), (self._along() + len(self.turns), 1))

    def _along(self) -> int:
        return 3 if self.axes is None else len(self.axes)

    def _wrenches(self) -> list[Force]:
        x = self.ends.arm2.x
        zero = Vec3(*(jnp.zeros_like(x) for _ in range(3)))
        axes = self.axes
        if axes is None:
            one = jnp.ones_like(x)
            axes = Vec3(one, zero.x, zero.x), Vec3(zero.x, one, zero.x), Vec3(zero.x, zero.x, one)
        return [Force(zero, a) for a in axes] + [Force(a, zero) for a in self.turns]

    def jacobian(self, robot: Robot, S: Motion):
        return jnp.concatenate(between(robot, S, self.ends, self._wrenches())[0])

    def rates(self, robot: Robot, motion: Motion, x):
        moved = [(take_rows(motion, dofs).at(arm), sign) for dofs, arm, sign in self.ends.sides()]
        apart = moved[0][0] if len(moved) == 1 else moved[0][0] - moved[1][0]
        v = apart.linear
        along = [v.x, v.y, v.z] if self.axes is None else [v.dot(a) for a in self.axes]
        return jnp.concatenate([robot.broadcast(r) for r in (*along, *(apart.angular.dot(a) for a in self.turns))])

    def forces(self, robot: Robot, push) -> tuple[Force | None, Any]:
        count = self._along()
        pushes = jnp.split(push, count + len(self.turns))
        force = Vec3(*pushes[:3]) if self.axes is None else _combined(self.axes, pushes)
        moment = _combined(self.turns, pushes[count:]) if self.turns else None
        total = None
        for dofs, arm, sign in self.ends.sides():
            about = arm.cross(force)
            own = sums(Force(about if moment is None else about + moment, force), dofs, robot.nv)
            total = own if total is None else total + own if sign > 0 else total - own
        return total, None

    def touch_one(self) -> bool:
        return not any(one >= 0 and two >= 0 for one, two in zip(self.ends.dofs1, self.ends.dofs2, strict=True))

    def inertias(self, robot: Robot, G: Curvature) -> tuple[ArticulatedInertia | None, Any]:
        dofs, arm, _ = self.ends.sides()[0]
        if self.ends.arm1 is not None:
            # Each point belongs to one of its two bodies.
            first, n = dofs < 0, len(dofs)
            both = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), arm, self.ends.arm1)
            arm = take_rows(both, np.where(first, n, 0) + np.arange(n))
            dofs = np.where(first, np.array(self.ends.dofs1, int), dofs)
        own = _in_world_axes(arm, G) if self.axes is None else _along(arm, self.axes, self.turns, G)
        return sums(own, dofs, robot.nv), None


def _combined(axes: tuple[Vec3, ...], pushes: list) -> Vec3:
    return functools.reduce(operator.add, (a * p for a, p in zip(axes, pushes, strict=False)))


def _in_world_axes(arm: Vec3, G: Curvature) -> ArticulatedInertia:
    """Return `K^T G K` for the velocity `K m` of a point under a motion `m` of its body."""
    linear = Sym3(G[0][0], G[0][1], G[1][1], G[0][2], G[1][2], G[2][2])
    columns = linear.to_mat3()
    coupling = Mat3(arm.cross(columns.x), arm.cross(columns.y), arm.cross(columns.z))
    zero = jnp.zeros_like(arm.x)
    # The columns of [P] G [P]^T are P x G (e_i x P).
    turns = (Vec3(zero, -arm.z, arm.y), Vec3(arm.z, zero, -arm.x), Vec3(-arm.y, arm.x, zero))
    a, b, c = (arm.cross(linear.apply(turn)) for turn in turns)
    return ArticulatedInertia(Sym3(a.x, a.y, b.y, a.z, b.z, c.z), coupling, linear)


def _along(arm: Vec3, axes: tuple[Vec3, ...], turns: tuple[Vec3, ...], G: Curvature) -> ArticulatedInertia:
    """Return the sum of `w_i G_ij w_j^T` over the wrenches `w` of unit pushes in all directions."""
    zero = Vec3(*(jnp.zeros_like(arm.x) for _ in range(3)))
    wrenches = [Force(arm.cross(a), a) for a in axes] + [Force(a, zero) for a in turns]
    total = None
    for w, line in zip(wrenches, G, strict=True):
        y = functools.reduce(operator.add, (u * g for u, g in zip(wrenches, line, strict=True) if g is not None))
        n, f, m, l = w.moment, w.force, y.moment, y.force
        # Only the sum of all is symmetric, and its upper triangle is that of the sum.
        own = ArticulatedInertia(Sym3.outer(n, m), Mat3(n * l.x, n * l.y, n * l.z), Sym3.outer(f, l))
        total = own if total is None else total + own
    assert total is not None
    return total


def moving(robot: Robot, dofs: np.ndarray) -> np.ndarray:
    """Return, `[n, nv]`, which degrees of freedom move the frames behind others; none moves the world, -1."""
    return np.where((dofs >= 0)[:, None], robot.topology.dof_ancestors[np.maximum(dofs, 0)], False)


def between(robot: Robot, S: Motion, ends: Ends, wrenches: list[Force]) -> tuple[list, np.ndarray]:
    """Return the rates, `[n, nv, *batch]` for each wrench about the points, of the motion of the second bodies against
    the first; and which entries may be other than zero."""
    own, other = _signs(robot, ends)
    S = jax.tree.map(lambda x: robot.broadcast(x)[None], S)

    def rates(force: Force, arm: Vec3, signs: np.ndarray):
        moved = jax.tree.map(lambda x: robot.broadcast(x)[:, None], force.moved_from(arm))
        return S.dot(moved) * robot.constant(signs)

    rows = []
    for wrench in wrenches:
        row = rates(wrench, ends.arm2, own)
        if other.any():
            assert ends.arm1 is not None
            row = row - rates(wrench, ends.arm1, other)
        rows.append(row)
    return rows, (own != 0) | (other != 0)


def _signs(robot: Robot, ends: Ends) -> tuple[np.ndarray, np.ndarray]:
    """Return the signs, `[n, nv]`, with which degrees of freedom move the bodies with the second points, and with which
    they move the first ones; of shared points within one tree the first have both."""
    dofs1, dofs2 = np.array(ends.dofs1, int), np.array(ends.dofs2, int)
    moves1, moves2 = moving(robot, dofs1), moving(robot, dofs2)
    if not ends.shared:
        return moves2.astype(float), moves1.astype(float)
    roots = np.broadcast_to(robot.topology.reference_dof, robot.nv)
    same = (dofs1 >= 0) & (dofs2 >= 0) & (roots[dofs1] == roots[dofs2])
    # A degree of freedom that moves both bodies of one tree cancels exactly: the rows are of one force about one point.
    return moves2.astype(float) - moves1 * same[:, None], (moves1 & ~same[:, None]).astype(float)
