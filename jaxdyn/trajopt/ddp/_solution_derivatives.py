"""Derivatives of a solution by the implicit function theorem.

At a solution the gradient of the Lagrangian is zero, `F(w, theta) = 0`, in states, controls, costates and multipliers
`w`; so `dw = -F_w^-1 F_theta dtheta` (Fiacco, Introduction to Sensitivity and Stability Analysis, 1983, section 2.4;
for optimal control Jin et al., Pontryagin Differentiable Programming, NeurIPS 2020). `F_w` is the symmetric matrix of a
linear-quadratic problem with all second derivatives: one Riccati recursion solves it, forwards and transposed.

Components at a bound whose multiplier is not zero stay on it; at a bound with a zero multiplier there is no derivative,
and that of the free component is taken.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import cho_solve

from jaxdyn._types import Array, Float
from jaxdyn.trajopt.ddp._riccati import masked
from jaxdyn.trajopt.problem._costs import expansion
from jaxdyn.trajopt.problem._problem import Problem

REFINEMENTS = 12
"""Multiplier updates in the linear problem. Each reduces the error by about the penalty times the curvature that the
constraints meet."""


class Point(NamedTuple):
    """Displacements of the states and controls, costates, and multipliers of the constraints."""

    dxs: Float[Array, "stages ndx"]
    dus: Float[Array, "horizon nu"]
    costates: Float[Array, "stages ndx"]
    stage: Float[Array, "horizon m"]
    terminal: Float[Array, "m"]


class Active(NamedTuple):
    """Which controls are free and which stand at a bound, and which constraints hold with equality; 1 or 0."""

    free: Float[Array, "horizon nu"]
    low: Float[Array, "horizon nu"]
    high: Float[Array, "horizon nu"]
    stage: Float[Array, "horizon m"]
    terminal: Float[Array, "m"]


class Optimum(NamedTuple):
    """A solution: trajectory, multipliers of the constraints, and the active set."""

    xs: Float[Array, "stages nx"]
    us: Float[Array, "horizon nu"]
    stage: Float[Array, "horizon m"]
    terminal: Float[Array, "m"]


def _bound(r, low, high, multiplier):
    """The bound that holds: the upper one for a positive multiplier. For equalities they are the same."""
    return jnp.where(multiplier > 0, high, low)


def _violated(r, low, high, multiplier, active):
    """`r` less its bound where the constraint is active, else zero; infinite bounds never enter."""
    bound = jnp.where(active > 0, _bound(r, low, high, multiplier), 0)
    return jnp.where(active > 0, r - bound, 0)


def _stage_lagrangian(problem: Problem):
    """Of one stage: the cost, the constraints, and the step with the costate of where it leads to."""

    def function(x, u, k, reached, costate, multiplier, sign, active_stage):
        value = problem.stage_cost(x, u, k)
        if problem.stage_constraints:
            value = value + multiplier @ _violated(*problem.stage_constraint(x, u, k), sign, active_stage)
        step = problem.dynamics.difference(reached, problem.step(x, u, k))
        return value + costate @ step

    return function


def active_set(problem: Problem, at: Optimum, slope) -> Active:
    """From the multipliers, and from the derivative `slope` `[horizon, nu]` of the Lagrangian by the controls."""
    low, high = problem.control_box
    dtype = at.us.dtype
    at_low = (at.us <= low) & (slope > 0)
    at_high = (at.us >= high) & (slope < 0)
    stage_bounds = jax.vmap(problem.stage_constraint)(at.xs[:-1], at.us, problem.stages)[1:]
    terminal_bounds = problem.terminal_constraint(at.xs[-1])[1:]
    stage = (at.stage != 0) | (stage_bounds[0] == stage_bounds[1])
    terminal = (at.terminal != 0) | (terminal_bounds[0] == terminal_bounds[1])
    free = ~(at_low | at_high)
    return Active(*(a.astype(dtype) for a in (free, at_low, at_high, stage, terminal)))


def lagrangian(problem: Problem, at: Optimum, active: Active, w: Point) -> Float[Array, ""]:
    """The Lagrangian at the displacements and multipliers `w`.

    Controls at a bound are that bound, so that they follow it; what is not active has a unit matrix, so that its
    displacement is zero.
    """
    dynamics = problem.dynamics
    low, high = problem.control_box
    bound = jnp.where(active.low > 0, low, jnp.where(active.high > 0, high, 0))
    us = jnp.where(active.free > 0, at.us + w.dus, bound)
    xs = jax.vmap(dynamics.integrate)(at.xs, w.dxs)
    of_stage = _stage_lagrangian(problem)
    total = jax.vmap(of_stage)(
        xs[:-1], us, problem.stages, xs[1:], w.costates[1:], w.stage, at.stage, active.stage
    ).sum()
    total = total + problem.terminal_cost(xs[-1])
    total = total + w.costates[0] @ dynamics.difference(xs[0], problem.x0.astype(xs.dtype))
    total = total + w.terminal @ _violated(*problem.terminal_constraint(xs[-1]), at.terminal, active.terminal)
    idle = ((1 - active.free) * w.dus**2).sum() + ((1 - active.stage) * (w.stage - at.stage) ** 2).sum()
    return total + 0.5 * (idle + ((1 - active.terminal) * (w.terminal - at.terminal) ** 2).sum())


class _System(NamedTuple):
    """The matrices of the linear-quadratic problem, and the factors of its Riccati recursion."""

    A: Array
    B: Array
    G: Array
    H: Array
    D: Array
    """`G`, `H`: derivatives of the active stage constraints by states and controls; `D`: of those at the end."""
    K: Array
    factor: Array
    P: Array
    weight: Array


def _system(problem: Problem, at: Optimum, active: Active, A, B, costates) -> _System:
    dynamics, dtype = problem.dynamics, problem.dtype
    n = dynamics.ndx
    B = B * active.free[:, None, :]
    of_stage = _stage_lagrangian(problem)

    def curvature(x, u, *rest):
        return expansion(lambda x, u: of_stage(x, u, *rest), dynamics, x, u)

    rest = problem.stages, at.xs[1:], costates[1:], at.stage, at.stage, active.stage
    stage = jax.vmap(curvature)(at.xs[:-1], at.us, *rest)

    def of_end(x, _):
        violated = _violated(*problem.terminal_constraint(x), at.terminal, active.terminal)
        return problem.terminal_cost(x) + at.terminal @ violated

    end = expansion(of_end, dynamics, at.xs[-1], None)

    def slopes(x, u, k, mask):
        def r(dx, du):
            return mask * problem.stage_constraint(dynamics.integrate(x, dx), u + du, k)[0]

        return jax.jacfwd(r, (0, 1))(jnp.zeros(n, dtype), jnp.zeros_like(u))

    G, H = jax.vmap(slopes)(at.xs[:-1], at.us, problem.stages, active.stage)
    H = H * active.free[:, None, :]

    def of_terminal(dx):
        return active.terminal * problem.terminal_constraint(dynamics.integrate(at.xs[-1], dx))[0]

    D = jax.jacfwd(of_terminal)(jnp.zeros(n, dtype))
    # Heavy against the cost's own curvatures, and far from the largest number whose last digit still counts.
    scale = 1 + jnp.abs(end.xx).max() + jnp.abs(stage.xx).max() + jnp.abs(stage.uu).max()
    weight = scale * jnp.finfo(dtype).eps ** -0.3
    xx = stage.xx + weight * jnp.swapaxes(G, 1, 2) @ G
    ux = (stage.ux * active.free[..., None]) + weight * jnp.swapaxes(H, 1, 2) @ G
    uu = jax.vmap(masked)(stage.uu, active.free) + weight * jnp.swapaxes(H, 1, 2) @ H

    def one(P, stage):
        A, B, xx, ux, uu = stage
        PA = P @ A
        factor = jnp.linalg.cholesky(uu + B.T @ P @ B)
        Qux = ux + B.T @ PA
        K = -cho_solve((factor, True), Qux)
        P = xx + A.T @ PA + Qux.T @ K
        P = 0.5 * (P + P.T)
        return P, (K, factor, P)

    last = end.xx + weight * D.T @ D
    _, (K, factor, P) = lax.scan(one, last, (A, B, xx, ux, uu), reverse=True)
    return _System(A, B, G, H, D, K, factor, jnp.concatenate([P, last[None]]), weight)


def _solve(system: _System, active: Active, b: Point) -> Point:
    """The `w` for which the Lagrangian's second derivative times `w` is `b`."""
    A, B, G, H, D, K, factor, P, weight = system
    offsets = -b.costates
    of_idle = (1 - active.free) * b.dus
    b_u = active.free * b.dus
    b_stage, b_terminal = active.stage * b.stage, active.terminal * b.terminal

    def sweep(stage, terminal):
        def back(p, at):
            A, B, K, factor, P, offset, b_x, b_u = at
            p = p + P @ offset
            q_u = B.T @ p - b_u
            k = -cho_solve((factor, True), q_u)
            return A.T @ p - b_x + K.T @ q_u, (k, p)

        def forth(dx, at):
            A, B, K, k, offset = at
            du = K @ dx + k
            return A @ dx + B @ du + offset, (dx, du)

        toward = stage - weight * b_stage
        b_x = b.dxs[:-1] - (toward[:, None, :] @ G)[:, 0]
        pulled = b_u - (toward[:, None, :] @ H)[:, 0]
        p = D.T @ (terminal - weight * b_terminal) - b.dxs[-1]
        p0, (k, ps) = lax.scan(back, p, (A, B, K, factor, P[1:], offsets[1:], b_x, pulled), reverse=True)
        last, (dxs, dus) = lax.scan(forth, offsets[0], (A, B, K, k, offsets[1:]))
        dxs = jnp.concatenate([dxs, last[None]])
        # The derivative of the cost to go: the value's slope, with the offset before it taken out.
        slopes = jnp.concatenate([p0[None], ps - (P[1:] @ offsets[1:][..., None])[..., 0]])
        return dxs, dus, slopes + (P @ dxs[..., None])[..., 0]

    def refine(multipliers, _):
        stage, terminal = multipliers
        dxs, dus, _ = sweep(stage, terminal)
        r_stage = (G @ dxs[:-1, :, None] + H @ dus[..., None])[..., 0]
        stage = stage + weight * (r_stage - b_stage)
        return (stage, terminal + weight * (D @ dxs[-1] - b_terminal)), None

    stage, terminal = jnp.zeros_like(b.stage), jnp.zeros_like(b.terminal)
    if stage.size + terminal.size:
        (stage, terminal), _ = lax.scan(refine, (stage, terminal), length=REFINEMENTS)
    dxs, dus, costates = sweep(stage, terminal)
    idle_stage, idle_terminal = (1 - active.stage) * b.stage, (1 - active.terminal) * b.terminal
    return Point(dxs, dus + of_idle, costates, stage + idle_stage, terminal + idle_terminal)


