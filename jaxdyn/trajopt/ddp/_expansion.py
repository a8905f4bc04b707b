"""Expansions of dynamics, costs and constraints about a trajectory."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxdyn._types import Array, Float
from jaxdyn.trajopt.problem import (
    AbstractResidual,
    Constraint,
    Problem,
    Quadratic,
    ResidualCost,
    StateResidual,
    TimeVarying,
    function_of_displacement,
    hessian_blocks,
    join_rows,
    term_at_stage,
)

INNER = 1e-2
"""Part of the terms in the product of costates and a step's derivatives that counts as the size of a slope. A control
without a cost has no others that cancel. With all of them, a slope of a control that has a cost could be larger."""
NEARBY = 100.0
"""Largest distance of a least value, as a multiple of what a component moves by. A guess may be at rest, far from where
its costs are least; nearly linear costs have least values at distances that say nothing."""


class StartUnknowns(NamedTuple):
    """The unknowns of the initial state."""

    directions: Float[Array, "ndx unknowns"]
    """The displacements of the state by each of them, which are orthogonal."""
    curvature: Float[Array, "unknowns"]
    """The sum of a proximal term's curvature and of what counts as zero; it is added to that of the cost."""


class Expansion(NamedTuple):
    """The costs, and the dynamics `dx_(k+1) = A dx_k + B du_k + gap_(k+1)`, in displacements about a trajectory."""

    A: Float[Array, "horizon ndx ndx"]
    B: Float[Array, "horizon ndx nu"]
    gaps: Float[Array, "stages ndx"]
    stage: Quadratic
    """With a leading axis of the horizon."""
    terminal: Quadratic
    start: StartUnknowns | None = None
    """None where the initial state is fixed."""


class ConstraintComponents(NamedTuple):
    """The components of all constraints, stage by stage and then the end's, with their derivatives."""

    value: Float[Array, "rows"]
    lower: Float[Array, "rows"]
    upper: Float[Array, "rows"]
    by_x: Float[Array, "horizon m ndx"]
    """Derivatives of the stages' components by the displacement of the state."""
    by_u: Float[Array, "horizon m nu"]
    end_by_x: Float[Array, "m_end ndx"]

    def change(self, dxs, dus) -> Float[Array, "rows"]:
        """The first-order change of all components by displacements of the states and the controls."""
        stage = matvec(self.by_x, dxs[:-1]) + matvec(self.by_u, dus)
        return join_rows(stage, self.end_by_x @ dxs[-1])

    def without_fixed_controls(self, problem: Problem) -> "ConstraintComponents":
        """The components, which do not depend on controls with equal bounds."""
        low, high = problem.control_box
        return self._replace(by_u=jnp.where((low < high)[:, None, :], self.by_u, 0.0)) if problem.bounded else self

    def slopes(self, stage, end) -> tuple[Array, Array, Array]:
        """The derivatives by the states of the stages, by the controls, and by the last state, of the sum of all
        components times the multipliers `stage` `[horizon, m]` and `end` `[m_end]`."""
        return vecmat(stage, self.by_x), vecmat(stage, self.by_u), end @ self.end_by_x

    def add_to(self, stage: Quadratic, end: Quadratic, slope, curvature) -> tuple[Quadratic, Quadratic]:
        """The expansions of the costs and of a function of each component, with a slope and a curvature: its
        Gauss-Newton expansion. Both are pairs of the stages' array and the end's."""
        by_x, by_u, end_by_x = self.slopes(*slope)
        heavy_x, heavy_u = curvature[0][..., None] * self.by_x, curvature[0][..., None] * self.by_u
        x_to_row, u_to_row = jnp.swapaxes(self.by_x, 1, 2), jnp.swapaxes(self.by_u, 1, 2)
        stage = stage._replace(
            x=stage.x + by_x,
            u=stage.u + by_u,
            xx=stage.xx + x_to_row @ heavy_x,
            ux=stage.ux + u_to_row @ heavy_x,
            uu=stage.uu + u_to_row @ heavy_u,
        )
        end_xx = self.end_by_x.T @ (curvature[1][:, None] * self.end_by_x)
        return stage, end._replace(x=end.x + end_by_x, xx=end.xx + end_xx)


def motion(problem: Problem, xs) -> Float[Array, "ndx"]:
    """How far each component of the state moves from the first state."""
    return jnp.abs(jax.vmap(problem.dynamics.difference, in_axes=(None, 0))(xs[0], xs)).max(axis=0)


