"""Expansions of dynamics, costs and constraints about a trajectory."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxdyn._types import Array, Float
from jaxdyn.trajopt.ddp import _augmented_lagrangian as augmented
from jaxdyn.trajopt.ddp._augmented_lagrangian import Penalties, TrajectoryEvaluation
from jaxdyn.trajopt.ddp._loops_over_stages import over_stages
from jaxdyn.trajopt.problem import (
    Problem,
    Quadratic,
    TermValues,
    gauss_newton_expansion,
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

    @property
    def curvature(self) -> "Curvature":
        """The second derivatives of the costs."""
        return Curvature(self.stage.xx, self.stage.ux, self.stage.uu, self.terminal.xx)

    def with_curvature(self, h: "Curvature") -> "Expansion":
        """The expansion with other second derivatives of the costs."""
        stage = self.stage._replace(xx=h.xx, ux=h.ux, uu=h.uu)
        return self._replace(stage=stage, terminal=self.terminal._replace(xx=h.terminal))


class Curvature(NamedTuple):
    """Second derivatives by the states and controls of the stages, and by the last state."""

    xx: Float[Array, "horizon ndx ndx"]
    ux: Float[Array, "horizon nu ndx"]
    uu: Float[Array, "horizon nu nu"]
    terminal: Float[Array, "ndx ndx"]


def expand(problem: Problem, xs, us, gaps, penalties: Penalties) -> tuple[Expansion, TrajectoryEvaluation]:
    """The Gauss-Newton expansion of the augmented Lagrangian about a trajectory, and the trajectory's evaluation."""
    dynamics = problem.dynamics
    after = jax.vmap(dynamics.integrate)(xs[1:], gaps[1:])
    A, B = over_stages(dynamics.linearize, xs[:-1], us, problem.stages, after)
    shared = map_shared_residuals(problem, xs, lambda residual, x, k: residual.linearize(dynamics, x, None, k))

    def expand_stage(x, u, k, multiplier, shared):
        terms = TermValues(problem.stage_costs, problem.stage_constraints)
        return _expand_terms(problem, terms, shared, x, u, k, multiplier, penalties.weight)

    stage_multipliers, terminal_multipliers = problem.split_rows(penalties.multipliers)
    stage, r_stage = jax.vmap(expand_stage)(xs[:-1], us, problem.stages, stage_multipliers, shared.stage)
    terms = TermValues(problem.terminal_costs, problem.terminal_constraints)
    inputs = xs[-1], None, problem.horizon, terminal_multipliers, penalties.weight
    terminal, r_terminal = _expand_terms(problem, terms, shared.terminal, *inputs)
    evaluation = TrajectoryEvaluation(stage.value.sum() + terminal.value, join_rows(r_stage, r_terminal))
    return Expansion(A, B, gaps, stage, terminal), evaluation


def _expand_terms(problem: Problem, terms: TermValues, shared: TermValues, x, u, k, multiplier, weight):
    """The expansion, with the cost alone as its value, and the constraints' residuals; `shared` has computed ones."""
    dynamics, dtype, nu = problem.dynamics, problem.dtype, 0 if u is None else problem.dynamics.nu
    total = Quadratic.zero(dynamics.ndx, nu, dtype)
    for term, linear in zip(terms.costs, shared.costs, strict=True):
        term = term_at_stage(term, k)
        total = total + (term.gauss_newton(dynamics, x, u, k) if linear is None else term.expand(linear, dynamics, u))
    residuals, start = [jnp.zeros(0, dtype)], 0
    for term, linear in zip(terms.constraints, shared.constraints, strict=True):
        term = term_at_stage(term, k)
        r, Jx, Ju = term.residual.linearize(dynamics, x, u, k) if linear is None else linear
        low, high = term.bounds(r, None if u is None else k)
        l = multiplier[start : start + len(r)]
        slope = weight * augmented.shifted_excess(r, low, high, l, weight)
        curvature = weight * augmented.is_active(r, low, high, l, weight).astype(r.dtype)
        total = total + gauss_newton_expansion(jnp.zeros_like(weight), slope, curvature, Jx, Ju, dynamics.ndx, nu)
        residuals.append(r)
        start += len(r)
    return total, jnp.concatenate(residuals)


def costates(A, stage_slopes, terminal_slope):
    """The derivative of the cost to go by each state `[stages, ndx]`, with the controls as they are, from the slopes of
    the costs of stages `[horizon, ndx]` and of the end `[ndx]` by the state."""

    def step(after, stage):
        A, slope = stage
        before = slope + A.T @ after
        return before, before

    _, before = lax.scan(step, terminal_slope, (A, stage_slopes), reverse=True)
    return jnp.concatenate([before, terminal_slope[None]])


def full_curvature(problem: Problem, xs, us, penalties: Penalties, e: Expansion) -> Curvature:
    """All second derivatives of the Lagrangian, with the costates as the multipliers of the steps."""
    dynamics, weight = problem.dynamics, penalties.weight

    def expand_stage(x, u, k, multiplier, costate, after):
        def lagrangian(x, u):
            penalty = augmented.penalty_value(*problem.stage_constraint(x, u, k), multiplier, weight)
            step = dynamics.difference(after, dynamics.step(x, u, k))
            return problem.stage_cost(x, u, k) + penalty + costate @ step

        return quadratic_expansion(lagrangian, dynamics, x, u)

    after = lax.stop_gradient(jax.vmap(dynamics.integrate)(xs[1:], e.gaps[1:]))
    after_costates = costates(e.A, e.stage.x, e.terminal.x)[1:]
    stage_multipliers, terminal_multipliers = problem.split_rows(penalties.multipliers)
    stage = jax.vmap(expand_stage)(xs[:-1], us, problem.stages, stage_multipliers, after_costates, after)

    def terminal_lagrangian(x, _):
        penalty = augmented.penalty_value(*problem.terminal_constraint(x), terminal_multipliers, weight)
        return problem.terminal_cost(x) + penalty

    terminal = quadratic_expansion(terminal_lagrangian, dynamics, xs[-1], None)
    return Curvature(stage.xx, stage.ux, stage.uu, terminal.xx)
