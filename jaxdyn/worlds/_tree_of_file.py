"""The tree of an MJCF file alone, without what a world computes itself."""

from __future__ import annotations

import copy
import dataclasses
import warnings

import numpy as np

from jaxdyn._types import float_leaf
from jaxdyn.io import LeftOutWarning, load_mjcf
from jaxdyn.io.mjcf import with_actuators
from jaxdyn.model import Model
from jaxdyn.worlds._parts import translations_of_free_joints

_ZERO = (
    "dof_damping",
    "dof_dampingpoly",
    "dof_frictionloss",
    "jnt_stiffness",
    "jnt_stiffnesspoly",
    "jnt_springyield",
    "jnt_limited",
    "jnt_actfrclimited",
    "actuator_damping",
    "actuator_dampingpoly",
    "tendon_stiffness",
    "tendon_stiffnesspoly",
    "tendon_damping",
    "tendon_dampingpoly",
    "tendon_frictionloss",
    "tendon_limited",
    "body_gravcomp",
    "eq_active0",
)
"""The fields of `mjModel` that a world's other parts read."""


def tree_of(m) -> Model:
    """Return the model of the tree of an `mjModel`: placements, inertias, armature, gravity; no more."""
    bare = copy.copy(m)
    for name in _ZERO:
        if hasattr(bare, name):
            getattr(bare, name)[:] = 0
    bare.opt.density, bare.opt.viscosity = 0.0, 0.0
    with warnings.catch_warnings():
        # The world has what the tree leaves out.
        warnings.simplefilter("ignore", LeftOutWarning)
        model = load_mjcf(bare, unsupported="warn")
    # Equal along all axes, so that it is the same in body axes; `bias_force` has what the turning of these adds.
    rows = translations_of_free_joints(m).ravel()
    armature = np.array(model.armature)
    armature[rows] = with_actuators(m, m.dof_armature, m.tendon_armature, m.actuator_armature)[0][rows]
    return dataclasses.replace(model, armature=float_leaf(armature))
