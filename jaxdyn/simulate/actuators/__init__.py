"""Blocks between the control of an actuator and its joint: delays, lags, limits of motors, friction."""

from jaxdyn.simulate.actuators._drive_block import (
    AbstractDriveBlock,
    AbstractJointEffect,
    AbstractMemorylessBlock,
    ActuatorState,
)
from jaxdyn.simulate.actuators._joint_effects import DahlFriction, SoftLimits, StribeckFriction
from jaxdyn.simulate.actuators._motor_limits import DCMotorLimits, EffortLimits
from jaxdyn.simulate.actuators._time_lags import Delay, FirstOrderLag
