"""A solve that, where it violates constraints, also tries the problem in which violations have a price."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxdyn.trajopt._solution import Solution, Status
from jaxdyn.trajopt.ddp import DDPOptions, ddp, microseconds
from jaxdyn.trajopt.problem import Problem, SoftConstraintCost, TimeVarying, bound_excess

ALLOWED = 1e-3
"""Violation of a constraint, relative to one plus the size of its bound, from which on a step whose solve has not
converged looks for a smaller one."""
WEIGHT = 1e4
"""Weight of the squared violations, relative to one plus the cost, of the problem in which they have a price."""


def with_least_violation(problem: Problem, plan: Any, options: DDPOptions, began) -> Solution:
    """The solution of the problem from a `Plan`. Where it violates constraints, which a plant may do that is not as its
    model, the violations have a price instead, and the trajectory with the smaller violation is returned. With a time
    limit from the time `began`, if known, the first solve has half of the time, and the other one what remains, if this
    is enough for an iteration."""
    constrained = bool(problem.stage_constraints or problem.terminal_constraints)
    limit, first = options.time_limit, options
    if limit is not None:
        limit = limit - plan.reserve
        now = microseconds(plan.us.sum())
        began = now if began is None else began
        share = 0.5 if constrained else 1.0
        first = dataclasses.replace(options, time_limit=share * (limit - 1e-6 * (now - began)))
    solution = ddp(problem, plan.us, plan.xs, multipliers=plan.multipliers, options=first)
    if not constrained:
        return solution
    in_time = jnp.array(True)
    if limit is not None:
        after = microseconds(solution.xs.sum())
        remains = limit - 1e-6 * (after - began)
        in_time = remains > 1e-6 * (after - now) / solution.iterations
        options = dataclasses.replace(options, time_limit=remains)

    def violation(xs, us):
        r, lower, upper = problem.constraints(xs, us)
        excess = bound_excess(r, lower, upper)
        bound = jnp.abs(jnp.where(excess > 0, upper, lower))
        return (jnp.abs(excess) / (1 + jnp.where(excess == 0, 0.0, bound))).max(initial=0.0)

    def distance(xs, us):
        return jnp.maximum(violation(xs, us), jnp.abs(problem.gaps(xs, us)).max() / (1 + jnp.abs(xs).max()))

    def relaxed():
        priced = _with_prices(problem, WEIGHT * (1 + jnp.abs(solution.cost)))
        found = ddp(priced, plan.us, plan.xs, options=options)
        return found.xs, found.us

    given = solution.xs, solution.us
    before = distance(*given)
    leaves = ~solution.success & ~(before <= ALLOWED) & in_time
    xs, us = lax.cond(leaves, relaxed, lambda: given)
    better = ~(distance(xs, us) >= before)
    xs, us = (jnp.where(better, a, b) for a, b in zip((xs, us), given, strict=True))
    residuals = solution.residuals
    residuals = dataclasses.replace(
        residuals,
        violation=jnp.where(better, problem.violation(xs, us), residuals.violation),
        gap=jnp.where(better, jnp.abs(problem.gaps(xs, us)).max(), residuals.gap),
    )
    cost = jnp.where(better, problem.total_cost(xs, us), solution.cost)
    violated = leaves & ~(violation(xs, us) <= ALLOWED)
    status = jnp.where(violated, Status.LEAST_VIOLATION, solution.status).astype(jnp.int32)
    return dataclasses.replace(solution, xs=xs, us=us, cost=cost, status=status, residuals=residuals)


def _with_prices(problem: Problem, weight) -> Problem:
    """The problem in which squared violations of constraints have a weight."""

    def price(term) -> Any:
        if isinstance(term, TimeVarying):
            return TimeVarying(SoftConstraintCost(term.term, weight=jnp.full(problem.horizon, weight)))
        return SoftConstraintCost(term, weight=weight)

    bounds = (problem.control_lower, problem.control_upper) if problem.bounded else (None, None)
    return Problem(
        problem.dynamics,
        problem.x0,
        problem.horizon,
        stage_costs=[*problem.stage_costs, *map(price, problem.stage_constraints)],
        terminal_costs=[*problem.terminal_costs, *map(price, problem.terminal_constraints)],
        control_lower=bounds[0],
        control_upper=bounds[1],
    )
