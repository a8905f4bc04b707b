"""Parametrizations of robots by free numbers."""

from jaxdyn.sysid.parameters import _leaves as leaves
from jaxdyn.sysid.parameters import _log_cholesky as cholesky
from jaxdyn.sysid.parameters import _parametrization as blocks
from jaxdyn.sysid.parameters import _touching_arrays as touching_arrays
from jaxdyn.sysid.parameters import _world_arrays as world_arrays
from jaxdyn.sysid.parameters._all_scales import AllScales
from jaxdyn.sysid.parameters._contact_blocks import ContactNumbers, ContactPlacement, ContactPlane, ContactSizes
from jaxdyn.sysid.parameters._inertia_blocks import FixedMass, InertiaScale, LogCholesky, Payload, Symmetric
from jaxdyn.sysid.parameters._kinematic_errors import KinematicErrors
from jaxdyn.sysid.parameters._leaf_blocks import Additive, LinkLength, Placement, Positive
from jaxdyn.sysid.parameters._leaves import Place, nearest_physical_model
from jaxdyn.sysid.parameters._log_cholesky import (
    inertial_parameters_from_log_cholesky,
    inertial_parameters_from_pseudo_inertia,
    is_physical,
    log_cholesky_factor,
    log_cholesky_from_inertial_parameters,
    nearest_physical,
    pseudo_inertia,
)
from jaxdyn.sysid.parameters._named_numbers import named_choices
from jaxdyn.sysid.parameters._parameter_files import (
    identified_robots,
    load_parameters,
    parameter_notes,
    save_parameters,
)
from jaxdyn.sysid.parameters._parametrization import Parametrization
