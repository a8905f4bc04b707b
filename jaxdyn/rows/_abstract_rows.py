"""The interface of rows."""

from __future__ import annotations

import abc
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.algorithms.recursions import Robot
from jaxdyn.laws import Curvature
from jaxdyn.spatial import ArticulatedInertia, Force, Motion
from jaxdyn.tree import take_rows


class AbstractRows(eqx.Module):
    """Rows at one state, `n` of them in each of some directions: products with their Jacobian `J`, and which degrees of
    freedom move them, which is static."""

    @abc.abstractmethod
    def moves(self, robot: Robot) -> np.ndarray:
        """Return, `[directions n, nv]`, which entries of the Jacobian may be other than zero."""

    @abc.abstractmethod
    def rates(self, robot: Robot, motion: Motion, x) -> Any:
        """Return `J x`, where `x` moves what is behind the degrees of freedom by `motion`."""

    @abc.abstractmethod
    def forces(self, robot: Robot, push) -> tuple[Force | None, Any]:
        """Return what the pushes in all rows do: the wrenches on what is behind the degrees of freedom, about the
        points of reference, and the forces on the degrees of freedom themselves, rows `[nv]`; None for zero."""

    @abc.abstractmethod
    def jacobian(self, robot: Robot, S: Motion) -> Any:
        """Return `J` `[directions n, nv, *batch]`."""

    @abc.abstractmethod
    def touch_one(self) -> bool:
        """Return whether each row depends on the motion of one body, or on one degree of freedom."""

    def inertias(self, robot: Robot, G: Curvature) -> tuple[ArticulatedInertia | None, Any]:
        """Return the two parts of `J^T G J` of rows that `touch_one`: what they add to the inertias of bodies, and to
        the diagonal of the mass matrix, rows `[nv]`; None for zero."""
        raise NotImplementedError


def rates_of(J, v):
    """Return `J v`."""
    return (J * v[None]).sum(axis=1)


def sums(x, owners: np.ndarray, count: int):
    """Return for each of `count` owners the sum of its rows of `x`; rows of an owner -1 belong to none."""
    owners = np.asarray(owners)
    rows = [np.flatnonzero(owners == i) for i in range(count)]
    most = max((len(r) for r in rows), default=0)
    table = np.array([[*r, *[-1] * (most - len(r))] for r in rows], int).reshape(count, most)
    parts = [take_rows(x, table[:, k]) for k in range(most)] or [
        jax.tree.map(lambda a: jnp.zeros((count, *a.shape[1:]), a.dtype), x)
    ]
    return functools.reduce(lambda a, b: jax.tree.map(jnp.add, a, b), parts)
