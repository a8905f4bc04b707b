"""Left and right: mirrored bodies and joints that share one set of numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import ModelError, look_up
from jaxdyn._types import ArrayLike
from jaxdyn.algorithms import forward_kinematics
from jaxdyn.model import Model
from jaxdyn.sysid.parameters._block import (
    AbstractBlock,
    AbstractChoice,
    Claims,
    entries,
    inertia_claims,
    leaf_name,
    leaf_number,
    model_field,
    model_of,
    with_entries,
    with_model,
)
from jaxdyn.sysid.parameters._inertia_blocks import FixedMass, LogCholesky
from jaxdyn.sysid.parameters._leaf_blocks import Positive
from jaxdyn.sysid.parameters._log_cholesky import inertial_parameters_from_pseudo_inertia, pseudo_inertia


@dataclasses.dataclass(frozen=True)
class Symmetric(AbstractChoice):
    """Bodies in pairs of mirror images, such as left and right legs: what is free is that of the first of each pair,
    and the second has the mirror image of its inertia, and the same in its joint.

    A point of the first body, mirrored in the robot's plane of symmetry, is a point of the second when the robot stands
    symmetrically. With `G = X2^-1 M X1` for the poses of both bodies then and the reflection `M`, pseudo-inertias are
    mirrored by `J2 = G J1 G^T`, whatever the axes of the frames are.
    """

    pairs: Sequence[tuple[str, str]]
    """Names of bodies: of each pair the first is free."""
    choices: Sequence[LogCholesky | FixedMass | Positive]
    """What is free: `LogCholesky()` or `FixedMass()` for the bodies, `Positive("damping")` and the like for their
    joints; without names they are for the first of all pairs."""
    normal: ArrayLike = (0.0, 1.0, 0.0)
    """Of the plane of symmetry, through the world's origin."""
    q: ArrayLike | None = None
    """A configuration `[nq]` in which the robot stands symmetrically; None: the neutral one."""
    tolerance: float = 1e-3
    """By how far the joints of a pair may miss each other's mirror image, m."""

    def bind(self, tree: Any) -> AbstractBlock:
        model = model_of(tree)
        names = model.body_names
        pairs = [tuple(look_up(name, names, "body") for name in pair) for pair in self.pairs]
        flat = [i for pair in pairs for i in pair]
        if not pairs or any(len(pair) != 2 for pair in pairs) or len(set(flat)) < len(flat):
            raise ModelError(f"Symmetric: pairs is {self.pairs!r}; pairs of bodies are needed, each body once")
        firsts = [first for first, _ in pairs]
        mirror = _mirrors(model, pairs, self)
        number = leaf_number(tree, model_field("inertial_parameters"), "inertial_parameters")
        blocks, mirrored, copies = [], [], []
        for choice in self.choices:
            if not isinstance(choice, LogCholesky | FixedMass | Positive):
                raise ModelError(
                    f"Symmetric: {type(choice).__name__} cannot be mirrored; LogCholesky, FixedMass and Positive can "
                    "(LinkLength and InertiaScale have shared=True)"
                )
            if isinstance(choice, Positive):
                block, copied = _joint_block(choice, tree, model, pairs)
                copies += copied
            else:
                bodies = [names[i] for i in firsts] if choice.bodies is None else choice.bodies
                others = [name for name in bodies if look_up(name, names, "body") not in firsts]
                if others:
                    raise ModelError(f"Symmetric: {', '.join(others)} is not the first body of a pair")
                block = dataclasses.replace(choice, bodies=tuple(bodies)).bind(tree)
                mirrored += [k for k, first in enumerate(firsts) if (number, 10 * first) in block.claims]
            blocks.append(block)
        if not blocks:
            raise ModelError("Symmetric: no choices are given, so nothing is free; give LogCholesky(), for instance")
        claims: Claims = inertia_claims(tree, [pairs[k][1] for k in mirrored])
        claims |= {(leaf, second) for leaf, _, second in copies}
        return _Mirrored(
            names=tuple(name for block in blocks for name in block.names),
            claims=claims.union(*(block.claims for block in blocks)),
            blocks=tuple(blocks),
            pairs=tuple((pairs[k][0], pairs[k][1]) for k in mirrored),
            mirror=mirror[np.array(mirrored, int)],
            copies=tuple(copies),
        )


