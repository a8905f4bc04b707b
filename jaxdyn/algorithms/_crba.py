"""The mass matrix by the composite-rigid-body algorithm."""

from __future__ import annotations

from jaxdyn._compile import once
from jaxdyn._types import Array, Configuration, Float
from jaxdyn.algorithms.recursions import DofMatrices, Robot, algorithm, kinematics, node_inertias
from jaxdyn.tree import sum_up


@algorithm()
def crba(robot: Robot, q: Configuration) -> Float[Array, "*batch nv nv"]:
    """The joint-space mass matrix `M(q)` `[*batch, nv, nv]`, symmetric, armature included.

    In kg m^2, and kg m and kg where degrees of freedom are shifts. By the composite-rigid-body algorithm (Featherstone,
    Rigid Body Dynamics Algorithms, 2008, section 6.2): for `j` an ancestor of `i`, `M_ij = S_j . (I_i^c S_i)`, with
    `I_i^c` the inertia of the subtree of `i`. Closed loops are not heeded: this is the tree's.

    **Raises** `ShapeError`, while tracing, where a shape does not fit.
    """
    poses, S = kinematics(robot, q)
    force = sum_up(robot.tree, node_inertias(robot, poses)).apply(S)
    pairs = DofMatrices(robot)
    M = pairs.symmetric(once(pairs.products(force, S)))
    return pairs.result(M + pairs.diagonal(robot.armature))
