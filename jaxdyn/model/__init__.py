"""Models of robots as pytrees, a builder, edits, and sample robots."""

from jaxdyn.joints import Topology
from jaxdyn.model._actuator_descriptions import Actuator
from jaxdyn.model._body_inertia import (
    BodyInertia,
    inertial_parameters,
    require_inertias,
    rotational_about_center,
    unphysical_reason,
)
from jaxdyn.model._builder import (
    STANDARD_GRAVITY,
    Joint,
    Mimic,
    ModelBuilder,
    depth_first,
    plane_axes,
    pose_vector,
)
from jaxdyn.model._edit_arguments import Placement, pose_in_body
from jaxdyn.model._fields import FRICTION_VELOCITY, JOINT_FIELDS, LEAVES, Leaf
from jaxdyn.model._loop_edits import require_no_loops, with_coupling, with_loop, without_loops
from jaxdyn.model._mobility import mobility
from jaxdyn.model._model import Frame, Model, parameters_of
from jaxdyn.model._parameter_edits import (
    scaled,
    with_armature,
    with_joint_friction,
    with_link_parameters,
    with_payload,
)
from jaxdyn.model._spanning_tree import independent_forces, mimic_coordinates, spanning_coordinates, tree_forces
from jaxdyn.model._stable_steps import StableStep, stable_steps
from jaxdyn.model._structure_edits import attach, with_locked_joints
from jaxdyn.model._summary import NO_VALUES, may_be_values, summary, zero_limits