def start_widths(problem: Problem, x) -> Float[Array, "unknowns"]:
    """One plus the sizes of the unknowns of an initial state, which stand for their ranges."""
    unknowns = start_unknowns(problem)
    assert unknowns is not None
    directions = unknowns.directions
    along = problem.dynamics.difference(problem.dynamics.neutral().astype(x.dtype), x) @ directions
    return 1 + jnp.abs(along) / (directions**2).sum(axis=0)


def without_fixed_controls(problem: Problem, e: Expansion) -> Expansion:
    """The expansion in which controls with equal bounds change nothing: no condition of optimality is about them, since
    the multiplier of a fixed control has either sign."""
    if not problem.bounded:
        return e
    low, high = problem.control_box
    free, l = (low < high).astype(e.B.dtype), e.stage
    both = free[:, :, None] * free[:, None, :]
    stage = l._replace(u=free * l.u, ux=free[..., None] * l.ux, uu=both * l.uu + jax.vmap(jnp.diag)(1 - free))
    return e._replace(B=e.B * free[:, None, :], stage=stage)


def cost_spread(problem: Problem, e: Expansion, xs, us, least_way: float = 0.0) -> Float[Array, ""]:
    """How much the costs of the stages and of the end differ from their own least values, to second order: the scale of
    the cost, which a constant in it does not change.

    Each component of a state and of a control lowers the quadratic model of its stage alone, for squares of components
    by all that they cost. Where the model has no least value nearby, the component moves as far as the trajectory does:
    a state by its motion and its gaps, or `least_way`, and a control by its range or its size."""
    low, high = problem.control_box
    width = jnp.minimum(high - low, 1 + jnp.abs(us))
    way = least_way + motion(problem, xs) + jnp.abs(e.gaps).sum(axis=0)
    if e.start is not None:
        way = way + jnp.abs(e.start.directions) @ start_widths(problem, xs[0])

    def decrease(slopes, curvatures, sizes):
        g, h = jnp.abs(slopes), jnp.diagonal(curvatures, axis1=-2, axis2=-1)
        step = jnp.where(NEARBY * h * sizes > g, g / jnp.where(h > 0, h, 1.0), sizes)
        return (g * step - 0.5 * h * step**2).sum()

    of_states = decrease(e.stage.x, e.stage.xx, way) + decrease(e.terminal.x, e.terminal.xx, way)
    return of_states + decrease(e.stage.u, e.stage.uu, width)


def matvec(matrices, vectors):
    """The product of each matrix with its vector."""
    return (matrices @ vectors[..., None])[..., 0]


def vecmat(vectors, matrices):
    """The product of each transposed vector with its matrix."""
    return (vectors[:, None, :] @ matrices)[:, 0]


def expand(problem: Problem, xs, us, gaps) -> tuple[Expansion, ConstraintComponents]:
    """The Gauss-Newton expansion of the costs about a trajectory, whose values are those of the costs, and the
    constraints with their derivatives. The displacements after the steps are about the states moved by the gaps."""
    dynamics = problem.dynamics
    after = jax.vmap(dynamics.integrate)(xs[1:], gaps[1:])
    solve = functools.partial(dynamics.solution_at, derivatives=True)
    solutions = jax.vmap(solve)(xs[:-1], us, problem.stages)

    def linearize(solution, *stage):
        return problem.with_solution(solution).dynamics.linearize(*stage)

    A, B = problem.over_stages(linearize, one_by_one=True)(solutions, xs[:-1], us, problem.stages, after)
    stage, terminal, rows = expand_terms(problem, xs, us, solutions)
    return Expansion(A, B, gaps, stage, terminal, start_unknowns(problem)), rows


def start_unknowns(problem: Problem) -> StartUnknowns | None:
    """The unknowns of the initial state, without a curvature of their own."""
    directions = problem.start_directions
    if directions is None:
        return None
    directions = jnp.asarray(directions, problem.dtype)
    return StartUnknowns(directions, jnp.zeros_like(directions[0]))


