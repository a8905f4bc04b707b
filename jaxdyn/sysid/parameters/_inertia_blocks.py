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
    ScaledEntries,
    chosen_names,
    inertia_claims,
    known_entries,
    leaf_number,
    model_field,
    model_of,
    require_physical,
    with_model,
)
from jaxdyn.sysid.parameters._log_cholesky import (
    coordinates_from_factor,
    inertial_parameters_from_pseudo_inertia,
    is_physical,
    log_cholesky_factor,
    pseudo_factor,
    pull_of_coordinates,
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
    """Names of the bodies; None: all."""

    def bind(self, tree: Any) -> AbstractBlock:
        return _bound(self, tree, tuple(range(10)))


@dataclasses.dataclass(frozen=True)
class FixedMass(AbstractChoice):
    """All inertial parameters of bodies but the mass are free, as in `LogCholesky`: nine numbers for each body."""

    bodies: Sequence[str] | None = None
    """Names of the bodies; None: all."""

    def bind(self, tree: Any) -> AbstractBlock:
        return _bound(self, tree, tuple(range(1, 10)))


@dataclasses.dataclass(frozen=True)
class InertiaScale(AbstractChoice):
    """One positive factor `e^x` scales the mass, first moment and rotational inertia of each body, and of the links
    that were merged into it; with `shared`, a single one scales all bodies."""

    bodies: Sequence[str] | None = None
    """Names of the bodies; None: all."""
    shared: bool = False

    def bind(self, tree: Any) -> AbstractBlock:
        model = model_of(tree)
        bodies = chosen_names(self.bodies, model.body_names, "body", "InertiaScale")
        links = leaf_number(tree, model_field("attached_parameters"), "attached_parameters")
        inertias = leaf_number(tree, model_field("inertial_parameters"), "inertial_parameters")
        masses = known_entries(tree, inertias, 10 * np.array(bodies))
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
    """A rigid body that is fixed at a frame is free, in addition to the reference: ten log-Cholesky coordinates about a
    guess, as in `LogCholesky`.

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
        guess = self.guess.parameters() if isinstance(self.guess, BodyInertia) else np.asarray(self.guess, float)
        require_shape(guess, (10,), f"{what}: the guess", "inertial parameters about the origin of the frame")
        if not bool(is_physical(guess)):
            raise ModelError(f"{what}: no distribution of mass has the inertial parameters of the guess {guess}")
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
            guess=jnp.asarray(guess, model.dtype),
        )


def _bound(choice: LogCholesky | FixedMass, tree: Any, free: tuple[int, ...]) -> AbstractBlock:
    model = model_of(tree)
    what = type(choice).__name__
    bodies = chosen_names(choice.bodies, model.body_names, "body", what)
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
    """Indices of the free ones among the ten coordinates; the others are zero."""

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
        return coordinates_from_factor(W)[:, np.array(self.free)].reshape(-1)

    def moved(self, x: jax.Array, step: jax.Array) -> jax.Array:
        W = log_cholesky_factor(self._theta(x)) @ log_cholesky_factor(self._theta(step))
        return coordinates_from_factor(W)[:, np.array(self.free)].reshape(-1)

    def pull(self, x: jax.Array) -> jax.Array:
        return pull_of_coordinates(self._theta(x)).reshape(-1)


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
        payload = parameters_of(Inertia.from_parameters(added).moved(placement.inverse()))
        W = jax.scipy.linalg.solve_triangular(pseudo_factor(self.guess), pseudo_factor(payload))
        return coordinates_from_factor(W)

    def moved(self, x: jax.Array, step: jax.Array) -> jax.Array:
        return coordinates_from_factor(log_cholesky_factor(x) @ log_cholesky_factor(step))

    def pull(self, x: jax.Array) -> jax.Array:
        return pull_of_coordinates(x)
