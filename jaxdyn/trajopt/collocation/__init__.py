"""Direct collocation."""

from jaxdyn.trajopt.collocation._collocation import CollocationOptions, collocation
from jaxdyn.trajopt.collocation._nonlinear_program import NonlinearProgram
