"""The augmented Lagrangian of the constraints, and expansions of a whole trajectory.

For `lower <= r <= upper` with a multiplier `l` and a penalty `p` the term is half of `p` times the squared distance of
`r + l/p` from the bounds, less `l^2 / 2p` (Birgin & Martinez, Practical Augmented Lagrangian Methods, 2014, chapter 4);
`p` times that distance, signed, is the next multiplier. One formula for equalities and for one and two bounds.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxdyn._types import Array, Float
from jaxdyn.trajopt.ddp._vectorization import over_stages
from jaxdyn.trajopt.problem._constraints import outside
from jaxdyn.trajopt.problem._costs import Quadratic, at_stage, expansion, of_residual
from jaxdyn.trajopt.problem._problem import Problem
from jaxdyn.trajopt.problem._stage_and_terminal import at_both_ends


class Penalties(NamedTuple):
    """Multipliers `[horizon, m]` and `[m]`, and the penalty."""

    stage: Float[Array, "horizon m"]
    terminal: Float[Array, "m"]
    weight: Float[Array, ""]


class Expansion(NamedTuple):
    """Of a problem about a trajectory, in displacements: `dx_(k+1) = A dx_k + B du_k + gap_(k+1)`, and the costs."""

    A: Float[Array, "horizon ndx ndx"]
    B: Float[Array, "horizon ndx nu"]
    gaps: Float[Array, "stages ndx"]
    stage: Quadratic
    """With a leading axis of the horizon."""
    terminal: Quadratic


def shifted(r, lower, upper, multiplier, weight):
    """The signed distance of `r + multiplier / weight` from the bounds."""
    z = r + multiplier / weight
    # Equal bounds give a line, with a slope also on the bound itself.
    return jnp.where(lower == upper, z - lower, z - jnp.clip(z, lower, upper))


def is_active(r, lower, upper, multiplier, weight):
    """Where the augmented Lagrangian pushes, and has curvature."""
    z = r + multiplier / weight
    return (z < lower) | (z > upper) | (lower == upper)


def penalty(r, lower, upper, multiplier, weight):
    """The augmented Lagrangian of the components `r`."""
    # Infinite bounds have no distance, and their derivatives are cut off before they are computed.
    d = shifted(r, lower, upper, multiplier, weight)
    return 0.5 * (weight * d * d - multiplier * multiplier / weight).sum()


class Evaluation(NamedTuple):
    """Of a trajectory: its cost, and the residuals of the constraints of all stages `[horizon, m]` and of the end."""

    cost: Float[Array, ""]
    stage: Float[Array, "horizon m"]
    terminal: Float[Array, "m"]


class Bounds(NamedTuple):
    """Of the residuals of all constraints."""

    stage: tuple[Float[Array, "horizon m"], Float[Array, "horizon m"]]
    terminal: tuple[Float[Array, "m"], Float[Array, "m"]]

    @staticmethod
    def of(problem: Problem) -> Bounds:
        x, u = problem.dynamics.neutral().astype(problem.dtype), jnp.zeros(problem.dynamics.nu, problem.dtype)
        # Bounds depend on the number of the stage alone; the compiler drops the residuals.
        _, low, high = jax.vmap(lambda k: problem.stage_constraint(x, u, k))(problem.stages)
        _, last_low, last_high = problem.terminal_constraint(x)
        return Bounds((low, high), (last_low, last_high))

    def violation(self, at: Evaluation) -> Float[Array, ""]:
        """The largest."""
        parts = outside(at.stage, *self.stage), outside(at.terminal, *self.terminal)
        return jnp.concatenate([jnp.abs(part).ravel() for part in parts]).max(initial=0.0)

    def value(self, at: Evaluation, penalties: Penalties) -> Float[Array, ""]:
        """The augmented Lagrangian."""
        stage = penalty(at.stage, *self.stage, penalties.stage, penalties.weight)
        return at.cost + stage + penalty(at.terminal, *self.terminal, penalties.terminal, penalties.weight)

    def next_multipliers(self, at: Evaluation, penalties: Penalties) -> Penalties:
        """By their first-order update."""
        w = penalties.weight
        stage = w * shifted(at.stage, *self.stage, penalties.stage, w)
        return Penalties(stage, w * shifted(at.terminal, *self.terminal, penalties.terminal, w), w)


def evaluate(problem: Problem, xs, us) -> Evaluation:
    dynamics = problem.dynamics
    known = at_both_ends(problem, xs, lambda residual, x, k: residual(dynamics, x, None, k))

    def one(costs, constraints, x, u, k, of_costs, of_constraints):
        total, residuals = jnp.zeros((), problem.dtype), [jnp.zeros(0, problem.dtype)]
        for term, r in zip(costs, of_costs, strict=True):
            term = at_stage(term, k)
            total = total + (term.value(dynamics, x, u, k) if r is None else term.penalty(r)[0])
        for term, r in zip(constraints, of_constraints, strict=True):
            residuals.append(at_stage(term, k).residual(dynamics, x, u, k) if r is None else r)
        return total, jnp.concatenate(residuals)

    def of_stage(*at):
        return one(problem.stage_costs, problem.stage_constraints, *at)

    stages = xs[:-1], us, problem.stages, known.stage_costs, known.stage_constraints
    costs, residuals = jax.vmap(of_stage)(*stages)
    end = xs[-1], None, problem.horizon, known.terminal_costs, known.terminal_constraints
    last, r_last = one(problem.terminal_costs, problem.terminal_constraints, *end)
    return Evaluation(costs.sum() + last, residuals, r_last)


def lagrangian_of_stage(problem: Problem, x, u, k, multiplier, weight):
    """The cost of a stage with its augmented Lagrangian, beside the cost alone and the residuals."""
    cost, (r, low, high) = problem.stage_cost(x, u, k), problem.stage_constraint(x, u, k)
    return cost + penalty(r, low, high, multiplier, weight), (cost, r)


def lagrangian_of_end(problem: Problem, x, multiplier, weight):
    cost, (r, low, high) = problem.terminal_cost(x), problem.terminal_constraint(x)
    return cost + penalty(r, low, high, multiplier, weight), (cost, r)


def _of_constraint(problem: Problem, term, x, u, k, multiplier, weight, known) -> tuple[Quadratic, Array]:
    r, Jx, Ju = term.residual.linearize(problem.dynamics, x, u, k) if known is None else known
    low, high = term.bounds(r)
    if term.of_state and u is not None:
        low, high = jnp.where(k == 0, -jnp.inf, low), jnp.where(k == 0, jnp.inf, high)
    multiplier = multiplier(r.shape[0])
    d = shifted(r, low, high, multiplier, weight)
    curvature = weight * is_active(r, low, high, multiplier, weight).astype(r.dtype)
    nu = 0 if u is None else problem.dynamics.nu
    return of_residual(jnp.zeros_like(weight), weight * d, curvature, Jx, Ju, problem.dynamics.ndx, nu), r


def _gauss_newton(problem: Problem, costs, constraints, x, u, k, multiplier, weight, of_costs, of_constraints):
    """The expansion, whose value is the cost alone, and the residuals of the constraints; from the expansions of the
    residuals where they are known."""
    dynamics, dtype = problem.dynamics, problem.dtype
    total = Quadratic.zero(dynamics.ndx, 0 if u is None else dynamics.nu, dtype)
    for term, known in zip(costs, of_costs, strict=True):
        term = at_stage(term, k)
        total = total + (term.gauss_newton(dynamics, x, u, k) if known is None else term.expanded(known, dynamics, u))
    residuals, start = [jnp.zeros(0, dtype)], 0
    for term, known in zip(constraints, of_constraints, strict=True):
        at = start

        def own(size: int, at: int = at):
            return multiplier[at : at + size]

        quadratic, r = _of_constraint(problem, at_stage(term, k), x, u, k, own, weight, known)
        total = total + quadratic
        residuals.append(r)
        start += r.shape[0]
    return total, jnp.concatenate(residuals)


def linearized(problem: Problem, xs, us, gaps) -> tuple[Array, Array]:
    """`A`, `B` of all stages."""
    reached = jax.vmap(problem.dynamics.integrate)(xs[1:], gaps[1:])
    return over_stages(problem.dynamics.linearize, xs[:-1], us, problem.stages, reached)


def costates(A, stage: Quadratic, terminal: Quadratic):
    """`[stages, ndx]`: the derivative of the cost to go by each state, with the controls as they are."""

    def one(after, at):
        A, lx = at
        now = lx + A.T @ after
        return now, now

    _, before = lax.scan(one, terminal.x, (A, stage.x), reverse=True)
    return jnp.concatenate([before, terminal.x[None]])


def expand(problem: Problem, xs, us, gaps, penalties: Penalties) -> tuple[Expansion, Evaluation]:
    """The Gauss-Newton expansion of the augmented Lagrangian about a trajectory, and the trajectory's evaluation."""
    A, B = linearized(problem, xs, us, gaps)

    known = at_both_ends(problem, xs, lambda residual, x, k: residual.linearize(problem.dynamics, x, None, k))

    def of_stage(x, u, k, multiplier, *of_terms):
        terms = problem.stage_costs, problem.stage_constraints
        return _gauss_newton(problem, *terms, x, u, k, multiplier, penalties.weight, *of_terms)

    stages = xs[:-1], us, problem.stages, penalties.stage, known.stage_costs, known.stage_constraints
    stage, r_stage = jax.vmap(of_stage)(*stages)
    terms = problem.terminal_costs, problem.terminal_constraints
    end = problem.horizon, penalties.terminal, penalties.weight, known.terminal_costs, known.terminal_constraints
    terminal, r_terminal = _gauss_newton(problem, *terms, xs[-1], None, *end)
    at = Evaluation(stage.value.sum() + terminal.value, r_stage, r_terminal)
    return Expansion(A, B, gaps, stage, terminal), at


