"""Direct collocation."""

from jaxdyn.trajopt.collocation._collocation import CollocationOptions, NonlinearProgram, collocation
