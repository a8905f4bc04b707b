"""The equations of motion as a recursion: generalized forces from accelerations (Newton and Euler)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxdyn.algorithms.recursions._equations_of_motion import EquationsOfMotion
from jaxdyn.spatial import Motion
from jaxdyn.tree import Tree, sum_down, sum_up


def inverse(tree: Tree, equations: EquationsOfMotion, a):
    """Return the generalized forces, rows `[nv]`, for the accelerations `a` (Featherstone 2008, table 5.1, in world
    axes)."""
    S, inertia, c, p, gravity, armature = equations
    # a_i = a_parent + S_i qdd_i + c_i, with -gravity for the acceleration of the world.
    acceleration = sum_down(tree, S * a + c)
    acceleration = Motion(acceleration.angular, acceleration.linear - gravity)
    # f_i = I_i a_i + v_i x* I_i v_i - f_ext_i; the force across joint i is the sum over its subtree.
    force = sum_up(tree, inertia.apply(acceleration) + p)
    return S.dot(force) + armature * a


def mass_matrix_product(tree: Tree, equations: EquationsOfMotion, x):
    """Return `M x`, rows `[nv]`."""
    zero = {name: jax.tree.map(jnp.zeros_like, getattr(equations, name)) for name in ("c", "p", "gravity")}
    return inverse(tree, equations._replace(**zero), x)
