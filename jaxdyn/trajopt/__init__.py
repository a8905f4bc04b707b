"""Trajectory optimization: problems, solvers, and what they hand back."""

from jaxdyn.trajopt._cem import CEMOptions, cem
from jaxdyn.trajopt._clearance import Capsule, ClearanceResidual
from jaxdyn.trajopt._closed_loop import ClosedLoop, Latency, closed_loop
from jaxdyn.trajopt._collocation import CollocationOptions, collocation
from jaxdyn.trajopt._constraints import Constraint
from jaxdyn.trajopt._costs import AbstractCost, FunctionCost, Quadratic, QuadraticCost, SmoothAbsCost, TimeVarying
from jaxdyn.trajopt._ddp import DDPOptions, ddp
from jaxdyn.trajopt._dynamics import AbstractDynamics, ContinuousDynamics, DiscreteDynamics, ModelDynamics
from jaxdyn.trajopt._mpc import MPC, Plan
from jaxdyn.trajopt._mppi import MPPIOptions, mppi
from jaxdyn.trajopt._predictive_sampling import PredictiveSamplingOptions, predictive_sampling
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
    "MPC",
    "AbstractCost",
    "AbstractDynamics",
    "AbstractResidual",
    "CEMOptions",
    "Capsule",
    "CenterOfMassResidual",
    "ClearanceResidual",
    "ClosedLoop",
    "CollocationOptions",
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
    "Latency",
    "Linear",
    "MPPIOptions",
    "ModelDynamics",
    "Multipliers",
    "Plan",
    "PredictiveSamplingOptions",
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
    "cem",
    "closed_loop",
    "collocation",
    "ddp",
    "mppi",
    "predictive_sampling",
]
