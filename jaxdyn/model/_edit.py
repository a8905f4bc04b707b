"""Models made from models: joints locked, payloads and whole trees added, parameters replaced.

Each function returns a new model and works under `jit`, `vmap` and `grad` in everything that is a number; names decide
on the structure and are static. Numbers take the precision of the model, and may have leading batch axes, which the
leaves of the result then have. Values are checked where they are known, which inside `jit` they are not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from jaxdyn._errors import ModelError, look_up
from jaxdyn._types import Array, ArrayLike, Float
from jaxdyn.model._fields import ModelFields
from jaxdyn.model._inertia import BodyInertia
from jaxdyn.model._restructure import (
    add_rows,
    append,
    attached,
    in_numpy_if_known,
    locked,
    moved,
    set_row,
    take,
)
from jaxdyn.model._topology import Topology
from jaxdyn.model._validation import (
    as_coordinates,
    as_inertial_parameters,
    as_per_dof,
    as_pose,
    model_batch,
    require_batches,
    require_inertia,
    require_new_names,
)
from jaxdyn.spatial import SE3


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
    out = locked(model, values)
    require_inertia(out)
    return out


def with_payload[M: ModelFields](
    model: M, frame: str, inertia: BodyInertia | Float[ArrayLike, "*batch 10"], name: str | None = None
) -> M:
    """The model that carries a further rigid body, fixed at a frame.

    Without a name the structure of the model stays the same, so nothing is compiled anew, and the payload counts as
    part of the link that `frame` names, or, for a frame that is no link, of the link that has the body's name. With one
    there is a new link and frame of this name at `frame`, as from `ModelBuilder.add_fixed_body`.

    **Arguments**

    - `frame`: a body, a merged link, or a frame, which a joint moves.
    - `inertia`: in the axes of the frame; a `BodyInertia`, or the ten inertial parameters about the frame's origin, kg,
      kg m and kg m^2. Differentiable.

    **Raises** `UnknownNameError` for the frame; `ShapeError`; `ModelError` for a frame that is fixed in the world, for
    what is not finite, a negative mass, or a name that exists. **Warns** `PhysicalityWarning` of an inertia that no
    distribution of mass has.
    """
    topology = model.topology
    number = topology.frame(frame)
    body = topology.frame_bodies[number]
    if body < 0:
        raise ModelError(
            f"frame {frame!r} is fixed in the world: a payload there has no effect; give a frame that moves"
        )
    added = as_inertial_parameters(model, inertia, f"payload at frame {frame!r}")
    require_batches(model, {"payload": added.shape[:-1]})
    link = topology.attached_links.index(frame) if frame in topology.attached_links else None
    if name is not None:
        require_new_names([name], topology.frame_names, "a payload", "give another name")
        topology = dataclasses.replace(
            topology,
            frame_names=(*topology.frame_names, name),
            frame_bodies=(*topology.frame_bodies, body),
            attached_links=(*topology.attached_links, name),
            attached_bodies=(*topology.attached_bodies, body),
        )
    changed = _added(model, added, number, link, name is not None)
    return dataclasses.replace(model, topology=topology, **changed)


def with_link_parameters[M: ModelFields](
    model: M, link: str, parameters: BodyInertia | Float[ArrayLike, "*batch 10"]
) -> M:
    """The model in which one link has other inertial parameters, also where it was merged into a body.

    The inverse of `Model.link_parameters`: a `BodyInertia`, or the ten inertial parameters about the origin, in the
    frame of the link itself. Differentiable; the structure stays the same. A link that is fixed in the world has them,
    too, to no effect on the motion.

    **Raises** `UnknownNameError` for the link; `ShapeError`; `ModelError` for what is not finite or a negative mass,
    and if a joint then moves nothing with inertia. **Warns** `PhysicalityWarning` of an inertia that no distribution of
    mass has.
    """
    topology = model.topology
    look_up(link, (*topology.body_names, *topology.attached_links), "link")
    new = as_inertial_parameters(model, parameters, f"link {link!r}")
    require_batches(model, {"parameters": new.shape[:-1]})
    number = topology.frame(link)
    k = topology.attached_links.index(link) if link in topology.attached_links else None
    out = dataclasses.replace(model, **_replaced(model, new, number, k))
    require_inertia(out)
    return out


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
    placement that is no pose.
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
    return attached(model, other, number, pose)


def with_joint_friction[M: ModelFields](
    model: M,
    damping: Mapping[str, ArrayLike] | Float[ArrayLike, "*batch nv"] | float | None = None,
    friction: Mapping[str, ArrayLike] | Float[ArrayLike, "*batch nv"] | float | None = None,
    friction_velocity: Mapping[str, ArrayLike] | Float[ArrayLike, "*batch nv"] | float | None = None,
) -> M:
    """The model with other friction in its joints: viscous `damping` (N m s/rad, N s/m), Coulomb `friction` (N m, N),
    and the `friction_velocity` (rad/s, m/s) over which that changes its sign.

    Each is an array `[*batch, nv]`, one number for all degrees of freedom, or a mapping from names of joints to a
    number or `[*batch, n]` with as many as the joint has in `v`; joints that are not named keep theirs.

    **Raises** `UnknownNameError` for a joint; `ShapeError`; `ModelError` for a joint that mimics another, for what is
    not finite, negative, or a `friction_velocity` that is not positive.
    """
    given = {"damping": damping, "friction": friction, "friction_velocity": friction_velocity}
    changed = {field: as_per_dof(model, field, value) for field, value in given.items() if value is not None}
    return dataclasses.replace(model, **changed)


def with_armature[M: ModelFields](
    model: M, armature: Mapping[str, ArrayLike] | Float[ArrayLike, "*batch nv"] | float
) -> M:
    """The model with other rotor inertias, reflected to the joints (kg m^2, kg): given as in `with_joint_friction`.

    **Raises** what `with_joint_friction` does, and `ModelError` if a joint then moves nothing with inertia.

    An array is `[*batch, nv]`, a number for all.
    """
    out = dataclasses.replace(model, armature=as_per_dof(model, "armature", armature))
    require_inertia(out)
    return out


# Inertias


@in_numpy_if_known("frame", "link", "new")
def _added(model: ModelFields, added, frame: int, link: int | None, new: bool) -> dict[str, Array]:
    """The leaves that change where ten parameters, in a frame, are added to its body."""
    body, placement = model.topology.frame_bodies[frame], model.frame_placement[..., frame, :]
    at_body = moved(added, placement)
    changed = {"inertial_parameters": add_rows(model.inertial_parameters, [body], at_body[..., None, :])}
    if new:
        changed["attached_parameters"] = append(model.attached_parameters, at_body)
        changed["frame_placement"] = append(model.frame_placement, placement)
    elif link is not None:
        changed["attached_parameters"] = add_rows(model.attached_parameters, [link], at_body[..., None, :])
    return changed


@in_numpy_if_known("frame", "link")
def _replaced(model: ModelFields, new, frame: int, link: int | None) -> dict[str, Array]:
    """The leaves that change where a link, with its frame and perhaps its number among the merged ones, has other
    parameters."""
    topology, bodies, links = model.topology, model.inertial_parameters, model.attached_parameters
    body = topology.frame_bodies[frame]
    at_body = moved(new, model.frame_placement[..., frame, :])
    if link is not None:
        change = at_body - links[..., link, :]
        return {
            "attached_parameters": set_row(links, link, at_body),
            "inertial_parameters": add_rows(bodies, [body], change[..., None, :]),
        }
    merged = [k for k, b in enumerate(topology.attached_bodies) if b == body]
    if merged:
        at_body = at_body + take(links, merged, 2).sum(axis=-2)
    return {"inertial_parameters": set_row(bodies, body, at_body)}
