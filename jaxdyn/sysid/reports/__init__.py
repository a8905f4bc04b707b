"""Reports of fits."""

from jaxdyn.sysid.reports._fit_reports import quality_table, write_report, write_rollout_report
