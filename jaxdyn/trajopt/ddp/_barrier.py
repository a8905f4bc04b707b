"""Barriers of constraints and of the controls' bounds.

A component `r <= upper` has a slack `s > 0` with the barrier `-mu log s`. The slack is free to differ from `upper - r`
at the price `(r - upper + s)^2 / 2 delta`, shifted by a multiplier `l` as in an augmented Lagrangian, and is then
eliminated: the minimum over `s` of

    -mu log s + (r - upper + s + delta l)^2 / 2 delta

is a smooth convex function of `r`, which is finite on both sides of the bound. So an iterate may violate a constraint,
and no step is cut because a slack would become negative. For `mu -> 0` it is the augmented Lagrangian with the penalty
`1 / delta`, for `delta -> 0` the barrier itself; its slope, the next multiplier, is positive. This is the proximal
method of multipliers (Rockafellar, Augmented Lagrangians and applications of the proximal point algorithm in convex
programming, Math. Oper. Res. 1976) applied to the barrier problem. The curvature is that of a primal-dual method, with
a multiplier that Newton's step updates by itself (Wächter & Biegler, On the implementation of an interior-point filter
line-search algorithm, Math. Program. 2006, equation 13).

An equality `r = b` has the penalty alone. With a tiny `delta` a step meets its linear model, and its distance is a part
of the infeasibility. Where such steps lead nowhere, equalities are softened: with a larger `delta` and the multiplier
`l`, the augmented Lagrangian `l (r - b) + (r - b)^2 / 2 delta` is a part of the objective.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxdyn._errors import require_shape
from jaxdyn._types import Array, Float
from jaxdyn.trajopt._solution import Multipliers
from jaxdyn.trajopt.problem import Problem

DUAL_RANGE = 1e3
"""Largest ratio between the multiplier in a curvature and the slope of the barrier."""


class Sides(NamedTuple):
    """A quantity for the lower and for the upper bound of each component."""

    lower: Float[Array, "*shape"]
    upper: Float[Array, "*shape"]


class RowBarrier(NamedTuple):
    """The barrier of all components of the constraints, at one trajectory."""

    value: Float[Array, ""]
    """Sum over the inequalities, and over equalities that are softened; the distances of others are a part of the
    infeasibility."""
    slope: Float[Array, "rows"]
    """The next multipliers: positive at an upper bound, negative at a lower one."""
    curvature: Float[Array, "rows"]
    multipliers: Sides
    """The parts of `slope` for inequalities, both positive."""
    curvatures: Sides
    infeasibility: Float[Array, "rows"]
    """Distance of equalities that are not softened from their value; zero for others."""


class RowState(NamedTuple):
    """The multipliers and penalties of the barrier of constraints."""

    equality: Float[Array, "rows"]
    """Multipliers of equalities."""
    shift: Sides
    """Multipliers of inequalities at the last update."""
    dual: Sides
    """Multipliers of inequalities in the curvature."""
    delta: Float[Array, "rows"]
    """Inverse of the penalty."""
    softened: Array
    """Whether equalities are a part of the objective instead of the infeasibility."""

    def known_multipliers(self, equal) -> Float[Array, "rows"]:
        """The multipliers of all components before a step, for inequalities those of the last update. They balance the
        slopes of the cost, so how they change shows a contradiction of constraints however small (Banjac et al.,
        Infeasibility detection in the alternating direction method of multipliers, JOTA 2019)."""
        return jnp.where(equal, self.equality, self.shift.upper - self.shift.lower)


def row_barrier(value, lower, upper, mu, rows: RowState) -> RowBarrier:
    """The barrier of components with the values `value`."""
    equal = lower == upper

    def side(excess, bound, shift, dual):
        has = jnp.isfinite(bound) & ~equal
        t = jnp.where(has, excess, -1.0) + rows.delta * shift
        root = jnp.sqrt(t * t + 4 * mu * rows.delta)
        # Both are the roots of quadratic equations, without loss of digits for either sign of t.
        far = root + jnp.abs(t)
        slope = jnp.where(t > 0, 0.5 * far / rows.delta, 2 * mu / far)
        slack = jnp.where(t > 0, 2 * mu * rows.delta / far, 0.5 * far)
        slack = jnp.maximum(slack, jnp.finfo(slack.dtype).tiny)
        dual = jnp.clip(dual, slope / DUAL_RANGE, slope * DUAL_RANGE)
        curvature = dual / (rows.delta * dual + slack)
        value = 0.5 * rows.delta * (slope * slope - shift * shift) - mu * jnp.log(slack)
        return (jnp.where(has, x, 0.0) for x in (value, slope, curvature))

    high, high_slope, high_curvature = side(value - upper, upper, rows.shift.upper, rows.dual.upper)
    low, low_slope, low_curvature = side(lower - value, lower, rows.shift.lower, rows.dual.lower)
    distance = jnp.where(equal, value - jnp.where(equal, lower, 0.0), 0.0)
    soft = jnp.where(rows.softened, (rows.equality + 0.5 * distance / rows.delta) * distance, 0.0)
    return RowBarrier(
        value=(high + low + soft).sum(),
        slope=jnp.where(equal, rows.equality + distance / rows.delta, high_slope - low_slope),
        curvature=jnp.where(equal, 1 / rows.delta, high_curvature + low_curvature),
        multipliers=Sides(low_slope, high_slope),
        curvatures=Sides(low_curvature, high_curvature),
        infeasibility=jnp.where(rows.softened, 0.0, distance),
    )


def present_multipliers(barrier: RowBarrier, rows: RowState, equal) -> Float[Array, "rows"]:
    """The multipliers of all components: those of equalities that are not softened are unknowns of their own, and all
    others follow from the components' values."""
    return jnp.where(equal & ~rows.softened, rows.equality, barrier.slope)


