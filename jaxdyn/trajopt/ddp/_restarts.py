"""New beginnings of solves with constraints, where no step is acceptable.

Steps that meet the linear model of all equalities are of no use where, say, the model asks for controls of many times
their bounds: the controls go to their bounds, and no step is acceptable there. So the solve begins anew, at most three
times, from states at rest and the guess's controls, with another barrier and other penalties of inequalities. Without
new beginnings, 6 of 18 runs of the benchmark's race_car and point_mass do not converge. A solve that has found a
maximum or a saddle begins beside it.
"""

import jax
import jax.numpy as jnp

from jaxdyn.trajopt.ddp._barrier import Sides, inside_box, inverse_distances, row_barrier
from jaxdyn.trajopt.ddp._constrained_state import EXACTNESS, Beginning, ConstrainedState
from jaxdyn.trajopt.ddp._endings import Contradiction
from jaxdyn.trajopt.ddp._expansion import Expansion
from jaxdyn.trajopt.ddp._minimality import leaving_policy
from jaxdyn.trajopt.ddp._riccati import AffinePolicy, linear_roll_out
from jaxdyn.trajopt.problem import Problem

BARRIERS_ANEW = 30.0, 900.0, 1e-2
"""The barriers of new beginnings, as multiples of the first one."""
SOFTNESS = 30.0
"""The first `delta` of inequalities, as a part of the square of their size divided by the cost's scale."""
SOFTNESS_ANEW = 1e2, 1e-2, 1.0
"""The same numbers of new beginnings. They differ because some problems are solved with soft inequalities only, and
some with hard ones."""
INSIDE = 1e-2
"""Smallest distance of the guess's controls from their bounds, relative to their size and range."""
LEAVING, DEPARTURES = 0.1, 2
"""The decrease that a step away from a stationary point that is no minimum promises, relative to the cost, and how
often a solve takes one: to both sides."""


def with_barrier(problem: Problem, s: ConstrainedState, barrier, rows, softness):
    """The state with a barrier, and with the penalties and the multipliers in the curvature that belong to it, at
    constraints with the values and bounds `rows`."""
    value, lower, upper = rows
    eps, equal = jnp.finfo(problem.dtype).eps, lower == upper
    delta = jnp.where(equal, eps**EXACTNESS, softness) * s.unit_of_delta()
    infinity = jnp.full_like(delta, jnp.inf)
    state = s.at.rows._replace(delta=delta, dual=Sides(infinity, infinity))
    dual = row_barrier(value, lower, upper, barrier, state).multipliers
    inverse = inverse_distances(s.at.us, problem.control_box)
    box = Sides(barrier * inverse.lower, barrier * inverse.upper)
    return s.with_phase(barrier=barrier).moved(rows=state._replace(dual=dual), box=box)


def begun_anew(problem: Problem, s: ConstrainedState, e: Expansion, policy: AffinePolicy, leaves) -> ConstrainedState:
    """The state with states at rest, the guess's controls, no multipliers, another barrier,
    and other penalties of inequalities.

    Where the solve `leaves` a stationary point from which a backward pass has failed, it begins beside it, with the
    first barrier and penalties."""
    xs = jnp.broadcast_to(problem.x0.astype(s.at.xs.dtype), s.at.xs.shape)
    us = inside_box(s.beginning.first_us, problem.control_box, INSIDE)
    beside = _beside(problem, s, e, policy)
    xs, us = jax.tree.map(lambda a, b: jnp.where(leaves, a, b), beside, (xs, us))
    gaps = problem.gaps(xs, us)
    rows = s.at.rows._replace(
        equality=jnp.zeros_like(s.at.rows.equality), shift=jax.tree.map(jnp.zeros_like, s.at.rows.shift)
    )
    anew = s.unwatched().moved(xs=xs, us=us, gaps=gaps, rows=rows, toward=jnp.zeros_like(s.at.toward))
    anew = anew.with_phase(
        tolerance=jnp.ones_like(s.phase.tolerance),
        violation=jnp.full_like(s.phase.violation, jnp.inf),
        waited=jnp.zeros_like(s.phase.waited),
    )
    anew = anew._replace(
        scale=s.scale._replace(infeasibility=jnp.abs(gaps).sum(), displacement=jnp.zeros_like(s.scale.displacement)),
        beginning=Beginning(
            first_us=s.beginning.first_us,
            restarts=s.beginning.restarts + ~leaves,
            departures=s.beginning.departures + leaves,
            contradiction=Contradiction.none(s.at.xs.dtype),
        ),
    )
    of_restart = jnp.asarray((BARRIERS_ANEW, SOFTNESS_ANEW), problem.dtype)[:, s.beginning.restarts]
    factor, softness = jnp.where(leaves, jnp.asarray((1.0, SOFTNESS), problem.dtype), of_restart)
    return with_barrier(problem, anew, factor * s.scale.barrier, problem.constraints(xs, us), softness)


def _beside(problem: Problem, s: ConstrainedState, e: Expansion, policy: AffinePolicy):
    """States and controls along the direction of negative curvature that a failed backward pass has found."""
    low, high = problem.control_box
    free = (low < high).astype(problem.dtype)
    size = jnp.maximum(s.scale.cost, jnp.abs(e.stage.value.sum() + e.terminal.value))
    along = leaving_policy(policy, free, s.beginning.departures + 1, LEAVING * size)
    dxs, dus = linear_roll_out(e._replace(gaps=jnp.zeros_like(e.gaps)), along)
    xs = jax.vmap(problem.dynamics.integrate)(s.at.xs, dxs)
    return xs, inside_box(s.at.us + dus, problem.control_box, INSIDE)
