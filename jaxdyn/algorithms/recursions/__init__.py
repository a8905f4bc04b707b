"""The recursions that the algorithms share, and the decorator that keeps batches out of their equations."""

from jaxdyn.algorithms.recursions._algorithm import (
    AnalyticDerivatives,
    Constant,
    algorithm,
    check_arrays,
    constants_of,
    model_batch,
)
from jaxdyn.algorithms.recursions._articulated_elimination import (
    Elimination,
    constant_elimination,
    eliminate,
    eliminate_forces,
)
from jaxdyn.algorithms.recursions._body_frames import (
    centers,
    column_vectors,
    components,
    force_from,
    force_in,
    motion_from,
    motion_in,
    pose_arrays,
    product,
    row_vectors,
    single_vector,
)
from jaxdyn.algorithms.recursions._constraint_rows import (
    ConstraintRows,
    LoopEnds,
    LoopGroup,
    Sizes,
    body_poses,
    constraint_derivatives,
    constraint_errors,
    constraint_rows,
    coupling_rows,
    loop_ends,
    loop_groups,
    loop_order,
    rows_alike,
)
from jaxdyn.algorithms.recursions._corrections import correction
from jaxdyn.algorithms.recursions._dof_matrices import DofMatrices
from jaxdyn.algorithms.recursions._equations_of_motion import (
    EquationsOfMotion,
    Kinematics,
    Velocities,
    absolute_poses,
    equations_and_velocities,
    equations_at_rest,
    equations_of_motion,
    external_forces,
    joint_friction_law,
    kinematics,
    kinematics_and_poses,
    momenta_and_rates,
    node_inertias,
    passive_torque,
    spring_energy,
    spring_rows,
    turning_accelerations,
    velocities,
    velocity_accelerations,
)
from jaxdyn.algorithms.recursions._forward_dynamics import (
    Factors,
    HeldFactors,
    constrained_inverse,
    forward,
    forward_at,
    solve,
    solve_held,
    substitute,
    substitute_forces,
)
from jaxdyn.algorithms.recursions._frames import Reference, absolute_frame_pose, frame_reference
from jaxdyn.algorithms.recursions._held_frames import CONTACT_ROWS, ContactFrames, contact_rate_derivatives
from jaxdyn.algorithms.recursions._inverse_dynamics import inverse, mass_matrix_product
from jaxdyn.algorithms.recursions._motion_completion import all_rows, motions_from_joints, with_batch_first
from jaxdyn.algorithms.recursions._robot import Robot
from jaxdyn.algorithms.recursions._robot_and_parts import Parts, RobotAndParts
from jaxdyn.algorithms.recursions._sensitivities import (
    Sensitivities,
    Turning,
    body_matrices,
    body_products,
    inverse_matrices,
    inverse_products,
    operator,
    sensitivities,
    spring_products,
    spring_slope,
    turning,
)
from jaxdyn.algorithms.recursions._unit_wrenches import (
    bodies_axes,
    project_on_dofs,
    unit_momenta,
    unit_wrenches,
    wrenches_by_body,
)
