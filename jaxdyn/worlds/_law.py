"""MuJoCo's soft constraints: the forces of rows from their residuals, and the curvatures of their potentials.

A row has the residual `x = J a - aref`. Rows stand in this order: equalities; friction losses; one-sided rows (limits
and contacts without friction); then the contacts with friction, by the number of their directions, and in a group of
these direction by direction: the normal, two tangents, and the turns about these three. Their cones, pyramids included,
are laws of all directions of a contact together (`_cones`). Every number is a row `[n, *batch]`. A row that does not
act has `D = 0`.

Source: MuJoCo's manual, chapter Computation, Constraint model; Todorov, Convex and analytically-invertible dynamics
with contacts and constraints, ICRA 2014.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxdyn.worlds._cones import elliptic_curvature, elliptic_force, pyramid_curvature, pyramid_force


@dataclasses.dataclass(frozen=True)
class RowKinds:
    """How many rows there are of each kind."""

    equalities: int
    frictions: int
    inequalities: int
    cones: tuple[tuple[int, int], ...]
    """The number of directions and of contacts of each group of contacts with friction."""
    elliptic: bool
    """Whether cones are elliptic rather than pyramids."""

    @property
    def scalars(self) -> int:
        """The number of rows with a law of their own."""
        return self.equalities + self.frictions + self.inequalities

    @property
    def count(self) -> int:
        """The number of all rows."""
        return self.scalars + sum(dim * n for dim, n in self.cones)

    @property
    def cone_starts(self) -> list[int]:
        """The first row of each group of contacts with friction."""
        starts = [self.scalars]
        for dim, n in self.cones:
            starts.append(starts[-1] + dim * n)
        return starts[:-1]


class RowNumbers(NamedTuple):
    """The numbers of the laws of rows."""

    D: Any
    """`[n, *batch]`: the stiffness of each row, the inverse of the regularization `R`; zero for rows that do not act.
    Each row of a pyramid has that of its edges."""
    loss: Any
    """`[frictions, *batch]`: friction losses."""
    friction: Any
    """`[sum((dim - 1) count), *batch]`: the friction of each contact's directions but the normal, by group and
    direction."""
    mu: Any
    """`[contacts with friction, *batch]`: the friction of the regularized cone."""


def force(kinds: RowKinds, numbers: RowNumbers, x):
    """Return the forces `[n, *batch]` of all rows."""
    e, f = kinds.equalities, kinds.equalities + kinds.frictions
    D = numbers.D
    parts = [-D[:e] * x[:e]]
    if kinds.frictions:
        parts.append(jnp.clip(-D[e:f] * x[e:f], -numbers.loss, numbers.loss))
    parts.append(-D[f : kinds.scalars] * jnp.minimum(x[f : kinds.scalars], 0.0))
    for cone in _cones(kinds, numbers, x):
        push = elliptic_force(*cone) if kinds.elliptic else pyramid_force(*cone[:3])
        parts += push
    return jnp.concatenate(parts)


class Curvature(NamedTuple):
    """Minus the derivative of the forces by the residuals."""

    scalars: Any
    """`[scalars, *batch]`, of rows with a law of their own."""
    cones: tuple[list[list[Any]], ...]
    """For each group the symmetric matrix over its directions, of which each element is `[contacts, *batch]` or 0."""

    def times(self, kinds: RowKinds, rows):
        """Return the product with rows `[n, ..., *batch]`."""
        n = kinds.scalars

        def spread(c):
            return c.reshape(c.shape[:1] + (1,) * (rows.ndim - c.ndim) + c.shape[1:])

        parts = [spread(self.scalars) * rows[:n]]
        for (dim, count), start, G in zip(kinds.cones, kinds.cone_starts, self.cones, strict=True):
            own = [rows[start + k * count : start + (k + 1) * count] for k in range(dim)]
            for line in G:
                terms = [spread(g) * r for g, r in zip(line, own, strict=True) if g is not None]
                parts.append(functools.reduce(operator.add, terms))
        return jnp.concatenate(parts)


def curvature(kinds: RowKinds, numbers: RowNumbers, x) -> Curvature:
    """Return the curvature of the potential of all rows."""
    e, f, n = kinds.equalities, kinds.equalities + kinds.frictions, kinds.scalars
    D = numbers.D
    zero = jnp.zeros((), D.dtype)
    parts = [D[:e]]
    if kinds.frictions:
        parts.append(jnp.where(jnp.abs(D[e:f] * x[e:f]) < numbers.loss, D[e:f], zero))
    parts.append(jnp.where(x[f:n] < 0, D[f:n], zero))
    batch = jnp.broadcast_shapes(*(p.shape[1:] for p in (*parts, x)))
    scalars = jnp.concatenate([jnp.broadcast_to(p, (p.shape[0], *batch)) for p in parts])
    cones = _cones(kinds, numbers, x)
    blocks = (elliptic_curvature(*c) if kinds.elliptic else pyramid_curvature(*c[:3]) for c in cones)
    return Curvature(scalars, tuple(blocks))


def _cones(kinds: RowKinds, numbers: RowNumbers, x):
    """Return the residuals, stiffnesses, frictions and regularized frictions of each group of contacts with
    friction."""
    out, sliding, contact = [], 0, 0
    for (dim, n), start in zip(kinds.cones, kinds.cone_starts, strict=True):
        places = [slice(start + k * n, start + (k + 1) * n) for k in range(dim)]
        friction = [numbers.friction[sliding + k * n : sliding + (k + 1) * n] for k in range(dim - 1)]
        mu = numbers.mu[contact : contact + n]
        out.append(([x[p] for p in places], [numbers.D[p] for p in places], friction, mu))
        sliding, contact = sliding + (dim - 1) * n, contact + n
    return out
