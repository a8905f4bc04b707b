"""Steps of fits by multiple shooting: damped Gauss-Newton steps with a second-order correction, when they have
converged, and which segments a fit leaves far from their samples.

As the problem itself, everything here is a pure function of pytrees.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdyn._least_squares import Damping, damped_step, select
from jaxdyn._status import Status
from jaxdyn.sysid.rollouts import _arrow as arrow
from jaxdyn.sysid.rollouts import _shooting as shooting
from jaxdyn.sysid.rollouts._arrow import ArrowFactor, ArrowResiduals, ArrowSystem
from jaxdyn.sysid.rollouts._shooting import ShootingProblem, ShootingResiduals, ShootingState

# A linearization costs far more than a trial, so several dampings are tried after each: the best one is the next
# damping, whatever its gain ratio. Damping is relative to the norms of the columns.
_DAMPING = Damping(
    shrink=1.0,
    grow=100.0,
    good=np.inf,
    poor=-np.inf,
    least=1e-9,
    most=1e6,
    trusted=1.0,
    trials=(1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0),
)
# Factor of the column norms of a segment whose own cost rises, by which its state hardly moves in the next trial.
_HELD = 1e3
# Part of the step over which the bend of the residuals is measured.
_BEND_STEP = 0.1
# A fit has converged where the undamped step is shorter than this, in standard errors, in every direction.
_STATIONARY = 0.03
# Residuals of data without noise are rounding, by whose size no step is measured: the least variance, over the noise's.
_LEAST_VARIANCE = 1e-6
# Standard error of a free number that neither data nor prior determine. Free numbers are relative changes, often
# logarithms. That of a friction which should be zero has no minimum, and moving it on changes nothing.
UNKNOWN = 10.0


def levenberg_marquardt(
    problem: ShootingProblem, state: ShootingState, system: ArrowSystem, tolerance
) -> ShootingState:
    """Return the state after one step from the linearized `system`.

    Damping is relative to the norms of the columns (Marquardt 1963), which no choice of units changes. Each step is
    tried with and without the geodesic acceleration (Transtrum & Sethna, Improvements to the Levenberg-Marquardt
    algorithm for nonlinear least-squares minimization, arXiv:1201.5885, 2012): what the data hardly determine changes
    along curves on which the residuals stay, and a straight step leaves them soon.

    Where contacts are made or lost, residuals jump. A segment beside such a jump would hold all others back, as one
    damping is that of all states: where the damping has to be large, steps are tried as well in which the segments
    whose cost would rise are damped alone.
    """
    small, plain = arrow.compress(system), shooting.residuals(problem, state)
    norm_z, norm_x = arrow.column_norms(small)
    # Unknowns on which no residual depends are damped like the others, and do not move.
    norm_x = jnp.maximum(norm_x, 1e-6 * jnp.maximum(norm_x.max(initial=0), jnp.finfo(norm_x.dtype).tiny))

    def solved(damping, rising: Any = False) -> tuple[ArrowFactor, jax.Array, jax.Array]:
        root, held = jnp.sqrt(damping), jnp.where(rising, _HELD, 1.0)
        factor = arrow.eliminate_states(small, root * held * norm_z, root * norm_x)
        return factor, *arrow.solution(factor)

    def trial(damping) -> ShootingState:
        factor, z, x = solved(damping)
        along_z, along_x = _acceleration(problem, state, plain, system, factor, z, x)
        straight, bent = (shooting.displace(problem, state, z + h * along_z, x + h * along_x) for h in (0.0, 0.5))
        straight, bent = (dataclasses.replace(x, cost=shooting.cost(problem, x)) for x in (straight, bent))
        best = select(bent.cost < straight.cost, bent, straight)
        return dataclasses.replace(best, expected=factor.decrease)

    def trial_without_rising(damping) -> ShootingState:
        _, z, x = solved(damping)
        change = (
            _costs_of_segments(problem, shooting.residuals(problem, shooting.displace(problem, state, z, x))) - before
        )
        factor, z, x = solved(damping, ~(change <= 0)[:, None])
        new = shooting.displace(problem, state, z, x)
        return dataclasses.replace(new, cost=shooting.cost(problem, new), expected=factor.decrease)

    def tried_without_rising() -> ShootingState:
        start = dataclasses.replace(state, damping=jnp.minimum(state.damping, _DAMPING.trusted))
        return damped_step(start, trial_without_rising, _DAMPING)

    before = _costs_of_segments(problem, plain)
    after = damped_step(state, trial, _DAMPING, relative=tolerance)
    held_back = (state.status == Status.RUNNING) & (after.damping > _DAMPING.trusted)
    without = lax.cond(held_back, tried_without_rising, lambda: after)
    after = select(without.cost < after.cost, without, after)
    # Damped steps promise a small decrease wherever damping holds them back, also far from the minimum.
    claimed = (state.status == Status.RUNNING) & (after.status == Status.CONVERGED)
    near = lax.cond(claimed, lambda: step_left(problem, state, system) <= _STATIONARY, lambda: jnp.zeros((), bool))
    spent = (after.damping >= _DAMPING.most) & (after.cost >= state.cost)
    status = jnp.where(spent, int(Status.STALLED), int(Status.RUNNING)).astype(jnp.int32)
    there = dataclasses.replace(after, **{name: getattr(state, name) for name in ("free", "q", "v", "zeros", "cost")})
    return select(claimed, select(near, there, dataclasses.replace(after, status=status)), after)


def _costs_of_segments(problem: ShootingProblem, r: ShootingResiduals) -> jax.Array:
    """Return each segment's part of the cost, `[segments]`, of residuals before the loss."""
    r = r.after(problem.loss)
    return 0.5 * jnp.stack([jnp.sum(x**2, axis=-1) for x in (r.data, r.match, r.closure)]).sum(axis=0)


