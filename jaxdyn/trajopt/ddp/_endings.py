"""How solves end that have no solution: constraints that contradict each other, and costs without a lower bound."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxdyn._status import Status
from jaxdyn._types import Array, Float
from jaxdyn.trajopt.ddp._expansion import ConstraintComponents, Expansion, Stationarity, start_widths
from jaxdyn.trajopt.problem import Problem, bound_excess

LITTLE = 0.01
"""Part of a weighted sum of violations that no change of the controls takes away where constraints contradict each
other. Any part below one is a proof where dynamics and constraints are linear and controls are bounded; a small one
leaves room for controls without bounds, which are taken to change by no more than their size and one."""
LESS = 0.9
"""A sum of violations below this part of that at the first of several iterates has become smaller."""
HOPELESS = 40
"""Number of iterations with a proof, less those without, during which the violation has not become smaller, after which
constraints contradict each other. Fewer are not enough: a car at rest cannot move sideways to first order, and second
derivatives, which see how it can, come after 25 iterations. With 25, 23 of 25 runs of the benchmark's bicycle converge,
with 40 all."""
ENDLESS, OF_FALL = 1e10, 1e-2
"""Fall of a cost without a lower bound, as a multiple of its scale at the guess, and the least scale of the cost at
such an iterate, as a part of that fall. Where a cost has a lower bound, it falls far only from a guess where its scale
is as large, or becomes flat."""


class Contradiction(NamedTuple):
    """For how long no step has reduced the violation of the constraints."""

    iterations: Array
    """Number of iterations with a proof that none does, less those without."""
    violation: Array
    """The sum of the relative violations at the first of them."""

    @staticmethod
    def none(dtype) -> "Contradiction":
        """The state where there is no such iteration."""
        return Contradiction(jnp.zeros((), jnp.int32), jnp.zeros((), dtype))

    def after(self, proof, violation) -> "Contradiction":
        """The state after one more iterate, with a sum of violations."""
        goes_on = (self.iterations > 0) & (violation > LESS * self.violation)
        before = jnp.where(goes_on, self.iterations, 0)
        after = jnp.where(proof, before + 1, jnp.maximum(before - 1, 0))
        return Contradiction(after, jnp.where(goes_on, self.violation, violation))


def contradict(problem: Problem, trajectory, e: Expansion, rows: ConstraintComponents, multipliers) -> Array:
    """Whether linear models of dynamics and constraints contradict each other, by the lemma of Farkas (Nocedal &
    Wright, Numerical Optimization, 2006, section 12.4).

    With the multipliers `[rows]` of the constraints, the sum of violations times multipliers is positive, and no change
    of the controls `trajectory.us` within their bounds, or of a free first state of `trajectory.xs` by its size and
    one, reduces it by more than a little."""
    by_x, by_u, by_end = rows.slopes(*problem.split_rows(multipliers))
    station, costates = Stationarity.of(e, by_x, (by_u,), by_end)
    bound = jnp.where(multipliers > 0, rows.upper, rows.lower)
    beyond = jnp.where(multipliers != 0, rows.value - jnp.where(jnp.isfinite(bound), bound, rows.value), 0.0)
    terms = jnp.concatenate([multipliers * beyond, (costates * e.gaps).ravel()])
    low, high, us = *problem.control_box, trajectory.us
    ways = (jnp.where(jnp.isfinite(d), d, 1 + jnp.abs(us)) for d in (us - low, high - us))
    down, up = (jnp.maximum(sign * station.slopes, 0.0) * way for sign, way in zip((1, -1), ways, strict=True))
    remains, gain = terms.sum(), (down + up).sum()
    if station.start is not None:
        gain = gain + (jnp.abs(station.start.slopes[0]) * start_widths(problem, trajectory.xs[0])).sum()
    return (remains > 0.5 * jnp.abs(terms).sum()) & (gain <= LITTLE * remains)


def relative_violation(rows: ConstraintComponents, sizes) -> Float[Array, ""]:
    """The sum of the violations of the constraints, each relative to its size."""
    return jnp.abs(bound_excess(rows.value, rows.lower, rows.upper) / sizes).sum()


def falls_endlessly(first_cost, first_scale, cost, scale) -> Array:
    """Whether a cost seems to have no lower bound, from its values and scales at the guess and at an iterate."""
    fall = first_cost - cost
    # A guess at which neither slopes nor curvatures change the cost says nothing of its scale.
    known = first_scale > 2 * jnp.finfo(scale.dtype).eps
    return known & (fall > ENDLESS * first_scale) & (scale > OF_FALL * fall)


def status_after(diverged, converged, unbounded, no_minimum, infeasible, stalled, last) -> Array:
    """The status after an iteration: the first of these that holds, else running."""
    conditions = {
        Status.DIVERGED: diverged,
        Status.CONVERGED: converged,
        Status.UNBOUNDED: unbounded,
        Status.NO_MINIMUM: no_minimum,
        Status.INFEASIBLE: infeasible,
        Status.STALLED: stalled,
        Status.OUT_OF_ITERATIONS: last,
    }
    return jnp.select(list(conditions.values()), list(conditions), Status.RUNNING).astype(jnp.int32)


def all_finite(*trees) -> Array:
    """Whether all numbers of the trees are finite."""
    return jnp.stack([jnp.isfinite(x).all() for x in jax.tree.leaves(trees)]).all()
