"""Covariances of the free numbers of a fit to roll-outs."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.sysid.rollouts._arrow import ArrowSystem, compress, eliminate_states, influence
from jaxdyn.sysid.rollouts._shooting import ShootingProblem, ShootingResiduals, ShootingState


@eqx.filter_jit
def _curvature(system: ArrowSystem) -> tuple[jax.Array, ...]:
    """Return the inverse of the normal matrix `[P, P]`, the change of the parameters due to each segment's residuals
    `[segments, P]`, and the triangular factor `[P, P]` of the normal matrix with the norms `[P]` of its columns."""
    S, n = system.match.shape[:2]
    P, dtype = system.border.shape[-1] - 1, system.match.dtype
    factor = eliminate_states(compress(system), jnp.zeros((S, n), dtype), jnp.zeros(P, dtype))
    z, inverse = influence(factor)
    # H^-1 times the gradient of each segment's own residuals.
    data, match = system.data, system.match
    along = jnp.einsum("smn,snp->smp", data[..., :n], z) + jnp.einsum("smn,np->smp", data[..., n:-1], inverse)
    scores = jnp.einsum("sm,smp->sp", data[..., -1], along)
    both = jnp.concatenate([z, jnp.roll(z, -1, axis=0)], axis=1)
    along = jnp.einsum("smn,snp->smp", match[..., : 2 * n], both)
    along += jnp.einsum("smn,np->smp", match[..., 2 * n : -1], inverse)
    scores += jnp.einsum("sm,smp->sp", match[..., -1], along)
    norms = jnp.sqrt(jnp.sum(factor.border[:, :-1] ** 2, axis=0))
    return inverse, scores, factor.border[:, :-1], norms


def system_at_solution(
    problem: ShootingProblem, state: ShootingState, plain: ShootingResiduals, system: ArrowSystem
) -> tuple[ArrowSystem, float]:
    """Return the linear system at the solution, and the size `s^2` of the residuals, which are `plain` before the loss.

    A robust loss counts as in Huber, Robust statistics, 1981, section 7.6: with the mean of its curvature, which is
    less than the weights that the steps take, and the mean square of its slope.
    """
    system = compress(system)
    S, n = state.multiplier.shape
    samples, linked = problem.segments.weight, problem.segments.linked
    counts = jnp.repeat(samples, plain.data.shape[-1] // samples.shape[-1], axis=-1) > 0
    r = plain.data[counts]
    weight = problem.loss.weight(r) ** 2
    # Where most residuals are outliers, the mean curvature may be zero or negative, and nothing is certain.
    curvature = max(float(problem.loss.curvature(r).mean()), 1e-3 * float(weight.mean()))
    root = np.sqrt(curvature / float(weight.mean()))
    system = system._replace(
        data=jnp.concatenate([root * system.data[..., :-1], system.data[..., -1:] / root], axis=-1)
    )
    # Every defect is an equation as well, and every state an unknown.
    freedom = len(r) + float(linked.sum()) * n - S * n - problem.shared
    gap = plain.match - linked[:, None] * state.multiplier
    squares = float(((weight * r) ** 2).sum()) / curvature + float((gap**2).sum())
    return system, squares / max(freedom, 1.0)


def covariances(system: ArrowSystem, variance: float, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the covariances `[size, size]` of the free numbers for independent residuals, and for residuals that are
    independent from segment to segment only. Variances are infinite where the system says nothing of a number.

    With `H` the Gauss-Newton matrix of data and prior `K^T K` together, `H^-1 (s^2 (H - K^T K) + K^T K) H^-1`: the
    prior counts as it was given, however small the residuals are.
    """
    S, P = len(system.match), system.border.shape[-1] - 1
    inverse, scores, border, norms = (np.asarray(x, np.float64) for x in _curvature(system))
    pull = np.asarray(system.border, np.float64)[:, :-1]
    used = norms > 0
    unit = np.where(used, norms, 1.0)
    _, sizes, directions = np.linalg.svd(border / unit)
    seen = sizes > P * np.finfo(np.dtype(system.border.dtype)).eps * max(sizes.max(initial=0), 1e-300)
    if seen.all() and used.all():
        by_prior = inverse @ (pull.T @ pull) @ inverse
        clustered = S / max(S - 1, 1) * (scores.T @ scores) + by_prior
        covariance = variance * inverse + (1 - variance) * by_prior
        return covariance[:size, :size], clustered[:size, :size]
    inverse = (directions[seen].T / sizes[seen] ** 2) @ directions[seen] / np.outer(unit, unit)
    covariance = variance * inverse + (1 - variance) * inverse @ (pull.T @ pull) @ inverse
    unseen = ~used | (np.abs(directions[~seen]) > 1e-6).any(axis=0)
    covariance[unseen, :] = covariance[:, unseen] = 0.0
    covariance[np.diag_indices(P)] = np.where(unseen, np.inf, np.diagonal(covariance))
    return covariance[:size, :size], covariance[:size, :size]
