"""Model predictive path integral control: a mean of samples, weighted by their costs."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxdyn._types import ArrayLike
from jaxdyn.trajopt._solution import Solution
from jaxdyn.trajopt.problem._problem import Problem
from jaxdyn.trajopt.sampling._sampling import AbstractSamplingOptions, Spline


class MPPIOptions(AbstractSamplingOptions):
    """How `mppi` goes about it."""

    samples: int = eqx.field(default=256, static=True)
    """Trajectories in each iteration."""
    iterations: Any = 100
    """At most."""
    sigma: Any = None
    """Standard deviation of the noise, in the units of the controls: a number, or `[nu]`; by default a quarter of
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
    temperature: Any = 0.1
    """Of the weights, as a part of the difference between the mean cost of the better half and the least: small for a
    mean of few."""

    def first(self, mean, sigma):
        return mean, sigma

    def draw(self, state, noise, best):
        mean, sigma = state
        return mean + sigma * noise

    def learn(self, state, tried, costs):
        least = costs.min()
        better = jnp.sort(costs)[: self.samples // 2]
        spread = jnp.where(jnp.isfinite(better), better - least, 0).mean()
        # exp(-(S - S_min) / lambda), with lambda relative to the costs at hand: their units do not matter.
        tiny = jnp.finfo(costs.dtype).tiny
        weights = jnp.exp(-(costs - least) / jnp.maximum(self.temperature * spread, tiny))
        mean = jnp.einsum("s,skn->kn", weights / weights.sum(), tried)
        return mean, state[1]

    def mean(self, state, best):
        return state[0]


def mppi(
    problem: Problem, us: ArrayLike | None = None, *, key: Any = None, options: MPPIOptions | None = None
) -> Solution:
    """Solve a problem by path integrals: the controls are the mean of noisy ones, weighted by
    `exp(-cost / temperature)` (Williams, Drews, Goldfain, Rehg & Theodorou, Information-theoretic model predictive
    control, T-RO 2018, algorithm 2; costs of controls are the problem's own, and no others are added).

    `us`: `[horizon, nu]`, `[nu]` or a number, zeros where not given; where there are knots, the nearest spline stands
    for it. `key`: of the random numbers, `jax.random.key(0)` where None is given; the same key gives the same solution.
    Needs values of costs and steps, no derivatives.

    Returns the best trajectory seen, a roll-out within the bounds on controls. Its status: converged where `patience`
    iterations brought no improvement that counts and constraints hold, stalled where they do not hold; stationarity is
    not measured (NaN), and more samples may find better. Diverged: no trajectory had a finite cost.

    **Raises** `ModelError`, `ShapeError`.
    """
    options = MPPIOptions() if options is None else options
    return options.as_arrays().solve(problem, us, jax.random.key(0) if key is None else key)
