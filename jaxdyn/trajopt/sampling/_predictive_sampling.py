"""Predictive sampling: the best of noisy splines about the best so far."""

from __future__ import annotations

from typing import Any

import equinox as eqx

from jaxdyn._types import ArrayLike
from jaxdyn.trajopt._solution import Solution
from jaxdyn.trajopt.problem import Problem
from jaxdyn.trajopt.sampling._sampling_loop import solve_by_samples
from jaxdyn.trajopt.sampling._sampling_options import AbstractSamplingMethod, SamplingOptions
from jaxdyn.trajopt.sampling._splines import Spline


class BestSample(AbstractSamplingMethod):
    """Draw about the best sample so far."""

    def update(self, gaussian, samples, costs, best):
        return gaussian._replace(mean=best)


class PredictiveSamplingOptions(SamplingOptions):
    """The options of `predictive_sampling`."""

    samples: int = eqx.field(default=64, static=True)
    max_iterations: Any = 200
    patience: Any = 30
    knots: int | None = eqx.field(default=8, static=True)
    spline: Spline = eqx.field(default="cubic", static=True)

    def method(self, sigma):
        return BestSample()


def predictive_sampling(
    problem: Problem, us: ArrayLike | None = None, *, key: Any = None, options: PredictiveSamplingOptions | None = None
) -> Solution:
    """Solve a problem by predictive sampling: splines about the best so far are drawn, and the best of them is next
    (Howell, Gileadi, Tunyasuvunakool, Zakka, Erez & Tassa, Predictive sampling: Real-time behavior synthesis with
    MuJoCo, 2022, algorithm 1).

    Arguments, result, status and errors as for `mppi`; `us` is `[horizon, nu]`, `[nu]` or a number.
    """
    return solve_by_samples(problem, us, key, PredictiveSamplingOptions() if options is None else options)
