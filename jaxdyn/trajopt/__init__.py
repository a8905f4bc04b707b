"""Trajectory optimization: problems, solvers and their solutions."""

import inspect as _inspect

from jaxdyn._status import Status
from jaxdyn.trajopt._history import History, IterationRecord, progress_line
from jaxdyn.trajopt._solution import Gains, Multipliers, Residuals, Solution
from jaxdyn.trajopt.ddp import DDPOptions, ddp
from jaxdyn.trajopt.mpc import MPC, ClosedLoop, Latency, Plan, Preparation, closed_loop
from jaxdyn.trajopt.problem import (
    AbstractCost,
    AbstractDynamics,
    AbstractResidual,
    CenterOfMassResidual,
    CenterOfPressureResidual,
    ClearanceResidual,
    Constraint,
    ContactForceResidual,
    ContinuousDynamics,
    ControlRateResidual,
    ControlResidual,
    DiscreteDynamics,
    DurationCost,
    EnsembleCost,
    EnsembleDynamics,
    EnsembleResidual,
    FirstStateDynamics,
    FramePoseResidual,
    FramePositionResidual,
    FrameVelocityResidual,
    FreeTimeDynamics,
    FrictionConeResidual,
    FunctionCost,
    FunctionResidual,
    Guess,
    InnerResidual,
    JointResidual,
    Linear,
    ModelDynamics,
    ParameterDynamics,
    ParameterResidual,
    PeriodicResidual,
    PhasedDynamics,
    PreviousControlDynamics,
    Problem,
    Quadratic,
    QuadraticCost,
    RelaxedBarrierCost,
    RollingVelocityResidual,
    Selected,
    SmoothAbsCost,
    SoftConstraintCost,
    StateResidual,
    StepLengthResidual,
    TerrainClearanceResidual,
    TimeVarying,
    UprightResidual,
    WorldDynamics,
    contact_schedule,
    effort_bounds,
    interpolated_guess,
    limit_constraints,
    resampled_guess,
    static_guess,
)
from jaxdyn.trajopt.sampling import (
    CEMOptions,
    MPPIOptions,
    PredictiveSamplingOptions,
    SamplingOptions,
    cem,
    mppi,
    predictive_sampling,
)

# The names that are imported above, without the modules that Python sets beside them.
__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]
    name for name, value in list(globals().items()) if name[0] != "_" and not _inspect.ismodule(value)
]
