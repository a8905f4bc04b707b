"""The augmented Lagrangian of the constraints.

For `lower <= r <= upper` with a multiplier `l` and a penalty `p` the term is half of `p` times the squared distance of
`r + l/p` from the bounds, less `l^2 / 2p` (Birgin & Martinez, Practical Augmented Lagrangian Methods, 2014, chapter 4);
`p` times that distance, signed, is the next multiplier. One formula for equalities and for one and two bounds.
"""

from typing import NamedTuple

import jax.numpy as jnp

from jaxdyn._errors import require_shape
from jaxdyn._types import Array, Float
from jaxdyn.trajopt._solution import Multipliers
from jaxdyn.trajopt.problem import Problem, bound_excess


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
    def of(cost, constraints: tuple[Array, Array, Array], penalties: Penalties) -> "Evaluation":
        """The evaluation of a trajectory with the residuals and bounds `constraints`, as of `Problem.constraints`."""
        violation = jnp.abs(bound_excess(*constraints)).max(initial=0.0)
        multipliers = penalties.weight * shifted_excess(*constraints, *penalties)
        return Evaluation(cost, cost + penalty_value(*constraints, *penalties), violation, multipliers)


def evaluate(problem: Problem, xs, us, penalties: Penalties) -> Evaluation:
    """The evaluation of a trajectory."""
    return Evaluation.of(problem.total_cost(xs, us), problem.constraints(xs, us), penalties)
