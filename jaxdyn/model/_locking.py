"""`with_locked_joints`: joints of a model fixed at coordinates, and their bodies merged."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jaxdyn._errors import ModelError
from jaxdyn._types import Array, ArrayLike, Float
from jaxdyn.joints import JOINT_TYPES, Topology
from jaxdyn.model._edit_arguments import as_coordinates, independent_joint, require_batches
from jaxdyn.model._fields import LEAVES, ModelFields
from jaxdyn.model._resistance import require_resistance
from jaxdyn.model._row_tables import Selection, add_rows, constant, join, numpy_unless_tracing, take
from jaxdyn.spatial import IDENTITY_POSE, compose_poses, transform_inertial_parameters


def with_locked_joints[M: ModelFields](model: M, joints: Mapping[str, Float[ArrayLike, "*batch nqj"] | float]) -> M:
    """The model in which joints are fixed at given coordinates, each body behind one merged into the body before it.

    The name of a merged body stays as a frame and as a link (`Model.link_parameters`); the joint's name becomes a frame
    at the same place, unless a frame has it already. All other frames stay, and the other joints keep their order in
    `q` and `v`. Joints that mimic a locked one are locked with it. Armature, friction and springs of locked joints are
    dropped. The inertia of a body locked to the world has no effect.

    **Arguments**

    - `joints`: for the name of each joint its coordinates (rad, m, quaternions): `[*batch, n]` with as many as the
      joint has in `q`, or a number if that is one. Differentiable.

    **Raises** `UnknownNameError` for a joint; `ShapeError` for its coordinates; `ModelError` if a joint mimics another,
    if no joint is left, if coordinates are not finite or a quaternion not unit (to 1e-3), and if a joint that is left
    moves nothing with inertia.
    """
    topology = model.topology
    if not isinstance(joints, Mapping):
        raise ModelError(f"joints is {joints!r}; give a mapping such as {{{topology.joint_names[-1]!r}: 0.5}}")
    values: dict[int, Array] = {}
    for name, value in joints.items():
        joint = independent_joint(topology, name, "lock that one, then both are locked")
        values[joint] = as_coordinates(model, joint, value)
    if not values:
        return model
    followers = [i for i, leader in topology.mimics if leader in values]
    if len(values) + len(followers) == topology.nb:
        raise ModelError(
            f"all {topology.nb} joints would be locked, and a model needs one that moves; "
            "frame_pose gives the poses of its frames at fixed coordinates"
        )
    require_batches(model, {f"coordinates of {topology.joint_names[i]!r}": x.shape[:-1] for i, x in values.items()})
    out = _lock(model, values)
    require_resistance(out.topology, vars(out))
    return out


@numpy_unless_tracing()
def _lock[M: ModelFields](model: M, values: dict[int, Array]) -> M:
    """Return the model with joints fixed at coordinates `[*batch, nqj]`, and those that mimic them where they are."""
    values = dict(values)
    for k, (joint, leader) in enumerate(model.topology.mimics):
        if leader in values:
            multiplier, offset = (x[..., k : k + 1] for x in (model.mimic_multiplier, model.mimic_offset))
            values[joint] = multiplier * values[leader] + offset
    values = dict(sorted(values.items()))
    selection = _merge(model.topology, list(values))
    return dataclasses.replace(model, topology=selection.structure(), **_merged_leaves(model, selection, values))


def _merge(topology: Topology, locked: Sequence[int]) -> Selection:
    """The selection of the bodies that still move, each locked one carried by the nearest body above it that moves. Its
    frames are those of moving bodies, other frames, those of locked bodies, and then the names of locked joints that no
    frame has. Locked bodies become links."""
    carriers: dict[int, int] = {}
    for body in locked:
        parent = topology.parents[body]
        carriers[body] = carriers.get(parent, parent)
    moving = [i for i in range(topology.nb) if i not in carriers]
    joints = [i for i in locked if topology.joint_names[i] not in topology.frame_names]
    count = len(topology.frame_names)
    frames = [*moving, *range(topology.nb, count), *locked, *range(count, count + len(joints))]
    topology = dataclasses.replace(
        topology,
        frame_names=(*topology.frame_names, *(topology.joint_names[i] for i in joints)),
        frame_bodies=(*topology.frame_bodies, *joints),
        attached_links=(*topology.attached_links, *(topology.body_names[i] for i in locked)),
        attached_bodies=(*topology.attached_bodies, *locked),
    )
    return Selection(topology, moving, frames, carriers)


def _poses_in_carriers(model: ModelFields, values: dict[int, Array]):
    """`[*batch, n + 1, 7]`: the poses of the `n` locked bodies in the bodies that carry them, and the identity."""
    topology = model.topology
    poses: dict[int, Any] = {}
    for body, q in values.items():
        axes = take(model.joint_axis, topology.rows("axis", [body]), 2)
        pitch = take(model.joint_pitch, topology.rows("pitch", [body]), 1)
        displacement = _joint_pose(topology.joint_types[body], axes, pitch, q)
        pose = compose_poses(model.joint_placement[..., body, :], displacement)
        parent = topology.parents[body]
        poses[body] = compose_poses(poses[parent], pose) if parent in poses else pose
    rows = [*(x[..., None, :] for x in poses.values()), constant(IDENTITY_POSE, model.joint_placement)[None]]
    return join(rows, 2)


def _joint_pose(joint_type: str, axes, pitch, q):
    """`[*batch, 7]`: the pose of a joint's moving frame in its fixed one, from the axes `[*batch, n, 3]` and pitches
    `[*batch, n]` of its primitive joints and its coordinates `q` `[*batch, nqj]`."""
    pose: Any = None
    start = 0
    for k, joint in enumerate(JOINT_TYPES[joint_type]):
        axis = axes[..., k, :] if joint.has_axis else None
        advance = pitch[..., 0] if joint.has_pitch else None
        displacement = joint.pose(axis, advance, q[..., start : start + joint.nq])
        pose = displacement if pose is None else compose_poses(pose, displacement)
        start += joint.nq
    return pose


def _merged_leaves(model: ModelFields, selection: Selection, values: dict[int, Array]) -> dict[str, Any]:
    """Return the arrays that change where joints are locked at coordinates."""
    topology, moving, locked = model.topology, selection.bodies, list(values)
    changed: dict[str, Any] = {}
    for name, leaf in LEAVES.items():
        value = getattr(model, name)
        if leaf.rows not in (None, "frame", "link") and value is not None:
            changed[name] = take(value, selection.rows(leaf.rows), leaf.axes)
    table = _poses_in_carriers(model, values)
    number = {body: k for k, body in enumerate(locked)}

    def in_carriers(bodies: Sequence[int]):
        """The poses of bodies in their carriers; for bodies that move the last row, which is the identity."""
        return take(table, [number.get(b, len(locked)) for b in bodies], 2)

    # A locked body without the links merged into it becomes a link like them.
    whole = take(model.inertial_parameters, locked, 2)
    link = add_rows(whole, [number.get(b, -1) for b in topology.attached_bodies], -model.attached_parameters)
    # All placements are composed together, and all inertias transformed together, which takes the fewest operations.
    # A joint's frame is that of its body.
    bodies = [selection.topology.frame_bodies[i] for i in selection.frames]
    rows = [i if i < len(topology.frame_names) else b for i, b in zip(selection.frames, bodies, strict=True)]
    frames = take(model.frame_placement, rows, 2)
    carried = in_carriers([*(topology.parents[i] for i in moving), *bodies])
    placements = compose_poses(carried, join([changed["joint_placement"], frames], 2))
    inertias = join([whole, link, model.attached_parameters], 2)
    inertias = transform_inertial_parameters(inertias, in_carriers([*locked, *locked, *topology.attached_bodies]))
    n, links, carriers = len(locked), len(topology.attached_links), [selection.places[i] for i in locked]
    return changed | {
        "joint_placement": placements[..., : len(moving), :],
        "frame_placement": placements[..., len(moving) :, :],
        "inertial_parameters": add_rows(changed["inertial_parameters"], carriers, inertias[..., :n, :]),
        "attached_parameters": take(inertias, [*range(2 * n, 2 * n + links), *range(n, 2 * n)], 2),
    }
