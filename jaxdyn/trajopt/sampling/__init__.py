"""Solvers by random samples."""

from jaxdyn.trajopt.sampling._methods import (
    CEMOptions,
    MPPIOptions,
    PredictiveSamplingOptions,
    cem,
    mppi,
    predictive_sampling,
)
from jaxdyn.trajopt.sampling._sampling_loop import solve_by_samples
from jaxdyn.trajopt.sampling._sampling_options import SamplingOptions, spline_matrix
