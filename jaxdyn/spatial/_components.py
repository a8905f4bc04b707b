"""Component classes as JAX pytrees, and the sums and multiples that most of them have."""

from __future__ import annotations

import dataclasses
import operator
from typing import Self, dataclass_transform

import jax
import jax.numpy as jnp


@dataclass_transform(frozen_default=True, eq_default=False)
def pytree[T](cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass, registered as a pytree with every field a child.

    A plain registered dataclass, not an `equinox.Module`: thousands of these are made and flattened while one
    algorithm is traced, and JAX flattens registered dataclasses in C++.
    """
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True, eq=False)(cls))


class LinearComponents:
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


class Row(LinearComponents):
    """Components that are numbers: the elements of a row."""

    @classmethod
    def zero(cls) -> Self:
        """All components zero."""
        return cls(*(0.0 for _ in dataclasses.fields(cls)))  # type: ignore[reportArgumentType]

    @classmethod
    def from_array(cls, array) -> Self:
        """From the first elements along the last axis of `[..., n]`."""
        return cls(*(array[..., k] for k in range(len(dataclasses.fields(cls)))))  # type: ignore[reportArgumentType]

    def to_array(self, axis: int = -1):
        """To `[..., n]` (or with the components along `axis`)."""
        return jnp.stack(jnp.broadcast_arrays(*jax.tree.leaves(self)), axis=axis)
