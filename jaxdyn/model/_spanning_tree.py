"""Joints that mimic others: from the coordinates of a model to those of its spanning tree, and forces back.

With `y` the coordinates of the joints that mimic none, those of all joints are `q = G y + g` with constant `G`, so
velocities and accelerations are `G yd`, `G ydd`, and forces on the independent coordinates `G^T tau` (Featherstone,
Rigid Body Dynamics Algorithms, 2008, section 8.3).
"""

from __future__ import annotations

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np

from jaxdyn.joints import Topology
from jaxdyn.model._fields import LEAVES, ModelFields


@dataclasses.dataclass(frozen=True)
class Coordinates:
    """Index maps between the coordinates of a model and those of its spanning tree, of `q` or of `v`."""

    source: np.ndarray
    """For each coordinate of the tree, the coordinate of the model that it is, or follows."""
    own: np.ndarray
    """The coordinates of the tree that the model has, in the order of the model."""
    follower: np.ndarray
    """For each joint that mimics another, its coordinate in the tree."""
    leader: np.ndarray
    """For each joint that mimics another, the coordinate of the model that it follows."""


@functools.cache
def mimic_coordinates(topology: Topology, *, velocity: bool) -> Coordinates:
    tree = topology.spanning
    starts, tree_starts = (t.v_starts if velocity else t.q_starts for t in (topology, tree))
    leaders = topology.leaders
    source = np.concatenate(
        [np.arange(tree_starts[i + 1] - tree_starts[i]) + starts[leaders.get(i, i)] for i in range(topology.nb)]
    )
    follower = np.array([tree_starts[i] for i, _ in topology.mimics], dtype=int)
    own = np.setdiff1d(np.arange(tree_starts[-1]), follower)
    leader = np.array([starts[i] for _, i in topology.mimics], dtype=int)
    return Coordinates(source, own, follower, leader)


def spanning_coordinates(model: ModelFields, x, *, velocity: bool):
    """`G y + g`, or `G yd` for velocities and accelerations."""
    at = mimic_coordinates(model.topology, velocity=velocity)
    if not len(at.follower):
        return x
    x = jnp.asarray(x)
    followed = x[..., at.leader] * model.mimic_multiplier
    if not velocity:
        followed = followed + model.mimic_offset
    batch = jnp.broadcast_shapes(followed.shape[:-1], x.shape[:-1])
    # In one selection from own and following coordinates side by side.
    both = [jnp.broadcast_to(y, (*batch, y.shape[-1])) for y in (x, followed)]
    place = at.source.copy()
    place[at.follower] = x.shape[-1] + np.arange(len(at.follower))
    return jnp.concatenate(both, axis=-1)[..., place]


def independent_forces(model: ModelFields, tau, axis: int = -1, axes: int = 1):
    """`G^T tau` along one axis, counted from the last, of an array with `axes` axes after its batch axes."""
    at = mimic_coordinates(model.topology, velocity=True)
    if not len(at.follower):
        return tau
    tau = jnp.moveaxis(tau, axis, -1)
    multiplier = model.mimic_multiplier
    multiplier = multiplier.reshape((*multiplier.shape[:-1], *(1,) * (axes - 1), len(at.follower)))
    own = tau[..., at.own]
    added = tau[..., at.follower] * multiplier
    own = jnp.broadcast_to(own, (*jnp.broadcast_shapes(own.shape[:-1], added.shape[:-1]), own.shape[-1]))
    return jnp.moveaxis(own.at[..., at.leader].add(added), -1, axis)


def tree_forces(model: ModelFields, tau):
    """Forces of the spanning tree with `G^T` of them `tau`: all on the joints that are followed."""
    at = mimic_coordinates(model.topology, velocity=True)
    return _lifted(tau, at, 0.0)


def _lifted(x, at: Coordinates, fill: float):
    out = jnp.full((*x.shape[:-1], len(at.source)), fill, x.dtype)
    return out.at[..., at.own].set(x)


def spanning_tree[M: ModelFields](model: M) -> M:
    topology = model.topology
    if not topology.mimics:
        return model
    maps = {"v": mimic_coordinates(topology, velocity=True), "q": mimic_coordinates(topology, velocity=False)}
    changed = {}
    for name, leaf in LEAVES.items():
        value = getattr(model, name)
        # Within compiled functions the model has only the arrays that matter to the motion.
        if leaf.rows in maps and value is not None:
            changed[name] = _lifted(value, maps[leaf.rows], leaf.default)
    none = None if model.mimic_multiplier is None else model.mimic_multiplier[..., :0]
    return dataclasses.replace(model, topology=topology.spanning, mimic_multiplier=none, mimic_offset=none, **changed)
