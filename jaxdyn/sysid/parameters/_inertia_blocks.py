"""Free inertias: log-Cholesky coordinates, scaled priors, payloads."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import ModelError, require_shape
from jaxdyn._types import ArrayLike
from jaxdyn.model import BodyInertia, parameters_of
from jaxdyn.spatial import Inertia, Pose
from jaxdyn.sysid.parameters._block import (
    AbstractBlock,
    AbstractChoice,
    Claims,
    chosen_bodies,
    entries,
    inertia_claims,
    known_entries,
    leaf_number,
    model_field,
    model_of,
    pseudo_factor,
    require_physical,
    root_of_divergence,
    with_entries,
    with_model,
)
from jaxdyn.sysid.parameters._log_cholesky import (
    inertial_parameters_from_pseudo_inertia,
    is_physical,
    log_cholesky_factor,
)

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
    """By name; None: all."""

    def bind(self, tree: Any) -> AbstractBlock:
        return _bound(self, tree, tuple(range(10)))


@dataclasses.dataclass(frozen=True)
class FixedMass(AbstractChoice):
    """As `LogCholesky`, with the mass of each body as in the reference: nine numbers for each."""

    bodies: Sequence[str] | None = None
    """By name; None: all."""

    def bind(self, tree: Any) -> AbstractBlock:
        return _bound(self, tree, tuple(range(1, 10)))


@dataclasses.dataclass(frozen=True)
class InertiaScale(AbstractChoice):
    """The inertia of bodies is that of the reference times a positive number `e^x`: mass, first moment and rotational
    inertia alike, those of links that were merged into the bodies included. One number for each body, or a single one
    for all with `shared`."""

    bodies: Sequence[str] | None = None
    """By name; None: all."""
    shared: bool = False

    def bind(self, tree: Any) -> AbstractBlock:
        model = model_of(tree)
        bodies = chosen_bodies(model, self.bodies, "InertiaScale")
        merged = leaf_number(tree, model_field("attached_parameters"), "attached_parameters")
        own = leaf_number(tree, model_field("inertial_parameters"), "inertial_parameters")
        masses = known_entries(tree, own, 10 * np.array(bodies))
        if masses is not None and not np.all(masses > 0):
            bad = [model.body_names[i] for i, m in zip(bodies, masses, strict=True) if not m > 0]
            raise ModelError(f"InertiaScale: {', '.join(bad)} has no mass to be scaled; leave it out with bodies=[...]")
        # Which number scales each of the entries.
        places: list[tuple[int, int, int]] = []
        for k, body in enumerate(bodies):
            group = 0 if self.shared else k
            places += [(own, 10 * body + c, group) for c in range(10)]
            links = [i for i, b in enumerate(model.topology.attached_bodies) if b == body]
            places += [(merged, 10 * i + c, group) for i in links for c in range(10)]
        names = [f"inertia of {model.body_names[i]}: log scale" for i in bodies]
        return _Scale(
            names=("inertia: log scale",) if self.shared else tuple(names),
            claims=frozenset((leaf, place) for leaf, place, _ in places),
            places=tuple(places),
            first=tuple((own, 10 * body) for body in (bodies[:1] if self.shared else bodies)),
            count=len(bodies) if self.shared else 1,
        )


@dataclasses.dataclass(frozen=True)
class Payload(AbstractChoice):
    """What is fixed at a frame besides the reference is free: a rigid body with ten log-Cholesky coordinates about a
    guess, as in `LogCholesky`; the robot itself stays as the reference has it.

    `model_at(0)` is the reference with the guess as payload. To identify a payload from a pair of recordings, identify
    the robot without it first, and make that the reference.
    """

    frame: str
    """A body, a merged link or a frame, which a joint moves."""
    guess: BodyInertia | ArrayLike
    """In the axes of the frame: a `BodyInertia`, or the ten inertial parameters about its origin. Physical."""

    def bind(self, tree: Any) -> AbstractBlock:
        model = model_of(tree)
        number = model.topology.frame(self.frame)
        body = model.topology.frame_bodies[number]
        what = f"Payload at {self.frame!r}"
        if body < 0:
            raise ModelError(f"{what}: the frame is fixed in the world, where a payload has no effect")
        given = self.guess.parameters() if isinstance(self.guess, BodyInertia) else np.asarray(self.guess, float)
        require_shape(given, (10,), f"{what}: the guess", "inertial parameters about the origin of the frame")
        if not bool(is_physical(given)):
            raise ModelError(f"{what}: no distribution of mass has the inertial parameters of the guess {given}")
        claims = inertia_claims(tree, [body])
        if self.frame in model.topology.attached_links:
            merged = leaf_number(tree, model_field("attached_parameters"), "attached_parameters")
            link = model.topology.attached_links.index(self.frame)
            claims |= {(merged, 10 * link + k) for k in range(10)}
        return _Payload(
            names=tuple(f"payload at {self.frame}: {name}" for name in _NAMES),
            claims=claims,
            frame=self.frame,
            body=body,
            guess=jnp.asarray(given, model.dtype),
        )


def _bound(choice: LogCholesky | FixedMass, tree: Any, free: tuple[int, ...]) -> AbstractBlock:
    model = model_of(tree)
    what = type(choice).__name__
    bodies = chosen_bodies(model, choice.bodies, what)
    require_physical(model, bodies, what)
    return _Inertias(
        names=tuple(f"inertia of {model.body_names[i]}: {_NAMES[k]}" for i in bodies for k in free),
        claims=inertia_claims(tree, bodies),
        bodies=bodies,
        free=free,
    )


class _Inertias(AbstractBlock):
    names: tuple[str, ...] = eqx.field(static=True)
    claims: Claims = eqx.field(static=True)
    bodies: tuple[int, ...] = eqx.field(static=True)
    free: tuple[int, ...] = eqx.field(static=True)
    """Which of the ten coordinates are; the others are zero."""

    def _theta(self, x: jax.Array) -> jax.Array:
        theta = jnp.zeros((len(self.bodies), 10), x.dtype)
        return theta.at[:, np.array(self.free)].set(x.reshape(len(self.bodies), len(self.free)))

    def apply(self, reference: Any, tree: Any, x: jax.Array) -> Any:
        rows, model = np.array(self.bodies), model_of(tree)
        U = pseudo_factor(model_of(reference).inertial_parameters[rows]) @ log_cholesky_factor(self._theta(x))
        parameters = inertial_parameters_from_pseudo_inertia(U @ jnp.swapaxes(U, -1, -2))
        all_bodies = model.inertial_parameters.at[rows].set(parameters.astype(model.inertial_parameters.dtype))
        return with_model(tree, eqx.tree_at(lambda m: m.inertial_parameters, model, all_bodies))

    def coordinates(self, reference: Any, tree: Any) -> jax.Array:
        rows = np.array(self.bodies)
        U0, U = (pseudo_factor(model_of(t).inertial_parameters[rows]) for t in (reference, tree))
        W = jax.scipy.linalg.solve_triangular(U0, U)
        return coordinates_of_factor(W)[:, np.array(self.free)].reshape(-1)

    def moved(self, x: jax.Array, step: jax.Array) -> jax.Array:
        W = log_cholesky_factor(self._theta(x)) @ log_cholesky_factor(self._theta(step))
        return coordinates_of_factor(W)[:, np.array(self.free)].reshape(-1)

    def pull(self, x: jax.Array) -> jax.Array:
        return pull_of_log_cholesky(self._theta(x)).reshape(-1)


class _Scale(AbstractBlock):
    names: tuple[str, ...] = eqx.field(static=True)
    claims: Claims = eqx.field(static=True)
    places: tuple[tuple[int, int, int], ...] = eqx.field(static=True)
    """Leaf, entry, and the number that scales it."""
    first: tuple[tuple[int, int], ...] = eqx.field(static=True)
    """For each number a positive entry that it scales."""
    count: int = eqx.field(static=True)
    """Of the bodies that each number scales."""

    def apply(self, reference: Any, tree: Any, x: jax.Array) -> Any:
        for leaf in sorted({leaf for leaf, _, _ in self.places}):
            flat = np.array([place for n, place, _ in self.places if n == leaf])
            group = np.array([k for n, _, k in self.places if n == leaf])
            tree = with_entries(tree, leaf, flat, entries(reference, leaf, flat) * jnp.exp(x)[group])
        return tree

    def coordinates(self, reference: Any, tree: Any) -> jax.Array:
        ratios = [
            entries(tree, leaf, np.array([i])) / entries(reference, leaf, np.array([i])) for leaf, i in self.first
        ]
        return jnp.log(jnp.concatenate(ratios))

    def pull(self, x: jax.Array) -> jax.Array:
        # tr(J0^-1 J) - log det(J0^-1 J) - 4 for J = e^x J0.
        return 2 * jnp.sqrt(float(self.count)) * root_of_divergence(x)


class _Payload(AbstractBlock):
    names: tuple[str, ...] = eqx.field(static=True)
    claims: Claims = eqx.field(static=True)
    frame: str = eqx.field(static=True)
    body: int = eqx.field(static=True)
    guess: jax.Array

    def apply(self, reference: Any, tree: Any, x: jax.Array) -> Any:
        U = pseudo_factor(self.guess) @ log_cholesky_factor(x)
        parameters = inertial_parameters_from_pseudo_inertia(U @ U.T)
        model = model_of(tree)
        return with_model(tree, model.with_payload(self.frame, parameters.astype(model.dtype)))

    def coordinates(self, reference: Any, tree: Any) -> jax.Array:
        model = model_of(tree)
        added = model.inertial_parameters[self.body] - model_of(reference).inertial_parameters[self.body]
        placement = Pose.from_vector(model.frame_placement[model.topology.frame(self.frame)])
        own = parameters_of(Inertia.from_parameters(added).moved(placement.inverse()))
        W = jax.scipy.linalg.solve_triangular(pseudo_factor(self.guess), pseudo_factor(own))
        return coordinates_of_factor(W)

    def moved(self, x: jax.Array, step: jax.Array) -> jax.Array:
        return coordinates_of_factor(log_cholesky_factor(x) @ log_cholesky_factor(step))

    def pull(self, x: jax.Array) -> jax.Array:
        return pull_of_log_cholesky(x)


def coordinates_of_factor(U: jax.Array) -> jax.Array:
    """The inverse of `log_cholesky_factor`, for upper-triangular `[*batch, 4, 4]` with a positive diagonal."""
    scale = U[..., 3, 3]
    V = U / scale[..., None, None]
    parts = [jnp.log(scale), *(jnp.log(V[..., i, i]) for i in range(3))]
    parts += [V[..., i, j] for i, j in ((0, 1), (1, 2), (0, 2), (0, 3), (1, 3), (2, 3))]
    return jnp.stack(parts, axis=-1)


def pull_of_log_cholesky(theta: jax.Array) -> jax.Array:
    """`[*batch, 10]`: terms whose squares sum to `tr(J0^-1 J) - log det(J0^-1 J) - 4`, for `J0^-1 J` similar to
    `U U^T`, `U = log_cholesky_factor(theta)`.

    `|U|^2 - 2 log det U - 4` has for each element of the diagonal, `e^z`, the term `e^(2z) - 2z - 1`, and the squares
    of the elements above it.
    """
    alpha = theta[..., :1]
    diagonal = jnp.concatenate([alpha, alpha + theta[..., 1:4]], axis=-1)
    return jnp.concatenate([root_of_divergence(2 * diagonal), jnp.exp(alpha) * theta[..., 4:]], axis=-1)
