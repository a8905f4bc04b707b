"""The elimination of the articulated-body algorithm, step by step: inertias apart from forces."""

from __future__ import annotations

from typing import Any, NamedTuple

from jax import lax

from jaxdyn._compile import once
from jaxdyn.algorithms.recursions._equations_of_motion import EquationsOfMotion
from jaxdyn.algorithms.recursions._forward_dynamics import Factors
from jaxdyn.algorithms.recursions._robot import Robot
from jaxdyn.spatial import ArticulatedInertia, Force, Inertia, Mat3, Motion, Sym3
from jaxdyn.tree import Tree, scan_up


class Elimination(NamedTuple):
    """The inertias that the recursion from the leaves computes, rows `[nv, *batch]`."""

    IA: ArticulatedInertia
    """The articulated-body inertias."""
    U: Force
    """`I^A S`"""
    D: Any
    """`S^T U + armature`"""

    @property
    def factors(self) -> Factors:
        """The factors of the mass matrix."""
        return Factors(self.U, 1 / self.D)


def eliminate(tree: Tree, S: Motion, inertia: Inertia, armature) -> Elimination:
    """Return the elimination without velocities and forces (Featherstone 2008, table 7.1, in world axes)."""

    def up(children, x):
        S, inertia, armature = x
        IA = inertia.articulated() + children
        U = IA.apply(S)
        D = S.dot(U) + armature
        U, D = once((U, D))
        return IA.minus_outer(U, U * (1 / D)), Elimination(IA, U, D)

    leaf = ArticulatedInertia(Sym3.zero(), Mat3.zero(), Sym3.zero())
    return scan_up(tree, up, leaf, (S, inertia, armature))


def constant_elimination(robot: Robot, equations: EquationsOfMotion) -> Elimination:
    """Return the elimination of equations whose solutions have the derivatives of the equations that they solve, so
    that the recursion is not differentiated."""
    S, inertia, *_, armature = lax.stop_gradient(equations)
    return eliminate(robot.tree, S, inertia, armature)


def eliminate_forces(tree: Tree, equations: EquationsOfMotion, tau, elimination: Elimination) -> tuple[Force, Any]:
    """Return the bias forces `pA`, and `u = tau - S^T pA`, rows `[nv]`."""
    # Ia c = IA c - U D^-1 (U . c), for the bias acceleration c.
    IA, U, D = elimination
    Dinv = 1 / D
    shifted = IA.apply(equations.c) - U * (Dinv * equations.c.dot(U))

    def up(children, x):
        S, p, shifted, U, Dinv, tau = x
        pA = p + children
        u = tau - S.dot(pA)
        return pA + shifted + U * (Dinv * u), (pA, u)

    return scan_up(tree, up, Force.zero(), (equations.S, equations.p, shifted, U, Dinv, tau))
