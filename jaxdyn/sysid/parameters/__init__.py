"""Parametrizations of robots by free numbers."""

from jaxdyn.sysid.parameters._inertia_blocks import FixedMass, InertiaScale, LogCholesky, Payload, physical_parameters
from jaxdyn.sysid.parameters._leaf_blocks import Additive, LinkLength, Placement, Positive
from jaxdyn.sysid.parameters._leaves import leaf_name, model_of, require_physical
from jaxdyn.sysid.parameters._log_cholesky import (
    FACTOR_TANGENT,
    divergence_metric,
    divergence_of_factor,
    divergence_slope,
    factor_from_coordinates,
    inertial_parameters_from_log_cholesky,
    inertial_parameters_from_pseudo_inertia,
    is_physical,
    log_cholesky_factor,
    log_cholesky_from_inertial_parameters,
    nearest_physical,
    parameters_from_pseudo_inertia,
    pseudo_factor,
    pseudo_inertia,
)
from jaxdyn.sysid.parameters._parametrization import Parametrization
from jaxdyn.sysid.parameters._symmetric import Symmetric
