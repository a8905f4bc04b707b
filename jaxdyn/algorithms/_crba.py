"""The mass matrix by the composite-rigid-body algorithm."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._types import Array, Configuration, Float
from jaxdyn.algorithms._boundary import batched, full, rows
from jaxdyn.algorithms._terms import kinematics, node_inertias
from jaxdyn.model import Model
from jaxdyn.model._layout import matrix_to_leading, rows_of
from jaxdyn.model._traversal import sum_up


@batched(lambda model: (model.nv, model.nv))
def crba(model: Model, q: Configuration) -> Float[Array, "*batch nv nv"]:
    """The joint-space mass matrix `M(q)` `[*batch, nv, nv]`, symmetric, armature included.

    By the composite-rigid-body algorithm (Featherstone, Rigid Body Dynamics Algorithms, 2008, section 6.2): for `j` an
    ancestor of `i`, `M_ij = S_j . (I_i^c S_i)`, with `I_i^c` the inertia of the subtree of `i`.

    **Raises** `ShapeError`, while tracing, where a shape does not fit.
    """
    (q,), batch, rank = rows(model, q=q)
    topology = model.topology
    poses, S = kinematics(model, q, rank)
    force = sum_up(topology.dofs, node_inertias(model, poses, rank)).apply(S)
    # All pairs at once; those that are not ancestor and descendant are dropped.
    lower = jax.tree.map(lambda x: x[None, :], S).dot(jax.tree.map(lambda x: x[:, None], force))
    extend = (1,) * rank
    # Each pair once, so that M is symmetric to the last digit within a joint of several degrees of freedom too.
    ancestors = np.tril(topology.dof_ancestors)
    below, above = (jnp.asarray(m.reshape((*m.shape, *extend))) for m in (ancestors, ancestors.T))
    zero = jnp.zeros((), lower.dtype)
    M = jnp.where(below, lower, jnp.where(above, jnp.swapaxes(lower, 0, 1), zero))
    diagonal = jnp.asarray(np.eye(topology.nv).reshape((topology.nv, topology.nv, *extend)), lower.dtype)
    M = M + diagonal * rows_of(model.armature, rank)[:, None]
    return matrix_to_leading(full(M, batch))
