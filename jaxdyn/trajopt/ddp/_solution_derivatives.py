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
from jaxdyn.trajopt.ddp._expansion import costates as costates_along
from jaxdyn.trajopt.ddp._riccati import free_block
from jaxdyn.trajopt.problem import Problem, join_rows, quadratic_expansion

REFINEMENTS = 12
"""Number of multiplier updates in the linear problem. Each reduces the error by about the penalty times the curvature
that the constraints meet."""


class Point(NamedTuple):
    """Displacements of the states and controls, costates, and multipliers of the constraints."""

    dxs: Float[Array, "stages ndx"]
    dus: Float[Array, "horizon nu"]
    costates: Float[Array, "stages ndx"]
    multipliers: Float[Array, "rows"]


class ActiveSet(NamedTuple):
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


def _active_set(problem: Problem, optimum: Optimum, slope) -> ActiveSet:
    """The active set, from the multipliers and the derivative `slope` `[horizon, nu]` of the Lagrangian by `us`."""
    low, high = problem.control_box
    at_low = (optimum.us <= low) & (slope > 0)
    at_high = (optimum.us >= high) & (slope < 0)
    _, lower, upper = problem.constraints(optimum.xs, optimum.us)
    constraints = (optimum.multipliers != 0) | (lower == upper)
    return ActiveSet(*(a.astype(optimum.us.dtype) for a in (~(at_low | at_high), at_low, at_high, constraints)))


def _lagrangian(problem: Problem, optimum: Optimum, active: ActiveSet, w: Point) -> Float[Array, ""]:
    """The Lagrangian at the displacements and multipliers `w`. Controls at a bound are replaced by that bound, so they
    follow it; a multiplier that is not active has a unit matrix, so it does not move."""
    dynamics = problem.dynamics
    low, high = problem.control_box
    bound = jnp.where(active.low > 0, low, jnp.where(active.high > 0, high, 0))
    us = jnp.where(active.free > 0, optimum.us + w.dus, bound)
    xs = jax.vmap(dynamics.integrate)(optimum.xs, w.dxs)
    after = jax.vmap(problem.step)(xs[:-1], us, problem.stages)
    gaps = jax.vmap(dynamics.difference)(xs, jnp.concatenate([problem.x0.astype(xs.dtype)[None], after]))
    total = problem.total_cost(xs, us) + (w.costates * gaps).sum()
    r = _distance_from_bound(*problem.constraints(xs, us), optimum.multipliers, active.constraints)
    idle = ((1 - active.constraints) * (w.multipliers - optimum.multipliers) ** 2).sum()
    return total + w.multipliers @ r + 0.5 * (idle + ((1 - active.free) * w.dus**2).sum())


class KKTSystem(NamedTuple):
    """The matrices of the linear-quadratic problem, and the factors of its Riccati recursion."""

    A: Array
    B: Array
    G: Array
    H: Array
    D: Array
    """`G`, `H`: derivatives of the active stage constraints by states and controls; `D`: of the terminal ones."""
    K: Array
    factor: Array
    P: Array
    weight: Array


def _kkt_system(problem: Problem, optimum: Optimum, active: ActiveSet, A, B, costates) -> KKTSystem:
    dynamics, dtype = problem.dynamics, problem.dtype
    xs, us = optimum.xs, optimum.us
    n = dynamics.ndx
    B = B * active.free[:, None, :]
    multipliers, last_multipliers = problem.split_rows(optimum.multipliers)
    holds, last_holds = problem.split_rows(active.constraints)

    def expand_stage(x, u, k, after, costate, multiplier, holds):
        def lagrangian(x, u):
            r = _distance_from_bound(*problem.stage_constraint(x, u, k), multiplier, holds)
            step = dynamics.difference(after, problem.step(x, u, k))
            return problem.stage_cost(x, u, k) + multiplier @ r + costate @ step

        return quadratic_expansion(lagrangian, dynamics, x, u)

    def terminal_lagrangian(x, _):
        r = _distance_from_bound(*problem.terminal_constraint(x), last_multipliers, last_holds)
        return problem.terminal_cost(x) + last_multipliers @ r

    stage = jax.vmap(expand_stage)(xs[:-1], us, problem.stages, xs[1:], costates[1:], multipliers, holds)
    end = quadratic_expansion(terminal_lagrangian, dynamics, xs[-1], None)

    def constraint_slopes(x, u, k, mask):
        def r(dx, du):
            return mask * problem.stage_constraint(dynamics.integrate(x, dx), u + du, k)[0]

        return jax.jacfwd(r, (0, 1))(jnp.zeros(n, dtype), jnp.zeros_like(u))

    G, H = jax.vmap(constraint_slopes)(xs[:-1], us, problem.stages, holds)
    H = H * active.free[:, None, :]

    def terminal_residuals(dx):
        return last_holds * problem.terminal_constraint(dynamics.integrate(xs[-1], dx))[0]

    D = jax.jacfwd(terminal_residuals)(jnp.zeros(n, dtype))
    # Heavy against the cost's own curvatures, and far from the largest number whose last digit still counts.
    scale = 1 + jnp.abs(end.xx).max() + jnp.abs(stage.xx).max() + jnp.abs(stage.uu).max()
    weight = scale * jnp.finfo(dtype).eps ** -0.3
    xx = stage.xx + weight * jnp.swapaxes(G, 1, 2) @ G
    ux = (stage.ux * active.free[..., None]) + weight * jnp.swapaxes(H, 1, 2) @ G
    uu = jax.vmap(free_block)(stage.uu, active.free) + weight * jnp.swapaxes(H, 1, 2) @ H

    def step(P, stage):
        A, B, xx, ux, uu = stage
        PA = P @ A
        factor = jnp.linalg.cholesky(uu + B.T @ P @ B)
        Qux = ux + B.T @ PA
        K = -cho_solve((factor, True), Qux)
        P = xx + A.T @ PA + Qux.T @ K
        P = 0.5 * (P + P.T)
        return P, (K, factor, P)

    last = end.xx + weight * D.T @ D
    _, (K, factor, P) = lax.scan(step, last, (A, B, xx, ux, uu), reverse=True)
    return KKTSystem(A, B, G, H, D, K, factor, jnp.concatenate([P, last[None]]), weight)


