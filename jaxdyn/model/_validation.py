"""What is given to functions that make models from models: as arrays of the model's precision, checked where known."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import ModelError, PhysicalityWarning, ShapeError, require_last_axes
from jaxdyn._types import Array
from jaxdyn.model._checks import rounding, unphysical_beyond_rounding, unresisted_joint
from jaxdyn.model._fields import ModelFields
from jaxdyn.model._inertia import BodyInertia
from jaxdyn.model._restructure import IDENTITY, ROWS, join, take
from jaxdyn.model._topology import joint_nq
from jaxdyn.spatial import SE3


def as_array(model: ModelFields, value, what: str) -> Array:
    try:
        return jnp.asarray(value, model.dtype)
    except (TypeError, ValueError) as error:
        raise ShapeError(f"{what}: {value!r} is no array of numbers ({error})") from None


def in_numpy(value) -> np.ndarray | None:
    """In NumPy, double precision; None while tracing."""
    return None if isinstance(value, Tracer) else np.asarray(value, np.float64)


def require_inertia(model: ModelFields) -> None:
    """As `ModelBuilder` does: a joint that nothing resists has no acceleration."""
    topology = model.topology
    axes, pitches = in_numpy(model.joint_axis), in_numpy(model.joint_pitch)
    inertias, armature = in_numpy(model.inertial_parameters), in_numpy(model.armature)
    if axes is None or pitches is None or inertias is None or armature is None:
        return
    i = unresisted_joint(topology, axes, pitches, inertias, armature)
    if i is not None:
        raise ModelError(
            f"body {topology.body_names[i]!r}, moved by joint {topology.joint_names[i]!r}, would have no inertia "
            "against the motion of its joint, and nothing with mass is attached to it: its acceleration would be "
            "undefined. Give it an inertia, give the joint an armature, or lock the joint"
        )


def as_coordinates(model: ModelFields, joint: int, value) -> Array:
    """`[*batch, nqj]`, checked where the values are known."""
    topology = model.topology
    name, kind = topology.joint_names[joint], topology.joint_types[joint]
    size = joint_nq(kind)
    what = f"the coordinates of joint {name!r}"
    given = as_array(model, value, what)
    if size == 1 and given.ndim == 0:
        given = given[None]
    require_last_axes(given, (size,), what, f"{kind} joints have {size}" + (", or a number" if size == 1 else ""))
    known = in_numpy(given)
    if known is not None:
        if not np.isfinite(known).all():
            raise ModelError(f"{what} are not finite: {known.tolist()}")
        if kind in ("ball", "free") and (np.abs(np.linalg.norm(known[..., -4:], axis=-1) - 1) > 1e-3).any():
            raise ModelError(f"{what} are {known.tolist()}, whose last four must be a unit quaternion w x y z")
    return given


def as_inertial_parameters(model: ModelFields, given, what: str) -> Array:
    """`[*batch, 10]`, checked where the values are known."""
    given = given.parameters() if isinstance(given, BodyInertia) else given
    out = as_array(model, given, what)
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


def require_new_names(names: Sequence[str], taken: Sequence[str], what: str, advice: str) -> None:
    for name in names:
        if not isinstance(name, str) or not name:
            raise ModelError(f"{what} is to be named {name!r}; a name must be a string that is not empty")
    clashes = sorted({*names} & {*taken, "world"})
    if clashes:
        shown = ", ".join(repr(n) for n in clashes[:8]) + (", ..." if len(clashes) > 8 else "")
        raise ModelError(f"{what} would have a name that exists: {shown}; names must be unique: {advice}")


def model_batch(model: ModelFields) -> tuple[int, ...]:
    leaves = ((getattr(model, field), core) for field, (_, core) in ROWS.items())
    return np.broadcast_shapes(*(x.shape[: x.ndim - core] for x, core in leaves if x is not None))


def require_batches(model: ModelFields, batches: dict[str, tuple[int, ...]]) -> None:
    batches = {"model": model_batch(model)} | batches
    try:
        np.broadcast_shapes(*batches.values())
    except ValueError:
        shown = ", ".join(f"{name} {list(shape)}" for name, shape in batches.items())
        raise ShapeError(f"the leading batch axes do not broadcast: {shown}") from None


def as_pose(model: ModelFields, placement, what: str) -> Array:
    """`[*batch, 7]`, checked where the values are known."""
    if isinstance(placement, SE3):
        placement = placement.to_vector()
    out = as_array(model, placement, what)
    if out.ndim and out.shape[-1] == 3:
        turn = jnp.broadcast_to(jnp.asarray(IDENTITY[3:], out.dtype), (*out.shape[:-1], 4))
        out = jnp.concatenate([out, turn], axis=-1)
    require_last_axes(out, (7,), what, "an SE3, position and quaternion w x y z [7], or a position [3]")
    known = in_numpy(out)
    if known is not None and (
        not np.isfinite(known).all() or (np.abs(np.linalg.norm(known[..., 3:], axis=-1) - 1) > 1e-3).any()
    ):
        raise ModelError(
            f"{what}: {known.tolist()} is no pose; its last four numbers must be a unit quaternion w x y z"
        )
    return out


def as_per_dof(model: ModelFields, field: str, given) -> Array:
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
    require_batches(model, {name: x.shape[:-1] for name, x in zip(given, parts[1:], strict=True)})
    return take(join(parts, 1), rows, 1)


def _values(model: ModelFields, field: str, given, size: int, where: str) -> Array:
    """`[*batch, size]` from that or a number."""
    out = as_array(model, given, where)
    if out.ndim == 0:
        out = jnp.broadcast_to(out, (size,))
    require_last_axes(out, (size,), where, f"a number, or one for each degree of freedom ({size})")
    _check_values(field, out, where)
    require_batches(model, {where: out.shape[:-1]})
    return out


def _check_values(field: str, value, where: str) -> None:
    known = in_numpy(value)
    if known is None:
        return
    if not np.isfinite(known).all():
        raise ModelError(f"{where} is not finite: {known}")
    if (known < 0).any():
        raise ModelError(f"{where} is negative: {known}")
    if field == "friction_velocity" and (known == 0).any():
        raise ModelError(f"{where} must be positive: {known}")
