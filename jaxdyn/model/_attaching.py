"""`attach`: a model mounted on another one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdyn._errors import ModelError
from jaxdyn._types import ArrayLike, Float
from jaxdyn.joints import Topology, neutral
from jaxdyn.model._edit_arguments import as_pose, model_batch, require_batches, require_new_names
from jaxdyn.model._fields import LEAVES, ModelFields
from jaxdyn.model._row_tables import Selection, add_rows, append, constant, join, numpy_unless_tracing, take
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
    number = -1 if frame == "world" else ours.frame(frame)
    fields = ("body_names", "joint_names", "frame_names", "attached_links")
    theirs = dataclasses.replace(
        other.topology, **{f: tuple(prefix + name for name in getattr(other.topology, f)) for f in fields}
    )
    advice = "give another prefix" if prefix else "give a prefix"
    require_new_names(theirs.frame_names, ours.frame_names, "a body or frame of the attached model", advice)
    require_new_names(theirs.joint_names, ours.joint_names, "a joint of the attached model", advice)
    pose = None if placement is None else as_pose(model, placement, "placement")
    batches = {"attached model": model_batch(other)}
    require_batches(model, batches if pose is None else batches | {"placement": pose.shape[:-1]})
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
    other = dataclasses.replace(
        other,
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


def _union(ours: Topology, theirs: Topology, body: int) -> Selection:
    """The selection of all rows of two models, the second fixed in a body of the first (-1: in the world). Its
    structure has theirs after ours. The new order puts their bodies after all that `body` carries."""
    n, count = ours.nb, len(ours.frame_names)

    def joined(field: str) -> tuple[int, ...]:
        return (*getattr(ours, field), *(b + n if b >= 0 else body for b in getattr(theirs, field)))

    names = ("body_names", "joint_names", "joint_types", "frame_names", "attached_links")
    both = dataclasses.replace(
        ours,
        **{field: getattr(ours, field) + getattr(theirs, field) for field in names},
        **{field: joined(field) for field in ("parents", "frame_bodies", "attached_bodies")},
        mimics=(*ours.mimics, *((i + n, j + n) for i, j in theirs.mimics)),
    )
    below = {body}
    for i, parent in enumerate(ours.parents):
        if parent in below:
            below.add(i)
    last = max(below, default=-1)
    bodies = [*range(last + 1), *range(n, both.nb), *range(last + 1, n)]
    frames = [i if i < n else count + i - n for i in bodies]
    return Selection(both, bodies, [*frames, *range(n, count), *range(count + theirs.nb, len(both.frame_names))])


def _leaf_or_default(model: ModelFields, field: str):
    """A leaf of a model, or values that have no effect if it has none."""
    value, leaf = getattr(model, field), LEAVES[field]
    if value is not None:
        return value
    default = neutral(model.topology) if leaf.rows == "q" else np.full(leaf.shape(model.topology), leaf.default)
    return constant(default, model.armature)
