"""Actuators between a policy and the joints, and friction and soft limits at the joints."""

from jaxdyn.simulate.actuators._actuator import (
    AbstractActuator,
    AbstractMemorylessActuator,
    ActuatedPolicy,
    Actuation,
)
from jaxdyn.simulate.actuators._joint_effects import (
    AbstractJointEffect,
    CoulombFriction,
    SoftLimits,
    StribeckFriction,
    ViscousFriction,
)
from jaxdyn.simulate.actuators._motor import DCMotorLimits, Delay, EffortLimits, FirstOrderLag, Gear, Transmission
from jaxdyn.simulate.actuators._servo import PositionServo, ServoCommand, VelocityServo
