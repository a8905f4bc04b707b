"""Expansions of dynamics, costs and constraints about a trajectory."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxdyn._types import Array, Float
from jaxdyn.trajopt.ddp import _augmented_lagrangian as augmented
from jaxdyn.trajopt.ddp._augmented_lagrangian import Evaluation, Penalties
from jaxdyn.trajopt.problem import (
    AbstractResidual,
    Constraint,
    Problem,
    Quadratic,
    ResidualCost,
    StateResidual,
    TimeVarying,
    gauss_newton_expansion,
    join_constraints,
    join_rows,
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
    A, B = _over_stages(dynamics.linearize, xs[:-1], us, problem.stages, after)
    terms = (*problem.stage_costs, *problem.stage_constraints)
    ends = (*problem.terminal_costs, *problem.terminal_constraints)
    of_stages, of_end = _shared_linearizations(problem, terms, ends, xs)
    multipliers, last_multipliers = problem.split_rows(penalties.multipliers)

    def expand_stage(*stage):
        return _expand_terms(problem, terms, penalties.weight, *stage)

    stage, constraints = jax.vmap(expand_stage)(of_stages, xs[:-1], us, problem.stages, multipliers)
    last = of_end, xs[-1], None, problem.horizon, last_multipliers
    terminal, last_constraints = _expand_terms(problem, ends, penalties.weight, *last)
    r, low, high = map(join_rows, constraints, last_constraints)
    evaluation = Evaluation.of(stage.value.sum() + terminal.value, (r, low, high), penalties)
    return Expansion(A, B, gaps, stage, terminal), evaluation


def _over_stages(function: Callable, *arrays: Any) -> Any:
    """`jax.vmap(function)(*arrays)`.

    On a CPU one stage after the other: a program for one stage compiles in half the time of one for all, and runs about
    as fast. Elements of a batch of problems stay side by side."""

    def one_by_one(*arrays):
        return lax.map(lambda stage: function(*stage), arrays)

    return lax.platform_dependent(*arrays, cpu=one_by_one, default=jax.vmap(function))


def _expand_terms(problem: Problem, terms, weight, linears, x, u, k, multiplier):
    """The expansion, with the cost alone as its value, and the constraints; `linears` has known residuals, or None."""
    dynamics, nu = problem.dynamics, 0 if u is None else problem.dynamics.nu
    total, parts, start = Quadratic.zero(dynamics.ndx, nu, problem.dtype), [], 0
    for term, linear in zip(terms, linears, strict=True):
        term = term_at_stage(term, k)
        if not isinstance(term, Constraint):
            added = term.gauss_newton(dynamics, x, u, k) if linear is None else term.expand(linear, dynamics, u)
            total = total + added
            continue
        r, Jx, Ju = term.residual.linearize(dynamics, x, u, k) if linear is None else linear
        low, high = term.bounds(r, None if u is None else k)
        l = multiplier[start : start + len(r)]
        slope = weight * augmented.shifted_excess(r, low, high, l, weight)
        curvature = weight * augmented.is_active(r, low, high, l, weight).astype(r.dtype)
        total = total + gauss_newton_expansion(jnp.zeros_like(weight), slope, curvature, Jx, Ju, dynamics.ndx, nu)
        parts.append((r, low, high))
        start += len(r)
    return total, join_constraints(parts, problem.dtype)


def _shared_linearizations(problem: Problem, terms, ends, xs) -> tuple[list, list]:
    """The linearized residuals of the state that stand at stages, with a leading axis of the horizon, and again at the
    end, as most goals do; None for other terms. One program for both compiles their kinematics once instead of twice:
    for residuals of one kind, with arrays of the same shapes, whatever the numbers."""
    at_stages: list[Any] = [None] * len(terms)
    at_end: list[Any] = [None] * len(ends)
    numbers = jnp.arange(problem.horizon + 1)

    def rows(term, leaf):
        return leaf if isinstance(term, TimeVarying) else jnp.broadcast_to(leaf, (problem.horizon, *leaf.shape))

    def linearize(residual, x, k):
        return residual.linearize(problem.dynamics, x, None, k)

    for j, end in enumerate(ends):
        for i, term in enumerate(terms):
            if at_stages[i] is not None or not _match(problem, term, end):
                continue
            residuals = jax.tree.map(
                lambda a, b, term=term: jnp.concatenate([rows(term, a), b[None]]), _residual(term), _residual(end)
            )
            values = jax.vmap(linearize)(residuals, xs, numbers)
            at_stages[i], at_end[j] = (jax.tree.map(lambda a, s=s: a[s], values) for s in (slice(-1), -1))
            break
    return at_stages, at_end


def _residual(term) -> AbstractResidual | None:
    term = term.term if isinstance(term, TimeVarying) else term
    return term.residual if isinstance(term, ResidualCost | Constraint) else None


def _match(problem: Problem, term, end) -> bool:
    """Whether the residuals of a stage term and a terminal term differ in numbers only."""
    first, second = _residual(term), _residual(end)
    if first is None or second is None or not (first.of_state and second.of_state):
        return False
    if isinstance(first, StateResidual) and problem.dynamics.euclidean:
        # A difference of vectors: the compiler knows that its derivative is the identity.
        return False

    def kind(residual, axes: int):
        leaves, structure = jax.tree.flatten(residual)
        return structure, [(a.shape[axes:], a.dtype) for a in leaves]

    return kind(first, 1 if isinstance(term, TimeVarying) else 0) == kind(second, 0)


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
    those entries of `rows` that belong to the residuals `r`."""
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
