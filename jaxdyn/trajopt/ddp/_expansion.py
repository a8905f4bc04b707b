"""Expansions of dynamics, costs and constraints about a trajectory."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxdyn._types import Array, Float
from jaxdyn.trajopt.ddp import _augmented_lagrangian as augmented
from jaxdyn.trajopt.ddp._augmented_lagrangian import Evaluation, Penalties
from jaxdyn.trajopt.ddp._loops_over_stages import over_stages
from jaxdyn.trajopt.problem import (
    Problem,
    Quadratic,
    TermValues,
    gauss_newton_expansion,
    join_constraints,
    join_rows,
    map_shared_residuals,
    quadratic_expansion,
    term_at_stage,
)


class Expansion(NamedTuple):
    """The costs, and the dynamics `dx_(k+1) = A dx_k + B du_k + gap_(k+1)`, in displacements about a trajectory."""

    A: Float[Array, "horizon ndx ndx"]
    B: Float[Array, "horizon ndx nu"]
    gaps: Float[Array, "stages ndx"]
    stage: Quadratic
    """With a leading axis of the horizon."""
    terminal: Quadratic


def expand(problem: Problem, xs, us, gaps, penalties: Penalties) -> tuple[Expansion, Evaluation]:
    """The Gauss-Newton expansion of the augmented Lagrangian about a trajectory, and the trajectory's evaluation."""
    dynamics = problem.dynamics
    after = jax.vmap(dynamics.integrate)(xs[1:], gaps[1:])
    A, B = over_stages(dynamics.linearize, xs[:-1], us, problem.stages, after)
    of_stages, of_end = map_shared_residuals(problem, xs, lambda r, x, k: r.linearize(dynamics, x, None, k))
    stage_multipliers, terminal_multipliers = problem.split_rows(penalties.multipliers)

    def expand_stage(*stage):
        terms = TermValues(problem.stage_costs, problem.stage_constraints)
        return _expand_terms(problem, terms, *stage, penalties.weight)

    stage, constraints = jax.vmap(expand_stage)(of_stages, xs[:-1], us, problem.stages, stage_multipliers)
    terms = TermValues(problem.terminal_costs, problem.terminal_constraints)
    end = of_end, xs[-1], None, problem.horizon, terminal_multipliers
    terminal, last_constraints = _expand_terms(problem, terms, *end, penalties.weight)
    constraints = list(map(join_rows, constraints, last_constraints))
    evaluation = Evaluation.of(stage.value.sum() + terminal.value, constraints, penalties)
    return Expansion(A, B, gaps, stage, terminal), evaluation


def _expand_terms(problem: Problem, terms: TermValues, shared: TermValues, x, u, k, multiplier, weight):
    """The expansion, with the cost alone as its value, and the constraints; `shared` has residuals that are known."""
    dynamics, dtype, nu = problem.dynamics, problem.dtype, 0 if u is None else problem.dynamics.nu
    total = Quadratic.zero(dynamics.ndx, nu, dtype)
    for term, linear in zip(terms.costs, shared.costs, strict=True):
        term = term_at_stage(term, k)
        total = total + (term.gauss_newton(dynamics, x, u, k) if linear is None else term.expand(linear, dynamics, u))
    parts, start = [], 0
    for term, linear in zip(terms.constraints, shared.constraints, strict=True):
        term = term_at_stage(term, k)
        r, Jx, Ju = term.residual.linearize(dynamics, x, u, k) if linear is None else linear
        low, high = term.bounds(r, None if u is None else k)
        l = multiplier[start : start + len(r)]
        slope = weight * augmented.shifted_excess(r, low, high, l, weight)
        curvature = weight * augmented.is_active(r, low, high, l, weight).astype(r.dtype)
        total = total + gauss_newton_expansion(jnp.zeros_like(weight), slope, curvature, Jx, Ju, dynamics.ndx, nu)
        parts.append((r, low, high))
        start += len(r)
    return total, join_constraints(parts, dtype)


def costates(A, stage_slopes, terminal_slope):
    """The derivative of the cost to go by each state `[stages, ndx]`, with the controls as they are, from the slopes of
    the costs of stages `[horizon, ndx]` and of the end `[ndx]` by the state."""

    def step(after, stage):
        A, slope = stage
        before = slope + A.T @ after
        return before, before

    _, before = lax.scan(step, terminal_slope, (A, stage_slopes), reverse=True)
    return jnp.concatenate([before, terminal_slope[None]])


def lagrangian_expansion(problem: Problem, xs, us, after, costates, penalty: Callable, *rows):
    """The expansions of the Lagrangian at the stages and at the end, with all second derivatives.

    The costates multiply what displaces steps from `after`. Constraints add `penalty(r, lower, upper, *rows)`, with
    those entries of `rows` that belong to the residuals `r`.
    """
    dynamics = problem.dynamics
    stage_rows, terminal_rows = zip(*map(problem.split_rows, rows), strict=True)

    def expand_stage(x, u, k, after, costate, rows):
        def lagrangian(x, u):
            step = dynamics.difference(after, problem.step(x, u, k))
            return problem.stage_cost(x, u, k) + penalty(*problem.stage_constraint(x, u, k), *rows) + costate @ step

        return quadratic_expansion(lagrangian, dynamics, x, u)

    def terminal_lagrangian(x, _):
        return problem.terminal_cost(x) + penalty(*problem.terminal_constraint(x), *terminal_rows)

    stage = jax.vmap(expand_stage)(xs[:-1], us, problem.stages, after, costates[1:], stage_rows)
    return stage, quadratic_expansion(terminal_lagrangian, dynamics, xs[-1], None)


def second_order_costs(problem: Problem, xs, us, penalties: Penalties, e: Expansion) -> tuple[Quadratic, Quadratic]:
    """The costs of stages and of the end with all second derivatives of the augmented Lagrangian, in which the costates
    are the multipliers of the steps."""

    def penalty(r, lower, upper, multiplier):
        return augmented.penalty_value(r, lower, upper, multiplier, penalties.weight)

    after = lax.stop_gradient(jax.vmap(problem.dynamics.integrate)(xs[1:], e.gaps[1:]))
    slopes = costates(e.A, e.stage.x, e.terminal.x)
    stage, end = lagrangian_expansion(problem, xs, us, after, slopes, penalty, penalties.multipliers)
    return e.stage._replace(xx=stage.xx, ux=stage.ux, uu=stage.uu), e.terminal._replace(xx=end.xx)