def optimum_tangent(problem: Problem, tangent: Problem, at: Optimum) -> tuple[Optimum, Array]:
    """How a solution moves with the problem, along `tangent`, which has None where the problem stays, and how its
    costates do."""
    dynamics = problem.dynamics
    A, B = jax.vmap(dynamics.linearize)(at.xs[:-1], at.us, problem.stages, at.xs[1:])
    w, slope = _multipliers(problem, at, A, B)
    active = jax.tree.map(lax.stop_gradient, active_set(problem, at, slope))

    def gradient(problem: Problem, w: Point) -> Point:
        return jax.grad(lambda w: lagrangian(problem, at, active, w))(w)

    moved = eqx.filter_jvp(lambda p: gradient(p, w), (problem,), (tangent,))[1]
    # What does not move comes as None.
    moved = Point(*(jnp.zeros_like(x) if dx is None else dx for x, dx in zip(w, moved, strict=True)))
    system = jax.tree.map(lax.stop_gradient, _system(problem, at, active, A, B, w.costates))

    # One vector: the transpose wants all parts of a right-hand side to move, or none.
    flat, whole = ravel_pytree(jax.tree.map(jnp.negative, moved))

    def matrix(v):
        return jax.jvp(lambda w: gradient(problem, w), (w,), (whole(v),))[1]

    def solve(_, b):
        # Refined: by the Riccati recursion's round-off; and on groups a difference of displaced states has mixed second
        # derivatives, which are not in the recursion, and which two corrections account for.
        def correct(v, _):
            rest = jax.tree.map(jnp.subtract, whole(b), matrix(v))
            return v + ravel_pytree(_solve(system, active, rest))[0], None

        return lax.scan(correct, jnp.zeros_like(b), length=2 if dynamics.euclidean else 4)[0]

    dw = whole(lax.custom_linear_solve(lambda v: ravel_pytree(matrix(v))[0], flat, solve, symmetric=True))

    def of_bound(bound):
        return jnp.zeros_like(at.us) if bound is None else jnp.broadcast_to(bound, at.us.shape)

    at_bound = active.low * of_bound(tangent.control_lower) + active.high * of_bound(tangent.control_upper)
    dus = active.free * dw.dus + at_bound

    def moves(x, dx):
        return jax.jvp(lambda d: dynamics.integrate(x, d), (jnp.zeros_like(dx),), (dx,))[1]

    return Optimum(jax.vmap(moves)(at.xs, dw.dxs), dus, dw.stage, dw.terminal), dw.costates


