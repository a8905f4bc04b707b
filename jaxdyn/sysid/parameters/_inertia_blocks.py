"""Free inertias: log-Cholesky coordinates, scaled priors, payloads."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import ModelError
from jaxdyn._types import ArrayLike
from jaxdyn.model import BodyInertia
from jaxdyn.spatial import invert_pose, transform_inertial_parameters
from jaxdyn.sysid.parameters import _leaves as leaves
from jaxdyn.sysid.parameters import _log_cholesky as cholesky
from jaxdyn.sysid.parameters._leaves import model_of
from jaxdyn.sysid.parameters._parametrization import AbstractBlock, AbstractChoice, ScaledEntries

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
