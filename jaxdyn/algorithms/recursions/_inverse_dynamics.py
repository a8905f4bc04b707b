"""The equations of motion as a recursion: generalized forces from accelerations (Newton and Euler)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxdyn.algorithms.recursions._equations_of_motion import Terms
from jaxdyn.model import Topology
from jaxdyn.spatial import Motion
from jaxdyn.tree._walks import sum_down, sum_up


def inverse(topology: Topology, terms: Terms, a):
    """`[nv]`: the generalized forces for the accelerations `a` (Featherstone 2008, table 5.1, world axes)."""
    S, inertia, c, p, gravity, armature = terms
    # a_i = a_parent + S_i qdd_i + c_i, with -gravity for the acceleration of the world.
    acceleration = sum_down(topology.dofs, S * a + c)
    acceleration = Motion(acceleration.angular, acceleration.linear - gravity)
    # f_i = I_i a_i + v_i x* I_i v_i - f_ext_i; the force across joint i is the sum over its subtree.
    force = sum_up(topology.dofs, inertia.apply(acceleration) + p)
    return S.dot(force) + armature * a


def mass_matrix_product(topology: Topology, terms: Terms, x):
    """`[nv]`: `M x`."""
    still = terms._replace(
        c=jax.tree.map(jnp.zeros_like, terms.c),
        p=jax.tree.map(jnp.zeros_like, terms.p),
        gravity=jax.tree.map(jnp.zeros_like, terms.gravity),
    )
    return inverse(topology, still, x)
