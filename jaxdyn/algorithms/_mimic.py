"""Forward dynamics of models in which joints mimic others: the spanning tree's, under the constraints that hold them.

`C a = 0`, with a row for each joint that mimics: its acceleration less the multiplier times that of the joint it
follows. The constraints' forces `-C^T l` do no work, so `a = a0 - M^-1 C^T l` with `(C M^-1 C^T) l = C a0`, for the
acceleration `a0` of the free tree (Featherstone 2008, section 8.2): exact, in `O(n)` for every such joint.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jaxdyn.algorithms.recursions._algorithm import on_spanning_tree
from jaxdyn.model import Model
from jaxdyn.model._spanning_tree import coordinates, tree_forces


def constraints(model: Model, dtype):
    """`C` `[*batch, nm, nv_tree]`, with the batch axes of the multipliers."""
    at = coordinates(model.topology, velocity=True)
    leader = at.own[at.leader]
    row = jnp.arange(len(leader))
    multiplier = jnp.asarray(model.mimic_multiplier, dtype)
    C = jnp.zeros((*multiplier.shape, len(at.source)), dtype)
    return C.at[..., row, at.follower].set(1).at[..., row, leader].add(-multiplier)


def multipliers(C, W, a):
    """The `l` that makes `C (a - l W)` zero, for `W = C M^-1`."""
    L = jnp.linalg.cholesky(product("...ki,...li->...kl", C, W))
    return jax.scipy.linalg.cho_solve((L, True), product("...ki,...i->...k", C, a)[..., None])[..., 0]


def product(subscripts: str, a, b):
    return jnp.einsum(subscripts, a, b, precision=lax.Precision.HIGHEST)


def constrained_forward(aba: Callable, model: Model, q, v, tau, f_ext=None, joint_friction: bool = True):
    """`aba` of a model with joints that mimic others, by `aba` of its spanning tree."""
    tree = model.spanning_tree()
    on_tree = on_spanning_tree(model, {"q": jnp.asarray(q), "v": jnp.asarray(v)})
    a = aba(tree, **on_tree, tau=tree_forces(model, jnp.asarray(tau)), f_ext=f_ext, joint_friction=joint_friction)
    C = constraints(model, a.dtype)
    # At rest and without gravity, springs or friction, forward dynamics is a product with M^-1.
    bare = dataclasses.replace(tree, gravity=jnp.zeros_like(tree.gravity), stiffness=None, spring_reference=None)
    still = jnp.zeros_like(on_tree["v"])

    def inverse_product(row):
        return aba(bare, on_tree["q"], still, row, joint_friction=False)

    W = jax.vmap(inverse_product, in_axes=-2, out_axes=-2)(C)
    a = a - product("...k,...ki->...i", multipliers(C, W, a), W)
    return a[..., coordinates(model.topology, velocity=True).own]
