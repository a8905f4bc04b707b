"""Residuals that stand at stages and again at the end of the horizon, as most goals do: evaluated by one program for
both, so that their kinematics and derivatives are compiled once instead of twice."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdyn.trajopt.problem._constraints import Constraint
from jaxdyn.trajopt.problem._costs import ResidualCost, TimeVarying
from jaxdyn.trajopt.problem._problem import Problem
from jaxdyn.trajopt.problem._residuals import AbstractResidual, StateResidual


class TermValues(NamedTuple):
    """A value for each cost and each constraint of a stage or of the end; None where the residual is not shared."""

    costs: tuple[Any, ...]
    constraints: tuple[Any, ...]


type ResidualFunction = Callable[[AbstractResidual, Any, Any], Any]


def map_shared_residuals(problem: Problem, xs, function: ResidualFunction) -> tuple[TermValues, TermValues]:
    """Compute `function(residual, x, k)` for the residuals of the state alone that stage and terminal terms share:
    residuals of one kind, with arrays of the same shapes, whatever the numbers. Returns the values of the stages, with
    a leading axis of the horizon, and those of the end."""
    stage_terms = (*problem.stage_costs, *problem.stage_constraints)
    terminal_terms = (*problem.terminal_costs, *problem.terminal_constraints)
    at_stages: Any = [None] * len(stage_terms)
    at_end: Any = [None] * len(terminal_terms)
    numbers = jnp.arange(problem.horizon + 1)

    def rows(term, leaf):
        return leaf if isinstance(term, TimeVarying) else jnp.broadcast_to(leaf, (problem.horizon, *leaf.shape))

    for j, end in enumerate(terminal_terms):
        for i, term in enumerate(stage_terms):
            if at_stages[i] is not None or not _match(problem, term, end):
                continue
            residuals = jax.tree.map(
                lambda a, b, term=term: jnp.concatenate([rows(term, a), b[None]]), _residual(term), _residual(end)
            )
            values = jax.vmap(function)(residuals, xs, numbers)
            at_stages[i], at_end[j] = (jax.tree.map(lambda a, s=s: a[s], values) for s in (slice(-1), -1))
            break
    n, m = len(problem.stage_costs), len(problem.terminal_costs)
    at_stages, at_end = tuple(at_stages), tuple(at_end)
    return TermValues(at_stages[:n], at_stages[n:]), TermValues(at_end[:m], at_end[m:])


def _residual(term) -> AbstractResidual | None:
    term = term.term if isinstance(term, TimeVarying) else term
    return term.residual if isinstance(term, ResidualCost | Constraint) else None


def _match(problem: Problem, term, end) -> bool:
    """Whether the residuals of a stage term and a terminal term differ in numbers only."""
    first, second = _residual(term), _residual(end)
    if first is None or second is None or not (first.of_state and second.of_state):
        return False
    if isinstance(first, StateResidual) and problem.dynamics.euclidean:
        # A difference of vectors: the compiler knows that its derivative is the identity.
        return False
    if jax.tree.structure(first) != jax.tree.structure(second):
        return False
    skip = 1 if isinstance(term, TimeVarying) else 0
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all(a.shape[skip:] == b.shape and a.dtype == b.dtype for a, b in pairs)
