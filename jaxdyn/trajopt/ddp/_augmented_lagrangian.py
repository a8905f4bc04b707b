"""The augmented Lagrangian of the constraints.

For `lower <= r <= upper` with a multiplier `l` and a penalty `p` the term is half of `p` times the squared distance of
`r + l/p` from the bounds, less `l^2 / 2p` (Birgin & Martinez, Practical Augmented Lagrangian Methods, 2014, chapter 4);
`p` times that distance, signed, is the next multiplier. One formula for equalities and for one and two bounds.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxdyn._errors import require_shape
from jaxdyn._types import Array, Float
from jaxdyn.trajopt._solution import Multipliers
from jaxdyn.trajopt.problem import (
    Problem,
    bound_excess,
    join_constraints,
    join_rows,
    map_shared_residuals,
    term_at_stage,
)


class Penalties(NamedTuple):
    """Multipliers of the constraints, and the penalty."""

    multipliers: Float[Array, "rows"]
    weight: Float[Array, ""]


def constraint_multipliers(problem: Problem, multipliers: Multipliers | None) -> Multipliers:
    """The multipliers of all constraints, zeros by default. **Raises** `ShapeError`."""
    n_stage, n_terminal = problem.constraint_sizes
    arrays = []
    for name, shape in (("stage", (problem.horizon, n_stage)), ("terminal", (n_terminal,))):
        array = getattr(multipliers, name, None)
        array = jnp.zeros(shape) if array is None else array
        require_shape(array, shape, f"the array of {name} multipliers", "one for each component of a constraint")
        arrays.append(array.astype(problem.dtype))
    return Multipliers(None, *arrays)


def shifted_excess(r, lower, upper, multiplier, weight):
    """The signed distance of `r + multiplier / weight` from the bounds."""
    z = r + multiplier / weight
    # Equal bounds give a line, with a slope also on the bound itself.
    return jnp.where(lower == upper, z - lower, bound_excess(z, lower, upper))


def is_active(r, lower, upper, multiplier, weight):
    """Whether the augmented Lagrangian has a slope and a curvature at the components `r`."""
    z = r + multiplier / weight
    return (z < lower) | (z > upper) | (lower == upper)


def penalty_value(r, lower, upper, multiplier, weight):
    """The sum of the augmented Lagrangian's terms for the components `r`."""
    # Infinite bounds have no distance and no derivatives.
    d = shifted_excess(r, lower, upper, multiplier, weight)
    return 0.5 * (weight * d * d - multiplier * multiplier / weight).sum()


class Evaluation(NamedTuple):
    """The quantities by which a trajectory is judged."""

    cost: Float[Array, ""]
    augmented_lagrangian: Float[Array, ""]
    violation: Float[Array, ""]
    """Largest violation of a constraint."""
    next_multipliers: Float[Array, "rows"]
    """The multipliers after their first-order update."""

    @staticmethod
    def of(cost, constraints, penalties: Penalties) -> "Evaluation":
        """The evaluation of a trajectory with the residuals and bounds `constraints`, as of `Problem.constraints`."""
        violation = jnp.abs(bound_excess(*constraints)).max(initial=0.0)
        multipliers = penalties.weight * shifted_excess(*constraints, *penalties)
        return Evaluation(cost, cost + penalty_value(*constraints, *penalties), violation, multipliers)


def evaluate(problem: Problem, xs, us, penalties: Penalties) -> Evaluation:
    """Evaluate a trajectory in one pass."""
    dynamics = problem.dynamics
    of_stages, of_end = map_shared_residuals(problem, xs, lambda residual, x, k: residual(dynamics, x, None, k))

    def evaluate_terms(costs, constraints, x, u, k, shared):
        total, parts = jnp.zeros((), problem.dtype), []
        for term, r in zip(costs, shared.costs, strict=True):
            term = term_at_stage(term, k)
            total = total + (term.value(dynamics, x, u, k) if r is None else term.penalty(r)[0])
        for term, r in zip(constraints, shared.constraints, strict=True):
            term = term_at_stage(term, k)
            r = term.residual(dynamics, x, u, k) if r is None else r
            parts.append((r, *term.bounds(r, None if u is None else k)))
        return total, join_constraints(parts, problem.dtype)

    def evaluate_stage(*stage):
        return evaluate_terms(problem.stage_costs, problem.stage_constraints, *stage)

    costs, constraints = jax.vmap(evaluate_stage)(xs[:-1], us, problem.stages, of_stages)
    terms = problem.terminal_costs, problem.terminal_constraints
    last_cost, last_constraints = evaluate_terms(*terms, xs[-1], None, problem.horizon, of_end)
    return Evaluation.of(costs.sum() + last_cost, list(map(join_rows, constraints, last_constraints)), penalties)
