"""The backward pass: a Riccati recursion from the last stage to the first, one stage a step of a scan."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import cho_solve

from jaxdyn._types import Array, Float
from jaxdyn.trajopt._box_qp import box_qp
from jaxdyn.trajopt._lagrangian import Expansion


class Policy(NamedTuple):
    """What the backward pass finds: `du = alpha k + K dx`, and the value function of each stage."""

    k: Float[Array, "horizon nu"]
    K: Float[Array, "horizon nu ndx"]
    Vx: Float[Array, "stages ndx"]
    Vxx: Float[Array, "stages ndx ndx"]
    Qu: Float[Array, "horizon nu"]
    slope: Float[Array, ""]
    """The expected decrease is `alpha slope + alpha^2 curvature / 2`, but for what gaps add to it."""
    curvature: Float[Array, ""]
    damped: Float[Array, ""]
    """The least part of a curvature in the controls that is not regularisation."""
    ok: Array
    """Whether every matrix was positive definite."""


class Stage(NamedTuple):
    """The policy of one stage, and its value before the stage's own gap."""

    k: Float[Array, "nu"]
    K: Float[Array, "nu ndx"]
    Vx: Float[Array, "ndx"]
    Vxx: Float[Array, "ndx ndx"]
    Qu: Float[Array, "nu"]
    slope: Float[Array, ""]
    curvature: Float[Array, ""]
    undamped: Float[Array, ""]


def stage_policy(A, B, l, Vx, Vxx, regularisation, box=()) -> Stage:
    """From the value after the step (Mastalli et al., Crocoddyl, ICRA 2020, equations 12-16)."""
    VA, VB = Vxx @ A, Vxx @ B
    Qx, Qu = l.x + A.T @ Vx, l.u + B.T @ Vx
    Qxx, Qux, Quu = l.xx + A.T @ VA, l.ux + B.T @ VA, l.uu + B.T @ VB
    Quu = 0.5 * (Quu + Quu.T)
    diagonal = jnp.diagonal(Quu)
    undamped = (diagonal / (diagonal + regularisation)).min()
    Quu = Quu + regularisation * jnp.eye(len(diagonal), dtype=Quu.dtype)
    if box:
        k, free, factor = box_qp(Quu, Qu, *box)
        K = -cho_solve((factor, True), Qux * free[:, None])
    elif len(diagonal) == 1:
        inverse = jnp.where(Quu > 0, 1 / Quu, jnp.nan)
        k, K = -(inverse[0] * Qu), -(inverse * Qux)
    else:
        factor = jnp.linalg.cholesky(Quu)
        both = -cho_solve((factor, True), jnp.concatenate([Qu[:, None], Qux], axis=1))
        k, K = both[:, 0], both[:, 1:]
    # K is zero where a bound holds, and the rest of Qu + Quu k is zero: no more terms are left.
    Vxx = Qxx + Qux.T @ K
    Vxx = 0.5 * (Vxx + Vxx.T) + regularisation * jnp.eye(len(Qx), dtype=Vxx.dtype)
    return Stage(k, K, Qx + Qux.T @ k, Vxx, Qu, -(Qu @ k), -(k @ (Quu @ k)), undamped)


def backward(e: Expansion, regularisation, lower=None, upper=None) -> Policy:
    """The Riccati recursion with gaps.

    `regularisation` is added to the diagonals of the value function and of the curvature in the controls; `lower`,
    `upper` `[horizon, nu]` bound the step of the controls.
    """
    bounds = () if lower is None else (lower, upper)
    Vxx = e.terminal.xx + regularisation * jnp.eye(e.A.shape[-1], dtype=e.A.dtype)

    def one(value, at):
        Vx, Vxx = value
        A, B, l, gap, *box = at
        # The step ends a gap away from the next state, about which its value is.
        stage = stage_policy(A, B, l, Vx + Vxx @ gap, Vxx, regularisation, tuple(box))
        return (stage.Vx, stage.Vxx), stage

    _, stages = lax.scan(one, (e.terminal.x, Vxx), (e.A, e.B, e.stage, e.gaps[1:], *bounds), reverse=True)
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
    return Policy(stages.k, stages.K, Vx, Vxx, stages.Qu, slope, curvature, stages.undamped.min(), ok)


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
