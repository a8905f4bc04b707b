"""Rows that measure degrees of freedom, and rows that are given as a matrix."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import numpy as np

from jaxdyn.algorithms.recursions import Robot
from jaxdyn.laws import Curvature
from jaxdyn.rows._abstract_rows import AbstractRows, rates_of, sums
from jaxdyn.spatial import ArticulatedInertia, Force, Motion
from jaxdyn.tree import take_rows


class DofRows(AbstractRows):
    """Rows that measure one degree of freedom each, in one of its two ways: limits and friction of joints."""

    dofs: tuple[int, ...] = eqx.field(static=True)
    signs: tuple[float, ...] = eqx.field(static=True)
    """1 or -1 for each."""

    @classmethod
    def of_all(cls, robot: Robot) -> DofRows:
        """Return a row for every degree of freedom."""
        return cls(tuple(range(robot.nv)), (1.0,) * robot.nv)

    def moves(self, robot: Robot) -> np.ndarray:
        return unit_rows(robot, self.dofs, self.signs)[1]

    def rates(self, robot: Robot, motion: Motion, x):
        return self._signed(robot, take_rows(x, np.array(self.dofs)))

    def _signed(self, robot: Robot, x):
        return x if min(self.signs) > 0 else x * robot.constant(np.array(self.signs))

    def forces(self, robot: Robot, push) -> tuple[Force | None, Any]:
        return None, sums(self._signed(robot, push), np.array(self.dofs), robot.nv)

    def jacobian(self, robot: Robot, S: Motion):
        return robot.broadcast(unit_rows(robot, self.dofs, self.signs)[0])

    def touch_one(self) -> bool:
        return True

    def inertias(self, robot: Robot, G: Curvature) -> tuple[ArticulatedInertia | None, Any]:
        ((g,),) = G
        return None, sums(g, np.array(self.dofs), robot.nv)


class MatrixRows(AbstractRows):
    """Rows whose Jacobian is given."""

    flat: Any
    """`[n nv, *batch]`"""
    entries: tuple[tuple[bool, ...], ...] = eqx.field(static=True)
    """Truth values `[n, nv]`: whether an entry of the Jacobian may be other than zero."""

    @classmethod
    def of(cls, J, moves: np.ndarray) -> MatrixRows:
        """Return rows from a Jacobian and from truth values `[n, nv]`, which say what of it may be other than zero."""
        return cls(J.reshape(-1, *J.shape[2:]), tuple(map(tuple, moves.astype(bool).tolist())))

    @property
    def J(self):
        """The Jacobian, `[n, nv, *batch]`."""
        return self.flat.reshape(len(self.entries), -1, *self.flat.shape[1:])

    def moves(self, robot: Robot) -> np.ndarray:
        return np.array(self.entries, bool).reshape(-1, robot.nv)

    def rates(self, robot: Robot, motion: Motion, x):
        return rates_of(self.J, x)

    def forces(self, robot: Robot, push) -> tuple[Force | None, Any]:
        return None, (self.J * push[:, None]).sum(axis=0)

    def jacobian(self, robot: Robot, S: Motion):
        return robot.broadcast(self.J)

    def touch_one(self) -> bool:
        return False


def unit_rows(robot: Robot, dofs, signs) -> tuple[Any, np.ndarray]:
    """Return rows `[n, nv, 1, ...]` with one entry each, and where it is."""
    rows = np.zeros((len(dofs), robot.nv))
    rows[np.arange(len(dofs)), np.array(dofs, int)] = signs
    return robot.constant(rows), rows != 0
