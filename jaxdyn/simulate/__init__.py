"""Time steps, roll-outs, and actuators."""

import inspect as _inspect

from jaxdyn.simulate._divergence import DivergenceError
from jaxdyn.simulate._rollout import RolloutOptions, rollout
from jaxdyn.simulate._state import State, Trajectory
from jaxdyn.simulate._vector_field import coordinate_rate, normalized, vector_field
from jaxdyn.simulate.actuators import *
from jaxdyn.simulate.integrators import (
    StepDerivatives,
    rk4_step,
    semi_implicit_euler_step,
    step,
    step_derivatives,
)

# The names that are imported above, without the modules that Python sets beside them.
__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]
    name for name, value in list(globals().items()) if name[0] != "_" and not _inspect.ismodule(value)
]
