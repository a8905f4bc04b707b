"""Between the public functions and the recursions: checks of shapes, and the change to batch-last rows."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._batching import Derivatives, Plain, call
from jaxdyn._compile import compiled
from jaxdyn._errors import ShapeError, require_last_axes
from jaxdyn.model import Model
from jaxdyn.model._spanning_tree import independent_forces, spanning_coordinates
from jaxdyn.tree._rows import column, rows_of

# How many axes the leaves of a model that matter to its motion have without batch axes.
_LEAF_AXES = {
    "joint_placement": 2,
    "joint_axis": 2,
    "joint_pitch": 1,
    "inertial_parameters": 2,
    "armature": 1,
    "damping": 1,
    "friction": 1,
    "friction_velocity": 1,
    "gravity": 1,
    "frame_placement": 2,
    "stiffness": 1,
    "spring_reference": 1,
}


class Own(NamedTuple):
    """Derivatives of a function, with one result `[nv]`, by some of its arguments."""

    wrt: tuple[str, ...]
    jacobian: Callable
    """Of the same arguments: a matrix `[*batch, nv, n]` for each of `wrt`."""
    pullback: Callable
    """Of the model, a cotangent and the same arguments: the cotangent times each of the matrices."""

    def of(self, on_model: _OnModel, cores: tuple[int, ...], model: Model) -> Derivatives:
        operands = tuple(len(on_model.kept) + on_model.arrays.index(name) for name in self.wrt)
        sizes = tuple(model.nq if name == "q" else model.nv for name in self.wrt)
        jacobian = dataclasses.replace(on_model, function=self.jacobian)
        matrices = Plain(jacobian, cores, tuple((model.nv, n) for n in sizes))
        return Derivatives(operands, matrices, dataclasses.replace(on_model, function=self.pullback))


def batched[**P, R](
    results: Callable[[Model], Any],
    *static: str,
    derivatives: Own | None = None,
    forces: tuple[int, ...] = (),
    mimic: Callable | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """The decorator of functions of a model and arrays with leading batch axes: `jax.vmap` of one reaches the same code
    as batch axes do, and large batches on a CPU are processed in chunks (`_batching.py`). Compiled by itself.

    `results(model)` gives the shape of the result without batch axes, or a pytree of such shapes; `static` names the
    arguments that are not arrays; `derivatives` are the function's own, used where no external wrenches act.

    The function itself sees trees of independent joints only. For a model with joints that mimic others it is called
    with the spanning tree, and the axes `forces` of its results, counted from the last, become those of the model's
    degrees of freedom; or `mimic(function, model, *arrays, *options)` says what to do instead.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            arguments = dict(bound.arguments)
            model = arguments.pop("model")
            options = tuple((name, arguments.pop(name)) for name in static)
            arrays = _checked(model, arguments)
            if model.topology.mimics:
                if mimic is not None:
                    return mimic(wrapper, model, **arrays, **dict(options))
                return _over_spanning_tree(wrapper, model, arrays, options, results, forces)
            leaves, structure = jax.tree.flatten(model, is_leaf=_is_none)
            kept = tuple(i for i, n in enumerate(_LEAF_NAMES) if n in _LEAF_AXES and leaves[i] is not None)
            on_model = _OnModel(function, structure, kept, tuple(arrays), options)
            shapes, result_structure = jax.tree.flatten(results(model), is_leaf=_is_shape)
            cores = tuple(_LEAF_AXES[_LEAF_NAMES[i]] for i in kept) + tuple(_ARRAY_AXES.get(name, 1) for name in arrays)
            own = None
            if derivatives is not None and "f_ext" not in arrays:
                own = derivatives.of(on_model, cores, model)
            operands = [leaves[i] for i in kept] + list(arrays.values())
            dtype = jnp.result_type(*operands)
            plain = Plain(on_model, cores, tuple(shapes), own)
            out = call(plain, *(jnp.asarray(x, dtype) for x in operands))
            return jax.tree.unflatten(result_structure, out)

        return compiled(*static)(wrapper)

    return decorate


def _over_spanning_tree(function: Callable, model: Model, arrays, options, results: Callable, forces: tuple[int, ...]):
    """A function's result for the spanning tree, with the axes `forces` of all its leaves as the model has them."""
    tree = model.spanning_tree()
    out = function(tree, **on_spanning_tree(model, arrays), **dict(options))
    ranks = jax.tree.map(len, results(tree), is_leaf=_is_shape)
    for axis in forces:
        out = jax.tree.map(lambda x, rank, axis=axis: independent_forces(model, x, axis, rank), out, ranks)
    return out


def on_spanning_tree(model: Model, arrays: dict[str, Any]) -> dict[str, Any]:
    """Coordinates, velocities and accelerations of the spanning tree; what is none of them stays."""
    out = dict(arrays)
    for name in ("q", "v", "a", "v_r", "a_r"):
        if name in arrays:
            out[name] = spanning_coordinates(model, arrays[name], velocity=name != "q")
    return out


_LEAF_NAMES = tuple(f.name for f in dataclasses.fields(Model) if not f.metadata.get("static", False))
_ARRAY_AXES = {"f_ext": 2}


@dataclasses.dataclass(frozen=True)
class _OnModel:
    """A function of a model and arrays, as one of the leaves of the model that matter and the arrays."""

    function: Callable
    structure: Any
    kept: tuple[int, ...]
    arrays: tuple[str, ...]
    options: tuple[tuple[str, Any], ...]

    def __call__(self, *operands):
        """Of the operands; or of a cotangent after them, for a pullback."""
        leaves: list[Any] = [None] * len(_LEAF_NAMES)
        for i, x in zip(self.kept, operands, strict=False):
            leaves[i] = x
        model = jax.tree.unflatten(self.structure, leaves)
        values, rest = operands[len(self.kept) :], operands[len(self.kept) + len(self.arrays) :]
        arrays = dict(zip(self.arrays, values, strict=False))
        return self.function(model, *rest, **arrays, **dict(self.options))


def _is_none(x) -> bool:
    # What a function leaves out of its model, so that every leaf has its place in a model within a function, too.
    return x is None


def _is_shape(x) -> bool:
    return type(x) is tuple and all(isinstance(n, int) for n in x)


def _checked(model: Model, arrays: dict[str, Any]) -> dict[str, Any]:
    """The arrays that are given, checked with their batch axes."""
    f_ext = arrays.pop("f_ext", None)
    _, batch, _ = rows(model, **arrays)
    out = {name: jnp.asarray(x) for name, x in arrays.items()}
    if f_ext is not None:
        with_wrenches(model, f_ext, batch)
        out["f_ext"] = jnp.asarray(f_ext)
    return out


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
    leaves = [(getattr(model, name), axes) for name, axes in _LEAF_AXES.items()]
    shapes = [leaf.shape[:-axes] for leaf, axes in leaves if leaf is not None]
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
