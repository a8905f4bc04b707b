"""Residuals that stand at stages and again at the end of the horizon, evaluated by one program for both.

A goal is most often both: kinematics and their derivatives are then compiled once, and not twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdyn.trajopt.problem._constraints import Constraint
from jaxdyn.trajopt.problem._costs import ResidualCost, TimeVarying
from jaxdyn.trajopt.problem._problem import Problem
from jaxdyn.trajopt.problem._residuals import AbstractResidual, StateResidual


class BothEnds(NamedTuple):
    """For each term, in its order, what a function makes of its residual, or None where it has to be computed beside
    the term: `stage_costs` and `stage_constraints` with a leading axis of the horizon."""

    stage_costs: tuple[Any, ...]
    stage_constraints: tuple[Any, ...]
    terminal_costs: tuple[Any, ...]
    terminal_constraints: tuple[Any, ...]


def at_both_ends(problem: Problem, xs, function: Callable[[AbstractResidual, Any, Any], Any]) -> BothEnds:
    """`function(residual, x, k)` of the residuals of the state alone that have their like at the other end: of the same
    kind, with arrays of the same shapes, whatever the numbers."""
    n = len(problem.stage_costs)
    stage_terms = (*problem.stage_costs, *problem.stage_constraints)
    end_terms = (*problem.terminal_costs, *problem.terminal_constraints)
    at_stages: list[Any] = [None] * len(stage_terms)
    at_end: list[Any] = [None] * len(end_terms)
    numbers = jnp.arange(problem.horizon + 1)

    def rows(term, leaf):
        return leaf if isinstance(term, TimeVarying) else jnp.broadcast_to(leaf, (problem.horizon, *leaf.shape))

    for j, end in enumerate(end_terms):
        for i, term in enumerate(stage_terms):
            if at_stages[i] is not None or not _alike(problem, term, end):
                continue
            every = jax.tree.map(
                lambda a, b, term=term: jnp.concatenate([rows(term, a), b[None]]), _residual(term), _residual(end)
            )
            out = jax.vmap(function)(every, xs, numbers)
            at_stages[i], at_end[j] = (jax.tree.map(lambda a, s=s: a[s], out) for s in (slice(-1), -1))
            break
    m = len(problem.terminal_costs)
    return BothEnds(tuple(at_stages[:n]), tuple(at_stages[n:]), tuple(at_end[:m]), tuple(at_end[m:]))


def _residual(term) -> AbstractResidual | None:
    term = term.term if isinstance(term, TimeVarying) else term
    return term.residual if isinstance(term, ResidualCost | Constraint) else None


def _alike(problem: Problem, term, end) -> bool:
    one, other = _residual(term), _residual(end)
    if one is None or other is None or not (one.of_state and other.of_state):
        return False
    if isinstance(one, StateResidual) and problem.dynamics.euclidean:
        # A difference, whose derivative the compiler knows to be one.
        return False
    if jax.tree.structure(one) != jax.tree.structure(other):
        return False
    skip = 1 if isinstance(term, TimeVarying) else 0
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(a.shape[skip:] == b.shape and a.dtype == b.dtype for a, b in pairs)
