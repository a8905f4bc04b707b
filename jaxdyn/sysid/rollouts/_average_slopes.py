"""Slopes of the residuals that hold on average over what is uncertain, for fits along contacts.

A contact begins at a time step, so residuals are staircases in the height from which a foot falls: they jump by many
times the noise where it would touch down a step later, and between the jumps their derivatives do not tell of them.
Steps that must lower the cost end beside the nearest jump, and the covariance of their derivatives claims that the data
tell more than they do. Here the residuals are linearized by regression over draws of the states and of the free numbers
from their own posterior, and the scatter about the regression counts as noise (statistical linearization; the iterated
posterior linearization smoother of Garcia-Fernandez, Svensson & Sarkka, IEEE Transactions on Automatic Control 62,
2017). Where residuals are smooth over the posterior, this is the Gauss-Newton system.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import solve_triangular

from jaxdyn.sysid.rollouts import _arrow as arrow
from jaxdyn.sysid.rollouts import _descent as descent
from jaxdyn.sysid.rollouts import _shooting as shooting
from jaxdyn.sysid.rollouts._arrow import ArrowFactor, ArrowSystem
from jaxdyn.sysid.rollouts._shooting import ShootingProblem, ShootingResiduals, ShootingState

# The number of draws for each unknown of a segment: the scatter of so many is about right.
_DRAWS = 4
# How far the free numbers of draws scatter, at the most: by a quarter, or by a quarter of their scale. Farther, a robot
# does something else.
_SCATTER = 0.25
# The largest change of a free number in a step: a factor of 1.6, or half of its scale. Farther, nothing is linear.
_FARTHEST = 0.5
# A state that no residual determines stays within so many times the noise.
_LOOSE = 1e3
# Draws that are simulated at once, in as few and as large operations as memory allows.
_TOGETHER = 64


class Draws(NamedTuple):
    """Displacements of a state, as `displace` takes them."""

    z: jax.Array
    """`[draws, segments, 2 nv]`"""
    x: jax.Array
    """`[draws, problem.shared]`"""


class Average(NamedTuple):
    """The residuals on average over draws."""

    system: ArrowSystem
    """The linear system, over the noise and the scatter about it."""
    value: ShootingResiduals
    """The means of the residuals, before the loss."""
    scatter: jax.Array
    """`[segments]`: standard deviation of the residuals' scatter about their linearization, in units of the noise."""

    @property
    def cost(self) -> jax.Array:
        """Half of the sum of squares of the system's residuals."""
        return 0.5 * jnp.stack([jnp.sum(x[..., -1] ** 2) for x in self.system]).sum()


def first_draws(problem: ShootingProblem, state: ShootingState) -> Draws:
    """Return draws about the state at which a fit starts: with the noise of the measurement, and `_SCATTER`."""
    z, x = _normal(problem, state)
    return Draws(z * jnp.concatenate([state.position_noise, state.velocity_noise]), x * _SCATTER)


def average(problem: ShootingProblem, state: ShootingState, draws: Draws) -> Average:
    """Return the residuals on average over draws about a state."""
    (S, n), P = state.multiplier.shape, problem.parametrization.size
    nv, count, target = n // 2, len(draws.x), shooting.next_starts(state)
    # The regression takes positions as they are; `linearize` adds that they follow the zeros.
    zeros = problem.zero_deviation * draws.x[:, P:].reshape(count, *state.zeros.shape)
    z = draws.z.at[..., :nv].add(-problem.owner @ zeros)
    z, x = (y - y.mean(axis=0) for y in (z, draws.x.at[:, P:].set(0)))

    def residuals(draw: Draws) -> jax.Array:
        moved = shooting.displace(problem, state, *draw)
        r = shooting.residuals_and_motion(problem, moved, target)[0]
        return jnp.concatenate([r.match, r.data, r.closure], axis=-1)

    rows = lax.map(residuals, Draws(z, x), batch_size=_TOGETHER)
    known = jnp.concatenate([z, jnp.broadcast_to(x[:, None, :P], (count, S, P))], axis=-1)
    # Inverses of covariances of `d` numbers from draws with `f` degrees of freedom are too large by `f / (f - d - 1)`
    # (the mean of the inverse Wishart distribution), and the scatter has hardly more dimensions than the next state.
    slopes, scatter = _regression(known, rows, count - 1 - (n + P) - n - 1)
    here, motion = shooting.residuals_and_motion(problem, state)
    ends = n, n + here.data.shape[-1]
    value, slope, spread = (
        ShootingResiduals(data, match, here.pull, closure)
        for match, data, closure in (
            jnp.split(rows.mean(axis=0), ends, axis=-1),
            jnp.split(slopes, ends, axis=-2),
            jnp.split(scatter, ends, axis=-2),
        )
    )
    by_numbers = jax.jacfwd(lambda x: shooting.pull_of(problem, shooting.displace(problem, state, 0 * z[0], x)))
    slope = slope._replace(pull=jnp.pad(by_numbers(jnp.zeros_like(x[0]))[:, :P], ((0, 0), (n, 0))))
    system = shooting.linearize(problem, state, (value, slope, motion))
    data = jnp.concatenate([problem.loss.weight(value.data)[..., None] * spread.data, spread.closure], axis=-2)
    squares = sum(jnp.sum(y**2, axis=(-2, -1)) for y in (data, spread.match))
    return Average(_whitened(system, data, spread.match), value, jnp.sqrt(squares))


