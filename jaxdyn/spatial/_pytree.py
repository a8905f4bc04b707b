"""The decorator that makes a component class a JAX pytree."""

import dataclasses
from typing import dataclass_transform

import jax


@dataclass_transform(frozen_default=True, eq_default=False)
def pytree[T](cls: type[T]) -> type[T]:
    """A frozen dataclass, registered as a pytree with every field a child.

    A plain registered dataclass, not an `equinox.Module`: thousands of these are made and flattened while one
    algorithm is traced, and JAX flattens registered dataclasses in C++.
    """
    made = dataclasses.dataclass(frozen=True, eq=False)(cls)
    # NumPy arrays on the left of an operator then defer to the component class's own operator.
    made.__array_ufunc__ = None  # type: ignore[attr-defined]
    return jax.tree_util.register_dataclass(made)
