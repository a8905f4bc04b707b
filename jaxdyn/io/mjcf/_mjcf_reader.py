"""MJCF files as models, by MuJoCo's own compiler. The format: https://mujoco.readthedocs.io/en/stable/XMLreference.html.

The compiler resolves defaults, classes, includes, frames, units of angle, and inertias from shapes; what is read here
is its result, `mjModel`. This table lists the fields that affect accelerations (MuJoCo 4.0):

| fields | here |
|---|---|
| `body_parentid, body_pos, body_quat`, `jnt_type, jnt_pos, jnt_axis`, `qpos0` | tree and placements |
| `body_mass, body_inertia, body_ipos, body_iquat` | inertias |
| `dof_armature, dof_damping, dof_frictionloss, jnt_stiffness`, `qpos_spring` | of joints; conditions for free joints |
| `actuator_armature, actuator_damping`: act also without control | added to the joint's; refused on tendons |
| `opt.gravity`; flags of gravity, spring, damper, frictionloss, limit, equality, constraint | honored |
| `body_gravcomp`, `opt.density, opt.viscosity` (which `wind` and `geom_fluid` act through) | refused where they act |
| `dof_dampingpoly, jnt_stiffnesspoly, actuator_dampingpoly, jnt_springyield` | refused where they act |
| active `eq_*` of bodies, sites and joints | loops and couplings, which are rigid; others are refused |
| `tendon_*` that act, `flex_*`, plugins, muscles | refused |
| `jnt_range`, `jnt_actfrcrange` | limits; refused where the model can have none such |
| `geom_*`, `pair_*`, `exclude_*`, `opt.o_*`: contact, with adhesion and surface velocity | no part of the dynamics |
| other `actuator_*` | make `tau`, which is given; see `load_mjcf_actuators` |
| `body_mocapid` | fixed where the file has it |
| `opt.magnetic`, `sensor_*`, `key_*`, `cam_*`, `light_*`, sleep, solver, integrator, time step | no force |
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Literal

import numpy as np

from jaxdyn._errors import JaxdynError
from jaxdyn._types import ArrayLike
from jaxdyn.io.mjcf import _compiled as mj
from jaxdyn.io.mjcf._equality_constraints import acting_equalities, add_equalities
from jaxdyn.io.mjcf._left_out_of_mjcf import parts_left_out
from jaxdyn.io.mjcf._massless import compile_massless_mjcf
from jaxdyn.io.robot_files import LARGEST, LeftOut, enumerate_names, named_robot, present, warn_of_what_is_left_out
from jaxdyn.model import BodyInertia, Joint, Model, ModelBuilder
from jaxdyn.spatial import IDENTITY_POSE, axis_angle_to_quaternion, compose_poses, pose_array, quaternion_to_rotation

_OF_DOFS = ("armature", "damping", "friction")
_JOINT_TYPES = {mj.FREE: "free", mj.BALL: "ball", mj.SLIDE: "prismatic", mj.HINGE: "revolute"}


def load_mjcf(
    path_or_text: str | os.PathLike | Any,
    *,
    unsupported: Literal["error", "warn"] = "error",
    gravity: ArrayLike | None = None,
    kinematics_only: bool = False,
) -> Model:
    """Return the model that an MJCF file, the text of one, or a compiled `mujoco.MjModel` describes.

    Needs MuJoCo, whose compiler reads the file (`pip install 'jaxdyn[mjcf]'`): classes, includes, meshes, frames,
    degrees, inertias from shapes mean what they mean there. `q` and `v` have the order of MuJoCo's `qpos` and `qvel`,
    and **`q` is `qpos` number for number**: references (`ref`) are part of the placements. `v` is `qvel`, but for the
    linear velocity of free joints, which stands in world axes there and in body axes here.

    **Names.** Every body of the file, fixed ones included, is a frame of the model and a link (`link_parameters`) of
    its own name. A moving body's frame is that of its joint here: a body with several joints is a chain of massless
    bodies before it, and a body whose last joint stands off its origin (`pos`) is fixed to a massless one at that
    joint; these are named `body:joint`. Sites are frames, `name:site` where a body has the name. Without a name, body,
    joint, site and equality constraint are `body_i`, `joint_i`, `site_i`, `equality_i`, with MuJoCo's number (and an
    underscore where that is taken).

    **What acts.** Gravity, and in joints armature and damping (with what actuators add to them), friction loss as
    smooth Coulomb friction (a constraint in MuJoCo; see `Model.friction_velocity`), and springs; all unless a flag in
    `<option>` disables it. Ranges are limits; `actuatorfrcrange` is the effort limit. `tau` is the torque of all
    actuators, also of servos and dampers, which `load_mjcf_actuators` describes. Contact does not belong to the
    dynamics; `load_contact_shapes` reads geoms. Mocap bodies are fixed where the file has them. Tendons that only
    measure or transmit do nothing.

    **Equality constraints** that start active are loops (`connect` and `weld`, between bodies or sites) and couplings
    (`joint`), which hold exactly: MuJoCo's are springs, whose parameters `solref` and `solimp` have no part here. The
    configuration that closes them may differ from `model.neutral()`: it is MuJoCo's `qpos0` where a file does not say
    otherwise, and `project_configuration` finds one. `model.without_loops()` is the tree alone.

    **Arguments**

    - `path_or_text`: a path; text, which begins with `<`; a `mujoco.MjModel`; or the name of a robot, as in
      `load_world`.
    - `unsupported`: `"error"` refuses a file with parts that act and that models do not have, and names all of them;
      `"warn"` leaves them out. These are: active equality constraints of tendons and flexes; tendons with limits,
      spring, damping, friction or armature; fluids; gravity compensation; springs and damping that are not linear or
      are plastic; flexes; plugins; muscles; limits of ball joints; asymmetric force ranges of joints; negative damping
      and the like; and, of free joints, armature of the translation and friction loss, which MuJoCo has along axes of
      the world.
    - `gravity`: `[3]`, m/s^2, world axes, instead of the file's.
    - `kinematics_only`: moving bodies may lack mass and inertia, which MuJoCo's compiler refuses. As with `load_urdf`,
      dynamics then refuse the model by name, until `with_link_parameters` has said what each of these bodies has
      (zeros, for one that is massless).

    **Raises** `RobotFileError` for a file that cannot be read, in the compiler's words for what it refuses, for numbers
    that are NaN or beyond 1e12 (ranges may be: they are no limits), and for unsupported parts; `ModelError` for a model
    without a moving body; `ImportError` without MuJoCo.

    **Warns** `LeftOutWarning`, once, of all that acts in MuJoCo and that the model leaves out: contacts between geoms,
    ranges of joints, actuators with torque at zero control, the springs of equality constraints, and the parts that
    `unsupported="warn"` leaves out.
    `jaxdyn.io.left_out` lists them, and what does not act. `RobotFileWarning` of what the compiler warns of;
    `PhysicalityWarning` of inertias that no mass distribution has.
    """
    path_or_text = named_robot(path_or_text, ("MJCF",))
    m, source = compile_massless_mjcf(path_or_text, kinematics_only)
    names = mj.Names.of(m)
    if gravity is None:
        gravity = np.zeros(3) if mj.is_disabled(m, "gravity") else np.array(m.opt.gravity)
    effects, gaps = _joint_effects(m, names)
    gaps += _gaps_elsewhere(m, names, has_gravity=bool(np.any(np.asarray(gravity) != 0)))
    mj.refuse(gaps, source, unsupported, "parts of it act, and no model has them")
    warn_of_what_is_left_out(source, [mj.as_left_out(gaps), *parts_left_out(m, names)])
    try:
        builder = ModelBuilder()
        for i in range(1, m.nbody):
            _add_body(builder, m, i, names, effects)
        for i in range(m.nsite):
            pose = mj.effective_pose(m.site_pos[i], m.site_quat[i], m.site_sameframe[i])
            builder.add_frame(names.sites[i], names.bodies[m.site_bodyid[i]], pose)
        add_equalities(builder, m, names)
        model = builder.build(gravity, kinematics_only=kinematics_only)
    except JaxdynError as error:
        error.add_note(f"(while loading {source})")
        raise
    if not kinematics_only:
        return model
    # The bodies between the joints of one body have no mass, which is known.
    ends = {_moving_body(m, i, names) for i in range(1, m.nbody) if m.body_jntnum[i]}
    unknown = tuple(name for name in model.topology.unknown_inertias if name in ends)
    return dataclasses.replace(model, topology=dataclasses.replace(model.topology, unknown_inertias=unknown))


def _moving_body(m, i: int, names: mj.Names) -> str:
    """Return the name of the model's body that the last joint of a body of the file moves."""
    last = m.body_jntadr[i] + m.body_jntnum[i] - 1
    return names.bodies[i] if not _anchor(m, last).any() else names.behind[last]


