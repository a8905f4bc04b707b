"""Trajectory optimization: problems, solvers, and what they hand back."""

from jaxdyn.trajopt._constraints import Constraint
from jaxdyn.trajopt._costs import AbstractCost, FunctionCost, Quadratic, QuadraticCost, SmoothAbsCost, TimeVarying
from jaxdyn.trajopt._ddp import DDPOptions, ddp
from jaxdyn.trajopt._dynamics import AbstractDynamics, ContinuousDynamics, DiscreteDynamics, ModelDynamics
from jaxdyn.trajopt._problem import Problem
from jaxdyn.trajopt._residuals import (
    AbstractResidual,
    CenterOfMassResidual,
    ControlResidual,
    FramePoseResidual,
    FramePositionResidual,
    FrameVelocityResidual,
    FunctionResidual,
    Linear,
    Selected,
    StateResidual,
)
from jaxdyn.trajopt._solution import Gains, Multipliers, Residuals, Solution, Status

__all__ = [
    "AbstractCost",
    "AbstractDynamics",
    "AbstractResidual",
    "CenterOfMassResidual",
    "Constraint",
    "ContinuousDynamics",
    "ControlResidual",
    "DDPOptions",
    "DiscreteDynamics",
    "FramePoseResidual",
    "FramePositionResidual",
    "FrameVelocityResidual",
    "FunctionCost",
    "FunctionResidual",
    "Gains",
    "Linear",
    "ModelDynamics",
    "Multipliers",
    "Problem",
    "Quadratic",
    "QuadraticCost",
    "Residuals",
    "Selected",
    "SmoothAbsCost",
    "Solution",
    "StateResidual",
    "Status",
    "TimeVarying",
    "ddp",
]
