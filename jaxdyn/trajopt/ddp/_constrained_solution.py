"""The solution of a problem with constraints, from the last state of its solve."""

import jax.numpy as jnp

from jaxdyn.trajopt._solution import Gains, Multipliers, Residuals, Solution, Status
from jaxdyn.trajopt.ddp._constrained_state import ConstrainedState, control_width
from jaxdyn.trajopt.ddp._ddp_options import DDPOptions
from jaxdyn.trajopt.problem import Problem, bound_excess


def constrained_solution(problem: Problem, options: DDPOptions, s: ConstrainedState) -> Solution:
    """The solution at the last iterate, or at the best one if no iterate is a solution."""
    low, high = problem.control_box
    unsolved = [Status.OUT_OF_ITERATIONS, Status.OUT_OF_TIME, Status.STALLED]
    s = s.with_best(problem, jnp.stack([s.status == status for status in unsolved]).any())
    rows = problem.constraints(s.xs, s.us)
    value, lower, upper = rows
    equal = lower == upper
    sides = s.barrier_at(value, lower, upper).multipliers
    # Of two factors with a tiny product, the larger one, each relative to its scale, is the one that is not zero.
    distance = jnp.minimum(value - lower, upper - value) / s.scale.rows
    signed = sides.upper - sides.lower
    active = equal | (jnp.abs(signed) * s.scale.rows / s.scale.cost > distance)
    multipliers = jnp.where(active, jnp.where(equal, s.rows.equality, signed), 0.0)
    width = control_width(problem, s.us)
    converged = s.status == Status.CONVERGED
    to_low, to_high = (s.us - low) / width, (high - s.us) / width
    # Where a multiplier is tiny, too, a control may be so far from its bound that moving it there would open a gap.
    near = 100 * options.complementarity_tolerance
    at_low = converged & (to_low < jnp.minimum(s.box.lower * width / s.scale.cost, near))
    at_high = converged & (to_high < jnp.minimum(s.box.upper * width / s.scale.cost, near))
    us = jnp.where(at_low, low, jnp.where(at_high, high, s.us))
    violation = jnp.abs(bound_excess(*rows)).max(initial=0.0)
    return Solution(
        xs=s.xs,
        us=us,
        cost=problem.total_cost(s.xs, us),
        status=s.status,
        iterations=s.iterations,
        residuals=Residuals(jnp.abs(s.gaps).max(), s.errors.stationarity, violation, s.errors.complementarity),
        gains=Gains(-s.policy.K, s.policy.k),
        multipliers=Multipliers(s.toward, *problem.split_rows(multipliers)),
        aux={"updates": s.updates, "barrier": jnp.where(s.by_active_set, 0.0, s.barrier)},
        history=s.history,
    )