def expand_terms(problem: Problem, xs, us, solutions: Any = None) -> tuple[Quadratic, Quadratic, ConstraintComponents]:
    """The Gauss-Newton expansions of the costs of stages and of the end, and the constraints. `solutions` are those of
    `AbstractDynamics.solution_at` for the stages."""
    terms = (*problem.stage_costs, *problem.stage_constraints)
    ends = (*problem.terminal_costs, *problem.terminal_constraints)
    of_stages, of_end = _shared_linearizations(problem, terms, ends, xs)

    def expand_stage(solution, *stage):
        return _expand_terms_at(problem.with_solution(solution), terms, *stage)

    def expand_end(linears, x):
        return _expand_terms_at(problem, ends, linears, x, None, problem.horizon)

    stage, rows = problem.over_stages(expand_stage)(solutions, of_stages, xs[:-1], us, problem.stages)
    terminal, last = problem.stage_function(expand_end)(of_end, xs[-1])
    value, lower, upper = map(join_rows, rows[:3], last[:3])
    by_x, by_u = rows[3:]
    return stage, terminal, ConstraintComponents(value, lower, upper, by_x, by_u, last[3])


def _expand_terms_at(problem: Problem, terms, linears, x, u, k):
    """The expansion of the costs, and the constraints' residuals, bounds and derivatives by the state and the control;
    `linears` has known linearized residuals, or None."""
    dynamics, nu = problem.dynamics, 0 if u is None else problem.dynamics.nu
    total, parts = Quadratic.zero(dynamics.ndx, nu, problem.dtype), []
    for term, linear in zip(terms, linears, strict=True):
        term = term_at_stage(term, k)
        if not isinstance(term, Constraint):
            added = term.gauss_newton(dynamics, x, u, k) if linear is None else term.expand(linear, dynamics, u)
            total = total + added
            continue
        r, by_x, by_u = term.residual.linearize(dynamics, x, u, k) if linear is None else linear
        by_x = jnp.zeros((len(r), dynamics.ndx), r.dtype) if by_x is None else by_x
        by_u = jnp.zeros((len(r), nu), r.dtype) if by_u is None else by_u
        low, high = term.bounds(r, None if u is None else k, problem.free_x0 is not None)
        # Components without bounds, as those of the state at stage 0, hold nothing, whatever their derivatives are.
        has = (jnp.isfinite(low) | jnp.isfinite(high))[:, None]
        parts.append((r, low, high, jnp.where(has, by_x, 0.0), jnp.where(has, by_u, 0.0)))
    empty = [jnp.zeros(shape, problem.dtype) for shape in (0, 0, 0, (0, dynamics.ndx), (0, nu))]
    r, low, high, by_x, by_u = map(jnp.concatenate, zip(*(parts or [empty]), strict=True))
    return total, (r, low, high, by_x, by_u)


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
    # Arguments of residuals may be plain numbers.
    return jax.tree.map(jnp.asarray, term.residual) if isinstance(term, ResidualCost | Constraint) else None


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


def lagrangian_curvatures(problem: Problem, xs, us, after, costates, penalty: Callable, *rows) -> tuple[Any, Array]:
    """The second derivatives of the Lagrangian: the blocks `xx`, `ux`, `uu` of the stages, and `xx` of the end.

    The costates multiply what displaces steps from `after`. Constraints add `penalty(r, lower, upper, *rows)`, with
    those entries of `rows` that belong to the residuals `r`."""
    dynamics = problem.dynamics
    n, m = dynamics.ndx, dynamics.nu
    stage_rows, terminal_rows = zip(*map(problem.split_rows, rows), strict=True)

    def curvatures(lagrangian, x, u):
        slope = jax.grad(function_of_displacement(lagrangian, dynamics, x, u))
        zero = jnp.zeros(n + (0 if u is None else m), x.dtype)
        # XLA's program for one column runs faster than that for all.
        column = problem.stage_function(lambda d: jax.jvp(slope, (zero,), (d,))[1], one_by_one=True)
        return hessian_blocks(jax.vmap(column)(jnp.eye(len(zero), dtype=x.dtype)), n)

    def of_stage(x, u, k, after, costate, rows):
        def lagrangian(x, u):
            step = dynamics.difference(after, dynamics.step(x, u, k))
            return problem.stage_cost(x, u, k) + penalty(*problem.stage_constraint(x, u, k), *rows) + costate @ step

        return curvatures(lagrangian, x, u)

    def of_end(x):
        def lagrangian(x, _):
            return problem.terminal_cost(x) + penalty(*problem.terminal_constraint(x), *terminal_rows)

        return curvatures(lagrangian, x, None)[0]

    stages = xs[:-1], us, problem.stages, after, costates[1:], stage_rows
    of_stages = problem.over_stages(of_stage, one_by_one=True)
    return of_stages(*stages), problem.stage_function(of_end)(xs[-1])


