"""The decorator of the public algorithms, which keeps all bookkeeping of batches and axes out of their equations."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Callable
from typing import Any, Concatenate, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._compile import compiled
from jaxdyn._errors import ModelError, ShapeError, broadcast_batches, require_last_axes
from jaxdyn._types import Configuration, Numbers, Torque, Velocity, Wrenches
from jaxdyn.algorithms.recursions._robot import BatchFirst, Robot
from jaxdyn.model import (
    LEAVES,
    Model,
    Topology,
    independent_forces,
    mimic_coordinates,
    require_no_loops,
    spanning_coordinates,
    tree_forces,
)
from jaxdyn.native import Derivatives, Plain, call
from jaxdyn.spatial import SE3
from jaxdyn.tree import packed_rows, rows_of


class ArgumentKind(NamedTuple):
    """A kind of array argument, named by the annotation that an algorithm gives to it."""

    axes: Callable[[Topology], tuple[int | None, ...]]
    """The axes without batch axes; None for one of any length."""
    meaning: Callable[[Topology], str]
    """The meaning of these axes, for errors."""
    to_tree: Callable[[Model, Any], Any]
    """The same quantity for the tree in which all joints are independent."""


def _of_joints(size: str) -> Callable[[Topology], str]:
    def meaning(topology: Topology) -> str:
        names = topology.joint_names
        shown = ", ".join(names[:12]) + (f", ... ({len(names)})" if len(names) > 12 else "")
        return f"{size} = {getattr(topology, size)} for this model, joints {shown}"

    return meaning


KINDS: dict[Any, ArgumentKind] = {
    Configuration: ArgumentKind(
        lambda t: (t.nq,), _of_joints("nq"), functools.partial(spanning_coordinates, velocity=False)
    ),
    Velocity: ArgumentKind(lambda t: (t.nv,), _of_joints("nv"), functools.partial(spanning_coordinates, velocity=True)),
    Torque: ArgumentKind(
        lambda t: (t.nv,), _of_joints("nv"), lambda m, x: tree_forces(m, x) if m.topology.mimics else x
    ),
    Wrenches: ArgumentKind(
        lambda t: (t.nb, 6), lambda t: f"a wrench [force, moment] on each of the {t.nb} bodies", lambda _, x: x
    ),
    Numbers: ArgumentKind(lambda t: (None,), lambda t: "numbers", lambda _, x: x),
}


class AnalyticDerivatives(NamedTuple):
    """Derivatives of an algorithm, whose one result is `[m]`, by some of its arguments. Both functions are called as
    the algorithm is, with rows."""

    arguments: tuple[str, ...]
    """The arguments by which the derivatives are taken."""
    jacobian: Callable
    """Returns for each of the arguments the matrix `[m, n, *batch]`."""
    pullback: Callable
    """Called with a cotangent, rows `[m]`, after the robot; returns its products `[n, *batch]` with the matrices."""
    with_loops: bool = True
    """Whether they hold for models with loops and couplings; otherwise JAX differentiates the function for these."""


def algorithm[**P, R](
    *,
    derivatives: AnalyticDerivatives | None = None,
    motion_axes: tuple[tuple[int, ...], ...] = (),
    independent_joints: bool = False,
    sizes: Callable[[Topology, dict[str, int]], dict[str, int]] | None = None,
) -> Callable[[Callable[Concatenate[Robot, P], R]], Callable[Concatenate[Model, P], R]]:
    """Return the decorator of a function of a robot's rows, which makes it a function of a `Model` and arrays with
    leading batch axes.

    The annotations say what the arguments are: `Configuration`, `Velocity`, `Torque` and `Wrenches` are arrays, all
    others are static options. They are checked, their batch axes are broadcast, and the function is called with rows
    (see `Robot`), once, inside one JAX primitive (`native.call`). Its results are rows too, arrays
    `[*axes, *batch]` in the structure that the annotation of the result has; `nq`, `nv`, `nb`, `nc` in it, and
    numbers, are the axes (`Annotated[SE3, "nb"]` is an `SE3` whose arrays have one axis more).

    The function sees a tree of independent joints. Where the model has joints that mimic others, the axes `nv` of the
    results are projected on the independent coordinates as forces are; `motion_axes` names for each result the axes,
    counted from the last, that are accelerations, along which coordinates are selected. With `independent_joints` such
    a model is an error, and so is one with loops or couplings. `sizes` returns further axes of the results by name,
    from the tree of independent joints and the last axis of each array.

    **Raises**, when called, `ShapeError` where an argument does not fit, and `ModelError` (see `independent_joints`)
    where the function reads `robot.inertial_parameters` of a model that was loaded with `kinematics_only`.
    """

    def decorate(function: Callable[Concatenate[Robot, P], R]) -> Callable[Concatenate[Model, P], R]:
        signature = inspect.signature(function)
        kinds, results = _read_annotations(function)
        dimensions, structure = jax.tree.flatten(results)
        first, *parameters = signature.parameters.values()
        signature = signature.replace(parameters=[first.replace(name="model", annotation=Model), *parameters])

        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            model, arguments = bound.arguments["model"], list(bound.arguments.items())[1:]
            arrays = {n: (kinds[n], x) for n, x in arguments if n in kinds and x is not None}
            check_arrays(model, arrays)
            if independent_joints:
                _require_independent_joints(model, function.__name__)
            leaves = tree_leaves(model)
            states = [KINDS[k].to_tree(model, jnp.asarray(x)) for k, x in arrays.values()]
            dtype = jnp.result_type(*leaves.values(), *states)
            constants = constants_of({n: (x, LEAVES[n].axes) for n, x in leaves.items()}, dtype, states)
            leaves = {n: x for n, x in leaves.items() if n not in constants}
            operands = [*leaves.values(), *states]
            on_rows = _AlgorithmOnRows(
                function,
                model.topology,
                tuple(constants.items()),
                tuple(leaves),
                tuple((n, k) for n, (k, _) in arrays.items()),
                tuple((n, x) for n, x in arguments if n not in kinds),
                function.__name__,
            )
            operands = [jnp.asarray(x, dtype) for x in operands]
            if model.topology.missing_inertias:
                # The primitive calls the function when it is compiled; what lacks is to be said while it is traced.
                jax.eval_shape(on_rows, *operands)
            lengths = {n: jnp.asarray(x).shape[-1] for n, (_, x) in arrays.items()}
            further = {} if sizes is None else sizes(model.topology.spanning, lengths)
            out = call(on_rows.plain(dimensions, derivatives, further), *operands)
            out = map(functools.partial(_independent, model), out, dimensions, motion_axes or ((),) * len(out))
            return jax.tree.unflatten(structure, out)

        # Read by `jax.jit`, editors and `help`.
        wrapper.__signature__ = signature  # type: ignore[attr-defined]
        static = [p.name for p in parameters if p.name not in kinds]
        return compiled(*static)(wrapper)  # type: ignore[return-value]

    return decorate


def check_arrays(model: Model, arrays: dict[str, tuple[Any, Any]]) -> tuple[int, ...]:
    """Return the common batch axes of a model and named arrays, each given with its annotation.

    **Raises** `ShapeError`, which names the argument, where an axis, a dtype or the batch axes do not fit.
    """
    if not isinstance(model, Model):
        raise ShapeError(f"the first argument must be a jaxdyn.Model, not {type(model).__name__}")
    batches = {"model": model_batch(model)}
    for name, (annotation, x) in arrays.items():
        kind, x = KINDS[annotation], jnp.asarray(x)
        last = x.shape[-1] if x.ndim else 1
        axes = tuple(last if n is None else n for n in kind.axes(model.topology))
        require_last_axes(x, axes, name, kind.meaning(model.topology))
        if not jnp.issubdtype(x.dtype, jnp.floating) and not jnp.issubdtype(x.dtype, jnp.integer):
            raise ShapeError(f"{name} has dtype {x.dtype}; real numbers are needed")
        batches[name] = x.shape[: x.ndim - len(axes)]
    return broadcast_batches(batches)


def model_batch(model: Model) -> tuple[int, ...]:
    """Return the batch axes that the arrays of a model have. **Raises** `ShapeError` for arrays that lack an axis."""
    for name, x in _leaves(model).items():
        if x.ndim < LEAVES[name].axes:
            raise ShapeError(
                f"the array {name} of the model has shape {x.shape} and lacks an axis, as if jax.vmap had taken it: "
                "give in_axes=None for a model without batch axes, and in_axes=model.vmap_axes() for one with some"
            )
    return jnp.broadcast_shapes(*(x.shape[: x.ndim - LEAVES[n].axes] for n, x in _leaves(model).items()))  # pyright: ignore[reportReturnType]


def _leaves(model: Model) -> dict[str, Any]:
    """Return the arrays of the model that the algorithms depend on."""
    arrays = {name: getattr(model, name) for name, leaf in LEAVES.items() if leaf.dynamics}
    return {name: x for name, x in arrays.items() if x is not None}


def tree_leaves(model: Model) -> dict[str, Any]:
    """Return these arrays of the tree of independent joints, and those of the constraints on it."""
    mimics = {"mimic_multiplier": model.mimic_multiplier} if model.topology.mimics else {}
    return _leaves(model.spanning_tree()) | mimics


def _read_annotations(function: Callable) -> tuple[dict[str, Any], Any]:
    """Return the annotations of the arguments that are arrays, by name, and the results' dimensions, such as `"nv 6"`,
    in the structure of the results."""
    hints = typing.get_type_hints(function, include_extras=True)
    result = hints.pop("return")
    kinds = {}
    for name, hint in hints.items():
        for option in (hint, *typing.get_args(hint)):
            if option in KINDS:
                kinds[name] = option
    return kinds, _dimensions(result)


def _dimensions(annotation) -> Any:
    if typing.get_origin(annotation) is typing.Annotated:
        inner, axes = typing.get_args(annotation)
        return jax.tree.map(lambda dimensions: f"{axes} {dimensions}", _dimensions(inner))
    if typing.get_origin(annotation) is typing.Union:
        # An array of JAX or of NumPy, of the same shape.
        return _dimensions(typing.get_args(annotation)[0])
    if hasattr(annotation, "dim_str"):
        return re.sub(r"^\*#?batch ?", "", annotation.dim_str)
    if typing.get_origin(annotation) is tuple:
        return tuple(map(_dimensions, typing.get_args(annotation)))
    fields = {name: _dimensions(hint) for name, hint in typing.get_type_hints(annotation).items()}
    if annotation is SE3:
        return jax.tree.unflatten(jax.tree.structure(SE3(np.eye(3), np.zeros(3))), fields.values())
    return annotation(**fields)


def _sizes(topology: Topology, dimensions: str, further: dict[str, int]) -> tuple[int, ...]:
    sizes = {"nq": topology.nq, "nv": topology.nv, "nb": topology.nb, "nc": topology.nc} | further
    sizes |= {"six_nb": 6 * topology.nb, "ten_nb": 10 * topology.nb}
    return tuple(sizes[d] if d in sizes else int(d) for d in dimensions.split())


def _independent(model: Model, x, dimensions: str, motion_axes: tuple[int, ...]):
    """Return a result of the tree of independent joints with the axes `nv` of the model."""
    names = dimensions.split()
    for axis, name in enumerate(names, -len(names)):
        if name == "nv" and axis in motion_axes:
            x = jnp.take(x, mimic_coordinates(model.topology, velocity=True).own, axis) if model.topology.mimics else x
        elif name == "nv":
            x = independent_forces(model, x, axis, len(names))
    return x


def _require_independent_joints(model: Model, name: str) -> None:
    followers = ", ".join(repr(model.joint_names[i]) for i, _ in model.topology.mimics)
    if followers:
        raise ModelError(
            f"{name} needs a tree of independent joints, and {followers} mimic others; call it with "
            "model.spanning_tree() at model.spanning_configuration(q) for the tree in which they are independent"
        )
    require_no_loops(model.topology, name, "call it with model.without_loops() for the tree alone")


class Constant:
    """An array of numbers that compares and hashes by its values."""

    def __init__(self, array: np.ndarray):
        self.array = array
        self._key = (array.shape, array.dtype.str, array.tobytes())
        self._hash = hash(self._key)

    @classmethod
    def of(cls, x, dtype) -> Constant:
        return cls(np.asarray(x, dtype))

    def __eq__(self, other) -> bool:
        return isinstance(other, Constant) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash


def constants_of[K](arrays: dict[K, tuple[Any, int]], dtype, states: Any) -> dict[K, Constant]:
    """Return those of a robot's arrays, each given with the number of its axes besides batch axes, that are constants
    of the user's program: they are not traced, and have no batch axes. Where neither arrays nor states are traced, none
    is one: new values shall not need a new program."""
    if not any(isinstance(x, Tracer) for x in jax.tree.leaves((arrays, states))):
        return {}
    return {
        n: Constant.of(x, dtype) for n, (x, axes) in arrays.items() if not isinstance(x, Tracer) and np.ndim(x) == axes
    }


@dataclasses.dataclass(frozen=True)
class _AlgorithmOnRows:
    """A function of a robot's rows as a function of arrays with leading batch axes: first the leaves of the model,
    then the arguments, then, for a pullback, a cotangent."""

    function: Callable
    topology: Topology
    constants: tuple[tuple[str, Constant], ...]
    """The leaves of the model that are constants of the user's program."""
    leaves: tuple[str, ...]
    arrays: tuple[tuple[str, Any], ...]
    options: tuple[tuple[str, Any], ...]
    name: str
    """The name of the algorithm, for errors."""

    @property
    def cores(self) -> tuple[int, ...]:
        """The number of axes of each operand without batch axes."""
        arrays = (len(KINDS[kind].axes(self.topology)) for _, kind in self.arrays)
        return (*(LEAVES[name].axes for name in self.leaves), *arrays)

    def plain(self, dimensions: list[str], derivatives: AnalyticDerivatives | None, further: dict[str, int]) -> Plain:
        """Return the function with the shapes of its results, and their derivatives where they apply; `further` are
        sizes of axes by name."""
        shapes = tuple(_sizes(self.topology.spanning, d, further) for d in dimensions)
        kinds = dict(self.arrays)
        if derivatives is None or (self.topology.has_loops and not derivatives.with_loops):
            return Plain(self, self.cores, shapes, shared=len(self.leaves))
        names, tree = list(kinds), self.topology.spanning
        operands = tuple(len(self.leaves) + names.index(name) for name in derivatives.arguments)
        matrices: Any = tuple((*shapes[0], *KINDS[kinds[name]].axes(tree)) for name in derivatives.arguments)
        shared = len(self.leaves)
        on_jacobian = dataclasses.replace(self, function=derivatives.jacobian)
        jacobian = Plain(on_jacobian, self.cores, matrices, shared=shared)
        pullback = dataclasses.replace(self, function=derivatives.pullback)
        return Plain(self, self.cores, shapes, Derivatives(operands, jacobian, pullback), shared)

    def __call__(self, *operands):
        # A pullback has a cotangent, rows, as its last operand.
        cores = [*self.cores, *[1] * (len(operands) - len(self.cores))]
        batch = jnp.broadcast_shapes(*(x.shape[: x.ndim - c] for x, c in zip(operands, cores, strict=True)))
        n = len(self.leaves)
        leaves = dict(zip(self.leaves, operands, strict=False))
        leaves |= {name: jnp.asarray(constant.array) for name, constant in self.constants}
        robot = Robot(self.topology, leaves, batch, self.name)  # pyright: ignore[reportArgumentType]
        tables = zip(operands[n:], cores[n:], strict=True)
        rows = [(packed_rows if axes == 2 else rows_of)(x, len(batch)) for x, axes in tables]
        arrays = {name: x for (name, _), x in zip(self.arrays, rows, strict=False)}
        out = self.function(robot, *rows[len(arrays) :], **arrays, **dict(self.options))
        return [_batch_first(robot, x) for x in jax.tree.leaves(out, is_leaf=lambda x: isinstance(x, BatchFirst))]


def _batch_first(robot: Robot, x):
    if isinstance(x, BatchFirst):
        return jnp.broadcast_to(x.array, (*robot.batch, *x.array.shape[-2:]))
    axes = x.ndim - robot.rank
    return jnp.moveaxis(robot.broadcast(x), range(axes), range(-axes, 0))
