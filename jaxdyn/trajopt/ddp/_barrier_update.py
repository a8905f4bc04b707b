"""The update of a barrier problem: its barrier, the multipliers and the penalties of its inequalities.

The barrier falls, and the multipliers are updated, only when the problem with the present barrier is solved to a
tolerance that falls along with it. Until then a violation that stays meets a larger penalty, and the barrier follows a
cost that has become much smaller than that of the guess.
"""

import jax
import jax.numpy as jnp

from jaxdyn.trajopt.ddp._barrier import RowBarrier, present_multipliers
from jaxdyn.trajopt.ddp._constrained_state import (
    EXACTNESS,
    PATIENCE,
    ConstrainedState,
    cost_scale,
    number_of_bounds,
)
from jaxdyn.trajopt.ddp._ddp_options import DDPOptions
from jaxdyn.trajopt.ddp._expansion import ConstraintComponents, Expansion
from jaxdyn.trajopt.problem import Problem, bound_excess

BARRIER = 2.0
"""The first barrier of each bound, as a multiple of the cost's scale divided by the number of bounds."""
BARRIER_FACTOR, BARRIER_POWER = 0.2, 1.5
"""The next barrier is the smaller of this part of the last one and its power, relative to the cost's scale, as in
Wächter & Biegler (Math. Program. 2006, equation 7)."""
DELTA_FACTOR, DELTA_STEP = 0.5, 0.1
"""Factors of `delta` with every update, and with one after which the violation is more than a quarter of what it was,
or before which it has stayed for long. With the first one alone, the benchmark takes 8 % more iterations."""


def updated(
    problem: Problem,
    options: DDPOptions,
    s: ConstrainedState,
    e: Expansion,
    rows: ConstraintComponents,
    barrier: RowBarrier,
    equality,
) -> ConstrainedState:
    """The state with a smaller barrier and new multipliers of the inequalities, where the problem with the present
    barrier is solved to its tolerance; `equality` is the relative violation of equalities."""
    scale, number = cost_scale(problem, s, e), number_of_bounds(problem, rows)
    share, equal = scale / number, rows.lower == rows.upper
    near = jnp.maximum(0.1 * s.phase.tolerance, options.constraint_tolerance)
    # A decrease that is small against the barrier itself is as good as a small slope.
    settled = s.last.promised < 0.1 * s.phase.barrier * number
    small = s.errors.stationarity < jnp.maximum(s.phase.tolerance, 0.5 * options.tolerance)
    solved = (small | settled) & (s.errors.gap < near) & (equality < near)
    excess = jnp.abs(bound_excess(rows.value, rows.lower, rows.upper)) / s.scale.rows
    violation = jnp.where(equal, 0.0, excess).max(initial=0.0)
    # Smaller ones would amplify the rounding of constraints into that of the slopes.
    eps, unit = jnp.finfo(problem.dtype).eps, s.unit_of_delta(scale)
    least_delta = jnp.maximum(eps**EXACTNESS, eps / options.tolerance) * unit
    waiting = _with_harder_inequalities(s, equal, violation, least_delta, solved)
    waiting = _with_fitting_barrier(waiting, share, s.scale.cost / number, equality, solved)
    slow = (violation > 0.25 * s.phase.violation) & (violation > options.constraint_tolerance)
    of_inequality = jnp.maximum(jnp.where(slow, DELTA_STEP, DELTA_FACTOR) * s.at.rows.delta, least_delta)
    next_rows = s.at.rows._replace(
        equality=present_multipliers(barrier, s.at.rows, equal),
        shift=barrier.multipliers,
        delta=jnp.where(equal, eps**EXACTNESS * unit, of_inequality),
    )
    smaller = jnp.minimum(BARRIER_FACTOR * s.phase.barrier, (s.phase.barrier / share) ** BARRIER_POWER * share)
    smaller = jnp.maximum(smaller, 0.1 * options.complementarity_tolerance * share)
    after = s.unwatched().moved(rows=next_rows)
    after = after.with_phase(
        waited=jnp.zeros_like(s.phase.waited),
        barrier=smaller,
        tolerance=jnp.maximum(0.5 * s.phase.tolerance, 0.5 * options.tolerance),
        violation=violation,
        updates=s.phase.updates + 1,
    )
    return jax.tree.map(lambda a, b: jnp.where(solved, a, b), after, waiting)


def _with_harder_inequalities(s: ConstrainedState, equal, violation, least_delta, solved) -> ConstrainedState:
    """The state in which a violation that stays meets a larger penalty, up to one with a `delta` of one in its units;
    multipliers change in solved problems only. Without it, the benchmark's bicycle takes 46 % more iterations."""
    hardest = jnp.minimum(jnp.maximum(s.unit_of_delta(), least_delta), s.at.rows.delta)
    delta = jnp.where(equal, s.at.rows.delta, jnp.maximum(DELTA_STEP * s.at.rows.delta, hardest))
    harder = s.unwatched().moved(rows=s.at.rows._replace(delta=delta))
    harder = harder.with_phase(waited=jnp.zeros_like(s.phase.waited))
    patient = (s.phase.waited < PATIENCE) | (violation <= 1e-2) | solved | (delta == s.at.rows.delta).all()
    return jax.tree.map(lambda a, b: jnp.where(patient, a, b), s.with_phase(waited=s.phase.waited + 1), harder)


def _with_fitting_barrier(s: ConstrainedState, share, first_share, equality, solved) -> ConstrainedState:
    """The state whose barrier is a part of what the cost is now: the guess may cost much more than a solution. Without
    it, the benchmark's pole_carrier takes 43 % more iterations."""
    fitting = BARRIER * jnp.maximum(share, 1e-3 * first_share)
    lower = (fitting < 0.5 * s.phase.barrier) & (s.errors.gap < 0.1) & (equality < 0.1) & ~solved
    fitted = s.unwatched().with_phase(barrier=fitting)
    return jax.tree.map(lambda a, b: jnp.where(lower, a, b), fitted, s)