def second_order_costs(problem: Problem, xs, us, e: Expansion, costates, multipliers) -> tuple[Quadratic, Quadratic]:
    """The costs of stages and of the end with all second derivatives of the Lagrangian: costates multiply the steps,
    and `multipliers` `[rows]` the constraints."""

    def term(r, lower, upper, multiplier):
        return multiplier @ r

    after = lax.stop_gradient(jax.vmap(problem.dynamics.integrate)(xs[1:], e.gaps[1:]))
    (xx, ux, uu), end_xx = lagrangian_curvatures(problem, xs, us, after, costates, term, multipliers)
    return e.stage._replace(xx=xx, ux=ux, uu=uu), e.terminal._replace(xx=end_xx)


class Stationarity(NamedTuple):
    """The derivative of a Lagrangian by the controls, and its size."""

    slopes: Float[Array, "horizon nu"]
    size: Float[Array, "nu"]
    """Largest sum of the absolute values of the terms of a derivative, for each control."""
    start: Any = None
    """The `Stationarity` of the unknowns of the initial state, with slopes `[1, unknowns]`; None without them."""

    @staticmethod
    def of(e: Expansion, x_slopes, u_terms, end_slope) -> tuple["Stationarity", Array]:
        """The derivative, and the costates for which the derivative by the states is zero, from slopes by the states
        and the terms of the slope by the controls."""
        toward = costates(e.A, x_slopes, end_slope)
        return Stationarity.at_costates(e, toward, x_slopes, u_terms), toward

    @staticmethod
    def at_costates(e: Expansion, costates, x_slopes, u_terms) -> "Stationarity":
        """The derivative with these costates of the steps."""
        station = Stationarity.of_terms(vecmat(costates[1:], e.B), *u_terms).with_inner(costates[1:], e.B)
        if e.start is None:
            return station
        by_start = e.A[:1] @ e.start.directions
        start = Stationarity.of_terms(x_slopes[:1] @ e.start.directions, vecmat(costates[1:2], by_start))
        start = start.with_inner(costates[1:2], by_start)
        # Terms of all stages add up to the derivative by a parameter: their partial sums are the costates.
        summed = jnp.abs(costates @ e.start.directions).max(axis=0)
        return station._replace(start=start._replace(size=jnp.maximum(start.size, summed)))

    @property
    def sizes(self) -> tuple[Any, Any]:
        """The sizes of the derivatives by the controls and by the unknowns of the initial state."""
        return self.size, None if self.start is None else self.start.size

    @staticmethod
    def of_terms(*terms) -> "Stationarity":
        """The sum of terms, each with a leading axis of stages."""
        stacked = jnp.stack(terms)
        return Stationarity(stacked.sum(axis=0), jnp.abs(stacked).sum(axis=0).max(axis=0))

    def with_inner(self, costates, B) -> "Stationarity":
        """With the terms of the product of costates and `B`, of which a part counts: a control without a cost has no
        other terms that cancel."""
        inner = vecmat(jnp.abs(costates), jnp.abs(B)).max(axis=0)
        return self._replace(size=jnp.maximum(self.size, INNER * inner))

    def relative_to(self, first_sizes) -> Float[Array, ""]:
        """The largest derivative, relative to the size of its terms. A control whose terms have become tiny against
        those of the guess, the first of `first_sizes` `[nu]`, counts no more than they did; one whose terms are tiny
        against those of other controls, as where symmetry keeps it at zero, has derivatives of rounding only. Unknowns
        of the initial state count in the same way, with the second of `first_sizes`."""
        first_size, of_start = first_sizes
        dtype = self.size.dtype
        rounding, tiny = jnp.finfo(dtype).eps ** 0.5, jnp.finfo(dtype).tiny
        size = jnp.maximum(self.size, rounding * first_size)
        size = jnp.maximum(size, 1e-6 * size.max(initial=0.0) + tiny)
        largest = (jnp.abs(self.slopes) / size).max(initial=0.0)
        return largest if self.start is None else jnp.maximum(largest, self.start.relative_to((of_start, None)))