def _anchor(m, j: int) -> np.ndarray:
    """Return where a joint stands in its body. It does not matter where a slide stands; and a free joint's coordinates
    are in the world."""
    return np.array(m.jnt_pos[j]) if m.jnt_type[j] in (mj.BALL, mj.HINGE) else np.zeros(3)


def left_out_of_mjcf(path_or_text: str | os.PathLike | Any) -> tuple[LeftOut, ...]:
    """Return what the file has and its model leaves out. See `left_out`."""
    m, _ = compile_massless_mjcf(path_or_text, kinematics_only=True)
    names = mj.Names.of(m)
    gaps = _joint_effects(m, names)[1]
    gaps += _gaps_elsewhere(m, names, has_gravity=not mj.is_disabled(m, "gravity") and bool(np.any(m.opt.gravity)))
    return present([mj.as_left_out(gaps), *parts_left_out(m, names)])


# The tree


def _add_body(builder: ModelBuilder, m, i: int, names: mj.Names, effects: dict[str, np.ndarray]) -> None:
    """Add a body of the file: the chain of its joints, and its inertia."""
    name, inertia = names.bodies[i], _inertia(m, i)
    joints = range(m.body_jntadr[i], m.body_jntadr[i] + m.body_jntnum[i])
    # The pose of the file's body, before the next joint moves it, in the frame that carries the joint.
    carrier, pose = names.bodies[m.body_parentid[i]], pose_array(m.body_pos[i], m.body_quat[i])
    for j in joints:
        anchor = _anchor(m, j)
        pose = IDENTITY_POSE if m.jnt_type[j] == mj.FREE else compose_poses(pose, _pose_at_zero(m, j, anchor))
        is_body = j == joints[-1] and not anchor.any()
        child = name if is_body else names.behind[j]
        builder.add_body(child, carrier, _joint(m, j, names.joints[j], effects), pose, inertia if is_body else None)
        carrier, pose = child, pose_array(-anchor, IDENTITY_POSE[3:])
    if carrier == name:
        return
    if inertia is None:
        builder.add_frame(name, carrier, pose)
    else:
        builder.add_fixed_body(name, carrier, pose, inertia)


