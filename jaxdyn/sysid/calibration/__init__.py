"""Calibration of a robot's geometry from measured poses, positions, contacts, loops and gravity."""

from jaxdyn.sysid.calibration._calibration import Calibration, calibrate
from jaxdyn.sysid.calibration._geometry_measurements import (
    ClosedLoops,
    FixedPoint,
    MeasuredGravity,
    MeasuredPoses,
    MeasuredPositions,
)
from jaxdyn.sysid.calibration._posture_choice import PostureChoice, select_postures
from jaxdyn.sysid.calibration._residual_tests import GeometryCause, Outlier
