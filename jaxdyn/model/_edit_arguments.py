"""Arguments of edits as arrays of the model's precision, checked where their values are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import ModelError, ShapeError, broadcast_batches, require_last_axes
from jaxdyn._types import Array, ArrayLike, Float
from jaxdyn.joints import JOINT_TYPES, Topology, joint_nq
from jaxdyn.model._body_inertia import BodyInertia, require_mass, rounding, warn_if_unphysical
from jaxdyn.model._fields import LEAVES, Leaf, ModelFields
from jaxdyn.model._plausible_configurations import warn_beyond_limits
from jaxdyn.model._row_tables import join, numpy_unless_tracing, take
from jaxdyn.spatial import IDENTITY_POSE, SE3, compose_poses, pose_array

type Placement = SE3 | Float[ArrayLike, "*batch 7"] | None
"""A pose: an `SE3`, position (m) and quaternion `w x y z`, a position, or None for the identity."""


def as_array(model: ModelFields, value, what: str) -> Array:
    try:
        return jnp.asarray(value, model.dtype)
    except (TypeError, ValueError) as error:
        raise ShapeError(f"{what}: {value!r} is not an array of numbers ({error})") from None


def in_numpy(value) -> np.ndarray | None:
    """Return a value in NumPy, in double precision; None while tracing."""
    return None if isinstance(value, Tracer) else np.asarray(value, np.float64)


def as_coordinates(model: ModelFields, joint: int, value) -> Array:
    """`[*batch, nqj]`, checked where the values are known."""
    topology = model.topology
    name, kind = topology.joint_names[joint], topology.joint_types[joint]
    size = joint_nq(kind)
    what = f"the coordinates of joint {name!r}"
    out = as_array(model, value, what)
    if size == 1 and out.ndim == 0:
        out = out[None]
    require_last_axes(out, (size,), what, f"{kind} joints have {size}" + (", or a number" if size == 1 else ""))
    if (numbers := in_numpy(out)) is not None:
        if not np.isfinite(numbers).all():
            raise ModelError(f"{what} are not finite: {numbers.tolist()}")
        if JOINT_TYPES[kind][-1].quaternion is not None and not _are_unit(numbers[..., -4:]):
            raise ModelError(f"{what} are {numbers.tolist()}, whose last four must be a unit quaternion w x y z")
        start = topology.q_starts[joint]
        # Limits may have been rounded to single precision.
        warn_beyond_limits(
            model, numbers, np.arange(start, start + size), 1e-6, f"{numbers.tolist()}, where it is locked,"
        )
    return out


def _are_unit(quaternions: np.ndarray) -> bool:
    return bool((np.abs(np.linalg.norm(quaternions, axis=-1) - 1) <= 1e-3).all())


def require_poses(poses: np.ndarray, what: str) -> None:
    """Raise `ModelError` unless numbers `[..., 7]` are finite positions and unit quaternions."""
    if not np.isfinite(poses).all() or not _are_unit(poses[..., 3:]):
        needed = "its last four numbers must be a unit quaternion w x y z"
        raise ModelError(f"{what}: {poses.tolist()} is not a pose; {needed}")


def as_inertial_parameters(model: ModelFields, inertia, what: str) -> Array:
    """`[*batch, 10]`, checked where the values are known."""
    values = inertia.parameters() if isinstance(inertia, BodyInertia) else inertia
    out = as_array(model, values, what)
    require_last_axes(out, (10,), what, "the ten inertial parameters, or a BodyInertia")
    if isinstance(out, Tracer):
        return out
    # The checks see the values before they are rounded to the precision of the model.
    dtype = values.dtype if isinstance(values, Array | np.ndarray) and values.dtype.kind == "f" else np.float64
    for parameters in np.asarray(values, np.float64).reshape(-1, 10):
        require_mass(parameters, what)
        if warn_if_unphysical(what, parameters, rounding(parameters, dtype)):
            break
    return out


def independent_joint(topology: Topology, name: str, advice: str) -> int:
    """Return the number of a joint. **Raises** `UnknownNameError`; `ModelError` with advice for one that mimics."""
    joint = topology.joint(name)
    if joint in topology.leaders:
        leader = topology.joint_names[topology.leaders[joint]]
        raise ModelError(f"joint {name!r} mimics {leader!r} and has no coordinates of its own; {advice}")
    return joint


def require_new_names(names: Sequence[str], taken: Sequence[str], what: str, advice: str) -> None:
    for name in names:
        if not isinstance(name, str) or not name:
            raise ModelError(f"{what} is to be named {name!r}; a name must be a string that is not empty")
    clashes = sorted({*names} & {*taken, "world"})
    if clashes:
        shown = ", ".join(repr(n) for n in clashes[:8]) + (", ..." if len(clashes) > 8 else "")
        raise ModelError(f"{what} would have a name that exists: {shown}; names must be unique: {advice}")


def batches_of(model: ModelFields) -> list[tuple[int, ...]]:
    """The batch axes of each leaf, none for anything but arrays."""
    shapes = ((getattr(getattr(model, field), "shape", ()), leaf.axes) for field, leaf in LEAVES.items())
    return [tuple(shape[: max(0, len(shape) - axes)]) for shape, axes in shapes]


def model_batch(model: ModelFields) -> tuple[int, ...]:
    return np.broadcast_shapes(*batches_of(model))


def require_batches(model: ModelFields, batches: dict[str, tuple[int, ...]]) -> None:
    """Raise `ShapeError` unless the batch axes of a model and of named arrays broadcast."""
    broadcast_batches({"model": model_batch(model)} | batches)


def as_pose(model: ModelFields, placement, what: str) -> Array:
    """`[*batch, 7]`, checked where the values are known."""
    if isinstance(placement, SE3):
        placement = placement.to_vector()
    out = as_array(model, placement, what)
    if out.ndim and out.shape[-1] == 3:
        out = pose_array(out, jnp.asarray(IDENTITY_POSE[3:], out.dtype))
    require_last_axes(out, (7,), what, "an SE3, position and quaternion w x y z [7], or a position [3]")
    if (numbers := in_numpy(out)) is not None:
        require_poses(numbers, what)
    return out


def pose_in_body(model: ModelFields, link: str, placement: Placement, what: str) -> tuple[int, Array]:
    """Return the number of the body that a link, merged link or frame is part of (-1 for the world), and the pose
    `[*batch, 7]` in that body's frame, or in the world, of a frame that `placement` places in the link. `"world"` is
    the world itself, unless a frame has that name.

    **Raises** `UnknownNameError` for the link; `ShapeError` and `ModelError` for a placement that is not a pose.
    """
    pose = as_pose(model, IDENTITY_POSE if placement is None else placement, what)
    if link == "world" and "world" not in model.topology.frame_names:
        return -1, pose
    frame = model.topology.frame(link)
    return model.topology.frame_bodies[frame], _after_frame(model, pose, frame)


@numpy_unless_tracing("frame")
def _after_frame(model: ModelFields, pose, frame: int) -> Array:
    return compose_poses(model.frame_placement[..., frame, :], pose)


def as_per_dof(model: ModelFields, field: str, value) -> Array:
    """`[*batch, nv]` from that, a number, or a mapping from joints to values, checked where the values are known."""
    topology = model.topology
    if not isinstance(value, Mapping):
        return _values(model, field, value, model.nv, field)
    parts, rows = [getattr(model, field)], np.arange(model.nv)
    for name, number in value.items():
        joint = independent_joint(topology, name, f"give {field} for that one, where it acts")
        dofs = range(topology.v_starts[joint], topology.v_starts[joint + 1])
        rows[dofs] = sum(x.shape[-1] for x in parts) + np.arange(len(dofs))
        parts.append(_values(model, field, number, len(dofs), f"{field} of joint {name!r}"))
    require_batches(model, {name: x.shape[:-1] for name, x in zip(value, parts[1:], strict=True)})
    return take(join(parts, 1), rows, 1)


def _values(model: ModelFields, field: str, value, size: int, where: str) -> Array:
    """`[*batch, size]` from that or a number."""
    out = as_array(model, value, where)
    if out.ndim == 0:
        out = jnp.broadcast_to(out, (size,))
    require_last_axes(out, (size,), where, f"a number, or one for each degree of freedom ({size})")
    if (numbers := in_numpy(out)) is not None:
        require_values(LEAVES[field], numbers, where)
    require_batches(model, {where: out.shape[:-1]})
    return out


def require_values(leaf: Leaf, values: np.ndarray, where: str) -> None:
    """Raise `ModelError` unless a leaf may have these values."""
    if np.isnan(values).any():
        raise ModelError(f"{where} is NaN")
    if leaf.sign != "any" and (values < 0).any():
        raise ModelError(f"{where} is negative: {values}")
    if leaf.finite and not np.isfinite(values).all():
        raise ModelError(f"{where} is not finite: {values}")
    if leaf.sign == "positive" and (values == 0).any():
        raise ModelError(f"{where} must be positive: {values}")
