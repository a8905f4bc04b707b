"""Between the public functions and the recursions: checks of shapes, and the change to batch-last rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import ShapeError, require_last_axes
from jaxdyn.model import Model
from jaxdyn.model._layout import column, rows_of

# How many axes each leaf of a model has without batch axes.
_LEAF_AXES = {"gravity": 1, "joint_placement": 2, "joint_axis": 2, "inertial_parameters": 2, "frame_placement": 2}


class Rows(NamedTuple):
    """Arguments as rows `[n, *batch]`: `rank` batch axes each, some of length 1."""

    arrays: tuple[Any, ...]
    batch: tuple[int, ...]
    rank: int


def rows(model: Model, **arrays) -> Rows:
    """The rows of `q`, `v`, `a`, `tau` (each `[*batch, nq]` or `[*batch, nv]`) in one dtype.

    **Raises** `ShapeError`, which names the argument, where the last axis or the batch axes do not fit.
    """
    if not isinstance(model, Model):
        raise ShapeError(f"the first argument must be a jaxdyn.Model, not {type(model).__name__}")
    given = {name: jnp.asarray(x) for name, x in arrays.items()}
    for name, x in given.items():
        size, label = (model.nq, "nq") if name == "q" else (model.nv, "nv")
        require_last_axes(x, (size,), name, f"{label} = {size} for this model, joints {_shown(model.joint_names)}")
        if not jnp.issubdtype(x.dtype, jnp.floating) and not jnp.issubdtype(x.dtype, jnp.integer):
            raise ShapeError(f"{name} has dtype {x.dtype}; real numbers are needed")
    batches = {name: x.shape[:-1] for name, x in given.items()} | {"model": model_batch(model)}
    batch = broadcast_batches(batches)
    dtype = jnp.result_type(model.dtype, *given.values())
    rank = len(batch)
    return Rows(tuple(rows_of(x.astype(dtype), rank) for x in given.values()), batch, rank)


def broadcast_batches(batches: dict[str, tuple[int, ...]]) -> tuple[int, ...]:
    """The common batch axes. **Raises** `ShapeError` with all of them where they do not broadcast."""
    try:
        return np.broadcast_shapes(*batches.values())
    except ValueError:
        shown = ", ".join(f"{name} {list(shape)}" for name, shape in batches.items())
        raise ShapeError(f"the leading batch axes do not broadcast: {shown}") from None


def model_batch(model: Model) -> tuple[int, ...]:
    """The batch axes that the leaves of a model carry."""
    shapes = [getattr(model, name).shape[:-axes] for name, axes in _LEAF_AXES.items()]
    joint_arrays = (model.armature, model.damping, model.friction, model.friction_velocity, model.joint_pitch)
    shapes += [leaf.shape[:-1] for leaf in joint_arrays]
    return tuple(int(n) for n in np.broadcast_shapes(*shapes))


def _shown(names: tuple[str, ...]) -> str:
    return ", ".join(names) if len(names) <= 12 else ", ".join(names[:12]) + f", ... ({len(names)})"


def full(rows, batch: tuple[int, ...]):
    """Rows with every batch axis at its full length."""
    return jnp.broadcast_to(rows, (*rows.shape[: rows.ndim - len(batch)], *batch))


def with_wrenches(model: Model, f_ext, batch: tuple[int, ...], *states):
    """`f_ext` checked, with the batch, its rank and the rows of the states widened to its batch axes."""
    if f_ext is not None:
        f_ext = jnp.asarray(f_ext)
        require_last_axes(f_ext, (model.nb, 6), "f_ext", f"a wrench [force, moment] on each of the {model.nb} bodies")
        batch = broadcast_batches({"states and model": batch, "f_ext": f_ext.shape[:-2]})
    return f_ext, batch, len(batch), tuple(column(x, len(batch)) for x in states)
