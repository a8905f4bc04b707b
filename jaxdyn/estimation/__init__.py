"""State estimation: Kalman filters and smoothers on manifolds, and moving-horizon estimation."""

from jaxdyn.estimation._inertial_dynamics import InertialDynamics
from jaxdyn.estimation._kalman_filter import FilterEstimates, StateEstimates, filter, smooth
from jaxdyn.estimation._kalman_step import Update, predict, update
from jaxdyn.estimation._measurements import (
    AbstractMeasurement,
    JointMeasurement,
    ResidualMeasurement,
    SensorMeasurement,
)
from jaxdyn.estimation._moving_horizon import MovingHorizon, NoiseDynamics, Window, smoothing_problem
from jaxdyn.estimation._state_space import StateSpaceModel

__all__ = [
    "AbstractMeasurement",
    "FilterEstimates",
    "InertialDynamics",
    "JointMeasurement",
    "MovingHorizon",
    "NoiseDynamics",
    "ResidualMeasurement",
    "SensorMeasurement",
    "StateEstimates",
    "StateSpaceModel",
    "Update",
    "Window",
    "filter",
    "predict",
    "smooth",
    "smoothing_problem",
    "update",
]
