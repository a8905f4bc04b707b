"""Model predictive control."""

from jaxdyn.trajopt.mpc._closed_loop import ClosedLoop, Latency, closed_loop, count_compilations
from jaxdyn.trajopt.mpc._mpc import MPC, Plan, Preparation
