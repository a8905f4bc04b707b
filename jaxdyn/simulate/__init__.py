"""Time stepping and roll-outs."""

from jaxdyn.simulate._divergence import DivergenceError
from jaxdyn.simulate._rollout import rollout
from jaxdyn.simulate._state import State, Trajectory
from jaxdyn.simulate._vector_field import coordinate_rate, normalized, vector_field
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
from jaxdyn.simulate.integrators._runge_kutta import rk4_step
from jaxdyn.simulate.integrators._semi_implicit_euler import semi_implicit_euler_step
from jaxdyn.simulate.integrators._step import step

__all__ = [
    "AbstractActuator",
    "AbstractJointEffect",
    "AbstractMemorylessActuator",
    "ActuatedPolicy",
    "Actuation",
    "CoulombFriction",
    "DCMotorLimits",
    "Delay",
    "DivergenceError",
    "EffortLimits",
    "FirstOrderLag",
    "Gear",
    "PositionServo",
    "ServoCommand",
    "SoftLimits",
    "State",
    "StribeckFriction",
    "Trajectory",
    "Transmission",
    "VelocityServo",
    "ViscousFriction",
    "coordinate_rate",
    "normalized",
    "rk4_step",
    "rollout",
    "semi_implicit_euler_step",
    "step",
    "vector_field",
]
