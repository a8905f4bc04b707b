"""Joints: the primitive ones, the types that are chains of them, trees of joints, and the configuration manifold."""

from jaxdyn.joints._ball import BALL
from jaxdyn.joints._free import FREE
from jaxdyn.joints._helical import HELICAL
from jaxdyn.joints._joint_types import JOINT_TYPES, joint_nq, joint_nv
from jaxdyn.joints._local_poses import local_poses, motion_columns
from jaxdyn.joints._manifold import (
    chart_point,
    chart_rate,
    coordinate_cotangent,
    coordinate_range,
    coordinate_rate,
    difference,
    integrate,
    neutral,
    quaternion_starts,
    random_configuration,
    spring_energy,
    spring_torque,
)
from jaxdyn.joints._primitive import Primitive
from jaxdyn.joints._prismatic import PRISMATIC
from jaxdyn.joints._revolute import REVOLUTE
from jaxdyn.joints._topology import Topology

__all__ = [
    "BALL",
    "FREE",
    "HELICAL",
    "JOINT_TYPES",
    "PRISMATIC",
    "REVOLUTE",
    "Primitive",
    "Topology",
    "chart_point",
    "chart_rate",
    "coordinate_cotangent",
    "coordinate_range",
    "coordinate_rate",
    "difference",
    "integrate",
    "joint_nq",
    "joint_nv",
    "local_poses",
    "motion_columns",
    "neutral",
    "quaternion_starts",
    "random_configuration",
    "spring_energy",
    "spring_torque",
]
