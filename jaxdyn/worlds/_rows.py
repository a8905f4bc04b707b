"""Rows of constraints: their Jacobians, and from their distances and parameters the accelerations that they ask for and
their regularization.

With the impedance `d`, a row asks for the acceleration `aref = -B J v - K d (position - margin)`, and has the
regularization `R = (1 - d) / d` times an estimate of the diagonal of `J M^-1 J^T`. Source: MuJoCo's manual, chapter
Modeling, Solver parameters, and chapter Computation, Parameters; `engine_core_constraint.c` of MuJoCo 4.0.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.algorithms.recursions import Robot
from jaxdyn.spatial import Force, Motion, Vec3
from jaxdyn.tree import columns_of, sum_up, take_rows
from jaxdyn.worlds._parts import SMALL, Instant, sums

MOST, LEAST = 0.9999, 0.0001
"""The bounds of impedances (mjMAXIMP, mjMINIMP)."""
DEFAULT_REFERENCE = 0.02, 1.0
"""The `solref` that replaces one whose numbers differ in sign."""


class Rows(NamedTuple):
    """Rows of constraints of one kind."""

    J: Any
    """`[n, nv, *batch]`, or the `Contacting` that it is made of."""
    moves: np.ndarray
    """`[n, nv]`: which entries may be other than zero."""
    aref: Any
    """`[n, *batch]`"""
    R: Any
    """`[n, *batch]`"""
    acts: Any = None
    """`[n, *batch]`: which rows act; None for all."""

    @property
    def D(self):
        """The stiffness of the rows, zero for those that do not act."""
        D = 1 / self.R
        return D if self.acts is None else jnp.where(self.acts, D, jnp.zeros((), D.dtype))


class Softness(NamedTuple):
    """The spring and the damper of rows."""

    stiffness: Any
    """`K d`"""
    damping: Any
    """`B`"""
    share: Any
    """`(1 - d) / d`"""


class Timing(NamedTuple):
    """The numbers of a world that all rows share."""

    dt: Any
    """The time step, `[1, *batch]`."""
    safe: bool
    """Whether time constants are at least two time steps."""


def softness(solref, solimp, distance, timing: Timing) -> Softness:
    """Return the softness of rows at their distances `[n, *batch]` from the margin.

    `solref`: `[n, 2, *batch]`; `solimp`: `[n, 5, *batch]`.
    """
    first, second, width, middle, power = columns_of(solimp)
    first, second, middle = (jnp.clip(x, LEAST, MOST) for x in (first, second, middle))
    d = _impedance(first, second, width, middle, jnp.maximum(power, 1.0), distance)
    stiffness, damping = _spring(solref, second, timing)
    return Softness(stiffness * d, damping, (1 - d) / d)


def _impedance(first, second, width, middle, power, distance):
    flat = (first == second) | (width <= SMALL)
    x = jnp.abs(distance) / jnp.where(width > SMALL, width, 1.0)
    inside = (x < 1) & (x > 0)
    safe = jnp.where(inside, x, 0.5)
    low = safe <= middle
    # a x^p below the middle, and 1 - b (1 - x)^p above.
    base, part = jnp.where(low, safe, 1 - safe), jnp.where(low, middle, 1 - middle)
    rise = part * _power(base / part, power)
    y = jnp.where(inside, jnp.where(low, rise, 1 - rise), jnp.where(x >= 1, 1.0, 0.0))
    return jnp.where(flat, 0.5 * (first + second), first + y * (second - first))


def _power(x, p):
    """Return `x^p`, exactly for the powers 1 and 2."""
    return jnp.where(p == 2, x * x, jnp.where(p == 1, x, x**p))


def _spring(solref, second, timing: Timing) -> tuple[Any, Any]:
    """Return `K` and `B` from a time constant and a damping ratio, or from minus a stiffness and minus a damping."""
    a, b = columns_of(solref)
    timed = a > 0
    constant = jnp.where(timed, a, 1.0)
    if timing.safe:
        constant = jnp.maximum(constant, 2 * timing.dt)
    ratio = jnp.where(timed, b, 1.0)
    stiffness = 1 / jnp.maximum(second * second * constant * constant * ratio * ratio, SMALL)
    damping = 2 / jnp.maximum(second * constant, SMALL)
    return (
        jnp.where(timed, stiffness, -a / jnp.maximum(second * second, SMALL)),
        jnp.where(timed, damping, -b / jnp.maximum(second, SMALL)),
    )


def regularization(share, weight):
    """Return `R`."""
    return jnp.maximum(share * weight, SMALL)


def coherent(solref: np.ndarray, default=DEFAULT_REFERENCE) -> np.ndarray:
    """Return `solref` `[n, 2]`, with the default where one number is positive and the other is not."""
    solref = np.array(solref, float).reshape(-1, 2)
    mixed = (solref[:, 0] > 0) != (solref[:, 1] > 0)
    solref[mixed] = default
    return solref


class Ends(NamedTuple):
    """The points of two bodies between which rows act, `n` of them."""

    dofs1: np.ndarray
    """The degree of freedom that carries the first body, -1 for the world."""
    arm1: Vec3
    """The point from the point of reference of the tree of the first body."""
    dofs2: np.ndarray
    arm2: Vec3
    shared: bool
    """Whether both points are in one place, or the wrenches are moments, which act alike about all points: what moves
    both bodies then changes nothing."""


def moving(robot: Robot, dofs: np.ndarray) -> np.ndarray:
    """Return, `[n, nv]`, which degrees of freedom move the frames behind others; none moves the world, -1."""
    return np.where((dofs >= 0)[:, None], robot.topology.dof_ancestors[np.maximum(dofs, 0)], False)


def between(robot: Robot, at: Instant, ends: Ends, wrenches: list[Force]) -> tuple[list, np.ndarray]:
    """Return the rates, `[n, nv, *batch]` for each wrench about the points, of the motion of the second bodies against
    the first; and which entries may be other than zero."""
    own, other = _signs(robot, ends)
    S = jax.tree.map(lambda x: robot.broadcast(x)[None], at.at.S)

    def rates(force: Force, arm: Vec3, signs: np.ndarray):
        moved = jax.tree.map(lambda x: robot.broadcast(x)[:, None], force.moved_from(arm))
        return S.dot(moved) * robot.constant(signs)

    rows = []
    for wrench in wrenches:
        row = rates(wrench, ends.arm2, own)
        rows.append(row - rates(wrench, ends.arm1, other) if other.any() else row)
    return rows, (own != 0) | (other != 0)


def _signs(robot: Robot, ends: Ends) -> tuple[np.ndarray, np.ndarray]:
    """Return the signs, `[n, nv]`, with which degrees of freedom move the bodies with the second points, and with which
    they move the first ones; of shared points within one tree the first have both."""
    moves1, moves2 = moving(robot, ends.dofs1), moving(robot, ends.dofs2)
    if not ends.shared:
        return moves2.astype(float), moves1.astype(float)
    roots = np.broadcast_to(robot.topology.reference_dof, robot.nv)
    same = (ends.dofs1 >= 0) & (ends.dofs2 >= 0) & (roots[ends.dofs1] == roots[ends.dofs2])
    # A degree of freedom that moves both bodies of one tree cancels exactly: the rows are of one force about one point.
    return moves2.astype(float) - moves1 * same[:, None], (moves1 & ~same[:, None]).astype(float)


class Contacting(NamedTuple):
    """The motions of second bodies against first ones, in some directions each: what rows of contacts measure.

    Products with vectors go over the motions of the bodies, which takes fewer operations, above all in derivatives,
    than with the matrix.
    """

    ends: Ends
    wrenches: list[Force]
    """About the points, one for each direction."""

    def moves(self, robot: Robot) -> np.ndarray:
        """Return, `[n, nv]`, which degrees of freedom move the second body against the first."""
        own, other = _signs(robot, self.ends)
        return (own != 0) | (other != 0)

    def jacobian(self, robot: Robot, at: Instant):
        """Return the rows, direction by direction, `[n, nv, *batch]`."""
        return jnp.concatenate(between(robot, at, self.ends, self.wrenches)[0])

    def rates(self, motion: Motion) -> list:
        """Return the rates in each direction where what is behind the degrees of freedom has these motions."""
        first, second = take_rows(motion, self.ends.dofs1), take_rows(motion, self.ends.dofs2)
        apart = jax.tree.map(jnp.subtract, second.at(self.ends.arm2), first.at(self.ends.arm1))
        return [apart.dot(x) for x in self.wrenches]

    def torque(self, robot: Robot, at: Instant, push):
        """Return the forces on the degrees of freedom, rows `[nv]`, of forces in all directions."""
        pushes = jnp.split(push, len(self.wrenches))
        parts = [jax.tree.map(lambda w, f=f: w * f, x) for x, f in zip(self.wrenches, pushes, strict=True)]
        total = functools.reduce(lambda a, b: jax.tree.map(jnp.add, a, b), parts)
        sides = (self.ends.dofs2, self.ends.arm2), (self.ends.dofs1, self.ends.arm1)
        second, first = (sums(total.moved_from(arm), dofs, robot.nv) for dofs, arm in sides)
        return at.at.S.dot(sum_up(robot.tree, jax.tree.map(jnp.subtract, second, first)))


def arm_of(at: Instant, dofs: np.ndarray, point: Vec3) -> Vec3:
    """Return points of the world from the points of reference of the trees of bodies."""
    world, reference = take_rows((at.world.translation, at.at.poses.translation), dofs)
    return point - world + reference


def rates_of(J, v):
    """Return `J v`."""
    return (J * v[None]).sum(axis=1)


def unit_rows(robot: Robot, dofs, signs) -> tuple[Any, np.ndarray]:
    """Return rows `[n, nv, 1, ...]` with one entry each, and where it is."""
    rows = np.zeros((len(dofs), robot.nv))
    rows[np.arange(len(dofs)), dofs] = signs
    return robot.constant(rows), rows != 0
