"""Optimal control problems: dynamics, residuals, costs and constraints."""

from jaxdyn.trajopt.problem._bounded_residuals import Constraint, bound_excess
from jaxdyn.trajopt.problem._clearance import ClearanceResidual
from jaxdyn.trajopt.problem._contact_residuals import (
    CenterOfPressureResidual,
    ContactForceResidual,
    FrictionConeResidual,
    TerrainClearanceResidual,
)
from jaxdyn.trajopt.problem._costs import (
    AbstractCost,
    FunctionCost,
    Quadratic,
    QuadraticCost,
    ResidualCost,
    SmoothAbsCost,
    TimeVarying,
    function_of_displacement,
    hessian_blocks,
    quadratic_expansion,
    term_at_stage,
)
from jaxdyn.trajopt.problem._dynamics import (
    AbstractDynamics,
    AbstractRobotDynamics,
    ContinuousDynamics,
    DiscreteDynamics,
    ModelDynamics,
)
from jaxdyn.trajopt.problem._ensembles import EnsembleCost, EnsembleDynamics, EnsembleResidual
from jaxdyn.trajopt.problem._guesses import Guess, interpolated_guess, resampled_guess, static_guess
from jaxdyn.trajopt.problem._initial_terms import InitialConstraint, InitialCost
from jaxdyn.trajopt.problem._initial_unknowns import (
    FirstStateDynamics,
    ParameterDynamics,
    ParameterResidual,
    PeriodicResidual,
)
from jaxdyn.trajopt.problem._model_limits import JointResidual, effort_bounds, limit_constraints
from jaxdyn.trajopt.problem._phased_dynamics import PhasedDynamics, contact_schedule
from jaxdyn.trajopt.problem._problem import Problem, join_rows, with_leaves
from jaxdyn.trajopt.problem._residuals import (
    AbstractResidual,
    CenterOfMassResidual,
    ControlResidual,
    FramePoseResidual,
    FramePositionResidual,
    FrameVelocityResidual,
    FunctionResidual,
    Linear,
    RollingVelocityResidual,
    Selected,
    StateResidual,
    UprightResidual,
)
from jaxdyn.trajopt.problem._soft_constraints import RelaxedBarrierCost, SoftConstraintCost
from jaxdyn.trajopt.problem._world_dynamics import WorldDynamics
from jaxdyn.trajopt.problem._wrapped_dynamics import (
    ControlRateResidual,
    DurationCost,
    DynamicsAround,
    FreeTimeDynamics,
    InnerResidual,
    PreviousControlDynamics,
    StepLengthResidual,
    WrappedDynamics,
    with_disturbance,
)
