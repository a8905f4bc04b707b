"""System identification: recordings, physical parametrisations, and fits to measured torques."""

from jaxdyn.sysid._inverse_dynamics import (
    InverseDynamicsFit,
    fit_inverse_dynamics,
    ordinary_least_squares,
)
from jaxdyn.sysid._load import load_csv, load_npz
from jaxdyn.sysid._log_cholesky import (
    inertial_parameters_from_log_cholesky,
    inertial_parameters_from_pseudo_inertia,
    is_physical,
    log_cholesky_factor,
    log_cholesky_from_inertial_parameters,
    nearest_physical,
    pseudo_inertia,
)
from jaxdyn.sysid._physical_fit import Step
from jaxdyn.sysid._recording import Recording, as_recordings
from jaxdyn.sysid._recording_checks import Finding, RecordingWarning, check_recording
from jaxdyn.sysid._registry import Dataset, dataset, dataset_names, fetch_dataset

__all__ = [
    "Dataset",
    "Finding",
    "InverseDynamicsFit",
    "Recording",
    "RecordingWarning",
    "Step",
    "as_recordings",
    "check_recording",
    "dataset",
    "dataset_names",
    "fetch_dataset",
    "fit_inverse_dynamics",
    "inertial_parameters_from_log_cholesky",
    "inertial_parameters_from_pseudo_inertia",
    "is_physical",
    "load_csv",
    "load_npz",
    "log_cholesky_factor",
    "log_cholesky_from_inertial_parameters",
    "nearest_physical",
    "ordinary_least_squares",
    "pseudo_inertia",
]
