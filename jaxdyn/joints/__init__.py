"""Joints: the primitive ones, the types that are chains of them, trees of joints, and the configuration manifold."""

from jaxdyn.joints._joint_types import JOINT_TYPES, joint_nq, joint_nv
from jaxdyn.joints._local_poses import local_poses, motion_columns
from jaxdyn.joints._loops import (
    FREE_ROWS,
    LOOP_ROWS,
    POSITION_ROWS,
    Coupling,
    Loop,
    LoopFrames,
    free_forces,
    loop_errors,
    loop_force_rates,
    loop_forces,
    rotation_sines,
)
from jaxdyn.joints._manifold import (
    apply_to_rows,
    chart_jacobians,
    chart_point,
    chart_rate,
    coordinate_cotangent,
    coordinate_range,
    coordinate_rate,
    difference,
    difference_jacobians,
    integrate,
    integrate_jacobians,
    jacobians,
    neutral,
    random_configuration,
    spring_energy,
    spring_torque,
)
from jaxdyn.joints._primitive import ChartJacobians, Primitive
from jaxdyn.joints._topology import Topology
