"""The terms of a problem: rows, each with its law."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdyn.algorithms.recursions import Robot
from jaxdyn.laws import AbstractLaw
from jaxdyn.rows import AbstractRows
from jaxdyn.spatial import Force, Motion
from jaxdyn.tree import sum_up


class Term(NamedTuple):
    """Rows under one law, whose residuals at the accelerations `a` are `offset + gain J a`."""

    rows: AbstractRows
    law: AbstractLaw
    offset: Any
    """`[n, *batch]`: minus the accelerations that the rows ask for, or their velocities now."""
    gain: Any = None
    """`[1, *batch]`: the time step for residuals that are velocities at its end; None for 1."""

    @property
    def size(self) -> int:
        """The number of rows."""
        return self.offset.shape[0]

    def residual(self, robot: Robot, motion: Motion, a):
        """Return the residuals at accelerations `a` that move the bodies by `motion`."""
        return robot.broadcast(self.offset + scaled(self.rows.rates(robot, motion, a), self.gain))


def scaled(x, gain):
    """Return `gain x`, where None is 1."""
    return x if gain is None else x * gain


def pushes_at(robot: Robot, terms: Sequence[Term], motion: Motion, a) -> list:
    """Return the forces of all rows at accelerations `a` that move the bodies by `motion`."""
    return [term.law.force(term.residual(robot, motion, a)) for term in terms]


def forces_of(robot: Robot, rows: Sequence[AbstractRows], pushes: Sequence) -> tuple[Force | None, Any]:
    """Return what pushes do: the wrenches on what is behind the degrees of freedom, and the forces on these; None for
    zero."""
    wrench, torque = None, None
    for own, push in zip(rows, pushes, strict=True):
        on_bodies, on_dofs = own.forces(robot, push)
        wrench, torque = added(wrench, on_bodies), added(torque, on_dofs)
    return wrench, torque


def added(x, y):
    """Return the sum of two pytrees, where None is zero."""
    return x if y is None else y if x is None else jax.tree.map(jnp.add, x, y)


def push_on_dofs(robot: Robot, S: Motion, rows: Sequence[AbstractRows], pushes: Sequence):
    """Return the forces of pushes on the degrees of freedom, rows `[nv]`."""
    wrench, torque = forces_of(robot, rows, pushes)
    total = robot.zeros() if torque is None else torque
    return robot.broadcast(total if wrench is None else total + S.dot(sum_up(robot.tree, wrench)))
