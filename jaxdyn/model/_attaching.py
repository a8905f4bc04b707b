"""`attach`: a model mounted on another one."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdyn._errors import ModelError
from jaxdyn._types import ArrayLike, Float
from jaxdyn.joints import Topology, neutral
from jaxdyn.model._edit_arguments import as_pose, model_batch, require_batches, require_new_names
from jaxdyn.model._fields import LEAVES, ModelFields
from jaxdyn.model._row_tables import (
    add_rows,
    append,
    constant,
    join,
    numpy_unless_tracing,
    row_joints,
    rows_of_joints,
    take,
)
from jaxdyn.spatial import IDENTITY_POSE, SE3, compose_poses, transform_inertial_parameters


def attach[M: ModelFields](
    model: M,
    other: ModelFields,
    frame: str,
    placement: SE3 | Float[ArrayLike, "*batch 7"] | None = None,
    prefix: str = "",
) -> M:
    """The model with another one mounted on it: the world of `other` is fixed at a frame of `model`.

    The joints of `other` that began at its world begin at the frame, and what was fixed in its world is fixed there:
    a base link that a file leaves unmoved (its inertia had no effect) is carried along now. Names of `other` get
    `prefix` in front. Gravity is that of `model`. Bodies stand in depth-first order, those of `other` after what the
    frame's body carries already, just as if `ModelBuilder` had built all; `Model.q_index` and `Model.v_index` tell
    where the coordinates are. A frame that is fixed in the world, or `"world"`, gives two robots side by side.

    **Arguments**

    - `frame`: a body, a merged link, a frame, or `"world"`.
    - `placement`: of the world of `other` in the frame: an `SE3`, position and quaternion `w x y z`, or a position;
      None: the same. Differentiable.
    - `prefix`: for all names of `other`, such as `"left_"`.

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
    union = _Union(ours, theirs, -1 if frame < 0 else ours.frame_bodies[frame])
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
    # The links that were fixed in their world have an effect now.
    fixed = [union.place[union.body] if b < 0 else -1 for b in theirs.attached_bodies]
    changed["inertial_parameters"] = add_rows(changed["inertial_parameters"], fixed, links)
    return dataclasses.replace(model, topology=union.topology(), **changed)


@dataclasses.dataclass(frozen=True)
class _Union:
    """The structure of two models, of which the second is fixed in a body of the first (-1: in the world)."""

    ours: Topology
    theirs: Topology
    body: int

    @functools.cached_property
    def order(self) -> list[int]:
        """The bodies in their new order, theirs counted after ours: theirs come after all that `body` carries."""
        below = {self.body}
        for i, parent in enumerate(self.ours.parents):
            if parent in below:
                below.add(i)
        n, last = self.ours.nb, max(below, default=-1)
        return [*range(last + 1), *range(n, n + self.theirs.nb), *range(last + 1, n)]

    @functools.cached_property
    def place(self) -> dict[int, int]:
        """The new number of each body."""
        return {body: k for k, body in enumerate(self.order)} | {-1: -1}

    def numbers(self, field: str) -> list[int]:
        """Return new numbers for the bodies in a field of both structures, theirs after ours."""
        ours, theirs = (np.ravel(getattr(t, field)).astype(int).tolist() for t in (self.ours, self.theirs))
        return [self.place[b] for b in ours] + [self.place[b + self.ours.nb if b >= 0 else self.body] for b in theirs]

    @functools.cached_property
    def frames(self) -> list[int]:
        """The frames in their new order, theirs counted after ours: those of bodies come first."""
        n, count = self.ours.nb, len(self.ours.frame_names)
        bodies = [i if i < n else count + i - n for i in self.order]
        return [*bodies, *range(n, count), *range(count + self.theirs.nb, count + len(self.theirs.frame_names))]

    @functools.cached_property
    def mimics(self) -> list[tuple[int, int]]:
        """The pairs of joints with their new numbers, theirs after ours."""
        numbers = self.numbers("mimics")
        return list(zip(numbers[::2], numbers[1::2], strict=True))

    @functools.cached_property
    def mimic_order(self) -> list[int]:
        """The mimics in the order of the joints that follow."""
        return sorted(range(len(self.mimics)), key=lambda k: self.mimics[k])

    def rows(self, rows: str) -> list[int]:
        """Return the rows of one kind in their new order, theirs counted after ours."""
        ours, theirs = row_joints(self.ours), row_joints(self.theirs)
        if rows in ours:
            return rows_of_joints(np.concatenate([ours[rows], self.ours.nb + theirs[rows]]), self.order).tolist()
        links = len(self.ours.attached_links) + len(self.theirs.attached_links)
        return {"frame": self.frames, "mimic": self.mimic_order, "link": list(range(links))}[rows]

    def topology(self) -> Topology:
        """Return the structure of both."""

        def in_order(field: str, rows: Sequence[int]) -> tuple:
            values = [*getattr(self.ours, field), *getattr(self.theirs, field)]
            return tuple(values[i] for i in rows)

        parents, frame_bodies = self.numbers("parents"), self.numbers("frame_bodies")
        return dataclasses.replace(
            self.ours,
            body_names=in_order("body_names", self.order),
            joint_names=in_order("joint_names", self.order),
            joint_types=in_order("joint_types", self.order),
            parents=tuple(parents[i] for i in self.order),
            frame_names=in_order("frame_names", self.frames),
            frame_bodies=tuple(frame_bodies[i] for i in self.frames),
            attached_links=(*self.ours.attached_links, *self.theirs.attached_links),
            attached_bodies=tuple(self.numbers("attached_bodies")),
            mimics=tuple(self.mimics[k] for k in self.mimic_order),
        )


def _leaf_or_default(model: ModelFields, field: str):
    """A leaf, or, where a model does not have it, the values that have no effect."""
    value, leaf = getattr(model, field), LEAVES[field]
    if value is not None:
        return value
    default = neutral(model.topology) if leaf.rows == "q" else np.full(leaf.shape(model.topology), leaf.default)
    return constant(default, model.armature)