def step(problem: ShootingProblem, state: ShootingState, now: Average, gain) -> tuple[ShootingState, Draws, jax.Array]:
    """Return the state after `gain` times a step to the minimum of the average system, draws from the posterior about
    it, and the whole step of the shared unknowns."""
    system, variance = descent.system_of_loss(problem, state, now.value, now.system, averaged=True)
    factor = _factor(state, now.system, 1 / descent.UNKNOWN)
    z, x = arrow.solution(factor)
    part = jnp.minimum(1.0, _FARTHEST / jnp.maximum(jnp.abs(x).max(initial=0), _FARTHEST))
    new = shooting.evaluate(problem, shooting.displace(problem, state, gain * part * z, gain * part * x))
    new = dataclasses.replace(new, expected=factor.decrease, iteration=state.iteration + 1)
    # Residuals beyond the noise say that the posterior is wider than the noise makes it.
    size = jnp.sqrt(jnp.maximum(variance, 1.0))
    draws = _draws(problem, state, _factor(state, system, size / _SCATTER))
    return new, Draws(*(size * y for y in draws)), x


def length(problem: ShootingProblem, state: ShootingState, now: Average, x: jax.Array) -> jax.Array:
    """Return the length of a step `x` of the shared unknowns, in standard errors, as `descent.step_left`."""
    system, variance = descent.system_of_loss(problem, state, now.value, now.system, averaged=True)
    return jnp.linalg.norm(_factor(state, system, 1 / descent.UNKNOWN).border[:, :-1] @ x) / jnp.sqrt(variance)


def _factor(state: ShootingState, system: ArrowSystem, damping) -> ArrowFactor:
    """The factor of a system with the same damping of all shared unknowns."""
    noise = jnp.concatenate([state.position_noise, state.velocity_noise])
    loose = jnp.broadcast_to(1 / (_LOOSE * noise), state.multiplier.shape)
    shared = jnp.full(system.border.shape[-1] - 1, damping, noise.dtype)
    return arrow.eliminate_states(arrow.compress(system), loose, shared)


def _normal(problem: ShootingProblem, state: ShootingState) -> tuple[jax.Array, jax.Array]:
    """Normal draws, the same ones in every iteration: the average is then nearly the same function of the state."""
    S, n = state.multiplier.shape
    count = _DRAWS * (n + problem.parametrization.size + 1)
    z, x = jax.random.split(jax.random.key(0))
    dtype = state.q.dtype
    return jax.random.normal(z, (count, S, n), dtype), jax.random.normal(x, (count, problem.shared), dtype)


def _draws(problem: ShootingProblem, state: ShootingState, factor: ArrowFactor) -> Draws:
    """Draws from the normal distribution with the factor's information matrix."""

    def solved(z: jax.Array, x: jax.Array) -> Draws:
        x = -solve_triangular(factor.border[:, :-1], x)
        return Draws(arrow.substitute_back(factor, x, z), x)

    return jax.vmap(solved)(*_normal(problem, state))


def _regression(known: jax.Array, y: jax.Array, freedom: int) -> tuple[jax.Array, jax.Array]:
    """Return the slopes `[S, m, k]` of `y` `[draws, S, m]` by `known` `[draws, S, k]`, and a root `[S, m, draws]` of
    the covariance of what they do not explain."""

    def segment(known, y):
        sizes = jnp.linalg.norm(known, axis=0)
        sizes = jnp.where(sizes > 0, sizes, 1.0)
        Q, R = jnp.linalg.qr(known / sizes)
        # Unknowns that do not scatter have no slopes.
        singular = jnp.abs(jnp.diagonal(R)) < jnp.finfo(R.dtype).eps ** 0.75
        R = jnp.where(singular[:, None], 0, R) + jnp.diag(singular.astype(R.dtype))
        slopes = solve_triangular(R, jnp.where(singular[:, None], 0, Q.T @ y)) / sizes[:, None]
        return slopes.T, (y - y.mean(axis=0) - known @ slopes).T

    slopes, left = jax.vmap(segment, in_axes=(1, 1))(known, y)
    return slopes, left / jnp.sqrt(freedom)


def _whitened(system: ArrowSystem, data: jax.Array, match: jax.Array) -> ArrowSystem:
    """Return the system with the residuals' noise, of unit size, and their scatter, of which `data` `[S, m, draws]` and
    `match` `[S, n, draws]` are roots, made independent and of unit size."""
    n, width = match.shape[1], system.data.shape[-1]
    rows = system.data
    if rows.shape[1] > width + data.shape[-1]:
        both = arrow.triangle(jnp.concatenate([rows, data], axis=-1))
        rows, data = both[..., :width], both[..., width:]
    root = jnp.concatenate([data, match], axis=-2)
    L = jnp.linalg.cholesky(jnp.eye(root.shape[-2], dtype=root.dtype) + root @ root.mT)
    # Data first: the defects alone have to do with the next state, and they stay apart.
    ahead = jnp.zeros((*rows.shape[:-1], n), rows.dtype)
    whole = jnp.concatenate([jnp.concatenate([rows[..., :n], ahead, rows[..., n:]], axis=-1), system.match], axis=-2)
    whole = solve_triangular(L, whole, lower=True)
    rows, defects = whole[:, :-n], whole[:, -n:]
    return system._replace(data=jnp.concatenate([rows[..., :n], rows[..., 2 * n :]], axis=-1), match=defects)