def _acceleration(
    problem: ShootingProblem,
    state: ShootingState,
    plain: ShootingResiduals,
    system: ArrowSystem,
    factor: ArrowFactor,
    z: jax.Array,
    x: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Return the geodesic acceleration of the step `z, x`: the damped least-squares step against the second derivative
    of the residuals along the step, from a difference."""
    h = _BEND_STEP
    ahead = shooting.residuals(problem, shooting.displace(problem, state, h * z, h * x))
    weight = problem.loss.weight(plain.data)
    change = jax.tree.map(jnp.subtract, ahead, plain)
    # The rows of the loops stand below those of the data.
    data = jnp.concatenate([weight * change.data, change.closure], axis=-1)
    moved = ArrowResiduals(data, change.match, change.pull)
    bend = jax.tree.map(lambda change, slope: 2 / h**2 * (change - h * slope), moved, arrow.product(system, z, x))
    return arrow.solve_normal(factor, *arrow.gradient(system, bend))


def step_left(problem: ShootingProblem, state: ShootingState, system: ArrowSystem) -> jax.Array:
    """Return the length of the undamped step from the linearized `system`: the largest ratio, over all directions of
    the shared unknowns, of the step's component to its posterior standard error. No choice of units changes it.

    With the Gauss-Newton matrix `D` of the data, after elimination of the states, and `K^T K` of the prior, the step is
    `x = -H^-1 g`, `H = D + K^T K`, and the covariance is `H^-1 (s^2 D + K^T K) H^-1` (`covariances`). The largest ratio
    is the root of `x^T covariance^-1 x = g^T (s^2 D + K^T K)^-1 g`.
    """
    P, dtype = problem.shared, system.border.dtype
    system, variance = system_of_loss(problem, state, shooting.residuals(problem, state), system)
    s = jnp.sqrt(jnp.maximum(variance, _LEAST_VARIANCE))
    weak = jnp.pad(jnp.eye(P, dtype=dtype) / UNKNOWN, ((0, 0), (0, 1)))
    system = ArrowSystem(
        _scaled_rows(system.data, s), _scaled_rows(system.match, s), jnp.concatenate([system.border, weak])
    )
    factor = arrow.eliminate_states(arrow.compress(system), jnp.zeros_like(state.multiplier), jnp.zeros(P, dtype))
    return jnp.linalg.norm(factor.border[:, -1])


def _scaled_rows(rows: jax.Array, factor) -> jax.Array:
    """Return the equations `[..., unknowns + 1]` with `factor` times the matrix, and the same gradient."""
    return jnp.concatenate([factor * rows[..., :-1], rows[..., -1:] / factor], axis=-1)


def system_of_loss(
    problem: ShootingProblem,
    state: ShootingState,
    plain: ShootingResiduals,
    system: ArrowSystem,
    averaged: bool = False,
) -> tuple[ArrowSystem, jax.Array]:
    """Return the linear system with the curvature of the loss, and the size `s^2` of the residuals, which are `plain`
    before the loss. The residuals of an `averaged` system count over their scatter, as they are in the system.

    A robust loss counts as in Huber, Robust statistics, 1981, section 7.6: with the mean of its curvature, which is
    less than the weights that the steps take, and the mean square of its slope.
    """
    S, n = state.multiplier.shape
    samples, linked = problem.segments.weight, problem.segments.linked
    counted = jnp.repeat(samples, plain.data.shape[-1] // samples.shape[-1], axis=-1) > 0
    count = counted.sum()
    weight = problem.loss.weight(plain.data) ** 2
    mean_weight = jnp.sum(weight, where=counted) / count
    # Where most residuals are outliers, the mean curvature may be zero or negative, and nothing is certain.
    mean_curvature = jnp.sum(problem.loss.curvature(plain.data), where=counted) / count
    curvature = jnp.maximum(mean_curvature, 1e-3 * mean_weight)
    system = system._replace(data=_scaled_rows(system.data, jnp.sqrt(curvature / mean_weight)))
    # Every defect is an equation as well, and every state an unknown, as far as closed loops leave them free.
    n = n if problem.mobility is None else 2 * problem.mobility
    freedom = count + linked.sum() * n - S * n - problem.shared
    gap = plain.match - linked[:, None] * state.multiplier
    squares = jnp.sum((weight * plain.data) ** 2, where=counted) / curvature + jnp.sum(gap**2)
    if averaged:
        # The rows have the loss's weights already; those of its slopes are about the mean weight.
        squares = jnp.sum(system.data[..., -1] ** 2) + jnp.sum(system.match[..., -1] ** 2)
    return system, squares / jnp.maximum(freedom, 1)


# A root mean square over a whole segment that no noise reaches, in units of the noise and of the median segment's.
_FAR = 3.0


def far_segments(rms):
    """Return which segments have residuals, root mean squares in units of the noise, far beyond those of the others."""
    return rms > _FAR * jnp.maximum(1.0, jnp.median(rms))
