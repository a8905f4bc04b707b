"""The backward pass: a Riccati recursion from the last stage to the first, one stage a step of a scan."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import cho_solve

from jaxdyn._types import Array, Float
from jaxdyn.trajopt._lagrangian import Expansion


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
    """The least part of a curvature in the free controls that is not regularisation."""
    ok: Array
    """Whether every matrix was positive definite."""

    @staticmethod
    def zeros(horizon: int, ndx: int, nu: int, dtype) -> Policy:
        """To begin a loop with; not `ok`."""
        T, n, m = horizon, ndx, nu
        shapes = (T, m), (T, m, n), (T + 1, n), (T + 1, n, n), (T, m), (T, m, n), (T, m, m), (), (), ()
        return Policy(*(jnp.zeros(shape, dtype) for shape in shapes), jnp.array(False))


class Held(NamedTuple):
    """Controls that are not free: one where they are, and the step of those that are not (zero for the others)."""

    free: Float[Array, "*horizon nu"]
    step: Float[Array, "*horizon nu"]


class Stage(NamedTuple):
    """The policy of one stage, and its value before the stage's own gap."""

    k: Float[Array, "nu"]
    K: Float[Array, "nu ndx"]
    Vx: Float[Array, "ndx"]
    Vxx: Float[Array, "ndx ndx"]
    Qu: Float[Array, "nu"]
    Qux: Float[Array, "nu ndx"]
    Quu: Float[Array, "nu nu"]
    slope: Float[Array, ""]
    curvature: Float[Array, ""]
    undamped: Float[Array, ""]


def masked(H, free):
    """`H` with the rows and columns of what is not free those of the identity."""
    both = free[:, None] * free[None, :]
    return H * both + jnp.diag(1 - free)


def stage_policy(A, B, l, Vx, Vxx, regularisation, held: Held | None = None) -> Stage:
    """From the value after the step (Mastalli et al., Crocoddyl, ICRA 2020, equations 12-16)."""
    VA, VB = Vxx @ A, Vxx @ B
    Qx, Qu = l.x + A.T @ Vx, l.u + B.T @ Vx
    Qxx, Qux, Quu = l.xx + A.T @ VA, l.ux + B.T @ VA, l.uu + B.T @ VB
    Quu = 0.5 * (Quu + Quu.T)
    diagonal = jnp.diagonal(Quu)
    part = diagonal / (diagonal + regularisation)
    Quu = Quu + regularisation * jnp.eye(len(diagonal), dtype=Quu.dtype)
    H, slope, slopes = Quu, Qu, Qux
    if held is not None:
        part = jnp.where(held.free > 0, part, 1.0)
        H, slope, slopes = masked(Quu, held.free), held.free * (Qu + Quu @ held.step), held.free[:, None] * Qux
    if len(diagonal) == 1:
        inverse = jnp.where(H > 0, 1 / H, jnp.nan)
        k, K = -(inverse[0] * slope), -(inverse * slopes)
    else:
        factor = jnp.linalg.cholesky(H)
        both = -cho_solve((factor, True), jnp.concatenate([slope[:, None], slopes], axis=1))
        k, K = both[:, 0], both[:, 1:]
    if held is not None:
        k = k + held.step
    # K is zero where a control is held, and the rest of Qu + Quu k is zero: no more terms are left.
    Vxx = Qxx + Qux.T @ K
    Vxx = 0.5 * (Vxx + Vxx.T) + regularisation * jnp.eye(len(Qx), dtype=Vxx.dtype)
    return Stage(k, K, Qx + Qux.T @ k, Vxx, Qu, Qux, Quu, -(Qu @ k), -(k @ (Quu @ k)), part.min())


def backward(e: Expansion, regularisation, held: Held | None = None) -> Policy:
    """The Riccati recursion with gaps.

    `regularisation` is added to the diagonals of the value function and of the curvature in the controls.
    """
    Vxx = e.terminal.xx + regularisation * jnp.eye(e.A.shape[-1], dtype=e.A.dtype)

    def one(value, at):
        Vx, Vxx = value
        A, B, l, gap, *of_stage = at
        # The step ends a gap away from the next state, about which its value is.
        stage = stage_policy(A, B, l, Vx + Vxx @ gap, Vxx, regularisation, *of_stage)
        return (stage.Vx, stage.Vxx), stage

    of_stages = () if held is None else (held,)
    _, stages = lax.scan(one, (e.terminal.x, Vxx), (e.A, e.B, e.stage, e.gaps[1:], *of_stages), reverse=True)
    return policy_of(e, stages, Vxx)


def policy_of(e: Expansion, stages: Stage, last_Vxx) -> Policy:
    """The policy of all stages."""
    Vxx = jnp.concatenate([stages.Vxx, last_Vxx[None]])
    shift = (Vxx @ e.gaps[..., None])[..., 0]
    Vx = jnp.concatenate([stages.Vx, e.terminal.x[None]]) + shift
    # With gaps the value function has slopes and curvatures of theirs.
    slope = stages.slope.sum() - (Vx * e.gaps).sum()
    curvature = stages.curvature.sum() + (e.gaps * shift).sum()
    ok = jnp.isfinite(stages.K).all() & jnp.isfinite(stages.k).all() & jnp.isfinite(Vx).all()
    of_controls = stages.Qu, stages.Qux, stages.Quu
    return Policy(stages.k, stages.K, Vx, Vxx, *of_controls, slope, curvature, stages.undamped.min(), ok)


def without_bounds(e: Expansion, regularisation) -> Policy:
    """`backward` by an associative scan: in a depth that grows with the logarithm of the horizon.

    Elements are conditional value functions `max_l -l^T C l / 2 + l^T (x_j - A x_i - b) + x_i^T J x_i / 2 - eta^T x_i`
    of two stages `i < j` (Särkkä & García-Fernández, Temporal parallelization of dynamic programming and linear
    quadratic control, IEEE TAC 2023, section IV). Each stage's own curvature in the controls must be positive definite.
    """
    n = e.A.shape[-1]
    eye = jnp.eye(n, dtype=e.A.dtype)

    def element(A, B, l, gap):
        uu = l.uu + regularisation * jnp.eye(l.uu.shape[0], dtype=l.uu.dtype)
        factor = jnp.linalg.cholesky(0.5 * (uu + uu.T))
        solved = cho_solve((factor, True), jnp.concatenate([l.ux, l.u[:, None], B.T], axis=1))
        by_x, by_1, by_B = solved[:, :n], solved[:, n], solved[:, n + 1 :]
        J = l.xx - l.ux.T @ by_x + regularisation * eye
        return A - B @ by_x, gap - B @ by_1, B @ by_B, l.ux.T @ by_1 - l.x, J

    of_stages = jax.vmap(element)(e.A, e.B, e.stage, e.gaps[1:])
    last_Vxx = e.terminal.xx + regularisation * eye
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
    after_Vx = after_Vx + (after_Vxx @ e.gaps[1:][..., None])[..., 0]

    def one(A, B, l, Vx, Vxx):
        return stage_policy(A, B, l, Vx, Vxx, regularisation)

    return policy_of(e, jax.vmap(one)(e.A, e.B, e.stage, after_Vx, after_Vxx), last_Vxx)
