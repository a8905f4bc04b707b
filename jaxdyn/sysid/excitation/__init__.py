"""Motions from which parameters can be identified well."""

from jaxdyn.sysid.excitation._excitation import Excitation, optimize_excitation
from jaxdyn.sysid.excitation._smooth_motions import JointTrajectory, MotionLimits
