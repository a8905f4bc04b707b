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
from jaxdyn.sysid.parameters import _leaves as leaves
from jaxdyn.sysid.parameters._inertia_blocks import FixedMass, LogCholesky
from jaxdyn.sysid.parameters._leaf_blocks import Positive
from jaxdyn.sysid.parameters._leaves import Claims, leaf_name, model_of
from jaxdyn.sysid.parameters._log_cholesky import pseudo_inertia
from jaxdyn.sysid.parameters._parametrization import AbstractBlock, AbstractChoice, JoinedBlocks


@dataclasses.dataclass(frozen=True)
class Symmetric(AbstractChoice):
    """Bodies in pairs of mirror images, such as left and right legs: entries of the first of each pair are free, and
    the second has the mirror image of its inertia and the same joint.

    With the poses `X1` and `X2` of both bodies when the robot stands symmetrically, the reflection `M` in the plane of
    symmetry, and `G = X2^-1 M X1`, pseudo-inertias are mirrored by `J2 = G J1 G^T`, whatever the axes of the frames.
    """

    pairs: Sequence[tuple[str, str]]
    """Names of bodies; the first of each pair is free."""
    choices: Sequence[LogCholesky | FixedMass | Positive]
    """Choices for the first bodies, `LogCholesky()` or `FixedMass()`, and for their joints, `Positive(...)`."""
    normal: ArrayLike = (0.0, 1.0, 0.0)
    """Normal of the plane of symmetry, which goes through the world's origin."""
    q: ArrayLike | None = None
    """A configuration `[nq]` in which the robot stands symmetrically; None: the neutral one."""
    tolerance: float = 1e-3
    """Largest distance of a joint from the mirror image of its partner, m."""

    def bind(self, tree: Any) -> AbstractBlock:
        model = model_of(tree)
        names = model.body_names
        pairs = [tuple(look_up(name, names, "body") for name in pair) for pair in self.pairs]
        flat = [i for pair in pairs for i in pair]
        if not pairs or any(len(pair) != 2 for pair in pairs) or len(set(flat)) < len(flat):
            raise ModelError(f"Symmetric: pairs is {self.pairs!r}; pairs of bodies are needed, each body once")
        firsts = [first for first, _ in pairs]
        mirror = _mirrors(model, pairs, self)
        number = leaves.number_of(tree, "inertial_parameters")
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
                bad = [name for name in bodies if look_up(name, names, "body") not in firsts]
                if bad:
                    raise ModelError(f"Symmetric: {', '.join(bad)} is not the first body of a pair")
                block = dataclasses.replace(choice, bodies=tuple(bodies)).bind(tree)
                mirrored += [k for k, first in enumerate(firsts) if (number, 10 * first) in block.claims]
            blocks.append(block)
        if not blocks:
            raise ModelError("Symmetric: no choices are given, so nothing is free; give LogCholesky(), for instance")
        claims: Claims = leaves.inertia_claims(tree, [pairs[k][1] for k in mirrored])
        claims |= {(leaf, second) for leaf, _, second in copies}
        joined = JoinedBlocks.of(blocks)
        return _Mirrored(
            names=joined.names,
            claims=claims | joined.claims,
            blocks=joined.blocks,
            pairs=tuple((pairs[k][0], pairs[k][1]) for k in mirrored),
            mirror=mirror[np.array(mirrored, int)],
            copies=tuple(copies),
        )


class _Mirrored(JoinedBlocks):
    pairs: tuple[tuple[int, int], ...] = eqx.field(static=True)
    """The bodies whose inertias are mirrored."""
    mirror: jax.Array
    """`[pairs, 4, 4]`: `G`."""
    copies: tuple[tuple[int, int, int], ...] = eqx.field(static=True)
    """Leaf, entry, and the entry to which it is copied."""

    def apply(self, reference: Any, tree: Any, x: jax.Array) -> Any:
        tree = super().apply(reference, tree, x)
        if self.pairs:
            firsts, seconds = zip(*self.pairs, strict=True)
            J = pseudo_inertia(model_of(tree).inertial_parameters[np.array(firsts)])
            tree = leaves.with_pseudo_inertias(tree, seconds, self.mirror @ J @ jnp.swapaxes(self.mirror, -1, -2))
        for leaf in sorted({leaf for leaf, _, _ in self.copies}):
            firsts, seconds = (np.array([copy[k] for copy in self.copies if copy[0] == leaf]) for k in (1, 2))
            tree = leaves.with_entries(tree, leaf, seconds, leaves.entries(tree, leaf, firsts))
        return tree

    def pull(self, x: jax.Array) -> jax.Array:
        # Both of a pair are as far from the reference.
        return np.sqrt(2.0) * super().pull(x)


def _joint_block(choice: Positive, tree: Any, model: Model, pairs: Sequence[tuple[int, ...]]):
    """Return the block for the joints of the first bodies, and the entries to copy to the second bodies' joints."""
    joints = model.joint_names
    partner = {joints[first]: joints[second] for first, second in pairs}
    if choice.at is not None:
        raise ModelError("Symmetric: Positive(..., at=...) cannot be mirrored; choose joints")
    chosen = tuple(partner) if choice.joints is None else tuple(choice.joints)
    bad = [name for name in chosen if name not in partner]
    if bad:
        raise ModelError(f"Symmetric: {', '.join(bad)} does not move the first body of a pair")
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
    """Return `G` `[pairs, 4, 4]`. **Raises** `ModelError` where the joints are not mirror images."""
    n = np.asarray(choice.normal, float)
    if n.shape != (3,) or not np.isfinite(n).all() or not np.any(n):
        raise ModelError(f"Symmetric: normal is {choice.normal!r}; a vector of length 3 that is not zero is needed")
    n = n / np.linalg.norm(n)
    M = np.eye(4)
    M[:3, :3] -= 2 * np.outer(n, n)
    q = model.neutral() if choice.q is None else jnp.asarray(choice.q, model.dtype)
    X = forward_kinematics(model, q).as_matrix()
    firsts, seconds = (np.array(rows) for rows in zip(*pairs, strict=True))
    G = jnp.linalg.solve(X[seconds], jnp.asarray(M, X.dtype) @ X[firsts])
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
