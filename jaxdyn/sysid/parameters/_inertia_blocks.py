"""Free inertias: log-Cholesky coordinates, scaled priors, payloads, and mirrored parts with shared numbers."""

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
from jaxdyn.model import BodyInertia, Model
from jaxdyn.spatial import invert_pose, transform_inertial_parameters
from jaxdyn.sysid.parameters import _leaves as leaves
from jaxdyn.sysid.parameters import _log_cholesky as cholesky
from jaxdyn.sysid.parameters._leaf_blocks import Positive
from jaxdyn.sysid.parameters._leaves import Claims, leaf_name, model_of
from jaxdyn.sysid.parameters._log_cholesky import pseudo_inertia
from jaxdyn.sysid.parameters._parametrization import AbstractBlock, AbstractChoice, JoinedBlocks, ScaledEntries

_NAMES = ("alpha", "d1", "d2", "d3", "s12", "s23", "s13", "t1", "t2", "t3")


@dataclasses.dataclass(frozen=True)
class LogCholesky(AbstractChoice):
    """All ten inertial parameters of bodies are free: log-Cholesky coordinates of the pseudo-inertia (Rucker &
    Wensing, Smooth parameterization of rigid-body inertia, RA-L 2022), in the axes and units of the reference.

    With `J = U0 U(x) U(x)^T U0^T` for the pseudo-inertia `J0 = U0 U0^T` of the reference and the triangular factor
    `U(x)` of `log_cholesky_factor`: upper-triangular matrices with a positive diagonal are a group, so `x` reaches
    every physical body, once, and `x = 0` is the reference. All ten numbers are without units: a step of 0.1 changes
    masses and radii of gyration by about 10 %.

    The pull toward the reference is `tr(J0^-1 J) - log det(J0^-1 J) - 4` for each body (Lee, Wensing & Park, T-RO
    2020).
    """

    bodies: Sequence[str] | None = None
    """Names of the bodies; None: all."""

    def bind(self, tree: Any) -> AbstractBlock:
        model, what = model_of(tree), type(self).__name__
        bodies = leaves.chosen_names(self.bodies, model.body_names, "body", what)
        advice = "leave these bodies out with bodies=[...], or start from nearest_physical(...)"
        leaves.require_physical(model, bodies, what, advice)
        free = range(1 if isinstance(self, FixedMass) else 0, 10)
        names = tuple(f"inertia of {model.body_names[i]}: {_NAMES[k]}" for i in bodies for k in free)
        return _Inertias(names, leaves.inertia_claims(tree, bodies), bodies)


@dataclasses.dataclass(frozen=True)
class FixedMass(LogCholesky):
    """All inertial parameters of bodies but the mass are free, as in `LogCholesky`: nine numbers for each body."""


@dataclasses.dataclass(frozen=True)
class InertiaScale(AbstractChoice):
    """One positive factor `e^x` scales the mass, first moment and rotational inertia of each body, and of the links
    that were merged into it; with `shared`, a single one scales all bodies."""

    bodies: Sequence[str] | None = None
    """Names of the bodies; None: all."""
    shared: bool = False

    def bind(self, tree: Any) -> AbstractBlock:
        model = model_of(tree)
        bodies = leaves.chosen_names(self.bodies, model.body_names, "body", "InertiaScale")
        links = leaves.number_of(tree, "attached_parameters")
        inertias = leaves.number_of(tree, "inertial_parameters")
        masses = leaves.known_entries(tree, inertias, 10 * np.array(bodies))
        if masses is not None and not np.all(masses > 0):
            bad = [model.body_names[i] for i, m in zip(bodies, masses, strict=True) if not m > 0]
            raise ModelError(f"InertiaScale: {', '.join(bad)} has no mass to be scaled; leave it out with bodies=[...]")
        places: list[tuple[int, int, int]] = []
        for k, body in enumerate(bodies):
            merged = [i for i, b in enumerate(model.topology.attached_bodies) if b == body]
            rows = [(inertias, body), *((links, i) for i in merged)]
            places += [(leaf, 10 * row + c, 0 if self.shared else k) for leaf, row in rows for c in range(10)]
        names = tuple(f"inertia of {model.body_names[i]}: log scale" for i in bodies)
        # tr(J0^-1 J) - log det(J0^-1 J) - 4 = 4 (e^x - x - 1) for J = e^x J0.
        weight = 4.0 * (len(bodies) if self.shared else 1)
        return ScaledEntries(("inertia: log scale",) if self.shared else names, places, weight)


