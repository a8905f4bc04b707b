"""Integrators: one time step each, by name in one table."""

from jaxdyn.simulate.integrators._runge_kutta import rk4_step
from jaxdyn.simulate.integrators._semi_implicit_euler import semi_implicit_euler_step
from jaxdyn.simulate.integrators._step import advance, common_form, step, time_step
from jaxdyn.simulate.integrators._table import Integrator, require_integrator

__all__ = [
    "Integrator",
    "advance",
    "common_form",
    "require_integrator",
    "rk4_step",
    "semi_implicit_euler_step",
    "step",
    "time_step",
]
