"""Time steps, roll-outs, and blocks of actuators."""

import inspect as _inspect

from jaxdyn.simulate._divergence import DivergenceError
from jaxdyn.simulate._rollout import Policy, RolloutOptions, roll_out_world, rollout
from jaxdyn.simulate._state import State, Trajectory
from jaxdyn.simulate._systems import AbstractWorld, Advance
from jaxdyn.simulate._vector_field import coordinate_rate, normalized, vector_field
from jaxdyn.simulate.actuators import *
from jaxdyn.simulate.integrators import (
    StepDerivatives,
    rk4_step,
    semi_implicit_euler_step,
    step,
    step_derivatives,
)

_FOR_WORLDS = {"AbstractWorld", "Advance", "Policy", "roll_out_world"}
# The names that are imported above for users, without the modules that Python sets beside them.
__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]
    name
    for name, value in list(globals().items())
    if name[0] != "_" and not _inspect.ismodule(value) and name not in _FOR_WORLDS
]
