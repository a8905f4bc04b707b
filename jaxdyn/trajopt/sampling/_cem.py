"""The cross-entropy method: a Gaussian fitted to the best samples."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp

from jaxdyn._errors import ModelError, require_positive_integer
from jaxdyn._types import Array, ArrayLike, Float
from jaxdyn.trajopt._solution import Solution
from jaxdyn.trajopt.problem import Problem
from jaxdyn.trajopt.sampling._sampling_loop import solve_by_samples
from jaxdyn.trajopt.sampling._sampling_options import AbstractSamplingMethod, Gaussian, SamplingOptions


class CrossEntropy(AbstractSamplingMethod):
    """Fit mean and standard deviation to the elites, the samples with the lowest costs."""

    elites: int = eqx.field(static=True)
    smoothing: Any
    least_sigma: Float[Array, "nu"]

    def update(self, gaussian, samples, costs, best):
        order = jnp.argsort(costs)[: self.elites]
        # Samples without a finite cost are never elites: with few finite ones the fit is to those.
        weight = jnp.isfinite(costs[order]).astype(costs.dtype)[:, None, None]
        elites = jnp.where(weight > 0, samples[order], 0)
        mean = (weight * elites).sum(axis=0) / weight.sum()
        sigma = jnp.sqrt((weight * (elites - mean) ** 2).sum(axis=0) / weight.sum())
        keep = self.smoothing
        sigma = jnp.maximum(keep * gaussian.sigma + (1 - keep) * sigma, self.least_sigma)
        return Gaussian(keep * gaussian.mean + (1 - keep) * mean, sigma)


class CEMOptions(SamplingOptions):
    """The options of `cem`.

    **Raises** `ModelError` for options that contradict each other.
    """

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
        return CrossEntropy(self.elites, self.smoothing, self.least_sigma * sigma)


def cem(
    problem: Problem, us: ArrayLike | None = None, *, key: Any = None, options: CEMOptions | None = None
) -> Solution:
    """Solve a problem by the cross-entropy method: a Gaussian with a diagonal covariance is fitted again and again to
    the best of its samples (Kobilarov, Cross-entropy motion planning, IJRR 2012; de Boer, Kroese, Mannor & Rubinstein,
    A tutorial on the cross-entropy method, Annals of Operations Research 2005).

    Arguments, result, status and errors as for `mppi`; `us` is `[horizon, nu]`, `[nu]` or a number.
    """
    return solve_by_samples(problem, us, key, CEMOptions() if options is None else options)
