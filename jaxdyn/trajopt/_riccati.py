"""The backward pass: a Riccati recursion from the last stage to the first, one stage a step of a scan."""

from __future__ import annotations

from typing import NamedTuple

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


def backward(e: Expansion, regularisation, lower=None, upper=None) -> Policy:
    """The Riccati recursion with gaps (Mastalli et al., Crocoddyl, ICRA 2020, equations 12-16).

    `regularisation` is added to the diagonals of the value function and of the curvature in the controls; `lower`,
    `upper` `[horizon, nu]` bound the step of the controls.
    """
    n = e.A.shape[-1]
    eye = jnp.eye(n, dtype=e.A.dtype)
    Vxx = e.terminal.xx + regularisation * eye
    Vx = e.terminal.x + Vxx @ e.gaps[-1]
    bounds = () if lower is None else (lower, upper)

    def stage(carry, at):
        Vx, Vxx = carry
        A, B, gap, l, *box = at
        VA, VB = Vxx @ A, Vxx @ B
        Qx = l.x + A.T @ Vx
        Qu = l.u + B.T @ Vx
        Qxx = l.xx + A.T @ VA
        Qux = l.ux + B.T @ VA
        Quu = l.uu + B.T @ VB
        Quu = 0.5 * (Quu + Quu.T)
        share = (jnp.diagonal(Quu) / (jnp.diagonal(Quu) + regularisation)).min()
        Quu = Quu + regularisation * jnp.eye(Quu.shape[0], dtype=Quu.dtype)
        if box:
            k, free, factor = box_qp(Quu, Qu, *box)
            K = -cho_solve((factor, True), Qux * free[:, None])
        elif Quu.shape[0] == 1:
            free = 1.0
            inverse = jnp.where(Quu > 0, 1 / Quu, jnp.nan)
            k, K = -(inverse[0] * Qu), -(inverse * Qux)
        else:
            free = 1.0
            factor = jnp.linalg.cholesky(Quu)
            both = -cho_solve((factor, True), jnp.concatenate([Qu[:, None], Qux], axis=1))
            k, K = both[:, 0], both[:, 1:]
        # K is zero where a bound holds, and the rest of Qu + Quu k is zero: no more terms are left.
        Vxx = Qxx + Qux.T @ K
        Vxx = 0.5 * (Vxx + Vxx.T) + regularisation * eye
        Vx = Qx + Qux.T @ k + Vxx @ gap
        free_Qu = Qu * free
        out = k, K, Vx, Vxx, Qu, -(Qu @ k), -(k @ (Quu @ k)), share, jnp.abs(free_Qu).max()
        return (Vx, Vxx), out

    stages = (e.A, e.B, e.gaps[:-1], e.stage, *bounds)
    _, (k, K, Vxs, Vxxs, Qu, slope, curvature, share, _) = lax.scan(stage, (Vx, Vxx), stages, reverse=True)
    Vxs, Vxxs = jnp.concatenate([Vxs, Vx[None]]), jnp.concatenate([Vxxs, Vxx[None]])
    # With gaps the value function has slopes and curvatures of theirs.
    slope = slope.sum() - (Vxs * e.gaps).sum()
    curvature = curvature.sum() + (e.gaps * (Vxxs @ e.gaps[..., None])[..., 0]).sum()
    ok = jnp.isfinite(K).all() & jnp.isfinite(k).all() & jnp.isfinite(Vxs).all()
    return Policy(k, K, Vxs, Vxxs, Qu, slope, curvature, share.min(), ok)
