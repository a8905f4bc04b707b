"""Models made from models: joints locked, payloads and whole trees added, parameters replaced, everything scaled.

Each function returns a new model and works under `jit`, `vmap` and `grad` in everything that is a number; names decide
on the structure and are static. Numbers take the precision of the model, and may have leading batch axes, which the
leaves of the result then have. Values are checked where they are known, which inside `jit` they are not.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import ModelError, PhysicalityWarning, ShapeError, look_up, require_last_axes
from jaxdyn._types import Array, ArrayLike, Float
from jaxdyn.model._checks import rounding, unphysical_beyond_rounding, unresisted_joint
from jaxdyn.model._fields import ModelFields
from jaxdyn.model._inertia import BodyInertia
from jaxdyn.model._restructure import (
    IDENTITY,
    ROWS,
    add_rows,
    append,
    attached,
    in_numpy_if_known,
    join,
    library,
    locked,
    moved,
    set_row,
    take,
)
from jaxdyn.model._topology import PRIMITIVES, Topology, joint_nq
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
        values[joint] = _coordinates(model, joint, value)
    if not values:
        return model
    followers = [i for i, leader in topology.mimics if leader in values]
    if len(values) + len(followers) == topology.nb:
        raise ModelError(
            f"all {topology.nb} joints would be locked, and a model needs one that moves; "
            "frame_pose gives the poses of its frames at fixed coordinates"
        )
    batches = {f"coordinates of {topology.joint_names[i]!r}": x.shape[:-1] for i, x in values.items()}
    _require_batches(model, batches)
    out = locked(model, values)
    _require_inertia(out)
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
    added = _inertial_parameters(model, inertia, f"payload at frame {frame!r}")
    _require_batches(model, {"payload": added.shape[:-1]})
    link = topology.attached_links.index(frame) if frame in topology.attached_links else None
    if name is not None:
        _require_new_names([name], topology.frame_names, "a payload", "give another name")
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
    new = _inertial_parameters(model, parameters, f"link {link!r}")
    _require_batches(model, {"parameters": new.shape[:-1]})
    number = topology.frame(link)
    k = topology.attached_links.index(link) if link in topology.attached_links else None
    out = dataclasses.replace(model, **_replaced(model, new, number, k))
    _require_inertia(out)
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
    _require_new_names(theirs.frame_names, ours.frame_names, "a body or frame of the attached model", advice)
    _require_new_names(theirs.joint_names, ours.joint_names, "a joint of the attached model", advice)
    pose = None if placement is None else _pose(model, placement, "placement")
    batches = {"attached model": _model_batch(other)}
    _require_batches(model, batches if pose is None else batches | {"placement": pose.shape[:-1]})
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
    changed = {field: _per_dof(model, field, value) for field, value in given.items() if value is not None}
    return dataclasses.replace(model, **changed)


def with_armature[M: ModelFields](
    model: M, armature: Mapping[str, ArrayLike] | Float[ArrayLike, "*batch nv"] | float
) -> M:
    """The model with other rotor inertias, reflected to the joints (kg m^2, kg): given as in `with_joint_friction`.

    **Raises** what `with_joint_friction` does, and `ModelError` if a joint then moves nothing with inertia.
    """
    out = dataclasses.replace(model, armature=_per_dof(model, "armature", armature))
    _require_inertia(out)
    return out


def scaled[M: ModelFields](
    model: M, length: Float[ArrayLike, "*batch"] = 1.0, mass: Float[ArrayLike, "*batch"] = 1.0
) -> M:
    """The model with every length times `length` and every mass times `mass`; time stays.

    Every leaf but gravity is scaled by its unit in m, kg and s: placements of joints and frames and the pitch of screws
    by `length`; first moments by `mass length`; rotational inertias by `mass length^2`; and where a coordinate is a
    length, limits, velocities, mimic offsets and spring references by `length`. Armature, damping and stiffness scale
    with `mass length^2` at an angle and `mass` at a length; effort limits and Coulomb friction with `mass length^2` and
    `mass length`. **Gravity is not scaled**: the larger robot stands in the same field. With gravity times `length` the
    motions of both would be the same, the lengths in them times `length`.

    **Raises** `ModelError` for a factor that is not positive and finite.
    """
    factors = []
    for what, factor in (("length", length), ("mass", mass)):
        factors.append(_array(model, factor, what))
        known = _known(factors[-1])
        if known is not None and not (np.isfinite(known) & (known > 0)).all():
            raise ModelError(f"{what} is {known}; a positive, finite factor is needed")
    _require_batches(model, {"length": factors[0].shape, "mass": factors[1].shape})
    return _scaled(model, *factors)


# Checks of what is given


def _coordinates(model: ModelFields, joint: int, value) -> Array:
    """`[*batch, nqj]`, checked where the values are known."""
    topology = model.topology
    name, kind = topology.joint_names[joint], topology.joint_types[joint]
    size = joint_nq(kind)
    what = f"the coordinates of joint {name!r}"
    given = _array(model, value, what)
    if size == 1 and given.ndim == 0:
        given = given[None]
    require_last_axes(given, (size,), what, f"{kind} joints have {size}" + (", or a number" if size == 1 else ""))
    known = _known(given)
    if known is not None:
        if not np.isfinite(known).all():
            raise ModelError(f"{what} are not finite: {known.tolist()}")
        if kind in ("ball", "free") and (np.abs(np.linalg.norm(known[..., -4:], axis=-1) - 1) > 1e-3).any():
            raise ModelError(f"{what} are {known.tolist()}, whose last four must be a unit quaternion w x y z")
    return given


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


def _inertial_parameters(model: ModelFields, given, what: str) -> Array:
    """`[*batch, 10]`, checked where the values are known."""
    given = given.parameters() if isinstance(given, BodyInertia) else given
    out = _array(model, given, what)
    require_last_axes(out, (10,), what, "the ten inertial parameters, or a BodyInertia")
    # As they were given, before they are rounded to the precision of the model.
    known = None if isinstance(out, Tracer) else np.asarray(given, np.float64)
    dtype = given.dtype if isinstance(given, Array | np.ndarray) and given.dtype.kind == "f" else np.float64
    for parameters in () if known is None else known.reshape(-1, 10):
        if not np.isfinite(parameters).all():
            raise ModelError(f"{what}: inertial parameters that are not finite: {parameters.tolist()}")
        if parameters[0] < 0:
            raise ModelError(f"{what}: negative mass {parameters[0]} kg; with_link_parameters replaces an inertia")
        reason = unphysical_beyond_rounding(parameters, rounding(parameters, dtype))
        if reason:
            package = str(Path(__file__).parents[1])
            warnings.warn(f"{what}: {reason}", PhysicalityWarning, skip_file_prefixes=(package,))
            break
    return out


def _require_new_names(names: Sequence[str], taken: Sequence[str], what: str, advice: str) -> None:
    for name in names:
        if not isinstance(name, str) or not name:
            raise ModelError(f"{what} is to be named {name!r}; a name must be a string that is not empty")
    clashes = sorted({*names} & {*taken, "world"})
    if clashes:
        shown = ", ".join(repr(n) for n in clashes[:8]) + (", ..." if len(clashes) > 8 else "")
        raise ModelError(f"{what} would have a name that exists: {shown}; names must be unique: {advice}")


def _model_batch(model: ModelFields) -> tuple[int, ...]:
    leaves = ((getattr(model, field), core) for field, (_, core) in ROWS.items())
    return np.broadcast_shapes(*(x.shape[: x.ndim - core] for x, core in leaves if x is not None))


def _require_batches(model: ModelFields, batches: dict[str, tuple[int, ...]]) -> None:
    batches = {"model": _model_batch(model)} | batches
    try:
        np.broadcast_shapes(*batches.values())
    except ValueError:
        shown = ", ".join(f"{name} {list(shape)}" for name, shape in batches.items())
        raise ShapeError(f"the leading batch axes do not broadcast: {shown}") from None


def _pose(model: ModelFields, placement, what: str) -> Array:
    """`[*batch, 7]`, checked where the values are known."""
    if isinstance(placement, SE3):
        placement = placement.to_vector()
    out = _array(model, placement, what)
    if out.ndim and out.shape[-1] == 3:
        turn = jnp.broadcast_to(jnp.asarray(IDENTITY[3:], out.dtype), (*out.shape[:-1], 4))
        out = jnp.concatenate([out, turn], axis=-1)
    require_last_axes(out, (7,), what, "an SE3, position and quaternion w x y z [7], or a position [3]")
    known = _known(out)
    if known is not None and (
        not np.isfinite(known).all() or (np.abs(np.linalg.norm(known[..., 3:], axis=-1) - 1) > 1e-3).any()
    ):
        raise ModelError(
            f"{what}: {known.tolist()} is no pose; its last four numbers must be a unit quaternion w x y z"
        )
    return out


# Joints' values by name


def _per_dof(model: ModelFields, field: str, given) -> Array:
    """`[*batch, nv]`, checked where the values are known."""
    topology = model.topology
    if not isinstance(given, Mapping):
        return _values(model, field, given, model.nv, field)
    parts, rows = [getattr(model, field)], np.arange(model.nv)
    for name, one in given.items():
        joint = topology.joint(name)
        if joint in topology.leaders:
            leader = topology.joint_names[topology.leaders[joint]]
            raise ModelError(f"joint {name!r} mimics {leader!r}: its {field} acts there; give it for {leader!r}")
        own = range(topology.v_starts[joint], topology.v_starts[joint + 1])
        rows[own] = sum(x.shape[-1] for x in parts) + np.arange(len(own))
        parts.append(_values(model, field, one, len(own), f"{field} of joint {name!r}"))
    _require_batches(model, {name: x.shape[:-1] for name, x in zip(given, parts[1:], strict=True)})
    return take(join(parts, 1), rows, 1)


def _values(model: ModelFields, field: str, given, size: int, where: str) -> Array:
    """`[*batch, size]` from that or a number."""
    out = _array(model, given, where)
    if out.ndim == 0:
        out = jnp.broadcast_to(out, (size,))
    require_last_axes(out, (size,), where, f"a number, or one for each degree of freedom ({size})")
    _check_values(field, out, where)
    _require_batches(model, {where: out.shape[:-1]})
    return out


def _check_values(field: str, value, where: str) -> None:
    known = _known(value)
    if known is None:
        return
    if not np.isfinite(known).all():
        raise ModelError(f"{where} is not finite: {known}")
    if (known < 0).any():
        raise ModelError(f"{where} is negative: {known}")
    if field == "friction_velocity" and (known == 0).any():
        raise ModelError(f"{where} must be positive: {known}")


# Scaling


@in_numpy_if_known()
def _scaled[M: ModelFields](model: M, length, mass) -> M:
    topology = model.topology
    # Whether each coordinate is a length: P, and the first three of F.
    of_q: list[bool] = []
    of_v: list[bool] = []
    for i, kind in enumerate(topology.joint_types):
        word = PRIMITIVES[kind]
        if i in topology.leaders:
            continue
        of_q += {"F": [True] * 3 + [False] * 4, "B": [False] * 4}.get(word, [p == "P" for p in word])
        of_v += {"F": [True] * 3 + [False] * 3, "B": [False] * 3}.get(word, [p == "P" for p in word])
    linear_v = np.array(of_v, int)
    linear = [PRIMITIVES[kind] == "P" for kind in topology.joint_types]
    # A multiplier is in the unit of the follower over that of the leader.
    follower, leader = (np.array([linear[pair[k]] for pair in topology.mimics], int) for k in (0, 1))
    L, M, lib = length[..., None], mass[..., None], library(length, mass)
    by_length = (L ** np.array([1] * 3 + [0] * 4))[..., None, :]
    inertia = (M * L ** np.array([0] + [1] * 3 + [2] * 6))[..., None, :]
    coordinate_q, coordinate_v = L ** np.array(of_q, int), L**linear_v
    per_rate, force = M * L ** (2 - 2 * linear_v), M * L ** (2 - linear_v)
    factors = {
        "joint_placement": by_length,
        "frame_placement": by_length,
        "joint_pitch": L,
        "inertial_parameters": inertia,
        "attached_parameters": inertia,
        "armature": per_rate,
        "damping": per_rate,
        "stiffness": per_rate,
        "friction": force,
        "effort_limit": force,
        "friction_velocity": coordinate_v,
        "velocity_limit": coordinate_v,
        "position_lower": coordinate_q,
        "position_upper": coordinate_q,
        "spring_reference": coordinate_q,
        "mimic_multiplier": L ** (follower - leader),
        "mimic_offset": L**follower,
    }
    changed = {}
    for field, factor in factors.items():
        value = getattr(model, field)
        if value is not None:
            # Infinite limits stay, and out of the product: its derivative would be infinite times zero.
            finite = lib.isfinite(value)
            changed[field] = lib.where(finite, lib.where(finite, value, 0) * factor, value)
    return dataclasses.replace(model, **changed)


# Values that are known


def _array(model: ModelFields, value, what: str) -> Array:
    try:
        return jnp.asarray(value, model.dtype)
    except (TypeError, ValueError) as error:
        raise ShapeError(f"{what}: {value!r} is no array of numbers ({error})") from None


def _known(value) -> np.ndarray | None:
    """In NumPy, double precision; None while tracing."""
    return None if isinstance(value, Tracer) else np.asarray(value, np.float64)


def _require_inertia(model: ModelFields) -> None:
    """As `ModelBuilder` does: a joint that nothing resists has no acceleration."""
    topology = model.topology
    axes, pitches = _known(model.joint_axis), _known(model.joint_pitch)
    inertias, armature = _known(model.inertial_parameters), _known(model.armature)
    if axes is None or pitches is None or inertias is None or armature is None:
        return
    i = unresisted_joint(topology, axes, pitches, inertias, armature)
    if i is not None:
        raise ModelError(
            f"body {topology.body_names[i]!r}, moved by joint {topology.joint_names[i]!r}, would have no inertia "
            "against the motion of its joint, and nothing with mass is attached to it: its acceleration would be "
            "undefined. Give it an inertia, give the joint an armature, or lock the joint"
        )