def _multipliers(problem: Problem, at: Optimum, A, B) -> tuple[Point, Array]:
    """No displacement, with the costates of the trajectory; and the Lagrangian's derivative by the controls."""
    dynamics = problem.dynamics

    def of_stage(dx, u, x, k, multiplier):
        x = dynamics.integrate(x, dx)
        value = problem.stage_cost(x, u, k)
        return value + multiplier @ problem.stage_constraint(x, u, k)[0]

    def of_end(dx):
        x = dynamics.integrate(at.xs[-1], dx)
        return problem.terminal_cost(x) + at.terminal @ problem.terminal_constraint(x)[0]

    zeros = jnp.zeros((problem.horizon + 1, dynamics.ndx), at.xs.dtype)
    rest = at.xs[:-1], problem.stages, at.stage
    by_x, by_u = jax.vmap(jax.grad(of_stage, (0, 1)))(zeros[:-1], at.us, *rest)
    last = jax.grad(of_end)(zeros[-1])

    def back(after, stage):
        by_x, A = stage
        now = by_x + A.T @ after
        return now, now

    _, before = lax.scan(back, last, (by_x, A), reverse=True)
    costates = jnp.concatenate([before, last[None]])
    slope = by_u + (costates[1:, None, :] @ B)[:, 0]
    return Point(zeros, jnp.zeros_like(at.us), costates, at.stage, at.terminal), slope
