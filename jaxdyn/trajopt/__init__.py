"""Trajectory optimization: problems, solvers, and what they hand back."""

from jaxdyn.trajopt._solution import Gains, Multipliers, Residuals, Solution, Status
from jaxdyn.trajopt.collocation._collocation import CollocationOptions, collocation
from jaxdyn.trajopt.ddp._ddp import DDPOptions, ddp
from jaxdyn.trajopt.mpc._closed_loop import ClosedLoop, Latency, closed_loop
from jaxdyn.trajopt.mpc._mpc import MPC, Plan
from jaxdyn.trajopt.problem._clearance import Capsule, ClearanceResidual
from jaxdyn.trajopt.problem._constraints import Constraint
from jaxdyn.trajopt.problem._costs import (
    AbstractCost,
    FunctionCost,
    Quadratic,
    QuadraticCost,
    SmoothAbsCost,
    TimeVarying,
)
from jaxdyn.trajopt.problem._dynamics import AbstractDynamics, ContinuousDynamics, DiscreteDynamics, ModelDynamics
from jaxdyn.trajopt.problem._problem import Problem
from jaxdyn.trajopt.problem._residuals import (
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
from jaxdyn.trajopt.sampling._cem import CEMOptions, cem
from jaxdyn.trajopt.sampling._mppi import MPPIOptions, mppi
from jaxdyn.trajopt.sampling._predictive_sampling import PredictiveSamplingOptions, predictive_sampling

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
