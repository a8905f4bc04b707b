"""Motions from which parameters can be identified well."""

from jaxdyn.sysid.excitation._excitation import Excitation, ExcitationOptions, optimize_excitation
from jaxdyn.sysid.excitation._motions import JointTrajectory, MotionLimits
