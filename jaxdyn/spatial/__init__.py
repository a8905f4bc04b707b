"""Rotations, rigid motions and inertias; nothing about robots.

Component classes (`Vec3`, `Pose`, `Motion`, ...) serve inside recursions; functions on arrays with trailing axes
(poses `[..., 7]`, quaternions `[..., 4]`, inertial parameters `[..., 10]`), in NumPy and JAX alike, everywhere else.
"""

import inspect as _inspect

from jaxdyn.spatial._inertia import ArticulatedInertia, Inertia
from jaxdyn.spatial._jacobians import (
    TwistMatrix,
    matrix_rows,
    se3_exp_jacobian,
    se3_inverse_adjoint,
    se3_log_jacobian,
    se3_log_jacobian_before,
    so3_left_jacobian,
    so3_left_jacobian_apply_slope,
    so3_left_jacobian_inverse,
    so3_left_jacobian_solve_slope,
)
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
from jaxdyn.spatial._pose_arrays import (
    IDENTITY_POSE,
    ROTATION,
    SKEW,
    axis_angle_to_quaternion,
    compose_poses,
    inertia_elements,
    inertia_matrix,
    invert_pose,
    multiply_quaternions,
    pose_array,
    quaternion_from_z,
    quaternion_to_rotation,
    quaternion_to_rpy,
    rotation_to_quaternion,
    rpy_to_quaternion,
    transform_inertial_parameters,
    transform_points,
    unit_quaternion,
)
from jaxdyn.spatial._quaternion import Quaternion, scale_of_squares
from jaxdyn.spatial._se3 import SE3
from jaxdyn.spatial._vectors import Mat3, Sym3, Vec3

# The names that are imported above, without the modules that Python sets beside them.
__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]
    name for name, value in list(globals().items()) if name[0] != "_" and not _inspect.ismodule(value)
]
