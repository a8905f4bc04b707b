"""Integrators: one time step each, by name in one table."""

from jaxdyn.simulate.integrators._closed_loops import CLOSED, OPEN_START, closed, require_closed, symplectic_step
from jaxdyn.simulate.integrators._derivatives import StepDerivatives, displaced, step_derivatives
from jaxdyn.simulate.integrators._long_steps import warn_of_long_step
from jaxdyn.simulate.integrators._one_step import semi_implicit_euler_step
from jaxdyn.simulate.integrators._robot_operands import RobotOperands, differentiated_as
from jaxdyn.simulate.integrators._runge_kutta import RUNGE_KUTTA_STEPS, rk4_step
from jaxdyn.simulate.integrators._step import Integrator, advance, common_form, require_integrator, step, time_step
