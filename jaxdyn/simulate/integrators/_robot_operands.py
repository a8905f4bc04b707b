"""Functions of a model, or of a world, and arrays as functions of arrays only, which may have native programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer

from jaxdyn.algorithms.recursions import Constant, constants_of
from jaxdyn.model import LEAVES, Model


@dataclasses.dataclass(frozen=True)
class RobotOperands:
    """The static part of a model or a world: its structure, and the arrays that are constants of the user's program."""

    structure: Any
    """The structure as a pytree."""
    constants: tuple[tuple[int, Constant], ...]
    """The arrays that are constants, by their number."""
    cores: tuple[int, ...]
    """For each of the other arrays the number of axes that are not batch axes."""

    @classmethod
    def of(cls, robot: Any, axes: Sequence[int], dtype, arguments: Any) -> tuple[RobotOperands, list[Any]]:
        """Return the static part, and the arrays that are not constants (`constants_of`); `axes` are the numbers of
        axes of all arrays that are not batch axes, and `arguments` are those of the function."""
        leaves, structure = jax.tree.flatten(robot)
        known = constants_of(dict(enumerate(zip(leaves, axes, strict=True))), dtype, arguments)
        unknown = [i for i in range(len(leaves)) if i not in known]
        static = cls(structure, tuple(known.items()), tuple(axes[i] for i in unknown))
        return static, [jnp.asarray(leaves[i], dtype) for i in unknown]

    @classmethod
    def of_model(cls, model: Model, dtype, arguments: Any) -> tuple[RobotOperands, list[Any]]:
        """Return the same of a model."""
        axes = [LEAVES[name].axes for name in LEAVES if getattr(model, name) is not None]
        return cls.of(model, axes, dtype, arguments)

    def robot(self, operands: Iterator[Any]) -> Any:
        """Return the model or the world with the next of the operands as its arrays."""
        known = dict(self.constants)
        leaves = [
            jnp.asarray(known[i].array) if i in known else next(operands) for i in range(self.structure.num_leaves)
        ]
        return jax.tree.unflatten(self.structure, leaves)


def differentiated_as(plain: Callable, native: Callable, arguments: Any) -> Any:
    """Return `native(arguments)`, with the derivatives of `plain(arguments)`, which is the same function."""
    # JAX traces all arguments of a function with its own derivatives. What is a constant of the user's program stays
    # one, because it is no argument.
    known, unknown = eqx.partition(arguments, lambda x: not isinstance(x, Tracer))

    @jax.custom_jvp
    def function(unknown: Any) -> Any:
        return native(eqx.combine(unknown, known))

    @function.defjvp
    def _(primals, tangents):
        return jax.jvp(lambda unknown: plain(eqx.combine(unknown, known)), primals, tangents)

    return function(unknown)
