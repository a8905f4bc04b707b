"""`with_locked_joints`: joints of a model fixed at coordinates, and their bodies merged."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from jaxdyn._errors import ModelError
from jaxdyn._types import Array, ArrayLike, Float
from jaxdyn.joints import JOINT_TYPES, Topology
from jaxdyn.model._edit_arguments import as_coordinates, require_batches
from jaxdyn.model._fields import LEAVES, ModelFields
from jaxdyn.model._resistance import require_resistance
from jaxdyn.model._row_tables import add_rows, constant, join, numpy_unless_tracing, row_joints, rows_of_joints, take
from jaxdyn.spatial import IDENTITY_POSE, compose_poses, transform_inertial_parameters


def with_locked_joints[M: ModelFields](model: M, joints: Mapping[str, Float[ArrayLike, "*batch nqj"] | float]) -> M:
    """The model in which joints are fixed at given coordinates, each body behind one merged into the body before it.

    The name of a body that is merged stays as a frame and as a link, whose inertia `Model.link_parameters` tells; the
    joint's name becomes a frame, too, at the body's, unless a frame has it already. All other frames stay. The other
    joints keep their order in `q` and `v`. Joints that mimic a locked one are locked where they then are. Armature,
    friction and springs of locked joints are gone. A body locked to the world adds to nothing.

    **Arguments**

    - `joints`: by the name of each joint its coordinates, rad or m: `[*batch, n]` with as many as the joint has in `q`,
      or a number where that is one. Differentiable.

    **Raises** `UnknownNameError` for a joint; `ShapeError` for its coordinates; `ModelError` if a joint mimics another,
    if no joint is left, if coordinates are not finite, or a quaternion not unit (to 1e-3), and if a joint is left that
    moves nothing with inertia.
    """
    topology = model.topology
    if not isinstance(joints, Mapping):
        raise ModelError(f"joints is {joints!r}; give a mapping such as {{{topology.joint_names[-1]!r}: 0.5}}")
    values: dict[int, Array] = {}
    for name, value in joints.items():
        joint = topology.joint(name)
        leader = topology.leaders.get(joint)
        if leader is not None:
            leader = topology.joint_names[leader]
            raise ModelError(
                f"joint {name!r} mimics {leader!r} and has no coordinates of its own; lock {leader!r}, then both are"
            )
        values[joint] = as_coordinates(model, joint, value)
    if not values:
        return model
    followers = [i for i, leader in topology.mimics if leader in values]
    if len(values) + len(followers) == topology.nb:
        raise ModelError(
            f"all {topology.nb} joints would be locked, and a model needs one that moves; "
            "frame_pose gives the poses of its frames at fixed coordinates"
        )
    batches = {f"coordinates of {topology.joint_names[i]!r}": x.shape[:-1] for i, x in values.items()}
    require_batches(model, batches)
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
    merge = _Merge(model.topology, tuple(sorted(values)))
    return dataclasses.replace(model, topology=merge.structure(), **_merged_leaves(model, merge, values))


@dataclasses.dataclass(frozen=True)
class _Merge:
    """The bodies that are locked, and the structure without them."""

    topology: Topology
    locked: tuple[int, ...]

    @functools.cached_property
    def moving(self) -> list[int]:
        """The bodies that still move."""
        return [i for i in range(self.topology.nb) if i not in self.locked]

    @functools.cached_property
    def carrier(self) -> dict[int, int]:
        """For each locked body, the nearest body above it that moves, or the world."""
        out: dict[int, int] = {}
        for body in self.locked:
            parent = self.topology.parents[body]
            out[body] = out.get(parent, parent)
        return out

    @functools.cached_property
    def mimics(self) -> list[int]:
        """The numbers of the mimics that stay."""
        return [k for k, (joint, _) in enumerate(self.topology.mimics) if joint not in self.locked]

    @functools.cached_property
    def joint_frames(self) -> list[int]:
        """The locked joints whose names become frames."""
        return [i for i in self.locked if self.topology.joint_names[i] not in self.topology.frame_names]

    @functools.cached_property
    def frames(self) -> list[int]:
        """The frames in their new order: bodies that move, other frames, locked bodies."""
        return [*self.moving, *range(self.topology.nb, len(self.topology.frame_names)), *self.locked]

    @functools.cached_property
    def frame_bodies(self) -> list[int]:
        """The body of each frame in the new order, and of the frames of locked joints."""
        return [*(self.topology.frame_bodies[i] for i in self.frames), *self.joint_frames]

    def carried_by(self, bodies: Sequence[int]) -> tuple[int, ...]:
        """Return the new number of each body, or of the body that carries it."""
        place = {body: k for k, body in enumerate(self.moving)} | {-1: -1}
        return tuple(place[self.carrier.get(b, b)] for b in bodies)

    def structure(self) -> Topology:
        """Return the structure without the locked joints."""
        topology, moving = self.topology, self.moving
        joint_frames = (topology.joint_names[i] for i in self.joint_frames)
        pairs = [topology.mimics[k] for k in self.mimics]
        followers, leaders = (self.carried_by([pair[side] for pair in pairs]) for side in (0, 1))
        return dataclasses.replace(
            topology,
            body_names=tuple(topology.body_names[i] for i in moving),
            joint_names=tuple(topology.joint_names[i] for i in moving),
            joint_types=tuple(topology.joint_types[i] for i in moving),
            parents=self.carried_by([topology.parents[i] for i in moving]),
            frame_names=(*(topology.frame_names[i] for i in self.frames), *joint_frames),
            frame_bodies=self.carried_by(self.frame_bodies),
            attached_links=(*topology.attached_links, *(topology.body_names[i] for i in self.locked)),
            attached_bodies=self.carried_by([*topology.attached_bodies, *self.locked]),
            mimics=tuple(zip(followers, leaders, strict=True)),
        )


def _poses_in_carriers(model: ModelFields, merge: _Merge, values: dict[int, Array]):
    """`[*batch, n + 1, 7]`: the poses of the `n` locked bodies in the bodies that carry them, and the identity."""
    topology, owner = model.topology, row_joints(model.topology)
    poses: dict[int, Any] = {}
    for body in merge.locked:
        axes = take(model.joint_axis, rows_of_joints(owner["axis"], [body]), 2)
        pitch = take(model.joint_pitch, rows_of_joints(owner["pitch"], [body]), 1)
        displacement = _joint_pose(topology.joint_types[body], axes, pitch, values[body])
        pose = compose_poses(model.joint_placement[..., body, :], displacement)
        parent = topology.parents[body]
        poses[body] = compose_poses(poses[parent], pose) if parent in poses else pose
    rows = [*(x[..., None, :] for x in poses.values()), constant(IDENTITY_POSE, model.joint_placement)[None]]
    return join(rows, 2)


def _joint_pose(joint_type: str, axes, pitch, q):
    """`[*batch, 7]`: the pose of a joint's moving frame in its fixed one. `axes` `[*batch, n, 3]` are the axes of its
    primitive joints, `pitch` `[*batch, n]` the pitches, and `q` `[*batch, nqj]` its coordinates."""
    pose: Any = None
    start = 0
    for k, joint in enumerate(JOINT_TYPES[joint_type]):
        axis = axes[..., k, :] if joint.has_axis else None
        advance = pitch[..., 0] if joint.has_pitch else None
        displacement = joint.pose(axis, advance, q[..., start : start + joint.nq])
        pose = displacement if pose is None else compose_poses(pose, displacement)
        start += joint.nq
    return pose


def _merged_leaves(model: ModelFields, merge: _Merge, values: dict[int, Array]) -> dict[str, Any]:
    """Return the arrays that change where joints are locked at coordinates."""
    topology, moving, locked = model.topology, merge.moving, merge.locked
    owner = row_joints(topology)
    changed: dict[str, Any] = {}
    for name, leaf in LEAVES.items():
        value = getattr(model, name)
        if leaf.rows in owner and value is not None:
            changed[name] = take(value, rows_of_joints(owner[leaf.rows], moving), leaf.axes)
        elif leaf.rows == "mimic":
            changed[name] = take(value, merge.mimics, leaf.axes)

    table = _poses_in_carriers(model, merge, values)
    number = {body: k for k, body in enumerate(locked)}

    def in_carriers(bodies: Sequence[int]):
        """The poses of bodies in their carriers: the last row, the identity, for bodies that move."""
        return take(table, [number.get(b, len(locked)) for b in bodies], 2)

    # A locked body without the links merged into it becomes a link like them.
    whole = take(model.inertial_parameters, locked, 2)
    link = add_rows(whole, [number.get(b, -1) for b in topology.attached_bodies], -model.attached_parameters)
    # Placements are composed together, and inertias transformed together: the fewer operations. A joint's frame is
    # that of its body.
    frames = take(model.frame_placement, [*merge.frames, *merge.joint_frames], 2)
    carried = in_carriers([*(topology.parents[i] for i in moving), *merge.frame_bodies])
    placements = compose_poses(carried, join([changed["joint_placement"], frames], 2))
    inertias = join([whole, link, model.attached_parameters], 2)
    inertias = transform_inertial_parameters(inertias, in_carriers([*locked, *locked, *topology.attached_bodies]))
    n, links = len(locked), len(topology.attached_links)
    return changed | {
        "joint_placement": placements[..., : len(moving), :],
        "frame_placement": placements[..., len(moving) :, :],
        "inertial_parameters": add_rows(changed["inertial_parameters"], merge.carried_by(locked), inertias[..., :n, :]),
        "attached_parameters": take(inertias, [*range(2 * n, 2 * n + links), *range(n, 2 * n)], 2),
    }
