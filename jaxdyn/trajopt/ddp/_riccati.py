"""The backward pass: a Riccati recursion from the last stage to the first, one stage a step of a scan."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import cho_solve, solve_triangular

from jaxdyn._types import Array, Float
from jaxdyn.trajopt.ddp._augmented_lagrangian import Expansion
from jaxdyn.trajopt.ddp._vectorization import problem_by_problem

# Displacements of this length are worth calls of their own in a batch; shorter ones are quicker side by side.
_LARGE = 8


class Policy(NamedTuple):
    """What the backward pass finds: `du = alpha k + K dx`, and the value function of each stage."""

    k: Float[Array, "horizon nu"]
    K: Float[Array, "horizon nu ndx"]
    Vx: Float[Array, "stages ndx"]
    Vxx: Float[Array, "stages ndx ndx"]
    Qu: Float[Array, "horizon nu"]
    Qux: Float[Array, "horizon nu ndx"]
    Quu: Float[Array, "horizon nu nu"]
    slope: Float[Array, ""]
    """The expected decrease is `alpha slope + alpha^2 curvature / 2`, but for what gaps add to it."""
    curvature: Float[Array, ""]
    damped: Float[Array, ""]
    """The least part of a curvature in the free controls that is not regularization."""
    ok: Array
    """Whether every matrix was positive definite."""

    @staticmethod
    def zeros(horizon: int, ndx: int, nu: int, dtype) -> Policy:
        """To begin a loop with; not `ok`."""

        def zeros(*shape: int):
            return jnp.zeros(shape, dtype)

        T, n, m = horizon, ndx, nu
        value = zeros(T + 1, n), zeros(T + 1, n, n)
        of_controls = zeros(T, m), zeros(T, m, n), zeros(T, m, m)
        return Policy(zeros(T, m), zeros(T, m, n), *value, *of_controls, zeros(), zeros(), zeros(), jnp.array(False))


class Held(NamedTuple):
    """Controls that are not free: one where they are, and the step of those that are not (zero for the others)."""

    free: Float[Array, "*horizon nu"]
    step: Float[Array, "*horizon nu"]


class Stage(NamedTuple):
    """Of one stage: what the policy is made from, and the value before the stage's own gap."""

    root: Float[Array, "nu nu"]
    """The lower Cholesky factor of the free controls' curvature."""
    rest: Float[Array, "nu ndx+1"]
    """Its inverse times the slopes of the free controls by the state, and their slope."""
    Vx: Float[Array, "ndx"]
    Vxx: Float[Array, "ndx ndx"]
    Qu: Float[Array, "nu"]
    Qux: Float[Array, "nu ndx"]
    Quu: Float[Array, "nu nu"]


def masked(H, free):
    """`H` with the rows and columns of what is not free those of the identity."""
    both = free[:, None] * free[None, :]
    return H * both + jnp.diag(1 - free)


def _matrices(e: Expansion):
    """Of all stages: `[A, B, gap]`, and the derivatives of the cost `[[xx, ux^T, x], [ux, uu, u]]`."""
    l = e.stage
    above = jnp.concatenate([l.xx, jnp.swapaxes(l.ux, 1, 2), l.x[..., None]], axis=2)
    below = jnp.concatenate([l.ux, l.uu, l.u[..., None]], axis=2)
    return jnp.concatenate([e.A, e.B, e.gaps[1:, :, None]], axis=2), jnp.concatenate([above, below], axis=1)


def stage_of(M, Z, Vx, Vxx, regularization, held: Held | None = None) -> Stage:
    """From `_matrices` and the value after the step, about the next state, a gap away from where the step ends
    (Mastalli et al., Crocoddyl, ICRA 2020, equations 12-16). In few and large products: small ones cost their calls."""
    n = len(Vx)
    to_next = Vxx @ M
    to_next = to_next.at[:, -1].add(Vx)
    Q = Z + M[:, :-1].T @ to_next
    Qx, Qxx, Qu, Qux, Quu = Q[:n, -1], Q[:n, :n], Q[n:, -1], Q[n:, :n], Q[n:, n:-1]
    Quu = 0.5 * (Quu + Quu.T) + regularization * jnp.eye(len(Qu), dtype=Quu.dtype)
    H, slopes = Quu, jnp.concatenate([Qux, Qu[:, None]], axis=1)
    if held is not None:
        H = masked(Quu, held.free)
        slopes = held.free[:, None] * slopes.at[:, -1].add(Quu @ held.step)
        Qx = Qx + Qux.T @ held.step
    root = jnp.linalg.cholesky(H) if len(Qu) > 1 else jnp.sqrt(jnp.where(H > 0, H, jnp.nan))
    rest = solve_triangular(root, slopes, lower=True) if len(Qu) > 1 else slopes / root
    less = rest[:, :n].T @ rest
    Vxx = Qxx - less[:, :n]
    Vxx = 0.5 * (Vxx + Vxx.T) + regularization * jnp.eye(n, dtype=Vxx.dtype)
    return Stage(root, rest, Qx - less[:, n], Vxx, Qu, Qux, Quu)


