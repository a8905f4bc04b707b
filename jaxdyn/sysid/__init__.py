"""System identification: recordings, physical parametrizations, and fits to measured torques."""

from jaxdyn.sysid.excitation._excitation import Excitation, optimize_excitation
from jaxdyn.sysid.excitation._joint_motions import JointTrajectory
from jaxdyn.sysid.parameters._base_parameters import BaseParameters, base_parameters
from jaxdyn.sysid.parameters._inertia_blocks import FixedMass, InertiaScale, LogCholesky, Payload
from jaxdyn.sysid.parameters._leaf_blocks import Additive, LinkLength, Placement, Positive
from jaxdyn.sysid.parameters._log_cholesky import (
    inertial_parameters_from_log_cholesky,
    inertial_parameters_from_pseudo_inertia,
    is_physical,
    log_cholesky_factor,
    log_cholesky_from_inertial_parameters,
    nearest_physical,
    pseudo_inertia,
)
from jaxdyn.sysid.parameters._parametrization import Parametrization
from jaxdyn.sysid.parameters._symmetric import Symmetric
from jaxdyn.sysid.recordings._datasets import Dataset, dataset, dataset_names, fetch_dataset
from jaxdyn.sysid.recordings._files import load_csv, load_npz
from jaxdyn.sysid.recordings._plausibility import Finding, RecordingWarning, check_recording
from jaxdyn.sysid.recordings._recording import Recording, as_recordings
from jaxdyn.sysid.reports._report import quality_table, write_report
from jaxdyn.sysid.reports._rollout_report import write_rollout_report
from jaxdyn.sysid.rollouts._actuated_robot import Robot, RolloutErrors, rollout_errors
from jaxdyn.sysid.rollouts._rollout_fit import RolloutStep, fit_rollouts
from jaxdyn.sysid.rollouts._rollout_result import RolloutBootstrap, RolloutFit
from jaxdyn.sysid.rollouts._shooting import ShootingState
from jaxdyn.sysid.torques._bootstrap import Bootstrap, bootstrap
from jaxdyn.sysid.torques._cross_validation import CrossValidation
from jaxdyn.sysid.torques._effects import JointEffects, JointEffectValues
from jaxdyn.sysid.torques._fit_result import Evaluation, InverseDynamicsFit
from jaxdyn.sysid.torques._fleet_fit import FleetFit, fit_fleet
from jaxdyn.sysid.torques._intervals import Intervals
from jaxdyn.sysid.torques._payload import PayloadFit, identify_payload
from jaxdyn.sysid.torques._torque_fit import (
    Step,
    cross_validate,
    fit_inverse_dynamics,
    ordinary_least_squares,
)
from jaxdyn.sysid.torques._torque_state import TorqueFitState

__all__ = [
    "Additive",
    "BaseParameters",
    "Bootstrap",
    "CrossValidation",
    "Dataset",
    "Evaluation",
    "Excitation",
    "Finding",
    "FixedMass",
    "FleetFit",
    "InertiaScale",
    "Intervals",
    "InverseDynamicsFit",
    "JointEffectValues",
    "JointEffects",
    "JointTrajectory",
    "LinkLength",
    "LogCholesky",
    "Parametrization",
    "Payload",
    "PayloadFit",
    "Placement",
    "Positive",
    "Recording",
    "RecordingWarning",
    "Robot",
    "RolloutBootstrap",
    "RolloutErrors",
    "RolloutFit",
    "RolloutStep",
    "ShootingState",
    "Step",
    "Symmetric",
    "TorqueFitState",
    "as_recordings",
    "base_parameters",
    "bootstrap",
    "check_recording",
    "cross_validate",
    "dataset",
    "dataset_names",
    "fetch_dataset",
    "fit_fleet",
    "fit_inverse_dynamics",
    "fit_rollouts",
    "identify_payload",
    "inertial_parameters_from_log_cholesky",
    "inertial_parameters_from_pseudo_inertia",
    "is_physical",
    "load_csv",
    "load_npz",
    "log_cholesky_factor",
    "log_cholesky_from_inertial_parameters",
    "nearest_physical",
    "optimize_excitation",
    "ordinary_least_squares",
    "pseudo_inertia",
    "quality_table",
    "rollout_errors",
    "write_report",
    "write_rollout_report",
]
