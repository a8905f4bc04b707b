"""Differential dynamic programming."""

from jaxdyn.trajopt.ddp._barrier import constraint_multipliers
from jaxdyn.trajopt.ddp._clock import host_microseconds, microseconds
from jaxdyn.trajopt.ddp._ddp import ddp
from jaxdyn.trajopt.ddp._ddp_options import DDPOptions
from jaxdyn.trajopt.ddp._expansion import Expansion
from jaxdyn.trajopt.ddp._linear_quadratic import linear_quadratic_policy, linear_quadratic_step
from jaxdyn.trajopt.ddp._riccati import AffinePolicy, backward, backward_associative, backward_in_box
