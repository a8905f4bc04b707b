"""Constraints beside the tree, as rows on the accelerations of the tree's independent joints, and their solution."""

from jaxdyn.constraints._mimic import mimic_rows
from jaxdyn.constraints._projection import (
    ACCELERATIONS,
    CORRECTIONS,
    ProximalFactors,
    least_opening,
    project_accelerations,
    proximal_solve,
    proximal_steps,
    scale_of_equations,
)
