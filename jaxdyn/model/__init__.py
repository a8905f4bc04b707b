"""Robots: the static tree, joints, models as pytrees, a builder, and sample robots."""

from jaxdyn.model._builder import STANDARD_GRAVITY, Joint, ModelBuilder
from jaxdyn.model._inertia import BodyInertia
from jaxdyn.model._model import FRICTION_VELOCITY, Frame, Model, parameters_of
from jaxdyn.model._topology import Topology

__all__ = [
    "FRICTION_VELOCITY",
    "STANDARD_GRAVITY",
    "BodyInertia",
    "Frame",
    "Joint",
    "Model",
    "ModelBuilder",
    "Topology",
    "parameters_of",
]
