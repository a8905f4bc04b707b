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
from jaxdyn.trajopt.problem import Problem, bound_excess, join_rows, map_shared_residuals, term_at_stage


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


class TrajectoryEvaluation(NamedTuple):
    """The cost of a trajectory, and the residuals of all its constraints in the order of `Problem.constraints`."""

    cost: Float[Array, ""]
    residuals: Float[Array, "rows"]


def evaluate(problem: Problem, xs, us) -> TrajectoryEvaluation:
    """Compute cost and residuals in one pass."""
    dynamics = problem.dynamics
    of_stages, of_end = map_shared_residuals(problem, xs, lambda residual, x, k: residual(dynamics, x, None, k))

    def evaluate_terms(costs, constraints, x, u, k, shared):
        total, residuals = jnp.zeros((), problem.dtype), [jnp.zeros(0, problem.dtype)]
        for term, r in zip(costs, shared.costs, strict=True):
            term = term_at_stage(term, k)
            total = total + (term.value(dynamics, x, u, k) if r is None else term.penalty(r)[0])
        for term, r in zip(constraints, shared.constraints, strict=True):
            residuals.append(term_at_stage(term, k).residual(dynamics, x, u, k) if r is None else r)
        return total, jnp.concatenate(residuals)

    def evaluate_stage(*stage):
        return evaluate_terms(problem.stage_costs, problem.stage_constraints, *stage)

    costs, residuals = jax.vmap(evaluate_stage)(xs[:-1], us, problem.stages, of_stages)
    terms = problem.terminal_costs, problem.terminal_constraints
    last_cost, last_residuals = evaluate_terms(*terms, xs[-1], None, problem.horizon, of_end)
    return TrajectoryEvaluation(costs.sum() + last_cost, join_rows(residuals, last_residuals))


class ConstraintBounds(NamedTuple):
    """Bounds of the residuals of all constraints."""

    lower: Float[Array, "rows"]
    upper: Float[Array, "rows"]

    @staticmethod
    def of(problem: Problem) -> "ConstraintBounds":
        # Bounds depend on the number of the stage alone; the compiler drops the residuals.
        x, u = problem.dynamics.neutral().astype(problem.dtype), jnp.zeros(problem.dynamics.nu, problem.dtype)
        xs, us = (jnp.broadcast_to(a, (problem.horizon + n, *a.shape)) for a, n in ((x, 1), (u, 0)))
        return ConstraintBounds(*problem.constraints(xs, us)[1:])

    def violation(self, evaluation: TrajectoryEvaluation) -> Float[Array, ""]:
        """The largest violation of a constraint."""
        return jnp.abs(bound_excess(evaluation.residuals, *self)).max(initial=0.0)

    def augmented_lagrangian(self, evaluation: TrajectoryEvaluation, penalties: Penalties) -> Float[Array, ""]:
        return evaluation.cost + penalty_value(evaluation.residuals, *self, *penalties)

    def next_multipliers(self, evaluation: TrajectoryEvaluation, penalties: Penalties) -> Float[Array, "rows"]:
        """The multipliers after their first-order update."""
        return penalties.weight * shifted_excess(evaluation.residuals, *self, *penalties)
