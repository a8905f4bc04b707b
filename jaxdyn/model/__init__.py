"""Robots: the static tree, joints, models as pytrees, a builder, and sample robots."""

from jaxdyn.model._builder import STANDARD_GRAVITY, Joint, Mimic, ModelBuilder
from jaxdyn.model._edit import (
    attach,
    with_armature,
    with_joint_friction,
    with_link_parameters,
    with_locked_joints,
    with_payload,
)
from jaxdyn.model._inertia import BodyInertia
from jaxdyn.model._model import FRICTION_VELOCITY, Frame, Model, parameters_of
from jaxdyn.model._scaling import scaled
from jaxdyn.model._summary import summary
from jaxdyn.model._topology import Topology

__all__ = [
    "FRICTION_VELOCITY",
    "STANDARD_GRAVITY",
    "BodyInertia",
    "Frame",
    "Joint",
    "Mimic",
    "Model",
    "ModelBuilder",
    "Topology",
    "attach",
    "parameters_of",
    "scaled",
    "summary",
    "with_armature",
    "with_joint_friction",
    "with_link_parameters",
    "with_locked_joints",
    "with_payload",
]
