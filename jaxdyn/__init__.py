"""Differentiable rigid-body dynamics, system identification and trajectory optimization in JAX."""

from jaxdyn.algorithms import (
    aba,
    center_of_mass,
    crba,
    forward_kinematics,
    frame_jacobian,
    frame_pose,
    frame_velocity,
    generalized_gravity,
    kinetic_energy,
    nonlinear_effects,
    potential_energy,
    rnea,
    torque_regressor,
)
from jaxdyn import samples
from jaxdyn.model import BodyInertia, Frame, Joint, Model, ModelBuilder
from jaxdyn.spatial import SE3

forward_dynamics = aba
inverse_dynamics = rnea
mass_matrix = crba

__all__ = [
    "SE3",
    "BodyInertia",
    "Frame",
    "Joint",
    "Model",
    "ModelBuilder",
    "aba",
    "center_of_mass",
    "crba",
    "forward_dynamics",
    "forward_kinematics",
    "frame_jacobian",
    "frame_pose",
    "frame_velocity",
    "generalized_gravity",
    "inverse_dynamics",
    "kinetic_energy",
    "mass_matrix",
    "nonlinear_effects",
    "potential_energy",
    "rnea",
    "samples",
    "torque_regressor",
]
