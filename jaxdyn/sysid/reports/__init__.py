"""Reports of fits."""

from jaxdyn.sysid.reports._rollout_report import write_rollout_report
from jaxdyn.sysid.reports._torque_report import quality_table, write_report
