"""Component classes as JAX pytrees, and the sums and multiples that most of them have."""

from __future__ import annotations

import dataclasses
import operator
from typing import Self, dataclass_transform

import jax


@dataclass_transform(frozen_default=True, eq_default=False)
def pytree[T](cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass, registered as a pytree with every field a child.

    A plain registered dataclass, not an `equinox.Module`: thousands of these are made and flattened while one
    algorithm is traced, and JAX flattens registered dataclasses in C++.
    """
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True, eq=False)(cls))


class Linear:
    """Sums and multiples, component by component."""

    # NumPy arrays on the left of an operator then defer to this class's own operator.
    __array_ufunc__ = None

    def __add__(self, other: Self) -> Self:
        return jax.tree.map(operator.add, self, other)

    def __sub__(self, other: Self) -> Self:
        return jax.tree.map(operator.sub, self, other)

    def __neg__(self) -> Self:
        return jax.tree.map(operator.neg, self)

    def __mul__(self, scalar) -> Self:
        return jax.tree.map(lambda component: component * scalar, self)

    __rmul__ = __mul__
