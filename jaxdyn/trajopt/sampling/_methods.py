"""Solvers by samples: path integrals, cross entropy, and predictive sampling."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp

from jaxdyn._errors import ModelError, naming_arguments, require_positive_integer
from jaxdyn._types import ArrayLike
from jaxdyn.trajopt._solution import Solution
from jaxdyn.trajopt.problem import Problem
from jaxdyn.trajopt.sampling._sampling_loop import Gaussian, SamplingOptions, Spline, solve_by_samples


class MPPIOptions(SamplingOptions):
    """The options of `mppi`."""

    temperature: Any = 0.1
    """Temperature of the weights, relative to the difference between the mean cost of the better half and the lowest
    cost: a small one averages few samples."""

    def method(self, sigma):
        def average(gaussian, samples, costs, best):
            least = costs.min()
            better = jnp.sort(costs)[: len(costs) // 2]
            spread = jnp.where(jnp.isfinite(better), better - least, 0).mean()
            # lambda is relative to the costs of these samples, so the units of costs do not matter.
            tiny = jnp.finfo(costs.dtype).tiny
            weights = jnp.exp(-(costs - least) / jnp.maximum(self.temperature * spread, tiny))
            return gaussian._replace(mean=jnp.einsum("s,skn->kn", weights / weights.sum(), samples))

        return average


@naming_arguments
def mppi(
    problem: Problem, us: ArrayLike | None = None, *, key: Any = None, options: MPPIOptions | None = None
) -> Solution:
    """Solve a problem by path integrals: the controls are the mean of noisy ones, weighted by
    `exp(-cost / temperature)` (Williams, Drews, Goldfain, Rehg & Theodorou, Information-theoretic model predictive
    control, T-RO 2018, algorithm 2; the problem alone defines costs of controls). Needs no derivatives.

    - `us`: the guess, `[horizon, nu]`, `[nu]` or a number, zeros by default; with knots, the spline nearest to it.
    - `key`: the key of the random numbers, `jax.random.key(0)` by default.

    Returns the best trajectory seen, a roll-out within the bounds on controls. The status is converged where `patience`
    iterations brought no improvement that counts and constraints hold, stalled where constraints do not hold, and
    diverged where no trajectory had a finite cost. Stationarity is not measured (NaN).

    **Raises** `ModelError`, `ShapeError`.
    """
    return solve_by_samples(problem, us, key, MPPIOptions() if options is None else options)


class CEMOptions(SamplingOptions):
    """The options of `cem`. **Raises** `ModelError` for more elites than samples."""

    elites: int = eqx.field(default=32, static=True)
    """Number of the best samples, to which the Gaussian is fitted."""
    smoothing: Any = 0.1
    """Part of the Gaussian before that is kept."""
    least_sigma: Any = 0.01
    """Lower bound of the standard deviation, relative to the first."""

    def __check_init__(self):
        require_positive_integer(self.elites, "elites", least=2)
        if self.elites > self.samples:
            raise ModelError(f"elites is {self.elites}, more than the {self.samples} samples")

    def method(self, sigma):
        def fit(gaussian, samples, costs, best):
            order = jnp.argsort(costs)[: self.elites]
            # Samples without a finite cost are never elites: with few finite ones the fit is to those.
            weight = jnp.isfinite(costs[order]).astype(costs.dtype)[:, None, None]
            elites = jnp.where(weight > 0, samples[order], 0)
            mean = (weight * elites).sum(axis=0) / weight.sum()
            spread = jnp.sqrt((weight * (elites - mean) ** 2).sum(axis=0) / weight.sum())
            keep = self.smoothing
            spread = jnp.maximum(keep * gaussian.sigma + (1 - keep) * spread, self.least_sigma * sigma)
            return Gaussian(keep * gaussian.mean + (1 - keep) * mean, spread)

        return fit


@naming_arguments
def cem(
    problem: Problem, us: ArrayLike | None = None, *, key: Any = None, options: CEMOptions | None = None
) -> Solution:
    """Solve a problem by the cross-entropy method: a Gaussian with a diagonal covariance is fitted again and again to
    the best of its samples (Kobilarov, Cross-entropy motion planning, IJRR 2012; de Boer, Kroese, Mannor & Rubinstein,
    A tutorial on the cross-entropy method, Annals of Operations Research 2005).

    Arguments, result, status and errors as for `mppi`; `us` is `[horizon, nu]`, `[nu]` or a number.
    """
    return solve_by_samples(problem, us, key, CEMOptions() if options is None else options)


class PredictiveSamplingOptions(SamplingOptions):
    """The options of `predictive_sampling`."""

    samples: int = eqx.field(default=64, static=True)
    max_iterations: Any = 200
    patience: Any = 30
    knots: int | None = eqx.field(default=8, static=True)
    spline: Spline = eqx.field(default="cubic", static=True)

    def method(self, sigma):
        return lambda gaussian, samples, costs, best: gaussian._replace(mean=best)


@naming_arguments
def predictive_sampling(
    problem: Problem, us: ArrayLike | None = None, *, key: Any = None, options: PredictiveSamplingOptions | None = None
) -> Solution:
    """Solve a problem by predictive sampling: splines about the best so far are drawn, and the best of them is next
    (Howell, Gileadi, Tunyasuvunakool, Zakka, Erez & Tassa, Predictive sampling: Real-time behavior synthesis with
    MuJoCo, 2022, algorithm 1).

    Arguments, result, status and errors as for `mppi`; `us` is `[horizon, nu]`, `[nu]` or a number.
    """
    return solve_by_samples(problem, us, key, PredictiveSamplingOptions() if options is None else options)
