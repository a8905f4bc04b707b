"""The public names of the library, and where they stand. Type checkers read this file, and so does the library, to load
each name when it is first used: a public name is added here and nowhere else."""

from . import algorithms as algorithms
from . import io as io
from . import model as model
from . import samples as samples
from . import simulate as simulate
from . import spatial as spatial
from . import sysid as sysid
from . import trajopt as trajopt
from . import viz as viz
from ._errors import (
    DataError as DataError,
)
from ._errors import (
    JaxdynError as JaxdynError,
)
from ._errors import (
    ModelError as ModelError,
)
from ._errors import (
    PhysicalityWarning as PhysicalityWarning,
)
from ._errors import (
    RobotFileError as RobotFileError,
)
from ._errors import (
    ShapeError as ShapeError,
)
from ._errors import (
    UnknownNameError as UnknownNameError,
)
from ._status import (
    Status as Status,
)
from .algorithms import (
    AbaSecondDerivatives as AbaSecondDerivatives,
)
from .algorithms import (
    ArticulatedBodies as ArticulatedBodies,
)
from .algorithms import (
    DeNOC as DeNOC,
)
from .algorithms import (
    EnergyRegressors as EnergyRegressors,
)
from .algorithms import (
    FrameTarget as FrameTarget,
)
from .algorithms import (
    HessianProduct as HessianProduct,
)
from .algorithms import (
    IKSolution as IKSolution,
)
from .algorithms import (
    NewtonEuler as NewtonEuler,
)
from .algorithms import (
    Power as Power,
)
from .algorithms import (
    RneaSecondDerivatives as RneaSecondDerivatives,
)
from .algorithms import (
    aba as aba,
)
from .algorithms import (
    aba_derivatives as aba_derivatives,
)
from .algorithms import (
    aba_hessian_vector_product as aba_hessian_vector_product,
)
from .algorithms import (
    aba_second_derivatives as aba_second_derivatives,
)
from .algorithms import (
    articulated_bodies as articulated_bodies,
)
from .algorithms import (
    articulated_inertias as articulated_inertias,
)
from .algorithms import (
    base_reaction as base_reaction,
)
from .algorithms import (
    body_regressor as body_regressor,
)
from .algorithms import (
    center_of_mass as center_of_mass,
)
from .algorithms import (
    centroidal_inertia as centroidal_inertia,
)
from .algorithms import (
    centroidal_momentum as centroidal_momentum,
)
from .algorithms import (
    centroidal_momentum_matrix as centroidal_momentum_matrix,
)
from .algorithms import (
    centroidal_momentum_matrix_time_derivative as centroidal_momentum_matrix_time_derivative,
)
from .algorithms import (
    centroidal_momentum_time_derivative as centroidal_momentum_time_derivative,
)
from .algorithms import (
    christoffel_symbols as christoffel_symbols,
)
from .algorithms import (
    com_acceleration as com_acceleration,
)
from .algorithms import (
    com_bias_acceleration as com_bias_acceleration,
)
from .algorithms import (
    com_jacobian as com_jacobian,
)
from .algorithms import (
    com_velocity as com_velocity,
)
from .algorithms import (
    coriolis_centrifugal_matrices as coriolis_centrifugal_matrices,
)
from .algorithms import (
    coriolis_matrix as coriolis_matrix,
)
from .algorithms import (
    crba as crba,
)
from .algorithms import (
    denoc as denoc,
)
from .algorithms import (
    denoc_matrices as denoc_matrices,
)
from .algorithms import (
    energy_regressors as energy_regressors,
)
from .algorithms import (
    forward_dynamics as forward_dynamics,
)
from .algorithms import (
    forward_kinematics as forward_kinematics,
)
from .algorithms import (
    frame_acceleration as frame_acceleration,
)
from .algorithms import (
    frame_bias_acceleration as frame_bias_acceleration,
)
from .algorithms import (
    frame_jacobian as frame_jacobian,
)
from .algorithms import (
    frame_jacobian_time_derivative as frame_jacobian_time_derivative,
)
from .algorithms import (
    frame_pose as frame_pose,
)
from .algorithms import (
    frame_velocity as frame_velocity,
)
from .algorithms import (
    friction_torque as friction_torque,
)
from .algorithms import (
    generalized_gravity as generalized_gravity,
)
from .algorithms import (
    inverse_dynamics as inverse_dynamics,
)
from .algorithms import (
    inverse_kinematics as inverse_kinematics,
)
from .algorithms import (
    inverse_mass_matrix as inverse_mass_matrix,
)
from .algorithms import (
    inverse_operational_space_inertia as inverse_operational_space_inertia,
)
from .algorithms import (
    joint_reactions as joint_reactions,
)
from .algorithms import (
    kinetic_energy as kinetic_energy,
)
from .algorithms import (
    mass_matrix as mass_matrix,
)
from .algorithms import (
    mass_matrix_cholesky as mass_matrix_cholesky,
)
from .algorithms import (
    mass_matrix_derivative as mass_matrix_derivative,
)
from .algorithms import (
    mass_matrix_from_jacobians as mass_matrix_from_jacobians,
)
from .algorithms import (
    mass_matrix_ltdl as mass_matrix_ltdl,
)
from .algorithms import (
    mechanical_energy as mechanical_energy,
)
from .algorithms import (
    momentum_regressor as momentum_regressor,
)
from .algorithms import (
    newton_euler as newton_euler,
)
from .algorithms import (
    nonlinear_effects as nonlinear_effects,
)
from .algorithms import (
    operational_space_inertia as operational_space_inertia,
)
from .algorithms import (
    potential_energy as potential_energy,
)
from .algorithms import (
    potential_energy_gradient as potential_energy_gradient,
)
from .algorithms import (
    power as power,
)
from .algorithms import (
    rnea as rnea,
)
from .algorithms import (
    rnea_derivatives as rnea_derivatives,
)
from .algorithms import (
    rnea_hessian_vector_product as rnea_hessian_vector_product,
)
from .algorithms import (
    rnea_second_derivatives as rnea_second_derivatives,
)
from .algorithms import (
    slotine_li_regressor as slotine_li_regressor,
)
from .algorithms import (
    solve_mass_matrix as solve_mass_matrix,
)
from .algorithms import (
    spring_torque as spring_torque,
)
from .algorithms import (
    torque_regressor as torque_regressor,
)
from .algorithms import (
    velocity_products as velocity_products,
)
from .io import (
    DHRow as DHRow,
)
from .io import (
    MjcfActuator as MjcfActuator,
)
from .io import (
    RobotFileWarning as RobotFileWarning,
)
from .io import (
    from_dh as from_dh,
)
from .io import (
    load_mjcf as load_mjcf,
)
from .io import (
    load_mjcf_actuators as load_mjcf_actuators,
)
from .io import (
    load_urdf as load_urdf,
)
from .io import (
    to_mjcf as to_mjcf,
)
from .io import (
    to_urdf as to_urdf,
)
from .model import (
    BodyInertia as BodyInertia,
)
from .model import (
    Frame as Frame,
)
from .model import (
    Joint as Joint,
)
from .model import (
    Mimic as Mimic,
)
from .model import (
    Model as Model,
)
from .model import (
    ModelBuilder as ModelBuilder,
)
from .model import (
    attach as attach,
)
from .model import (
    scaled as scaled,
)
from .model import (
    with_armature as with_armature,
)
from .model import (
    with_joint_friction as with_joint_friction,
)
from .model import (
    with_link_parameters as with_link_parameters,
)
from .model import (
    with_locked_joints as with_locked_joints,
)
from .model import (
    with_payload as with_payload,
)
from .simulate import (
    DivergenceError as DivergenceError,
)
from .simulate import (
    State as State,
)
from .simulate import (
    Trajectory as Trajectory,
)
from .simulate import (
    rollout as rollout,
)
from .simulate import (
    step as step,
)
from .simulate import (
    vector_field as vector_field,
)
from .spatial import (
    SE3 as SE3,
)
