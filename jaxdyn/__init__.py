"""Differentiable rigid-body dynamics, system identification and trajectory optimization in JAX."""

from jaxdyn.algorithms import aba, crba, generalized_gravity, nonlinear_effects, rnea
from jaxdyn.model import BodyInertia, Joint, Model, ModelBuilder
from jaxdyn.spatial import SE3

forward_dynamics = aba
inverse_dynamics = rnea
mass_matrix = crba

__all__ = [
    "SE3",
    "BodyInertia",
    "Joint",
    "Model",
    "ModelBuilder",
    "aba",
    "crba",
    "forward_dynamics",
    "generalized_gravity",
    "inverse_dynamics",
    "mass_matrix",
    "nonlinear_effects",
    "rnea",
]
