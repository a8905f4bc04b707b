"""The tree of an MJCF file alone, without what a scene computes itself."""

from __future__ import annotations

import copy
import warnings

from jaxdyn.io import LeftOutWarning, load_mjcf
from jaxdyn.model import Model

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
"""The fields of `mjModel` that a scene's other parts read."""


def tree_of(m) -> Model:
    """Return the model of the tree of an `mjModel`: placements, inertias, armature, gravity; no more."""
    bare = copy.copy(m)
    for name in _ZERO:
        if hasattr(bare, name):
            getattr(bare, name)[:] = 0
    bare.opt.density, bare.opt.viscosity = 0.0, 0.0
    with warnings.catch_warnings():
        # The scene has what the tree leaves out.
        warnings.simplefilter("ignore", LeftOutWarning)
        return load_mjcf(bare, unsupported="warn")
