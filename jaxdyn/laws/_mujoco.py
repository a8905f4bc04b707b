"""MuJoCo's soft constraints: the forces of rows from their residuals, and the curvatures of their potentials.

A row has the residual `x = J a - aref`. Every number is a row `[n, *batch]`. A row that does not act has `D = 0`. The
cones of contacts with friction, pyramids included, are laws of all directions of a contact together: the normal, two
tangents, and the turns about these three.

Source: MuJoCo's manual, chapter Computation, Constraint model; Todorov, Convex and analytically-invertible dynamics
with contacts and constraints, ICRA 2014.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp

from jaxdyn.laws._abstract_law import AbstractLaw, Curvature, parts_of
from jaxdyn.laws._cones import elliptic_curvature, elliptic_force, pyramid_curvature, pyramid_force


class SoftEquality(AbstractLaw):
    """A spring in both ways."""

    D: Any
    """The stiffness, the inverse of the regularization `R`."""

    def force(self, x):
        return -self.D * x

    def curvature(self, x) -> Curvature:
        return [[self.D + jnp.zeros_like(x)]]


class SoftFriction(AbstractLaw):
    """A spring whose force is at most a friction loss."""

    D: Any
    loss: Any

    def force(self, x):
        return jnp.clip(-self.D * x, -self.loss, self.loss)

    def curvature(self, x) -> Curvature:
        return [[jnp.where(jnp.abs(self.D * x) < self.loss, self.D, jnp.zeros((), self.D.dtype))]]


class SoftInequality(AbstractLaw):
    """A spring that only pushes: limits, and contacts without friction."""

    D: Any

    def force(self, x):
        return -self.D * jnp.minimum(x, 0.0)

    def curvature(self, x) -> Curvature:
        return [[jnp.where(x < 0, self.D, jnp.zeros((), self.D.dtype))]]


class PyramidalCone(AbstractLaw):
    """Contacts whose friction is at most a pyramid of the normal force."""

    directions: int = eqx.field(static=True)
    D: Any
    """`[directions n, *batch]`: that of the edges, alike in all directions."""
    friction: Any
    """`[(directions - 1) n, *batch]`: the friction of the directions but the normal."""
    mu: Any
    """`[n, *batch]`: the friction of the cone that is round after the regularization of its directions."""

    def _rows(self, x) -> tuple[list, list, list]:
        many = self.directions
        return parts_of(x, many), parts_of(self.D, many), parts_of(self.friction, many - 1)

    def force(self, x):
        return jnp.concatenate(pyramid_force(*self._rows(x)))

    def curvature(self, x) -> Curvature:
        return pyramid_curvature(*self._rows(x))


class EllipticCone(PyramidalCone):
    """Contacts whose friction is at most an elliptic cone of the normal force; each direction has its own `D`."""

    def force(self, x):
        return jnp.concatenate(elliptic_force(*self._rows(x), self.mu))

    def curvature(self, x) -> Curvature:
        return elliptic_curvature(*self._rows(x), self.mu)