def _pose_at_zero(m, j: int, anchor: np.ndarray) -> np.ndarray:
    """Return the pose, in its body before it moves, of joint `j` at coordinate 0; MuJoCo moves by `qpos - qpos0`."""
    reference, axis = float(m.qpos0[m.jnt_qposadr[j]]), np.array(m.jnt_axis[j])
    if m.jnt_type[j] == mj.SLIDE:
        return pose_array(-reference * axis, IDENTITY_POSE[3:])
    if m.jnt_type[j] == mj.HINGE:
        return pose_array(anchor, axis_angle_to_quaternion(axis, -reference))
    return pose_array(anchor, IDENTITY_POSE[3:])


def _inertia(m, i: int) -> BodyInertia | None:
    """Return the inertia of a body in its frame, from principal moments; None for a body without mass and inertia."""
    if m.body_mass[i] == 0 and not m.body_inertia[i].any():
        return None
    pose = mj.effective_pose(m.body_ipos[i], m.body_iquat[i], m.body_sameframe[i])
    R = quaternion_to_rotation(pose[3:])
    return BodyInertia(float(m.body_mass[i]), pose[:3], (R * m.body_inertia[i]) @ R.T)


# Effects in joints


def _joint(m, j: int, name: str, effects: dict[str, np.ndarray]) -> Joint:
    fields: dict[str, Any] = {field: x[mj.dofs(m, j) if field in _OF_DOFS else j] for field, x in effects.items()}
    if effects["stiffness"][j] != 0:
        start = int(m.jnt_qposadr[j])
        fields["spring_reference"] = m.qpos_spring[start : start + mj.NQ[m.jnt_type[j]]]
    return Joint(_JOINT_TYPES[int(m.jnt_type[j])], axis=np.array(m.jnt_axis[j]), name=name, **fields)


