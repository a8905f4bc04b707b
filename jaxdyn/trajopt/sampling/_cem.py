"""The cross-entropy method: a Gaussian fitted to the best samples."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxdyn._errors import ModelError
from jaxdyn._types import ArrayLike
from jaxdyn.trajopt._solution import Solution
from jaxdyn.trajopt.problem._problem import Problem
from jaxdyn.trajopt.sampling._sampling import AbstractSamplingOptions, Spline


class CEMOptions(AbstractSamplingOptions):
    """How `cem` goes about it.

    **Raises** `ModelError` for numbers that mean nothing.
    """

    samples: int = eqx.field(default=256, static=True)
    """Trajectories in each iteration."""
    iterations: Any = 100
    """At most."""
    sigma: Any = None
    """Standard deviation at first, in the units of the controls: a number, or `[nu]`; by default a quarter of
    the width of the controls' bounds, 1 where there are none."""
    penalty: Any = 1e3
    """Of half the squared violations of constraints; bounds on controls always hold."""
    constraint_tolerance: Any = 1e-3
    """Of the largest violation of a constraint."""
    tolerance: Any = 1e-4
    """An improvement of the cost counts if it is more than this, relative to `1 + |cost|`."""
    patience: Any = 20
    """Iterations without an improvement that counts, after which the solve ends."""
    knots: int | None = eqx.field(default=None, static=True)
    """Of the splines of controls that are drawn; None for a control of its own at each stage."""
    spline: Spline = eqx.field(default="linear", static=True)
    """`"zero"` (steps), `"linear"` or `"cubic"`, from the first stage to the last."""
    elites: int = eqx.field(default=32, static=True)
    """The best samples, to which the Gaussian is fitted."""
    smoothing: Any = 0.1
    """Part of the Gaussian before that is kept."""
    least_sigma: Any = 0.01
    """Of the standard deviation, as a part of the first."""

    def __check_init__(self):
        if isinstance(self.elites, bool) or not isinstance(self.elites, int) or not 2 <= self.elites <= self.samples:
            raise ModelError(f"elites is {self.elites!r}; an int from 2 to the {self.samples} samples is needed")

    def first(self, mean, sigma):
        return mean, jnp.broadcast_to(sigma, mean.shape), jnp.broadcast_to(sigma, mean.shape)

    def draw(self, state, noise, best):
        mean, spread, _ = state
        return mean + spread * noise

    def learn(self, state, tried, costs):
        mean, spread, first = state
        order = jnp.argsort(costs)[: self.elites]
        # Samples that are no trajectory are no elites; where few are, the spread is that of those.
        weight = jnp.isfinite(costs[order]).astype(costs.dtype)[:, None, None]
        best = jnp.where(weight > 0, tried[order], 0)
        new = (weight * best).sum(axis=0) / weight.sum()
        deviation = jnp.sqrt((weight * (best - new) ** 2).sum(axis=0) / weight.sum())
        keep = self.smoothing
        spread = jnp.maximum(keep * spread + (1 - keep) * deviation, self.least_sigma * first)
        return keep * mean + (1 - keep) * new, spread, first

    def mean(self, state, best):
        return state[0]


def cem(
    problem: Problem, us: ArrayLike | None = None, *, key: Any = None, options: CEMOptions | None = None
) -> Solution:
    """Solve a problem by the cross-entropy method: a Gaussian with a diagonal covariance, fitted again and again to
    the best of its samples (Kobilarov, Cross-entropy motion planning, IJRR 2012; de Boer, Kroese, Mannor & Rubinstein,
    A tutorial on the cross-entropy method, Annals of Operations Research 2005).

    `us`: `[horizon, nu]`, `[nu]` or a number, zeros where not given; where there are knots, the nearest spline stands
    for it. `key`: of the random numbers, `jax.random.key(0)` where None is given; the same key gives the same solution.
    Needs values of costs and steps, no derivatives.

    Returns the best trajectory seen, a roll-out within the bounds on controls. Its status: converged where `patience`
    iterations brought no improvement that counts and constraints hold, stalled where they do not hold; stationarity is
    not measured (NaN), and more samples may find better. Diverged: no trajectory had a finite cost.

    **Raises** `ModelError`, `ShapeError`.
    """
    options = CEMOptions() if options is None else options
    return options.as_arrays().solve(problem, us, jax.random.key(0) if key is None else key)
