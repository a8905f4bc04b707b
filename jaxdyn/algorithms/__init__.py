"""The algorithms of rigid-body dynamics, one a file."""

from jaxdyn.algorithms._aba import aba
from jaxdyn.algorithms._crba import crba
from jaxdyn.algorithms._derivatives import aba_derivatives, rnea_derivatives
from jaxdyn.algorithms._energy import center_of_mass, kinetic_energy, potential_energy
from jaxdyn.algorithms._kinematics import forward_kinematics, frame_jacobian, frame_pose, frame_velocity
from jaxdyn.algorithms._regressor import torque_regressor
from jaxdyn.algorithms._rnea import generalized_gravity, nonlinear_effects, rnea, spring_torque

__all__ = [
    "aba",
    "aba_derivatives",
    "center_of_mass",
    "crba",
    "forward_kinematics",
    "frame_jacobian",
    "frame_pose",
    "frame_velocity",
    "generalized_gravity",
    "kinetic_energy",
    "nonlinear_effects",
    "potential_energy",
    "rnea",
    "rnea_derivatives",
    "spring_torque",
    "torque_regressor",
]