@dataclasses.dataclass(frozen=True)
class Payload(AbstractChoice):
    """A rigid body at a frame is free, added to the reference: ten numbers about a guess, as in `LogCholesky`.

    `model_at(0)` is the reference with the guess as payload. To identify a payload from a pair of recordings, identify
    the robot without it first, and make that the reference.
    """

    frame: str
    """Name of a body, a merged link or a frame, which a joint moves."""
    guess: BodyInertia | ArrayLike
    """Guess in the axes of the frame: a `BodyInertia`, or ten inertial parameters about its origin. Physical."""

    def bind(self, tree: Any) -> AbstractBlock:
        model = model_of(tree)
        number = model.topology.frame(self.frame)
        body = model.topology.frame_bodies[number]
        what = f"Payload at {self.frame!r}"
        if body < 0:
            raise ModelError(f"{what}: the frame is fixed in the world, where a payload has no effect")
        guess = leaves.physical_parameters(self.guess, f"{what}: the guess")
        claims = leaves.inertia_claims(tree, [body])
        if self.frame in model.topology.attached_links:
            merged = leaves.number_of(tree, "attached_parameters")
            link = model.topology.attached_links.index(self.frame)
            claims |= {(merged, 10 * link + k) for k in range(10)}
        names = tuple(f"payload at {self.frame}: {name}" for name in _NAMES)
        return _Payload(names, claims, (body,), self.frame, jnp.asarray(guess, model.dtype))


class _Inertias(AbstractBlock):
    bodies: tuple[int, ...] = eqx.field(static=True)

    def _factors(self, x: jax.Array) -> jax.Array:
        """Return `U(x)` `[bodies, 4, 4]`."""
        return cholesky.log_cholesky_factor(self._theta(x))

    def _theta(self, x: jax.Array) -> jax.Array:
        """Return the coordinates `[bodies, 10]`: the last ones of each body are free, the others are zero."""
        x = x.reshape(len(self.bodies), -1)
        return jnp.pad(x, ((0, 0), (10 - x.shape[1], 0)))

    def _numbers(self, W: jax.Array) -> jax.Array:
        """Return the free numbers of the factors `W = U(x)` `[bodies, 4, 4]`."""
        return cholesky.coordinates_from_factor(W)[:, -(self.size // len(self.bodies)) :].reshape(-1)

    def apply(self, reference: Any, tree: Any, x: jax.Array) -> Any:
        U = cholesky.pseudo_factor(model_of(reference).inertial_parameters[np.array(self.bodies)]) @ self._factors(x)
        return leaves.with_pseudo_inertias(tree, self.bodies, U @ jnp.swapaxes(U, -1, -2))

    def coordinates(self, reference: Any, tree: Any) -> jax.Array:
        rows = np.array(self.bodies)
        U0, U = (cholesky.pseudo_factor(model_of(t).inertial_parameters[rows]) for t in (reference, tree))
        return self._numbers(jax.scipy.linalg.solve_triangular(U0, U))

    def moved(self, x: jax.Array, step: jax.Array) -> jax.Array:
        return self._numbers(self._factors(x) @ self._factors(step))

    def pull(self, x: jax.Array) -> jax.Array:
        return cholesky.pull_of_coordinates(self._theta(x)).reshape(-1)


class _Payload(_Inertias):
    frame: str = eqx.field(static=True)
    guess: jax.Array

    def apply(self, reference: Any, tree: Any, x: jax.Array) -> Any:
        U = cholesky.pseudo_factor(self.guess) @ self._factors(x)[0]
        parameters, model = cholesky.inertial_parameters_from_pseudo_inertia(U @ U.T), model_of(tree)
        return leaves.with_model(tree, model.with_payload(self.frame, parameters.astype(model.dtype)))

    def coordinates(self, reference: Any, tree: Any) -> jax.Array:
        model, (body,) = model_of(tree), self.bodies
        added = model.inertial_parameters[body] - model_of(reference).inertial_parameters[body]
        placement = model.frame_placement[model.topology.frame(self.frame)]
        payload = transform_inertial_parameters(added, invert_pose(placement))
        factors = (cholesky.pseudo_factor(x[None]) for x in (self.guess, payload))
        return self._numbers(jax.scipy.linalg.solve_triangular(*factors))


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
