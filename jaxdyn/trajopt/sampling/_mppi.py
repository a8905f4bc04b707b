"""Model predictive path integral control: a mean of samples, weighted by their costs."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxdyn._types import ArrayLike
from jaxdyn.trajopt._solution import Solution
from jaxdyn.trajopt.problem import Problem
from jaxdyn.trajopt.sampling._sampling_loop import solve_by_samples
from jaxdyn.trajopt.sampling._sampling_options import AbstractSamplingMethod, SamplingOptions


class PathIntegral(AbstractSamplingMethod):
    """Average the samples with the weights `exp(-(S - S_min) / lambda)` of their costs `S`."""

    temperature: Any

    def update(self, gaussian, samples, costs, best):
        least = costs.min()
        better = jnp.sort(costs)[: len(costs) // 2]
        spread = jnp.where(jnp.isfinite(better), better - least, 0).mean()
        # lambda is relative to the costs of these samples, so the units of costs do not matter.
        tiny = jnp.finfo(costs.dtype).tiny
        weights = jnp.exp(-(costs - least) / jnp.maximum(self.temperature * spread, tiny))
        return gaussian._replace(mean=jnp.einsum("s,skn->kn", weights / weights.sum(), samples))


class MPPIOptions(SamplingOptions):
    """The options of `mppi`."""

    temperature: Any = 0.1
    """Temperature of the weights, relative to the difference between the mean cost of the better half and the lowest
    cost: a small one averages few samples."""

    def method(self, sigma):
        return PathIntegral(self.temperature)


def mppi(
    problem: Problem, us: ArrayLike | None = None, *, key: Any = None, options: MPPIOptions | None = None
) -> Solution:
    """Solve a problem by path integrals: the controls are the mean of noisy ones, weighted by
    `exp(-cost / temperature)` (Williams, Drews, Goldfain, Rehg & Theodorou, Information-theoretic model predictive
    control, T-RO 2018, algorithm 2; the problem alone defines costs of controls).

    `us`: the guess, `[horizon, nu]`, `[nu]` or a number, zeros by default; with knots, the spline nearest to it. `key`:
    of the random numbers, `jax.random.key(0)` by default; the same key gives the same solution. Needs no derivatives of
    costs and steps.

    Returns the best trajectory seen, a roll-out within the bounds on controls. The status is converged where `patience`
    iterations brought no improvement that counts and constraints hold, stalled where constraints do not hold, and
    diverged where no trajectory had a finite cost. Stationarity is not measured (NaN): more samples may find better.

    **Raises** `ModelError`, `ShapeError`.
    """
    return solve_by_samples(problem, us, key, MPPIOptions() if options is None else options)