def backward(e: Expansion, regularization, held: Held | None = None) -> Policy:
    """The Riccati recursion with gaps.

    `regularization` is added to the diagonals of the value function and of the curvature in the controls.
    """
    large = e.A.shape[-1] >= _LARGE
    return (problem_by_problem(_backward) if large else _backward)(e, regularization, held)


def _backward(e: Expansion, regularization, held: Held | None) -> Policy:
    Vxx = e.terminal.xx + regularization * jnp.eye(e.A.shape[-1], dtype=e.A.dtype)

    def one(value, at):
        M, Z, of_stage = at
        stage = stage_of(M, Z, value[0], value[1], regularization, of_stage)
        return (stage.Vx, stage.Vxx), stage

    _, stages = lax.scan(one, (e.terminal.x, Vxx), (*_matrices(e), held), reverse=True)
    return policy_of(e, stages, Vxx, regularization, held)


def policy_of(e: Expansion, s: Stage, last_Vxx, regularization, held: Held | None = None) -> Policy:
    """The policy of all stages."""
    n, m = e.A.shape[-1], e.B.shape[-1]
    both = -(solve_triangular(jnp.swapaxes(s.root, 1, 2), s.rest) if m > 1 else s.rest / s.root)
    k, K = both[:, :, n], both[:, :, :n]
    diagonal = jnp.diagonal(s.Quu, axis1=1, axis2=2)
    undamped = (diagonal - regularization) / diagonal
    if held is not None:
        k = k + held.step
        undamped = jnp.where(held.free > 0, undamped, 1.0)
    Vxx = jnp.concatenate([s.Vxx, last_Vxx[None]])
    shift = (Vxx @ e.gaps[..., None])[..., 0]
    Vx = jnp.concatenate([s.Vx, e.terminal.x[None]]) + shift
    # With gaps the value function has slopes and curvatures of theirs.
    slope = -(s.Qu * k).sum() - (Vx * e.gaps).sum()
    curvature = -(k * (s.Quu @ k[..., None])[..., 0]).sum() + (e.gaps * shift).sum()
    ok = jnp.isfinite(K).all() & jnp.isfinite(k).all() & jnp.isfinite(Vx).all()
    return Policy(k, K, Vx, Vxx, s.Qu, s.Qux, s.Quu, slope, curvature, undamped.min(), ok)


def without_bounds(e: Expansion, regularization) -> Policy:
    """`backward` by an associative scan: in a depth that grows with the logarithm of the horizon.

    Elements are conditional value functions `max_l -l^T C l / 2 + l^T (x_j - A x_i - b) + x_i^T J x_i / 2 - eta^T x_i`
    of two stages `i < j` (Särkkä & García-Fernández, Temporal parallelization of dynamic programming and linear
    quadratic control, IEEE TAC 2023, section IV). Each stage's own curvature in the controls must be positive definite.
    """
    n = e.A.shape[-1]
    eye = jnp.eye(n, dtype=e.A.dtype)

    def element(A, B, l, gap):
        uu = l.uu + regularization * jnp.eye(l.uu.shape[0], dtype=l.uu.dtype)
        factor = jnp.linalg.cholesky(0.5 * (uu + uu.T))
        solved = cho_solve((factor, True), jnp.concatenate([l.ux, l.u[:, None], B.T], axis=1))
        by_x, by_1, by_B = solved[:, :n], solved[:, n], solved[:, n + 1 :]
        J = l.xx - l.ux.T @ by_x + regularization * eye
        return A - B @ by_x, gap - B @ by_1, B @ by_B, l.ux.T @ by_1 - l.x, J

    of_stages = jax.vmap(element)(e.A, e.B, e.stage, e.gaps[1:])
    last_Vxx = e.terminal.xx + regularization * eye
    of_end = jnp.zeros_like(eye), jnp.zeros(n, eye.dtype), jnp.zeros_like(eye), -e.terminal.x, last_Vxx
    elements = jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), of_stages, of_end)

    def combine(first, second):
        A1, b1, C1, eta1, J1 = first
        A2, b2, C2, eta2, J2 = second
        right = jnp.concatenate([A1, (b1 + C1 @ eta2)[:, None], C1], axis=1)
        moved = jnp.linalg.solve(eye + C1 @ J2, right)
        left = jnp.linalg.solve(eye + J2 @ C1, jnp.concatenate([(eta2 - J2 @ b1)[:, None], J2 @ A1], axis=1))
        A, b, C = A2 @ moved[:, :n], A2 @ moved[:, n] + b2, A2 @ moved[:, n + 1 :] @ A2.T + C2
        return A, b, C, A1.T @ left[:, 0] + eta1, A1.T @ left[:, 1:] + J1

    # In a reversed scan the later part comes first.
    combined = lax.associative_scan(jax.vmap(lambda a, b: combine(b, a)), elements, reverse=True)
    after_Vx, after_Vxx = -combined[3][1:], 0.5 * (combined[4] + jnp.swapaxes(combined[4], 1, 2))[1:]

    def one(M, Z, Vx, Vxx):
        return stage_of(M, Z, Vx, Vxx, regularization)

    stages = jax.vmap(one)(*_matrices(e), after_Vx, after_Vxx)
    return policy_of(e, stages, last_Vxx, regularization)
