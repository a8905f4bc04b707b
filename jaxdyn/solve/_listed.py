"""The terms of a list of contacts, of which only the first ones are there: loops over these."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn import native
from jaxdyn.algorithms.recursions import Robot
from jaxdyn.laws import Curvature, times
from jaxdyn.rows import MatrixRows, rates_of
from jaxdyn.solve._terms import Term


class ListedTerm(eqx.Module):
    """A term for each contact of a list."""

    count: Any
    """`[1, *batch]`: how many contacts there are."""
    terms: Term
    """The term of a contact, with `MatrixRows` and without a gain, whose arrays `[n, *batch]` are `[room n, *batch]`
    here, one contact after the other."""
    room: int = eqx.field(static=True)
    directions: int = eqx.field(static=True)

    @classmethod
    def of(cls, robot: Robot, term_of: Callable[[Any], Term], count, contacts, directions: int) -> ListedTerm:
        """Return the terms that `term_of` returns for each of some contacts, a pytree of arrays `[room, ..., *batch]`,
        of which the first `count` `[1, *batch]` are there."""
        leaves = jax.tree.leaves(contacts)

        def one(contact):
            return (), jax.tree.map(robot.broadcast, term_of(contact))

        terms = native.each_row(one, count[0], contacts)[1]
        return cls(count, jax.tree.map(_joined, terms), len(leaves[0]), directions)

    @property
    def size(self) -> int:
        """The number of rows."""
        return self.room * self.directions

    def _each(self, robot: Robot, function: Callable, *rows) -> tuple[Any, Any]:
        """Return the sums over contacts, and the rows `[room n, *batch]`, of what `function` returns as a pair for a
        term and its part of other rows."""

        def one(row):
            return jax.tree.map(robot.broadcast, function(*row))

        total, out = native.each_row(one, self.count[0], jax.tree.map(self._split, (self.terms, *rows)))
        return total, jax.tree.map(_joined, out)

    def _split(self, x):
        return x.reshape(self.room, -1, *x.shape[1:])

    def at(self, robot: Robot, a) -> ListedTerm:
        """Return the same for residuals at accelerations from `a` on."""
        residuals = self._each(robot, lambda term: ((), _residual(term, a)))[1]
        return dataclasses.replace(self, terms=self.terms._replace(offset=residuals))

    def pushes(self, robot: Robot, a):
        """Return the forces of all rows at the accelerations `a`, those in the first direction first."""
        found = self._each(robot, lambda term: ((), term.law.force(_residual(term, a))))[1]
        return _joined(jnp.swapaxes(self._split(found), 0, 1))

    def torque_of(self, robot: Robot, pushes):
        """Return what such forces do to the degrees of freedom."""
        by_contact = _joined(jnp.swapaxes(pushes.reshape(self.directions, -1, *pushes.shape[1:]), 0, 1))
        return self._each(robot, lambda term, push: (term.rows.forces(robot, push)[1], ()), by_contact)[0]

    def torque(self, robot: Robot, a):
        """Return what the forces of all rows at the accelerations `a` do to the degrees of freedom."""

        def one(term: Term):
            return term.rows.forces(robot, term.law.force(_residual(term, a)))[1], ()

        return self._each(robot, one)[0]

    def balance(self, robot: Robot, x) -> tuple[Any, Any, Any]:
        """Return `J^T f`, `J^T C J`, of which only the lower triangle is right, and the residuals at `x`."""
        every = np.ones((self.directions, robot.nv), bool)

        def one(term: Term):
            r, J = _residual(term, x), _matrix(term)
            stiff = times(term.law.curvature(r), J)
            gram = native.add_gram(jnp.zeros((robot.nv, *J.shape[1:]), J.dtype), stiff, J, every)
            return (term.rows.forces(robot, term.law.force(r))[1], gram), r

        (torque, gram), residuals = self._each(robot, one)
        return torque, gram, residuals

    def shifts(self, robot: Robot, residuals, step) -> tuple[Any, Any]:
        """Return how residuals change along a step, and `[1, *batch]` how many contacts do not have forces that are
        linear along it."""

        def one(term: Term, r):
            shift = rates_of(_matrix(term), step)
            return is_curved(term.law, r, shift, term.law.force(r), term.law.curvature(r)), shift

        curved, shifts = self._each(robot, one, residuals)
        return shifts, curved

    def along(self, robot: Robot, residuals, shifts) -> Callable[[Any], tuple[Any, Any, Any]]:
        """Return the function of a length that returns the sums of what `AbstractLaw.along` does, `[1, *batch]`."""

        def at(length):
            def one(term: Term, r, shift):
                return tuple(x.sum(axis=0, keepdims=True) for x in term.law.along(r, shift)(length)), ()

            return self._each(robot, one, residuals, shifts)[0]

        return at

    def whole(self, robot: Robot) -> Term:
        """Return one term of all rows, those in the first direction first."""

        def turned(x, width: int):
            x = x.reshape(self.room, -1, width, *x.shape[1:])
            return jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[3:])

        rows, law, offset, _ = self.terms
        assert isinstance(rows, MatrixRows)
        J = turned(rows.flat, robot.nv).reshape(self.size, robot.nv, *offset.shape[1:])
        others = jax.tree.map(lambda x: turned(x, 1), (law, offset))
        return Term(MatrixRows.of(J, np.ones((self.size, robot.nv), bool)), *others)


def apart(terms: Sequence[Term | ListedTerm]) -> tuple[list[Term], list[ListedTerm]]:
    """Return the terms of rows, and those of lists."""
    of_rows = [x for x in terms if not isinstance(x, ListedTerm)]
    return of_rows, [x for x in terms if isinstance(x, ListedTerm)]


def _matrix(term: Term):
    """Return the Jacobian of a term, `[n, nv, *batch]`."""
    assert isinstance(term.rows, MatrixRows)
    return term.rows.J


def _residual(term: Term, a):
    return term.offset + rates_of(_matrix(term), a)


def _joined(x):
    return x.reshape(-1, *x.shape[2:])


def is_curved(law, r, shift, push, G: Curvature):
    """Return `[1, *batch]`: one where the forces of a law are not linear along a whole step from the residuals `r`,
    with these forces and curvatures, else zero."""
    change, end = times(G, shift), law.force(r + shift)
    rounding = 16 * jnp.finfo(r.dtype).eps * (jnp.abs(push) + jnp.abs(end) + jnp.abs(change))
    # What is not a number is not exact.
    curved = (~(jnp.abs(end - push + change) <= rounding)).any(axis=0, keepdims=True)
    return jnp.where(curved, 1.0, 0.0).astype(r.dtype)
