"""The algorithms of rigid-body dynamics, one a file."""

from jaxdyn.algorithms._aba import aba
from jaxdyn.algorithms._centroidal import (
    centroidal_inertia,
    centroidal_momentum,
    centroidal_momentum_matrix,
    centroidal_momentum_matrix_time_derivative,
    centroidal_momentum_time_derivative,
    com_acceleration,
    com_bias_acceleration,
    com_jacobian,
    com_velocity,
)
from jaxdyn.algorithms._constraint_projection import (
    Assembly,
    configuration_correction,
    project_configuration,
    project_velocity,
)
from jaxdyn.algorithms._contact_step import (
    ContactStep,
    ContactStepDerivatives,
    contact_errors,
    contact_step,
    contact_step_derivatives,
)
from jaxdyn.algorithms._crba import crba
from jaxdyn.algorithms._energy import center_of_mass, kinetic_energy, potential_energy
from jaxdyn.algorithms._first_derivatives import aba_derivatives, rnea_derivatives
from jaxdyn.algorithms._frame_motion import (
    frame_acceleration,
    frame_bias_acceleration,
    frame_jacobian_time_derivative,
)
from jaxdyn.algorithms._inverse_kinematics import FrameTarget, IKSolution, inverse_kinematics
from jaxdyn.algorithms._joint_motions import (
    ActuatedTorques,
    JointMotion,
    complete_motion,
    constrained_inverse_dynamics,
    motion_map,
)
from jaxdyn.algorithms._kinematics import forward_kinematics, frame_jacobian, frame_pose, frame_velocity
from jaxdyn.algorithms._loop_constraints import constraint_error, constraint_forces, constraint_jacobian, loop_opening
from jaxdyn.algorithms._loop_steps import loop_displacement, momentum_ahead
from jaxdyn.algorithms._mass_matrix import (
    inverse_mass_matrix,
    inverse_operational_space_inertia,
    mass_matrix_cholesky,
    mass_matrix_ltdl,
    operational_space_inertia,
    solve_mass_matrix,
)
from jaxdyn.algorithms._power import Power, mechanical_energy, potential_energy_gradient, power
from jaxdyn.algorithms._regressor import (
    EnergyRegressors,
    body_regressor,
    energy_regressors,
    momentum_regressor,
    slotine_li_regressor,
    torque_regressor,
)
from jaxdyn.algorithms._rnea import generalized_gravity, nonlinear_effects, rnea, spring_torque
from jaxdyn.algorithms._second_derivatives import (
    AbaSecondDerivatives,
    HessianProduct,
    RneaSecondDerivatives,
    aba_hessian_vector_product,
    aba_second_derivatives,
    rnea_hessian_vector_product,
    rnea_second_derivatives,
)
from jaxdyn.algorithms.formulations._articulated_bodies import (
    ArticulatedBodies,
    articulated_bodies,
    articulated_inertias,
)
from jaxdyn.algorithms.formulations._cut_joints import CutJoints, cut_joints
from jaxdyn.algorithms.formulations._denoc import DeNOC, denoc, denoc_matrices
from jaxdyn.algorithms.formulations._lagrangian import (
    christoffel_symbols,
    coriolis_centrifugal_matrices,
    coriolis_matrix,
    friction_torque,
    mass_matrix_derivative,
    mass_matrix_from_jacobians,
    velocity_products,
)
from jaxdyn.algorithms.formulations._loop_equations import (
    AugmentedEquations,
    MinimalEquations,
    augmented_equations,
    minimal_equations,
)
from jaxdyn.algorithms.formulations._newton_euler import NewtonEuler, base_reaction, joint_reactions, newton_euler

# Other names of the field.
forward_dynamics = aba
inverse_dynamics = rnea
mass_matrix = crba
