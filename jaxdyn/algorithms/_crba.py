"""The mass matrix by the composite-rigid-body algorithm."""

from __future__ import annotations

from jaxdyn._compile import once
from jaxdyn._types import Array, Configuration, Float
from jaxdyn.algorithms.recursions._algorithm import batched, rows
from jaxdyn.algorithms.recursions._dof_matrices import Pairs
from jaxdyn.algorithms.recursions._equations_of_motion import kinematics, node_inertias
from jaxdyn.model import Model
from jaxdyn.tree._rows import rows_of
from jaxdyn.tree._walks import sum_up


@batched(lambda model: (model.nv, model.nv), forces=(-2, -1))
def crba(model: Model, q: Configuration) -> Float[Array, "*batch nv nv"]:
    """The joint-space mass matrix `M(q)` `[*batch, nv, nv]`, symmetric, armature included.

    By the composite-rigid-body algorithm (Featherstone, Rigid Body Dynamics Algorithms, 2008, section 6.2): for `j` an
    ancestor of `i`, `M_ij = S_j . (I_i^c S_i)`, with `I_i^c` the inertia of the subtree of `i`.

    **Raises** `ShapeError`, while tracing, where a shape does not fit.

    In kg m^2, and kg m and kg where degrees of freedom are shifts.
    """
    (q,), batch, rank = rows(model, q=q)
    topology = model.topology
    poses, S = kinematics(model, q, rank)
    force = sum_up(topology.dofs, node_inertias(model, poses, rank)).apply(S)
    pairs = Pairs(model, batch)
    M = pairs.symmetric(once(pairs.products(force, S)))
    return pairs.result(M + pairs.diagonal(rows_of(model.armature, rank)))
