"""Time steps, roll-outs, and actuators."""

from jaxdyn.simulate import actuators
from jaxdyn.simulate._divergence import DivergenceError
from jaxdyn.simulate._rollout import RolloutOptions, rollout
from jaxdyn.simulate._state import State, Trajectory
from jaxdyn.simulate._vector_field import coordinate_rate, normalized, vector_field
from jaxdyn.simulate.actuators import *  # noqa: F403
from jaxdyn.simulate.integrators import rk4_step, semi_implicit_euler_step, step

__all__ = [
    "DivergenceError",
    "RolloutOptions",
    "State",
    "Trajectory",
    "coordinate_rate",
    "normalized",
    "rk4_step",
    "rollout",
    "semi_implicit_euler_step",
    "step",
    "vector_field",
]
__all__ += actuators.__all__
