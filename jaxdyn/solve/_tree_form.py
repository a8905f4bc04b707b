"""Problems in which each row depends on one body: the equations of Newton's method are those of a tree.

The curvature of such rows adds a 6x6 matrix to the inertia of their body, or to the armature of a degree of freedom, so
that the articulated-body recursion solves the equations, in a time that grows with the number of bodies.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.algorithms.recursions import Factors, Robot, substitute_forces
from jaxdyn.laws import Curvature
from jaxdyn.rows import AbstractRows, rates_of
from jaxdyn.solve._terms import added, forces_of
from jaxdyn.spatial import ArticulatedInertia, Force, Inertia, Mat3, Motion, Sym3
from jaxdyn.tree import scan_down, scan_up, sum_down, sum_up


class MovingBodies(NamedTuple):
    """The inertia of a robot at a state, rows `[nv]`."""

    S: Motion
    """The motions of the degrees of freedom."""
    inertia: Inertia
    armature: Any
    """With the resistance of joints over a step."""
    coupling: Any = None
    """A further part of the mass matrix, such as the inertia along tendons, `[nv * nv, *batch]`; None for none."""

    def coupled(self, x) -> Any:
        """Return the product of `coupling` with `x`, rows `[nv]`."""
        return rates_of(self.coupling.reshape(x.shape[0], -1, *self.coupling.shape[1:]), x)

    def sparse(self, robot: Robot) -> MovingBodies:
        """Return the same, with the zeros that it has for all robots of this structure as constants.

        They are lost where one program hands the bodies to the next. Native code leaves out what they multiply.
        """

        def kept(where: np.ndarray, x):
            chosen = robot.constant(where.astype(float)) > 0
            return jax.tree.map(lambda x: jnp.where(chosen, x, 0.0), x)

        angular = kept(robot.topology.rotating_dofs, self.S.angular)
        inertia = kept(robot.topology.body_of_dof >= 0, self.inertia)
        return MovingBodies(Motion(angular, self.S.linear), inertia, self.armature, self.coupling)


class TreeFactors(NamedTuple):
    """The factors of the equations."""

    S: Motion
    factors: Factors

    def solve(self, robot: Robot, y, e=None) -> tuple[Any, Any]:
        """Return `x` with `H x = y`, rows `[nv]`."""
        return substitute_forces(robot.tree, self.S, self.factors, y), None


class Moved(NamedTuple):
    """Accelerations `x`, rows `[nv]`, and how they move the bodies."""

    x: Any
    motion: Motion


class TreeForm(eqx.Module):
    """The bodies, and the rows that each touch one of them."""

    bodies: MovingBodies
    rows: tuple[AbstractRows, ...]

    def sparse(self, robot: Robot) -> Self:
        """Return the same with its zeros as constants."""
        return dataclasses.replace(self, bodies=self.bodies.sparse(robot))

    def moved(self, robot: Robot, x) -> Moved:
        """Return what the other methods need of accelerations."""
        return Moved(x, sum_down(robot.tree, self.bodies.S * x))

    def rates(self, robot: Robot, at: Moved) -> list:
        """Return `J x` of all terms."""
        return [rows.rates(robot, at.motion, at.x) for rows in self.rows]

    def inner(self, a: Moved, b: Moved):
        """Return `a^T M b`, `[1, *batch]`."""
        products = a.motion.dot(self.bodies.inertia.apply(b.motion)) + self.bodies.armature * a.x * b.x
        if self.bodies.coupling is not None:
            products = products + a.x * self.bodies.coupled(b.x)
        return products.sum(axis=0, keepdims=True)

    def descent(self, robot: Robot, at: Moved, pushes: Sequence):
        """Return `J^T f - M x`, rows `[nv]`."""
        bodies = self.bodies
        wrench, torque = forces_of(robot, self.rows, pushes)
        # Summed body by body: the terms are of the size of the forces, and cancel.
        unbalanced = added(wrench, -bodies.inertia.apply(at.motion))
        tau = bodies.S.dot(sum_up(robot.tree, unbalanced)) - bodies.armature * at.x
        if bodies.coupling is not None:
            tau = tau - bodies.coupled(at.x)
        return robot.broadcast(added(tau, torque))

    def step(self, robot: Robot, curvatures: Sequence[Curvature], tau) -> tuple[Moved, TreeFactors]:
        """Return `H^-1 tau` with `H = M + J^T C J`, and the factors of `H`."""
        onto, armature = None, self.bodies.armature
        for rows, G in zip(self.rows, curvatures, strict=True):
            on_bodies, on_dofs = rows.inertias(robot, G)
            onto, armature = added(onto, on_bodies), added(armature, on_dofs)
        x, motion, factors = _eliminated(robot, self.bodies.S, self.bodies.inertia, armature, onto, tau)
        return Moved(x, motion), TreeFactors(self.bodies.S, factors)


def _eliminated(robot: Robot, S: Motion, inertia: Inertia, armature, onto: ArticulatedInertia | None, tau):
    def up(children, x):
        (IA, p), (S, inertia, armature, tau, *onto) = children, x
        IA = inertia.articulated() + IA
        for more in onto:
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
    rows = (S, inertia, armature, tau) if onto is None else (S, inertia, armature, tau, onto)
    U, Dinv, u = scan_up(robot.tree, up, leaf, rows)
    a, motion = scan_down(robot.tree, down, Motion.zero(), (S, U, Dinv, u))
    return a, motion, Factors(U, Dinv)
