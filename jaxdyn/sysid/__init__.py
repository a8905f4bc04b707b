"""System identification: recordings, physical parametrizations, and fits to measured torques."""

import inspect as _inspect

from jaxdyn.sysid.excitation import Excitation, ExcitationOptions, JointTrajectory, MotionLimits, optimize_excitation
from jaxdyn.sysid.parameters import (
    Additive,
    FixedMass,
    InertiaScale,
    LinkLength,
    LogCholesky,
    Parametrization,
    Payload,
    Placement,
    Positive,
    Symmetric,
    inertial_parameters_from_log_cholesky,
    inertial_parameters_from_pseudo_inertia,
    is_physical,
    log_cholesky_factor,
    log_cholesky_from_inertial_parameters,
    nearest_physical,
    pseudo_inertia,
)
from jaxdyn.sysid.recordings import (
    Dataset,
    Finding,
    Recording,
    RecordingWarning,
    as_recordings,
    check_recording,
    dataset,
    dataset_names,
    fetch_dataset,
    load_csv,
    load_npz,
)
from jaxdyn.sysid.reports import quality_table, write_report, write_rollout_report
from jaxdyn.sysid.rollouts import (
    FleetFit,
    Robot,
    RolloutBootstrap,
    RolloutErrors,
    RolloutFit,
    RolloutFitOptions,
    RolloutStep,
    ShootingState,
    fit_fleet,
    fit_rollouts,
    rollout_errors,
)
from jaxdyn.sysid.torques import (
    BaseParameters,
    Bootstrap,
    CandidateWeights,
    CrossValidation,
    Evaluation,
    Intervals,
    InverseDynamicsFit,
    JointEffects,
    JointEffectValues,
    PayloadFit,
    Step,
    TorqueFitState,
    base_parameters,
    bootstrap,
    cross_validate,
    fit_inverse_dynamics,
    identify_payload,
    ordinary_least_squares,
)

# The names that are imported above, without the modules that Python sets beside them.
__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]
    name for name, value in list(globals().items()) if name[0] != "_" and not _inspect.ismodule(value)
]