def _solve_kkt(problem: Problem, system: KKTSystem, active: ActiveSet, b: Point) -> Point:
    """The `w` for which the Lagrangian's second derivative times `w` is `b`."""
    A, B, G, H, D, K, factor, P, weight = system
    offsets, b_u = -b.costates, active.free * b.dus
    b_stage, b_terminal = problem.split_rows(active.constraints * b.multipliers)

    def backward_step(p, stage):
        A, B, K, factor, P, offset, b_x, b_u = stage
        p = p + P @ offset
        q_u = B.T @ p - b_u
        k = -cho_solve((factor, True), q_u)
        return A.T @ p - b_x + K.T @ q_u, (k, p)

    def forward_step(dx, stage):
        A, B, K, k, offset = stage
        du = K @ dx + k
        return A @ dx + B @ du + offset, (dx, du)

    def sweep(stage, terminal):
        toward = stage - weight * b_stage
        b_x = b.dxs[:-1] - (toward[:, None, :] @ G)[:, 0]
        pulled = b_u - (toward[:, None, :] @ H)[:, 0]
        p = D.T @ (terminal - weight * b_terminal) - b.dxs[-1]
        stages = A, B, K, factor, P[1:], offsets[1:], b_x, pulled
        p0, (k, ps) = lax.scan(backward_step, p, stages, reverse=True)
        last, (dxs, dus) = lax.scan(forward_step, offsets[0], (A, B, K, k, offsets[1:]))
        dxs = jnp.concatenate([dxs, last[None]])
        # The derivative of the cost to go: the value's slope, without the offset before it.
        slopes = jnp.concatenate([p0[None], ps - (P[1:] @ offsets[1:][..., None])[..., 0]])
        return dxs, dus, slopes + (P @ dxs[..., None])[..., 0]

    def refine(multipliers, _):
        stage, terminal = multipliers
        dxs, dus, _ = sweep(stage, terminal)
        r_stage = (G @ dxs[:-1, :, None] + H @ dus[..., None])[..., 0]
        stage = stage + weight * (r_stage - b_stage)
        return (stage, terminal + weight * (D @ dxs[-1] - b_terminal)), None

    multipliers = jnp.zeros_like(b_stage), jnp.zeros_like(b_terminal)
    if b.multipliers.size:
        multipliers, _ = lax.scan(refine, multipliers, length=REFINEMENTS)
    dxs, dus, costates = sweep(*multipliers)
    idle = (1 - active.constraints) * b.multipliers
    return Point(dxs, dus + (1 - active.free) * b.dus, costates, join_rows(*multipliers) + idle)


def optimum_tangent(problem: Problem, tangent: Problem, optimum: Optimum) -> tuple[Optimum, Array]:
    """The tangents of a solution and of its costates as the problem changes along `tangent`, whose leaves are None
    where the problem does not change."""
    dynamics = problem.dynamics
    A, B = jax.vmap(dynamics.linearize)(optimum.xs[:-1], optimum.us, problem.stages, optimum.xs[1:])
    w, slope = _undisplaced_point(problem, optimum, A, B)
    active = jax.tree.map(lax.stop_gradient, _active_set(problem, optimum, slope))

    def gradient(problem: Problem, w: Point) -> Point:
        return jax.grad(lambda w: _lagrangian(problem, optimum, active, w))(w)

    change = eqx.filter_jvp(lambda p: gradient(p, w), (problem,), (tangent,))[1]
    # A part that does not change is None.
    change = Point(*(jnp.zeros_like(x) if dx is None else dx for x, dx in zip(w, change, strict=True)))
    system = jax.tree.map(lax.stop_gradient, _kkt_system(problem, optimum, active, A, B, w.costates))

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

    return Optimum(jax.vmap(state_tangent)(optimum.xs, dw.dxs), dus, dw.multipliers), dw.costates


def _undisplaced_point(problem: Problem, optimum: Optimum, A, B) -> tuple[Point, Array]:
    """The point without displacements, with the trajectory's costates; and the Lagrangian's derivative by `us`."""
    dynamics = problem.dynamics

    def stage_value(dx, u, x, k, multiplier):
        x = dynamics.integrate(x, dx)
        return problem.stage_cost(x, u, k) + multiplier @ problem.stage_constraint(x, u, k)[0]

    def terminal_value(dx):
        x = dynamics.integrate(optimum.xs[-1], dx)
        return problem.terminal_cost(x) + terminal @ problem.terminal_constraint(x)[0]

    stage, terminal = problem.split_rows(optimum.multipliers)
    zeros = jnp.zeros((problem.horizon + 1, dynamics.ndx), optimum.xs.dtype)
    stages = optimum.xs[:-1], problem.stages, stage
    by_x, by_u = jax.vmap(jax.grad(stage_value, (0, 1)))(zeros[:-1], optimum.us, *stages)
    costates = costates_along(A, by_x, jax.grad(terminal_value)(zeros[-1]))
    slope = by_u + (costates[1:, None, :] @ B)[:, 0]
    return Point(zeros, jnp.zeros_like(optimum.us), costates, optimum.multipliers), slope
