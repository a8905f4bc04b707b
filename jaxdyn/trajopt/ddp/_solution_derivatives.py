"""Derivatives of a solution by the implicit function theorem.

At a solution the gradient of the Lagrangian is zero, `F(w, theta) = 0`, in states, controls, costates and multipliers
`w`; so `dw = -F_w^-1 F_theta dtheta` (Fiacco, Introduction to Sensitivity and Stability Analysis, 1983, section 2.4;
for optimal control Jin et al., Pontryagin Differentiable Programming, NeurIPS 2020). `F_w` is the symmetric matrix of a
linear-quadratic problem with all second derivatives: one Riccati recursion solves it, forwards and transposed.

Components at a bound whose multiplier is not zero stay on it; at a bound with a zero multiplier the derivative does not
exist, and the derivative of the free component is returned.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import cho_solve

from jaxdyn._types import Array, Float
from jaxdyn.trajopt.ddp._expansion import Expansion, lagrangian_curvatures, matvec, start_unknowns, vecmat
from jaxdyn.trajopt.ddp._expansion import costates as costates_along
from jaxdyn.trajopt.ddp._minimality import curvature_terms, start_terms
from jaxdyn.trajopt.ddp._riccati import (
    AffinePolicy,
    HeldControls,
    backward,
    free_block,
    linear_roll_out,
    start_curvature,
)
from jaxdyn.trajopt.problem import Problem, Quadratic, join_rows

REFINEMENTS = 12
"""Number of multiplier updates in the linear problem. Each reduces the error by about the penalty times the curvature
that the constraints meet."""


class PrimalDualPoint(NamedTuple):
    """Displacements of the states and controls, costates, and multipliers of the constraints."""

    dxs: Float[Array, "stages ndx"]
    dus: Float[Array, "horizon nu"]
    costates: Float[Array, "stages ndx"]
    multipliers: Float[Array, "rows"]


class ActiveBounds(NamedTuple):
    """The controls that are free or stand at a bound, and the constraints that hold with equality; 1 or 0."""

    free: Float[Array, "horizon nu"]
    low: Float[Array, "horizon nu"]
    high: Float[Array, "horizon nu"]
    constraints: Float[Array, "rows"]


class Optimum(NamedTuple):
    """The trajectory of a solution, and the multipliers of its constraints."""

    xs: Float[Array, "stages nx"]
    us: Float[Array, "horizon nu"]
    multipliers: Float[Array, "rows"]


def _distance_from_bound(r, low, high, multiplier, active):
    """`r` minus its bound where the constraint is active, else zero; infinite bounds never enter."""
    # The bound is the upper one for a positive multiplier; for equalities they are the same.
    bound = jnp.where(active > 0, jnp.where(multiplier > 0, high, low), 0)
    return jnp.where(active > 0, r - bound, 0)


def _active_set(problem: Problem, optimum: Optimum, slope) -> ActiveBounds:
    """The active set, from the multipliers and the derivative `slope` `[horizon, nu]` of the Lagrangian by `us`."""
    low, high = problem.control_box
    # A fixed control is at both bounds, and the multiplier of either may be zero.
    at_low = (optimum.us <= low) & ((slope > 0) | ((slope == 0) & (low == high)))
    at_high = (optimum.us >= high) & (slope < 0)
    _, lower, upper = problem.constraints(optimum.xs, optimum.us)
    constraints = (optimum.multipliers != 0) | (lower == upper)
    return ActiveBounds(*(a.astype(optimum.us.dtype) for a in (~(at_low | at_high), at_low, at_high, constraints)))


def _lagrangian(problem: Problem, optimum: Optimum, active: ActiveBounds, w: PrimalDualPoint) -> Float[Array, ""]:
    """The Lagrangian at the displacements and multipliers `w`. Controls at a bound are replaced by that bound, so they
    follow it; a multiplier that is not active has a unit matrix, so it does not move."""
    dynamics = problem.dynamics
    low, high = problem.control_box
    bound = jnp.where(active.low > 0, low, jnp.where(active.high > 0, high, 0))
    us = jnp.where(active.free > 0, optimum.us + w.dus, bound)
    xs = jax.vmap(dynamics.integrate)(optimum.xs, w.dxs)
    after = jax.vmap(problem.step)(xs[:-1], us, problem.stages)
    total = problem.total_cost(xs, us) + (w.costates * problem.gaps_before(xs, after)).sum()
    if problem.free_x0 is not None:
        # The gap of the first state has no part along the unknowns, so this part of its multiplier does not move.
        total = total + 0.5 * (problem.free_part(w.costates[0]) ** 2).sum()
    r = _distance_from_bound(*problem.constraints(xs, us), optimum.multipliers, active.constraints)
    idle = ((1 - active.constraints) * (w.multipliers - optimum.multipliers) ** 2).sum()
    return total + w.multipliers @ r + 0.5 * (idle + ((1 - active.free) * w.dus**2).sum())


class KKTSystem(NamedTuple):
    """The linear-quadratic problem with heavily weighted constraints, and the factors of its Riccati recursion."""

    e: Expansion
    policy: AffinePolicy
    root: Array
    """Lower Cholesky factors of the curvatures in the free controls."""
    of_start: Array | None
    """The factor of the curvature by the unknowns of the initial state; None where there are none."""
    G: Array
    H: Array
    D: Array
    """`G`, `H`: derivatives of the active stage constraints by states and controls; `D`: of the terminal ones."""
    weight: Array
    unique: Array
    """Whether the curvatures in the free controls are positive, so that there is no other solution nearby."""


def _kkt_system(problem: Problem, optimum: Optimum, active: ActiveBounds, A, B, costates) -> KKTSystem:
    dynamics, dtype = problem.dynamics, problem.dtype
    xs, us, multipliers = optimum
    stage_holds, terminal_holds = problem.split_rows(active.constraints)

    def constraint_term(r, low, high, multiplier, active):
        return multiplier @ _distance_from_bound(r, low, high, multiplier, active)

    rows = multipliers, active.constraints
    (xx, ux, uu), end_xx = lagrangian_curvatures(problem, xs, us, xs[1:], costates, constraint_term, *rows)

    def stage_residuals(dx, du, x, u, k, holds):
        return holds * problem.stage_constraint(dynamics.integrate(x, dx), u + du, k)[0]

    def terminal_residuals(dx):
        return terminal_holds * problem.terminal_constraint(dynamics.integrate(xs[-1], dx))[0]

    zeros = jnp.zeros_like(costates)
    stages = zeros[1:], jnp.zeros_like(us), xs[:-1], us, problem.stages, stage_holds
    G, H = jax.vmap(jax.jacfwd(stage_residuals, (0, 1)))(*stages)
    D = jax.jacfwd(terminal_residuals)(zeros[0])
    # Heavy against the cost's own curvatures, and far from the largest number whose last digit still counts.
    scale = 1 + jnp.abs(end_xx).max() + jnp.abs(xx).max() + jnp.abs(uu).max()
    weight = scale * jnp.finfo(dtype).eps ** -0.3
    Gt, Ht = (weight * jnp.swapaxes(x, 1, 2) for x in (G, H))
    # The slopes come with each right-hand side.
    value = jnp.zeros((), dtype)
    stage = Quadratic(value, zeros[1:], jnp.zeros_like(us), xx + Gt @ G, ux + Ht @ G, uu + Ht @ H)
    end = Quadratic.zero(dynamics.ndx, 0, dtype)._replace(xx=end_xx + weight * D.T @ D)
    start = start_unknowns(problem)
    e = Expansion(A, B, zeros, stage, end, start)
    policy = backward(e, 0.0, HeldControls(active.free, jnp.zeros_like(us)))
    root = jnp.linalg.cholesky(jax.vmap(free_block)(policy.Quu, active.free))
    # The square of a factor's diagonal is what remains of a curvature; less than rounding of its terms is nothing.
    pivots = jnp.diagonal(root, axis1=1, axis2=2) ** 2
    unique = policy.ok & (pivots > 1e3 * jnp.finfo(dtype).eps * active.free * curvature_terms(policy, B)).all()
    of_start = None
    if start is not None:
        of_start = jnp.linalg.cholesky(start_curvature(policy, start))
        least = 1e3 * jnp.finfo(dtype).eps * start_terms(policy, A, start)
        unique = unique & (jnp.diagonal(of_start) ** 2 > least).all()
    return KKTSystem(e, policy, root, of_start, G, H, D, weight, unique)


def _solve_kkt(problem: Problem, system: KKTSystem, active: ActiveBounds, b: PrimalDualPoint) -> PrimalDualPoint:
    """The `w` for which the Lagrangian's second derivative times `w` is `b`."""
    e, policy, root, of_start, G, H, D, weight, _ = system
    b_stage, b_terminal = problem.split_rows(active.constraints * b.multipliers)
    closed_loop, offsets, along_start = e.A + e.B @ policy.K, -b.costates, None
    if e.start is not None:
        along_start = problem.free_part(b.costates[0])
        offsets = offsets.at[0].add(along_start)
    shift = matvec(policy.Vxx, offsets)

    def sweep(stage, terminal):
        toward = stage - weight * b_stage
        b_x = b.dxs[:-1] - vecmat(toward, G)
        b_u = active.free * (b.dus - vecmat(toward, H))
        # The slopes of the value function, before the offset of the state.
        slopes = vecmat(shift[1:], closed_loop) - b_x - vecmat(b_u, policy.K)
        p = costates_along(closed_loop, slopes, D.T @ (terminal - weight * b_terminal) - b.dxs[-1])
        q_u = active.free * vecmat(p[1:] + shift[1:], e.B) - b_u
        k = -jax.vmap(lambda root, q: cho_solve((root, True), q))(root, q_u)
        step = None
        if e.start is not None and of_start is not None:
            slopes = (p[0] + shift[0]) @ e.start.directions
            step = -e.start.directions @ cho_solve((of_start, True), slopes)
        dxs, dus = linear_roll_out(e._replace(gaps=offsets), policy._replace(k=k, start=step))
        costates = p + matvec(policy.Vxx, dxs)
        return dxs, dus, costates if along_start is None else costates.at[0].add(along_start)

    def refine(multipliers, _):
        stage, terminal = multipliers
        dxs, dus, _ = sweep(stage, terminal)
        stage = stage + weight * (matvec(G, dxs[:-1]) + matvec(H, dus) - b_stage)
        return (stage, terminal + weight * (D @ dxs[-1] - b_terminal)), None

    multipliers = jnp.zeros_like(b_stage), jnp.zeros_like(b_terminal)
    if b.multipliers.size:
        multipliers, _ = lax.scan(refine, multipliers, length=REFINEMENTS)
    dxs, dus, costates = sweep(*multipliers)
    idle = (1 - active.constraints) * b.multipliers
    return PrimalDualPoint(dxs, dus + (1 - active.free) * b.dus, costates, join_rows(*multipliers) + idle)


