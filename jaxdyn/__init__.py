"""Differentiable rigid-body dynamics, system identification and trajectory optimization in JAX."""

from jaxdyn import samples
from jaxdyn._errors import (
    DataError,
    JaxdynError,
    ModelError,
    PhysicalityWarning,
    RobotFileError,
    ShapeError,
    UnknownNameError,
)
from jaxdyn.algorithms import (
    aba,
    aba_derivatives,
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
    rnea_derivatives,
    spring_torque,
    torque_regressor,
)
from jaxdyn.io import RobotFileWarning, load_urdf, to_mjcf
from jaxdyn.model import BodyInertia, Frame, Joint, Mimic, Model, ModelBuilder
from jaxdyn.simulate import State, Trajectory, rollout, step
from jaxdyn.spatial import SE3

forward_dynamics = aba
inverse_dynamics = rnea
mass_matrix = crba

__all__ = [
    "SE3",
    "BodyInertia",
    "DataError",
    "Frame",
    "JaxdynError",
    "Joint",
    "Mimic",
    "Model",
    "ModelBuilder",
    "ModelError",
    "PhysicalityWarning",
    "RobotFileError",
    "RobotFileWarning",
    "ShapeError",
    "State",
    "Trajectory",
    "UnknownNameError",
    "aba",
    "aba_derivatives",
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
    "load_urdf",
    "mass_matrix",
    "nonlinear_effects",
    "potential_energy",
    "rnea",
    "rnea_derivatives",
    "rollout",
    "samples",
    "spring_torque",
    "step",
    "to_mjcf",
    "torque_regressor",
]