class Curvature(NamedTuple):
    """Second derivatives by the stages' states and controls, and by the last state."""

    xx: Float[Array, "horizon ndx ndx"]
    ux: Float[Array, "horizon nu ndx"]
    uu: Float[Array, "horizon nu nu"]
    end: Float[Array, "ndx ndx"]

    @staticmethod
    def of(e: Expansion) -> Curvature:
        return Curvature(e.stage.xx, e.stage.ux, e.stage.uu, e.terminal.xx)


def full_curvature(problem: Problem, xs, us, penalties: Penalties, e: Expansion) -> Curvature:
    """All second derivatives of the Lagrangian, those of the steps with the costates for multipliers."""
    dynamics, weight = problem.dynamics, penalties.weight

    def of_stage(x, u, k, multiplier, costate, after):
        def lagrangian(x, u):
            steps = costate @ dynamics.difference(after, dynamics.step(x, u, k))
            return lagrangian_of_stage(problem, x, u, k, multiplier, weight)[0] + steps

        return expansion(lagrangian, dynamics, x, u)

    after = lax.stop_gradient(jax.vmap(dynamics.integrate)(xs[1:], e.gaps[1:]))
    rest = penalties.stage, costates(e.A, e.stage, e.terminal)[1:], after
    stage = jax.vmap(of_stage)(xs[:-1], us, problem.stages, *rest)
    end = expansion(lambda x, _: lagrangian_of_end(problem, x, penalties.terminal, weight)[0], dynamics, xs[-1], None)
    return Curvature(stage.xx, stage.ux, stage.uu, end.xx)


def with_curvature(e: Expansion, h: Curvature) -> Expansion:
    stage = e.stage._replace(xx=h.xx, ux=h.ux, uu=h.uu)
    return e._replace(stage=stage, terminal=e.terminal._replace(xx=h.end))
