"""Joints that mimic others, as constraints on the tree in which all joints are independent."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jaxdyn.model import Topology, mimic_coordinates


def mimic_rows(topology: Topology, multiplier):
    """Return `C` `[nm, nv, *batch]`, a row for each joint that mimics another, with `C a = 0` for the accelerations of
    the tree of independent joints: the joint's own, less `multiplier` `[nm, *batch]` times that of its leader."""
    index = mimic_coordinates(topology, velocity=True)
    nm, nv = len(index.follower), len(index.source)
    follower, leader = np.zeros((2, nm, nv))
    follower[np.arange(nm), index.follower] = 1
    leader[np.arange(nm), index.own[index.leader]] = 1
    shape = (nm, nv) + (1,) * (multiplier.ndim - 1)
    follower, leader = (jnp.asarray(x.reshape(shape), multiplier.dtype) for x in (follower, leader))
    return follower - leader * multiplier[:, None]
