"""Solvers by random samples."""

from jaxdyn.trajopt.sampling._cem import CEMOptions, cem
from jaxdyn.trajopt.sampling._mppi import MPPIOptions, mppi
from jaxdyn.trajopt.sampling._predictive_sampling import PredictiveSamplingOptions, predictive_sampling
from jaxdyn.trajopt.sampling._sampling_loop import solve_by_samples
from jaxdyn.trajopt.sampling._sampling_options import SamplingOptions
from jaxdyn.trajopt.sampling._splines import spline_matrix
