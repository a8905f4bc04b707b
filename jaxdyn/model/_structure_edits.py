"""Edits of a model's structure: joints locked at coordinates, and a model attached to another one.

Each is a `Selection` of rows, with placements composed and inertias added where bodies merge.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxdyn._errors import ModelError
from jaxdyn._types import Array, ArrayLike, Float
from jaxdyn.joints import JOINT_TYPES, Coupling, Loop, Topology, neutral
from jaxdyn.model import _edit_arguments as arguments
from jaxdyn.model._body_inertia import require_resistance
from jaxdyn.model._fields import LEAVES, ModelFields
from jaxdyn.model._row_tables import add_rows, append, constant, join, numpy_unless_tracing, take
from jaxdyn.model._singular_motions import warn_of_new_singular_motions
from jaxdyn.spatial import IDENTITY_POSE, SE3, compose_poses, transform_inertial_parameters


def attach[M: ModelFields](
    model: M,
    other: ModelFields,
    frame: str,
    placement: SE3 | Float[ArrayLike, "*batch 7"] | None = None,
    prefix: str = "",
) -> M:
    """The model with another one mounted on it: the world of `other` is fixed at a frame of `model`.

    Joints and links of `other` that were fixed in its world are fixed at the frame, so that the inertia of a fixed base
    link has an effect now. Gravity is that of `model`. Bodies are in the depth-first order in which `ModelBuilder`
    would put them, those of `other` after all that the frame's body carries already; `Model.q_index` and
    `Model.v_index` return where the coordinates are. `"world"`, or a frame fixed in it, gives two robots side by side.

    **Arguments**

    - `frame`: a body, a merged link, a frame, or `"world"`.
    - `placement`: the pose of the world of `other` in the frame: an `SE3`, position (m) and quaternion `w x y z`, a
      position, or None for the identity. Differentiable.
    - `prefix`: text before all names of `other`, such as `"left_"`.

    **Raises** `UnknownNameError` for the frame; `ShapeError`; `ModelError` for names that both models have, and for a
    placement that is not a pose.
    """
    if not isinstance(getattr(other, "topology", None), Topology):
        raise ModelError(f"other is {type(other).__name__}; a Model is needed")
    if not isinstance(prefix, str):
        raise ModelError(f"prefix is {prefix!r}; a string is needed")
    ours = model.topology
    number = -1 if isinstance(frame, str) and frame == "world" else ours.frame(frame)
    fields = ("body_names", "joint_names", "frame_names", "attached_links", "unknown_inertias")
    renamed = {f: tuple(prefix + name for name in getattr(other.topology, f)) for f in fields}
    for field in ("loops", "couplings"):
        renamed[field] = tuple(x._replace(name=prefix + x.name) for x in getattr(other.topology, field))
    theirs = dataclasses.replace(other.topology, **renamed)
    advice = "give another prefix" if prefix else "give a prefix"
    arguments.require_new_names(theirs.frame_names, ours.frame_names, "a body or frame of the attached model", advice)
    arguments.require_new_names(theirs.joint_names, ours.joint_names, "a joint of the attached model", advice)
    loops, taken = ([x.name for x in (*t.loops, *t.couplings)] for t in (theirs, ours))
    arguments.require_new_names(loops, taken, "a loop or coupling of the attached model", advice)
    pose = None if placement is None else arguments.as_pose(model, placement, "placement")
    batches = {"attached model": arguments.model_batch(other)}
    arguments.require_batches(model, batches if pose is None else batches | {"placement": pose.shape[:-1]})
    other = dataclasses.replace(other.astype(model.dtype), topology=theirs)
    return _mount(model, other, number, pose)


@numpy_unless_tracing("frame")
def _mount[M: ModelFields](model: M, other: ModelFields, frame: int, placement) -> M:
    """Return the model with the world of `other` placed in one of its frames (by number; -1: the world)."""
    ours, theirs = model.topology, other.topology
    body = -1 if frame < 0 else ours.frame_bodies[frame]
    union = _union(ours, theirs, body)
    identity = constant(IDENTITY_POSE, model.joint_placement)
    mount = identity if frame < 0 else model.frame_placement[..., frame, :]
    if placement is not None:
        mount = compose_poses(mount, placement)
    table = append(identity[None], mount)

    def mounts(bodies: Sequence[int]):
        """The mount for what is fixed in their world, and the identity for the others."""
        return take(table, [int(b < 0) for b in bodies], 2)

    links = transform_inertial_parameters(other.attached_parameters, mounts(theirs.attached_bodies))
    ends: dict[str, Any] = {}
    for name, bodies in _ends_of_loops(theirs).items():
        ends[name] = compose_poses(mounts(bodies), getattr(other, name))
    other = dataclasses.replace(
        other,
        **ends,
        joint_placement=compose_poses(mounts(theirs.parents), other.joint_placement),
        frame_placement=compose_poses(mounts(theirs.frame_bodies), other.frame_placement),
        attached_parameters=links,
    )
    changed: dict[str, Any] = {}
    for name, leaf in LEAVES.items():
        if leaf.rows is None or (getattr(model, name) is None and getattr(other, name) is None):
            continue
        both = join([_leaf_or_default(model, name), _leaf_or_default(other, name)], leaf.axes)
        changed[name] = take(both, union.rows(leaf.rows), leaf.axes)
    # The links that were fixed in their world move with the body now.
    fixed = [union.places[body] if b < 0 else -1 for b in theirs.attached_bodies]
    changed["inertial_parameters"] = add_rows(changed["inertial_parameters"], fixed, links)
    return dataclasses.replace(model, topology=union.structure(), **changed)


def _ends_of_loops(topology: Topology) -> dict[str, list[int]]:
    """The bodies of the frames of loops, by the names of the arrays with their placements; empty without loops."""
    if not topology.loops:
        return {}
    loops = topology.loops
    return {"loop_placement1": [x.body1 for x in loops], "loop_placement2": [x.body2 for x in loops]}


def _union(ours: Topology, theirs: Topology, body: int) -> Selection:
    """The selection of all rows of two models, the second fixed in a body of the first (-1: in the world). Its
    structure has theirs after ours. The new order puts their bodies after all that `body` carries."""
    n, count = ours.nb, len(ours.frame_names)

    def joined(field: str) -> tuple[int, ...]:
        return (*getattr(ours, field), *(b + n if b >= 0 else body for b in getattr(theirs, field)))

    names = ("body_names", "joint_names", "joint_types", "frame_names", "attached_links", "unknown_inertias")
    both = dataclasses.replace(
        ours,
        **{field: getattr(ours, field) + getattr(theirs, field) for field in names},
        **{field: joined(field) for field in ("parents", "frame_bodies", "attached_bodies")},
        mimics=(*ours.mimics, *((i + n, j + n) for i, j in theirs.mimics)),
        loops=(*ours.loops, *_renumbered_loops(theirs.loops, lambda b: b + n if b >= 0 else body)),
        couplings=(*ours.couplings, *_renumbered_couplings(theirs.couplings, lambda j: j + n if j >= 0 else -1)),
    )
    below = {body}
    for i, parent in enumerate(ours.parents):
        if parent in below:
            below.add(i)
    last = max(below, default=-1)
    bodies = [*range(last + 1), *range(n, both.nb), *range(last + 1, n)]
    frames = [i if i < n else count + i - n for i in bodies]
    return Selection(both, bodies, [*frames, *range(n, count), *range(count + theirs.nb, len(both.frame_names))])


def _renumbered_loops(loops: Sequence[Loop], number: Callable[[int], int]) -> tuple[Loop, ...]:
    """Loops with other numbers of their bodies."""
    return tuple(x._replace(body1=number(x.body1), body2=number(x.body2)) for x in loops)


def _renumbered_couplings(couplings: Sequence[Coupling], number: Callable[[int], int]) -> tuple[Coupling, ...]:
    """Couplings with other numbers of their joints."""
    return tuple(x._replace(joint1=number(x.joint1), joint2=number(x.joint2)) for x in couplings)


def _leaf_or_default(model: ModelFields, field: str):
    """A leaf of a model, or values that have no effect if it has none."""
    value, leaf = getattr(model, field), LEAVES[field]
    if value is not None:
        return value
    default = neutral(model.topology) if leaf.rows == "q" else np.full(leaf.shape(model.topology), leaf.default)
    return constant(default, model.armature)


def with_locked_joints[M: ModelFields](
    model: M,
    joints: Mapping[str, Float[ArrayLike, "*batch nqj"] | float] | None = None,
    *,
    keep: Sequence[str] | None = None,
) -> M:
    """The model in which joints are fixed at given coordinates, each body behind one merged into the body before it.

    The name of a merged body stays as a frame and as a link (`Model.link_parameters`); the joint's name becomes a frame
    at the same place, unless a frame has it already. All other frames stay, and the other joints keep their order in
    `q` and `v`. Joints that mimic a locked one are locked with it. Armature, friction and springs of locked joints are
    dropped. The inertia of a body locked to the world has no effect.

    **Arguments**

    - `joints`: for the name of each joint its coordinates (rad, m, quaternions): `[*batch, n]` with as many as the
      joint has in `q`, or a number if that is one. Differentiable.
    - `keep`: the joints that still move; all others are locked, those that `joints` does not name at zero, or without
      rotation.

    **Raises** `UnknownNameError` for a joint; `ShapeError` for its coordinates; `ModelError` if a joint mimics another
    or belongs to a coupling, if both frames of a loop would be fixed in one body, if no joint is left, if coordinates
    are not finite or a quaternion not unit (to 1e-3), and if a joint that is left moves nothing with inertia.
    **Warns** `PhysicalityWarning` of joints that then can move together without moving anything with inertia.
    """
    topology = model.topology
    if joints is None and keep is None:
        raise ModelError("give joints with their coordinates to lock, or keep, the joints that still move")
    joints = {} if joints is None else joints
    if not isinstance(joints, Mapping):
        raise ModelError(f"joints is {joints!r}; give a mapping such as {{{topology.joint_names[-1]!r}: 0.5}}")
    if keep is not None:
        joints = _all_but(topology, keep, joints)
    values: dict[int, Array] = {}
    for name, value in joints.items():
        joint = arguments.independent_joint(topology, name, "lock that one, then both are locked")
        values[joint] = arguments.as_coordinates(model, joint, value)
    if not values:
        return model
    followers = [i for i, leader in topology.mimics if leader in values]
    _require_free_constraints(topology, {*values, *followers})
    if len(values) + len(followers) == topology.nb:
        advice = "frame_pose gives the poses of its frames at fixed coordinates"
        raise ModelError(f"all {topology.nb} joints would be locked, and a model needs one that moves; {advice}")
    batches = {f"coordinates of {topology.joint_names[i]!r}": x.shape[:-1] for i, x in values.items()}
    arguments.require_batches(model, batches)
    out = _lock(model, values)
    require_resistance(out.topology, vars(out))
    warn_of_new_singular_motions(model, out)
    return out


def _all_but(topology: Topology, keep: Sequence[str], joints: Mapping[str, Any]) -> dict[str, Any]:
    """The coordinates of all joints but those to keep, and those that mimic others: as given, or the neutral ones."""
    if isinstance(keep, str):
        raise ModelError(f"keep is {keep!r}; give a list of names of joints, such as [{keep!r}]")
    kept = {arguments.independent_joint(topology, name, "keep that one, then both move") for name in keep}
    if both := [topology.joint_names[i] for i in sorted(kept) if topology.joint_names[i] in joints]:
        raise ModelError(f"joints {both} are to be locked, and to be kept; leave them out of one of the two")
    start, followers = neutral(topology), {i for i, _ in topology.mimics}
    others = {
        name: start[topology.q_starts[i] : topology.q_starts[i + 1]]
        for i, name in enumerate(topology.joint_names)
        if i not in kept | followers
    }
    return others | dict(joints)


def _require_free_constraints(topology: Topology, locked: set[int]) -> None:
    """Raise `ModelError` if locked joints belong to couplings, or leave both frames of a loop in one body."""
    carriers = _merge(topology, sorted(locked)).carriers
    for name, *joints in topology.couplings:
        if taken := locked.intersection(joints):
            joint = topology.joint_names[min(taken)]
            advice = f"remove it first: model.without_loops([{name!r}])"
            raise ModelError(f"joint {joint!r} belongs to the coupling {name!r} and cannot be locked; {advice}")
    for name, _, *bodies in topology.loops:
        first, second = (carriers.get(body, body) for body in bodies)
        if first == second:
            where = "the world" if first < 0 else f"body {topology.body_names[first]!r}"
            advice = f"remove it first: model.without_loops([{name!r}])"
            raise ModelError(f"both frames of loop {name!r} would be fixed in {where}; {advice}")


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
    links = {topology.body_names[i]: i for i in locked}
    topology = topology.extended({topology.joint_names[i]: i for i in joints}, links)
    return Selection(topology, moving, frames, carriers)


def _poses_in_carriers(model: ModelFields, values: dict[int, Array]):
    """`[*batch, n + 1, 7]`: the poses of the `n` locked bodies in the bodies that carry them, and the identity."""
    topology = model.topology
    poses: dict[int, Any] = {}
    for body, q in values.items():
        axes = take(model.joint_axis, topology.rows("axis", [body]), 2)
        pitch = take(model.joint_pitch, topology.rows("pitch", [body]), 1)
        pose, start = model.joint_placement[..., body, :], 0
        for k, joint in enumerate(JOINT_TYPES[topology.joint_types[body]]):
            axis = axes[..., k, :] if joint.has_axis else None
            advance = pitch[..., 0] if joint.has_pitch else None
            pose = compose_poses(pose, joint.pose(axis, advance, q[..., start : start + joint.nq]))
            start += joint.nq
        parent = topology.parents[body]
        poses[body] = compose_poses(poses[parent], pose) if parent in poses else pose
    rows = [*(x[..., None, :] for x in poses.values()), constant(IDENTITY_POSE, model.joint_placement)[None]]
    return join(rows, 2)


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
    ends = _ends_of_loops(topology)
    carried = in_carriers(
        [*(topology.parents[i] for i in moving), *bodies, *(b for bodies_of in ends.values() for b in bodies_of)]
    )
    tables = [changed["joint_placement"], frames, *(changed[name] for name in ends)]
    placements = compose_poses(carried, join(tables, 2))
    places = np.cumsum([x.shape[-2] for x in tables])
    inertias = join([whole, link, model.attached_parameters], 2)
    inertias = transform_inertial_parameters(inertias, in_carriers([*locked, *locked, *topology.attached_bodies]))
    n, links, carriers = len(locked), len(topology.attached_links), [selection.places[i] for i in locked]
    changed |= {name: placements[..., places[k + 1] : places[k + 2], :] for k, name in enumerate(ends)}
    return changed | {
        "joint_placement": placements[..., : places[0], :],
        "frame_placement": placements[..., places[0] : places[1], :],
        "inertial_parameters": add_rows(changed["inertial_parameters"], carriers, inertias[..., :n, :]),
        "attached_parameters": take(inertias, [*range(2 * n, 2 * n + links), *range(n, 2 * n)], 2),
    }


@dataclasses.dataclass(frozen=True)
class Selection:
    """The bodies and frames that an edit keeps, in their new order."""

    topology: Topology
    bodies: Sequence[int]
    frames: Sequence[int]
    carriers: Mapping[int, int] = dataclasses.field(default_factory=dict)
    """For each body that is not kept, the body that carries it instead, or -1 for the world."""

    @functools.cached_property
    def places(self) -> dict[int, int]:
        """The new number of each body, or of the body that carries it."""
        places = {body: k for k, body in enumerate(self.bodies)} | {-1: -1}
        return places | {body: places[carrier] for body, carrier in self.carriers.items()}

    @functools.cached_property
    def mimics(self) -> dict[tuple[int, int], int]:
        """The row of each mimic that stays, by its pair of joints with their new numbers, in the order of these."""
        pairs = enumerate(self.topology.mimics)
        rows = {(self.places[i], self.places[j]): k for k, (i, j) in pairs if i not in self.carriers}
        return dict(sorted(rows.items()))

    def rows(self, kind: str) -> Sequence[int] | np.ndarray:
        """Return the rows of one kind (`Leaf.rows`) that stay, in their new order."""
        if kind in self.topology.row_joints:
            return self.topology.rows(kind, self.bodies)
        links = range(len(self.topology.attached_links))
        others = {"loop": range(len(self.topology.loops)), "coupling": range(len(self.topology.couplings))}
        return ({"frame": self.frames, "mimic": [*self.mimics.values()], "link": links} | others)[kind]

    def structure(self) -> Topology:
        """Return the structure that stays."""
        topology = self.topology

        def select(field: str, rows: Sequence[int]) -> tuple:
            return tuple(getattr(topology, field)[i] for i in rows)

        return dataclasses.replace(
            topology,
            **{field: select(field, self.bodies) for field in ("body_names", "joint_names", "joint_types")},
            parents=tuple(self.places[i] for i in select("parents", self.bodies)),
            frame_names=select("frame_names", self.frames),
            frame_bodies=tuple(self.places[i] for i in select("frame_bodies", self.frames)),
            attached_bodies=tuple(self.places[i] for i in topology.attached_bodies),
            mimics=tuple(self.mimics),
            loops=_renumbered_loops(topology.loops, self.places.__getitem__),
            couplings=_renumbered_couplings(topology.couplings, self.places.__getitem__),
        )