class _Mirrored(AbstractBlock):
    names: tuple[str, ...] = eqx.field(static=True)
    claims: Claims = eqx.field(static=True)
    blocks: tuple[AbstractBlock, ...]
    pairs: tuple[tuple[int, int], ...] = eqx.field(static=True)
    """Of the bodies whose inertias are mirrored."""
    mirror: jax.Array
    """`[pairs, 4, 4]`: `G`."""
    copies: tuple[tuple[int, int, int], ...] = eqx.field(static=True)
    """A leaf, the entry that is copied, and where to."""

    def _parts(self, x: jax.Array) -> list[jax.Array]:
        ends = np.cumsum([block.size for block in self.blocks])
        return [x[end - block.size : end] for block, end in zip(self.blocks, ends, strict=True)]

    def apply(self, reference: Any, tree: Any, x: jax.Array) -> Any:
        for block, part in zip(self.blocks, self._parts(x), strict=True):
            tree = block.apply(reference, tree, part)
        if self.pairs:
            model = model_of(tree)
            firsts, seconds = (np.array(rows) for rows in zip(*self.pairs, strict=True))
            J = self.mirror @ pseudo_inertia(model.inertial_parameters[firsts]) @ jnp.swapaxes(self.mirror, -1, -2)
            image = inertial_parameters_from_pseudo_inertia(J).astype(model.inertial_parameters.dtype)
            inertias = model.inertial_parameters.at[seconds].set(image)
            tree = with_model(tree, eqx.tree_at(lambda m: m.inertial_parameters, model, inertias))
        for leaf in sorted({leaf for leaf, _, _ in self.copies}):
            firsts, seconds = (np.array([copy[k] for copy in self.copies if copy[0] == leaf]) for k in (1, 2))
            tree = with_entries(tree, leaf, seconds, entries(tree, leaf, firsts))
        return tree

    def coordinates(self, reference: Any, tree: Any) -> jax.Array:
        return jnp.concatenate([block.coordinates(reference, tree) for block in self.blocks])

    def moved(self, x: jax.Array, step: jax.Array) -> jax.Array:
        parts = zip(self.blocks, self._parts(x), self._parts(step), strict=True)
        return jnp.concatenate([block.moved(a, b) for block, a, b in parts])

    def pull(self, x: jax.Array) -> jax.Array:
        # Both of a pair are as far from the reference.
        pulls = [block.pull(part) for block, part in zip(self.blocks, self._parts(x), strict=True)]
        return np.sqrt(2.0) * jnp.concatenate(pulls)


def _joint_block(choice: Positive, tree: Any, model: Model, pairs: Sequence[tuple[int, ...]]):
    """The block for the joints of the first bodies, and what it copies to those of the second."""
    joints = model.joint_names
    partner = {joints[first]: joints[second] for first, second in pairs}
    if choice.at is not None:
        raise ModelError("Symmetric: Positive(..., at=...) cannot be mirrored; choose joints")
    chosen = tuple(partner) if choice.joints is None else tuple(choice.joints)
    others = [name for name in chosen if name not in partner]
    if others:
        raise ModelError(f"Symmetric: {', '.join(others)} does not move the first body of a pair")
    block = dataclasses.replace(choice, joints=chosen).bind(tree)
    leaf = next(iter(block.claims))[0]
    field = leaf_name(tree, leaf).removeprefix("model.")
    copies = []
    for name in chosen:
        here, there = (range(model.nv)[model.v_index(joint)] for joint in (name, partner[name]))
        if len(here) != len(there) or {(leaf, i) for i in here} - block.claims:
            raise ModelError(
                f"Symmetric: {field} of {name!r} and {partner[name]!r} cannot be mirrored: joints of the same type, "
                "and fields with one entry for each degree of freedom are needed"
            )
        copies += [(leaf, i, k) for i, k in zip(here, there, strict=True)]
    return block, copies


def _mirrors(model: Model, pairs: Sequence[tuple[int, ...]], choice: Symmetric) -> jax.Array:
    """`G` `[pairs, 4, 4]`. **Raises** `ModelError` where the joints are no mirror images."""
    n = np.asarray(choice.normal, float)
    if n.shape != (3,) or not np.isfinite(n).all() or not np.any(n):
        raise ModelError(f"Symmetric: normal is {choice.normal!r}; a vector of length 3 that is not zero is needed")
    n = n / np.linalg.norm(n)
    M = np.eye(4)
    M[:3, :3] -= 2 * np.outer(n, n)
    q = model.neutral() if choice.q is None else jnp.asarray(choice.q, model.dtype)
    poses = forward_kinematics(model, q)
    R, p = poses.rotation, poses.translation
    X = jnp.concatenate([jnp.concatenate([R, p[..., None]], axis=-1), jnp.zeros((model.nb, 1, 4), p.dtype)], axis=-2)
    X = X.at[:, 3, 3].set(1.0)
    firsts, seconds = (np.array(rows) for rows in zip(*pairs, strict=True))
    G = jnp.linalg.solve(X[seconds], jnp.asarray(M, p.dtype) @ X[firsts])
    if not isinstance(G, Tracer):
        off = np.linalg.norm(np.asarray(G)[:, :3, 3], axis=-1)
        for (first, second), distance in zip(pairs, off, strict=True):
            if not distance <= choice.tolerance:
                a, b = model.body_names[first], model.body_names[second]
                raise ModelError(
                    f"Symmetric: the joint of {b!r} is {distance:.4g} m from the mirror image of that of {a!r}; give "
                    "the normal of the plane of symmetry, a configuration q in which the robot stands symmetrically, "
                    f"or another tolerance (now {choice.tolerance:g} m)"
                )
    return G
