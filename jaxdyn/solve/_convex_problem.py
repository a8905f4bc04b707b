"""The convex problem of a state or of a step.

The accelerations are `free + x`, with `free` those that rows of laws do not push on, where `x` minimizes

    1/2 x^T M x + sum of the potentials s(r) / gain,    r = residual + gain J x

over all terms, with the inertia `M` and, in steps, the resistance of joints over a step. Equations that hold exactly,
`J a + gamma = 0`, may be added. Sources: Castro, Permenter & Han, An unconstrained convex formulation of compliant
contact, IEEE Transactions on Robotics 2023; MuJoCo's manual, chapter Computation, Primal problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp

from jaxdyn.algorithms.recursions import Robot
from jaxdyn.laws import AbstractLaw
from jaxdyn.solve._listed import ListedTerm, apart
from jaxdyn.solve._matrix_form import Held, MatrixForm, MovingBodies
from jaxdyn.solve._terms import Term, scaled
from jaxdyn.solve._tree_form import TreeForm
from jaxdyn.tree import sum_down


class Problem(eqx.Module):
    """The convex problem of a state or a step."""

    form: TreeForm | MatrixForm
    """The inertia and the rows, as they are eliminated: by structure, and not by law."""
    laws: tuple[AbstractLaw, ...]
    residuals: tuple[Any, ...]
    """The residuals of all terms without any push."""
    gains: tuple[Any, ...]
    free: Any
    """The accelerations without any push, rows `[nv]`."""
    start: Any
    """The `x` from which the search begins."""
    lists: tuple[ListedTerm, ...] = ()
    """The terms of lists of contacts, whose residuals are those without any push."""

    @property
    def is_free(self) -> bool:
        """Whether there is nothing that may push."""
        return not self.laws and not self.lists

    def residuals_at(self, rates: Sequence) -> list:
        """Return the residuals where `x` has these rates."""
        return [r + scaled(rate, g) for r, rate, g in zip(self.residuals, rates, self.gains, strict=True)]


def problem_of(
    robot: Robot,
    bodies: MovingBodies,
    terms: Sequence[Term | ListedTerm],
    free,
    start=None,
    held: Held | None = None,
    *,
    dense: bool = False,
) -> Problem:
    """Return the problem of some terms; with `dense`, always in the form of matrices."""
    terms, lists = apart(terms)
    terms = [term for term in terms if term.offset.shape[0]]
    motion, free = sum_down(robot.tree, bodies.S * free), robot.broadcast(free)
    rows = tuple(term.rows for term in terms)
    tree = held is None and bodies.coupling is None and not dense and not lists
    if tree and all(x.touch_one() for x in rows):
        form = TreeForm(bodies, rows)
    else:
        form = MatrixForm.of(robot, bodies, rows, held)
    return Problem(
        form,
        tuple(term.law for term in terms),
        tuple(term.residual(robot, motion, free) for term in terms),
        tuple(None if term.gain is None else term.gain for term in terms),
        free,
        jnp.zeros_like(free) if start is None else robot.broadcast(start),
        tuple(own.at(robot, free) for own in lists),
    )