def optimum_tangent(problem: Problem, tangent: Problem, optimum: Optimum) -> tuple[Optimum, Array, Array]:
    """The tangents of a solution and of its costates as the problem changes along `tangent`, whose leaves are None
    where the problem does not change; and whether the solution is unique, without which it has no derivatives."""
    dynamics = problem.dynamics
    A, B = jax.vmap(dynamics.linearize)(optimum.xs[:-1], optimum.us, problem.stages, optimum.xs[1:])
    w, slope = _undisplaced_point(problem, optimum, A, B)
    active = jax.tree.map(lax.stop_gradient, _active_set(problem, optimum, slope))

    def gradient(problem: Problem, w: PrimalDualPoint) -> PrimalDualPoint:
        return jax.grad(lambda w: _lagrangian(problem, optimum, active, w))(w)

    change = eqx.filter_jvp(lambda p: gradient(p, w), (problem,), (tangent,))[1]
    # A part that does not change is None.
    change = PrimalDualPoint(*(jnp.zeros_like(x) if dx is None else dx for x, dx in zip(w, change, strict=True)))
    # The inputs are constants, because the Riccati recursion has no reverse mode.
    inputs = problem, optimum, active, A, B, w.costates
    system = _kkt_system(*jax.tree.map(lambda x: lax.stop_gradient(x) if eqx.is_array(x) else x, inputs))

    # One vector: the transpose needs tangents for all parts of a right-hand side, or for none.
    flat, unravel = ravel_pytree(jax.tree.map(jnp.negative, change))

    def matrix(v):
        return jax.jvp(lambda w: gradient(problem, w), (w,), (unravel(v),))[1]

    def solve(_, b):
        # Corrections undo the recursion's round-off. On groups, a difference of displaced states has mixed second
        # derivatives, too, which are not in the recursion: two more corrections account for them.
        def correct(v, _):
            residual = jax.tree.map(jnp.subtract, unravel(b), matrix(v))
            return v + ravel_pytree(_solve_kkt(problem, system, active, residual))[0], None

        return lax.scan(correct, jnp.zeros_like(b), length=2 if dynamics.euclidean else 4)[0]

    dw = unravel(lax.custom_linear_solve(lambda v: ravel_pytree(matrix(v))[0], flat, solve, symmetric=True))

    def bound_tangent(bound):
        return jnp.zeros_like(optimum.us) if bound is None else jnp.broadcast_to(bound, optimum.us.shape)

    at_bound = active.low * bound_tangent(tangent.control_lower) + active.high * bound_tangent(tangent.control_upper)
    dus = active.free * dw.dus + at_bound

    def state_tangent(x, dx):
        return jax.jvp(lambda d: dynamics.integrate(x, d), (jnp.zeros_like(dx),), (dx,))[1]

    return Optimum(jax.vmap(state_tangent)(optimum.xs, dw.dxs), dus, dw.multipliers), dw.costates, system.unique


def _undisplaced_point(problem: Problem, optimum: Optimum, A, B) -> tuple[PrimalDualPoint, Array]:
    """The point without displacements, with the trajectory's costates; and the Lagrangian's derivative by `us`."""
    dynamics = problem.dynamics

    def without_steps(dxs, us):
        xs = jax.vmap(dynamics.integrate)(optimum.xs, dxs)
        return problem.total_cost(xs, us) + optimum.multipliers @ problem.constraints(xs, us)[0]

    zeros = jnp.zeros((problem.horizon + 1, dynamics.ndx), optimum.xs.dtype)
    by_x, by_u = jax.grad(without_steps, (0, 1))(zeros, optimum.us)
    costates = costates_along(A, by_x[:-1], by_x[-1])
    point = PrimalDualPoint(zeros, jnp.zeros_like(optimum.us), costates, optimum.multipliers)
    return point, by_u + vecmat(costates[1:], B)