def _joint_effects(m, names: mj.Names) -> tuple[dict[str, np.ndarray], list[mj.Gap]]:
    """Return the effects in joints that models have, by the fields of `Joint`, `[nv]` or `[njnt]`; and the others."""
    gaps: list[mj.Gap] = []

    def leave_out(what: str, joints, remedy: str) -> None:
        """`joints`: a flag for every joint, or their numbers."""
        joints = np.asarray(joints)
        joints = np.flatnonzero(joints) if joints.dtype == bool else np.unique(joints)
        if len(joints):
            gaps.append(mj.Gap(f"{what} of joint {enumerate_names(names.joints[j] for j in joints)}", remedy))

    armature, damping, polynomial = _with_actuators(m)
    friction, stiffness = np.array(m.dof_frictionloss), np.array(m.jnt_stiffness)
    curved = mj.field(m, "jnt_stiffnesspoly", m.njnt, 2).any(axis=1)
    if mj.is_disabled(m, "damper"):
        damping[:], polynomial[:] = 0, 0
    if mj.is_disabled(m, "frictionloss", "constraint"):
        friction[:] = 0
    if mj.is_disabled(m, "spring"):
        stiffness[:], curved[:] = 0, False

    leave_out("quadratic and cubic damping", m.dof_jntid[polynomial.any(axis=1)], "give the first coefficient only")
    leave_out("quadratic and cubic stiffness", curved, "give the first coefficient only")
    plastic = (mj.field(m, "jnt_springyield", m.njnt) > 0) & ((stiffness != 0) | curved)
    leave_out("plastic yield (springyield) of the spring", plastic, "set it to 0")
    positive = "make it positive or 0"
    of_dofs = (("armature", armature), ("damping", damping), ("frictionloss", friction))
    for label, values in (*of_dofs, ("stiffness", stiffness)):
        leave_out(f"negative {label}", values < 0 if label == "stiffness" else m.dof_jntid[values < 0], positive)
        values[values < 0] = 0
    _leave_out_of_free_joints(m, armature, damping, friction, leave_out)

    lower, upper, effort_limit = (np.full(m.njnt, bound) for bound in (-np.inf, np.inf, np.inf))
    one_axis, limited = np.isin(m.jnt_type, (mj.SLIDE, mj.HINGE)), np.asarray(m.jnt_limited, bool)
    ranged = one_axis & limited
    lower[ranged], upper[ranged] = _unlimited(m.jnt_range[ranged]).T
    if not mj.is_disabled(m, "limit", "constraint"):
        leave_out("limit of the angle", limited & (m.jnt_type == mj.BALL), "set limited='false'")
    bounded = one_axis & np.asarray(m.jnt_actfrclimited, bool)
    even = bounded & (m.jnt_actfrcrange[:, 0] == -m.jnt_actfrcrange[:, 1])
    effort_limit[even] = _unlimited(m.jnt_actfrcrange[even, 1])
    leave_out("asymmetric actuatorfrcrange", bounded & ~even, "give opposite numbers, or remove it")
    values = (armature, damping, friction, stiffness, lower, upper, effort_limit)
    return dict(zip((*_OF_DOFS, "stiffness", "lower", "upper", "effort_limit"), values, strict=True)), gaps


def _unlimited(bounds) -> np.ndarray:
    """Return the bounds, those that nothing reaches as infinite."""
    bounds = np.asarray(bounds)
    return np.where(abs(bounds) > LARGEST, np.copysign(np.inf, bounds), bounds)


def _leave_out_of_free_joints(m, armature, damping, friction, leave_out) -> None:
    """Set to zero, in place, the effects that MuJoCo applies along world axes and models would apply along body axes. A
    damping that is the same along all axes acts alike in both. An armature does not, even if it is the same along all
    axes: it acts on the rate of the velocity's components, which depends on whether the axes turn."""
    free = np.flatnonzero(m.jnt_type == mj.FREE)
    rows = m.jnt_dofadr[free, None] + np.arange(6)
    translation = rows[:, :3]
    remedy = "set it to 0 there: it may come from a default class, which <freejoint/> takes nothing from"
    for what, values, columns, acts in (
        ("armature of the translation", armature, translation, armature[translation].any(axis=1)),
        ("frictionloss", friction, rows, friction[rows].any(axis=1)),
        ("uneven damping", damping, translation, np.ptp(damping[translation], axis=1) > 0),
    ):
        leave_out(f"{what} (along axes of the world in MuJoCo)", free[acts], remedy)
        values[columns[acts]] = 0


