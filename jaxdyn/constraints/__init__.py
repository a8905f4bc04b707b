"""Constraints beside the tree: rows `C a = 0` on the accelerations of the tree's independent joints."""

from jaxdyn.constraints._mimic import mimic_rows
from jaxdyn.constraints._projection import project_accelerations