def inverse_distances(us, box) -> Sides:
    """The inverse distances of controls from their bounds; zero where there is none, and for controls that are fixed
    by equal bounds."""
    low, high = box
    return Sides(
        *(
            jnp.where(
                jnp.isfinite(bound) & (low < high), 1 / jnp.where(jnp.isfinite(bound) & (low < high), d, 1.0), 0.0
            )
            for bound, d in ((low, us - low), (high, high - us))
        )
    )


def box_barrier(us, box) -> Float[Array, ""]:
    """Minus the sum of the logarithms of the controls' distances from their bounds."""
    inverse = inverse_distances(us, box)
    return sum((jnp.log(jnp.where(x > 0, x, 1.0)).sum() for x in inverse), jnp.zeros((), us.dtype))


def inside_box(us, box, share: float):
    """The controls, moved to the inside of their bounds by a share of the width of the box, or of one plus the size of
    the only bound; controls with equal bounds are at them."""
    low, high = box
    width = jnp.where(jnp.isfinite(low) & jnp.isfinite(high), high - low, jnp.inf)

    def margin(bound):
        return share * jnp.minimum(1 + jnp.abs(jnp.where(jnp.isfinite(bound), bound, 0.0)), width)

    return jnp.where(low == high, low, jnp.clip(us, low + margin(low), high - margin(high)))


def constraint_multipliers(problem: Problem, multipliers: Multipliers | None) -> Multipliers:
    """The multipliers of all constraints, zeros by default. **Raises** `ShapeError`."""
    n_stage, n_terminal = problem.constraint_sizes
    arrays: list[Any] = []
    for name, shape in (("stage", (problem.horizon, n_stage)), ("terminal", (n_terminal,))):
        array = getattr(multipliers, name, None)
        array = jnp.zeros(shape) if array is None else array
        require_shape(array, shape, f"the array of {name} multipliers", "one for each component of a constraint")
        arrays.append(array.astype(problem.dtype))
    return Multipliers(None, *arrays)
