"""Solvers by random samples."""

from jaxdyn.trajopt.sampling._methods import (
    CEMOptions,
    MPPIOptions,
    PredictiveSamplingOptions,
    cem,
    mppi,
    predictive_sampling,
)
from jaxdyn.trajopt.sampling._sampling_loop import SamplingOptions, solve_by_samples, spline_matrix
