"""The integrators by name."""

from collections.abc import Callable
from typing import Literal

from jaxdyn._errors import ModelError, require_choice, require_positive_integer
from jaxdyn.simulate._state import State
from jaxdyn.simulate.integrators._explicit_euler import euler_step
from jaxdyn.simulate.integrators._runge_kutta import rk4_step
from jaxdyn.simulate.integrators._semi_implicit_euler import semi_implicit_euler_step
from jaxdyn.simulate.integrators._variational_midpoint import variational_midpoint_step
from jaxdyn.simulate.integrators._velocity_implicit_euler import velocity_implicit_euler_step

type Integrator = Literal["euler", "semi_implicit_euler", "implicit_velocity", "midpoint", "rk4"]

INTEGRATORS: dict[str, Callable[..., State]] = {
    "euler": euler_step,
    "semi_implicit_euler": semi_implicit_euler_step,
    "implicit_velocity": velocity_implicit_euler_step,
    "midpoint": variational_midpoint_step,
    "rk4": rk4_step,
}
"""Functions `(model, state, tau, dt, f_ext) -> state`; the states must have all batch axes."""


def require_integrator(integrator: str, substeps: int = 1, *, actuator_damping: bool = False) -> None:
    """Raise `ModelError` for an unknown integrator or number of substeps, or for an actuator damping that the
    integrator does not take."""
    require_choice(integrator, INTEGRATORS, "integrator")
    require_positive_integer(substeps, "substeps")
    if actuator_damping and integrator != "implicit_velocity":
        raise ModelError(f"{integrator!r} takes no actuator_damping; use integrator='implicit_velocity'")
