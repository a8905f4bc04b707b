"""Functions of the rows of a robot, and of what is attached to it, as functions of arrays with leading batch axes: one
JAX primitive each."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from jaxdyn.algorithms.recursions._algorithm import Constant, constants_of, tree_leaves
from jaxdyn.algorithms.recursions._robot import Robot
from jaxdyn.model import LEAVES, Model
from jaxdyn.native import Plain, call
from jaxdyn.tree import rows_of, to_leading


class Parts(Protocol):
    """A pytree of arrays with leading batch axes that is attached to a robot, such as its contacts."""

    def axes(self) -> list[int]:
        """Return for each array, in the order of the leaves, the number of axes that are not batch axes."""
        ...

    def leaves_of_model(self) -> tuple[str, ...]:
        """Return the names of the model's arrays that its functions read, besides those of the dynamics."""
        ...

    def on_rows(self, robot: Robot) -> Any:
        """Return what functions of rows see of it; the arrays may have fewer batch axes than the robot."""
        ...


@dataclasses.dataclass(frozen=True)
class RobotAndParts:
    """The static part of a robot and what is attached to it: structure, and the numbers that are constants of a
    program."""

    topology: Any
    names: tuple[str, ...]
    """The names of the model's arrays, in the order of their operands."""
    parts: Any
    """The structure of the parts as a pytree."""
    cores: tuple[int, ...]
    """For each array of the model and the parts the number of axes that are not batch axes."""
    user: str
    """The name of the function that needs the robot, for errors."""
    constants: tuple[tuple[int, Constant], ...]
    """The arrays among them that are constants, by their number."""

    @classmethod
    def of(cls, model: Model, parts: Parts, dtype, user: str, states: Any = None) -> tuple[RobotAndParts, list[Any]]:
        """Return the static part, and the arrays that are not constants (`constants_of`); `states` are arguments of its
        functions."""
        further, tree = parts.leaves_of_model(), model.spanning_tree()
        arrays = tree_leaves(model) | {n: getattr(tree, n) for n in further}
        leaves, structure = jax.tree.flatten(parts)
        cores = *(LEAVES[n].axes for n in arrays), *parts.axes()
        values = [jnp.asarray(x, dtype) for x in (*arrays.values(), *leaves)]
        known = constants_of(dict(enumerate(zip(values, cores, strict=True))), dtype, states)
        bound = cls(model.topology, tuple(arrays), structure, cores, user, tuple(known.items()))
        return bound, [x for i, x in enumerate(values) if i not in known]

    def call(self, function: Callable, operands: Sequence[Any], *arguments: Any, **named: Any) -> Any:
        """Return `function(robot, parts, *arguments)`, with the parts as `Parts.on_rows` returns them. The arguments
        and results are pytrees of arrays `[*batch, n]`, or `[*batch]`; the function has and returns them as rows."""
        arguments = *arguments, *named.values()
        leaves, structure = jax.tree.flatten(arguments)
        bound = _PartsOnRows(function, self, structure, tuple(named), tuple(min(x.ndim, 1) for x in leaves))
        shared = len(self.cores) - len(self.constants)
        everything = [*operands, *leaves]
        shapes, results = _results(
            bound, tuple((x.shape[x.ndim - c :], x.dtype) for x, c in zip(everything, bound.cores, strict=True))
        )
        out = call(Plain(bound, bound.cores, shapes, shared=shared), *everything)
        return jax.tree.unflatten(results, out)


@functools.cache
def _results(bound: _PartsOnRows, operands: tuple) -> tuple[tuple[tuple[int, ...], ...], Any]:
    """Return the shapes and the structure of the results without batch axes."""
    out = jax.eval_shape(bound, *(jax.ShapeDtypeStruct(*x) for x in operands))
    leaves, structure = jax.tree.flatten(out)
    return tuple(x.shape for x in leaves), structure


@dataclasses.dataclass(frozen=True)
class _PartsOnRows:
    function: Callable
    bound: RobotAndParts
    structure: Any
    """The structure of the arguments."""
    named: tuple[str, ...]
    """The names of the last arguments."""
    argument_cores: tuple[int, ...]

    @property
    def cores(self) -> tuple[int, ...]:
        known = dict(self.bound.constants)
        return (*(n for i, n in enumerate(self.bound.cores) if i not in known), *self.argument_cores)

    def __call__(self, *operands):
        static, known = self.bound, dict(self.bound.constants)
        batch = jnp.broadcast_shapes(*(x.shape[: x.ndim - c] for x, c in zip(operands, self.cores, strict=True)))
        rank, given = len(batch), iter(operands)
        arrays = [jnp.asarray(known[i].array) if i in known else next(given) for i in range(len(static.cores))]
        count = len(static.names)
        robot = Robot(static.topology, dict(zip(static.names, arrays, strict=False)), batch, static.user)  # pyright: ignore[reportArgumentType]
        robot.zero = frozenset(n for i, n in enumerate(static.names) if i in known and not known[i].array.any())
        parts = jax.tree.unflatten(static.parts, arrays[count:]).on_rows(robot)
        rows = [_as_rows(x, n, rank) for x, n in zip(given, self.argument_cores, strict=True)]
        arguments = jax.tree.unflatten(self.structure, rows)
        positional = arguments[: len(arguments) - len(self.named)]
        named = dict(zip(self.named, arguments[len(positional) :], strict=True))
        out = self.function(robot, parts, *positional, **named)
        return jax.tree.map(lambda x: _as_users(robot, x), out)


def _as_rows(x, axes: int, rank: int):
    """Return an array, with one axis besides batch axes or none, with the batch last."""
    return rows_of(x, rank) if axes else x.reshape((1,) * (rank - x.ndim) + x.shape)


def _as_users(robot: Robot, x):
    """Return rows, or one number for each element of the batch, with the batch first."""
    if x.ndim == robot.rank:
        return jnp.broadcast_to(x, robot.batch)
    return to_leading(robot.broadcast(x))
