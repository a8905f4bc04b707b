"""Joints that mimic others: from the coordinates of a model to those of its spanning tree, and forces back.

With `y` the independent coordinates, those of all joints are `q = G y + g` with constant `G`, so velocities and
accelerations are `G yd`, `G ydd`, and forces on the independent coordinates `G^T tau` (Featherstone, Rigid Body
Dynamics Algorithms, 2008, section 8.3).
"""

from __future__ import annotations

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np

from jaxdyn.joints import Topology
from jaxdyn.model._fields import LEAVES, ModelFields
from jaxdyn.model._row_tables import join


@dataclasses.dataclass(frozen=True)
class Coordinates:
    """Index maps between the coordinates of a model and those of its spanning tree, of `q` or of `v`."""

    source: np.ndarray
    """For each coordinate of the tree, the same or the followed coordinate of the model."""
    own: np.ndarray
    """The coordinates of the tree that the model has, in the order of the model."""
    follower: np.ndarray
    """For each joint that mimics another, its coordinate in the tree."""
    leader: np.ndarray
    """For each joint that mimics another, the coordinate of the model that it follows."""


@functools.cache
def mimic_coordinates(topology: Topology, *, velocity: bool) -> Coordinates:
    """Return the index maps of `v` or of `q`."""
    starts, tree_starts = (t.v_starts if velocity else t.q_starts for t in (topology, topology.spanning))
    first = np.array(starts)[[topology.leaders.get(i, i) for i in range(topology.nb)]]
    sizes = np.diff(tree_starts)
    source = np.arange(tree_starts[-1]) + np.repeat(first - tree_starts[:-1], sizes)
    follower = np.array([tree_starts[i] for i, _ in topology.mimics], dtype=int)
    own = np.setdiff1d(np.arange(tree_starts[-1]), follower)
    leader = np.array([starts[i] for _, i in topology.mimics], dtype=int)
    return Coordinates(source, own, follower, leader)


def spanning_coordinates(model: ModelFields, x, *, velocity: bool):
    """`G y + g`, or `G yd` for velocities and accelerations."""
    index = mimic_coordinates(model.topology, velocity=velocity)
    if not len(index.follower):
        return x
    x = x if isinstance(x, np.ndarray) else jnp.asarray(x)
    followed = x[..., index.leader] * model.mimic_multiplier
    if not velocity:
        followed = followed + model.mimic_offset
    # One selection from both, side by side.
    place = index.source.copy()
    place[index.follower] = x.shape[-1] + np.arange(len(index.follower))
    return join([x, followed], 1)[..., place]


def mimic_matrix(model: ModelFields) -> np.ndarray:
    """Return `G` `[nv of the tree, nv]` of a model with NumPy arrays."""
    topology = model.topology
    index = mimic_coordinates(topology, velocity=True)
    G = np.zeros((topology.spanning.nv, topology.nv))
    G[np.arange(len(G)), index.source] = 1.0
    G[index.follower, index.leader] = model.mimic_multiplier
    return G


def independent_forces(model: ModelFields, tau, axis: int = -1, axes: int = 1):
    """`G^T tau` along one axis, counted from the last, of an array with `axes` axes after its batch axes."""
    index = mimic_coordinates(model.topology, velocity=True)
    if not len(index.follower):
        return tau
    tau = jnp.moveaxis(tau, axis, -1)
    multiplier = model.mimic_multiplier
    multiplier = multiplier.reshape((*multiplier.shape[:-1], *(1,) * (axes - 1), len(index.follower)))
    out, added = tau[..., index.own], tau[..., index.follower] * multiplier
    out = jnp.broadcast_to(out, (*jnp.broadcast_shapes(out.shape[:-1], added.shape[:-1]), out.shape[-1]))
    return jnp.moveaxis(out.at[..., index.leader].add(added), -1, axis)


def tree_forces(model: ModelFields, tau):
    """Forces on the spanning tree whose product with `G^T` is `tau`: zero on joints that mimic others."""
    return _lift(tau, mimic_coordinates(model.topology, velocity=True), 0.0)


def _lift(x, index: Coordinates, fill: float):
    out = jnp.full((*x.shape[:-1], len(index.source)), fill, x.dtype)
    return out.at[..., index.own].set(x)


def spanning_tree[M: ModelFields](model: M) -> M:
    """Return the model in which all joints are independent."""
    topology = model.topology
    if not topology.mimics:
        return model
    maps = {space: mimic_coordinates(topology, velocity=space == "v") for space in ("q", "v")}
    changed = {}
    for name, leaf in LEAVES.items():
        value = getattr(model, name)
        # Inside algorithms the model has only the arrays on which the motion depends.
        if leaf.rows in maps and value is not None:
            changed[name] = _lift(value, maps[leaf.rows], leaf.default)
    none = None if model.mimic_multiplier is None else model.mimic_multiplier[..., :0]
    return dataclasses.replace(model, topology=topology.spanning, mimic_multiplier=none, mimic_offset=none, **changed)