def _with_actuators(m) -> list[np.ndarray]:
    """Return armature, damping and higher coefficients of damping of joints, with those that actuators add."""
    n, out = mj.actuator_count(m), []
    for name, *shape in (("armature",), ("damping",), ("dampingpoly", 2)):
        of_actuators = mj.field(m, f"actuator_{name}", n, *shape)
        tendons = np.zeros((m.ntendon, *shape))
        out.append(mj.with_actuators(m, mj.field(m, f"dof_{name}", m.nv, *shape), tendons, of_actuators)[0])
    return out


# Effects elsewhere


def _gaps_elsewhere(m, names: mj.Names, *, has_gravity: bool) -> list[mj.Gap]:
    """Return what acts outside joints and models do not have."""
    gaps: list[mj.Gap] = []

    def leave_out(kind: str, numbers, remedy: str) -> None:
        if len(numbers):
            gaps.append(mj.Gap(f"{kind} {enumerate_names(mj.object_name(m, kind, i) for i in numbers)}", remedy))

    leave_out("equality", acting_equalities(m)[1], "remove the constraint, or start it with active='false'")
    leave_out("tendon", np.flatnonzero(_acting_tendons(m)), "remove its limits, spring, damping, friction and armature")
    leave_out("flex", range(m.nflex), "remove it")
    # MuJoCo asks every plugin for passive forces; those of shapes, sensors and actuators have none.
    idle = {int(i) for owner in ("geom", "sensor", "actuator") for i in getattr(m, f"{owner}_plugin")}
    idle -= set(m.body_plugin.tolist())
    leave_out("plugin", [i for i in range(m.nplugin) if i not in idle], "remove it")
    if not mj.is_disabled(m, "actuation"):
        muscles = [i for i in range(mj.actuator_count(m)) if "muscle" in mj.actuator_types(m, i)]
        leave_out("actuator", muscles, "it is a muscle, which pulls also without control: remove it")
    # Without springs and dampers MuJoCo computes no passive force at all.
    if mj.is_disabled(m, "spring") and mj.is_disabled(m, "damper"):
        return gaps
    if m.opt.density != 0 or m.opt.viscosity != 0:
        fluid = f"the fluid of density {m.opt.density:g} kg/m^3 and viscosity {m.opt.viscosity:g} Pa s"
        gaps.append(mj.Gap(fluid, "set both to 0 in <option>"))
    compensated = (m.body_gravcomp != 0) & (m.body_dofnum[m.body_weldid] > 0)
    if has_gravity and compensated.any():
        bodies = enumerate_names(names.bodies[i] for i in np.flatnonzero(compensated))
        gaps.append(mj.Gap(f"gravity compensation (gravcomp) of body {bodies}", "set it to 0"))
    return gaps


def _acting_tendons(m) -> np.ndarray:
    """Return, `[ntendon]`, whether a tendon does more than to measure and to pass on an actuator's force."""
    n, count = m.ntendon, mj.actuator_count(m)
    acts = mj.field(m, "tendon_armature", n) != 0
    if not mj.is_disabled(m, "spring"):
        acts |= (m.tendon_stiffness != 0) | mj.field(m, "tendon_stiffnesspoly", n, 2).any(axis=1)
    if not mj.is_disabled(m, "damper"):
        acts |= (m.tendon_damping != 0) | mj.field(m, "tendon_dampingpoly", n, 2).any(axis=1)
    if not mj.is_disabled(m, "frictionloss", "constraint"):
        acts |= m.tendon_frictionloss > 0
    if not mj.is_disabled(m, "limit", "constraint"):
        acts |= np.asarray(m.tendon_limited, bool)
    by_actuator = mj.field(m, "actuator_armature", count) != 0
    by_actuator |= mj.field(m, "actuator_damping", count) != 0
    by_actuator |= mj.field(m, "actuator_dampingpoly", count, 2).any(axis=1)
    for i in map(int, np.flatnonzero(by_actuator)):
        if mj.transmission(m, i) == "tendon":
            acts[m.actuator_trnid[i, 0]] = True
    return acts
