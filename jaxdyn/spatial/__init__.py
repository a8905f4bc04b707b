"""Spatial algebra on component arrays, rotations and rigid motions; nothing about robots."""

from jaxdyn.spatial._inertia import ArticulatedInertia, Inertia
from jaxdyn.spatial._motion import Force, Motion
from jaxdyn.spatial._pose import (
    Pose,
    se3_exp,
    se3_log,
    so3_exp,
    so3_left_jacobian_apply,
    so3_left_jacobian_solve,
    so3_log,
)
from jaxdyn.spatial._quaternion import Quaternion
from jaxdyn.spatial._se3 import SE3, rotation_to_quaternion
from jaxdyn.spatial._vectors import Mat3, Sym3, Vec3

__all__ = [
    "SE3",
    "ArticulatedInertia",
    "Force",
    "Inertia",
    "Mat3",
    "Motion",
    "Pose",
    "Quaternion",
    "Sym3",
    "Vec3",
    "rotation_to_quaternion",
    "se3_exp",
    "se3_log",
    "so3_exp",
    "so3_left_jacobian_apply",
    "so3_left_jacobian_solve",
    "so3_log",
]
