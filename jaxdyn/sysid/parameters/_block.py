"""What a parametrization is made of: blocks, each a bijection from some numbers to some entries of a model."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import ModelError, look_up
from jaxdyn.model import Model
from jaxdyn.sysid.parameters._log_cholesky import is_physical, pseudo_inertia

type Claims = frozenset[tuple[int, int]]
"""Entries of a pytree: the number of a leaf, in the order of `jax.tree.leaves`, and the place in it when flattened."""


class AbstractChoice(abc.ABC):
    """What a user says is free; `bind` finds out what that means for one robot."""

    @abc.abstractmethod
    def bind(self, tree: Any) -> AbstractBlock:
        """The block for a robot without batch axes. **Raises** `ModelError`, `UnknownNameError`."""


class AbstractBlock(eqx.Module):
    """A bijection from `size` numbers to the entries `claims` of a robot. All zeros stand for the reference."""

    names: eqx.AbstractVar[tuple[str, ...]]
    """Of the numbers."""
    claims: eqx.AbstractVar[Claims]
    """What no other block may change."""

    @property
    def size(self) -> int:
        return len(self.names)

    @abc.abstractmethod
    def apply(self, reference: Any, tree: Any, x: jax.Array) -> Any:
        """`tree` with the entries that `x` `[size]` stands for."""

    @abc.abstractmethod
    def coordinates(self, reference: Any, tree: Any) -> jax.Array:
        """The inverse of `apply`, `[size]`."""

    def moved(self, x: jax.Array, step: jax.Array) -> jax.Array:
        """The coordinates, about the reference, of what has the coordinates `step` about the model at `x`."""
        return x + step

    @abc.abstractmethod
    def pull(self, x: jax.Array) -> jax.Array:
        """`[n]`, whose sum of squares is the divergence from the reference; its slope at zero is regular."""


# The robot: a model, or a pytree that has one as its attribute `model`.


def model_of(tree: Any) -> Model:
    """**Raises** `ModelError` for a pytree without a model."""
    model = tree if isinstance(tree, Model) else getattr(tree, "model", None)
    if not isinstance(model, Model):
        raise ModelError(
            f"{type(tree).__name__} is no Model and has none as its attribute 'model'; a parametrization needs one"
        )
    return model


def with_model(tree: Any, model: Model) -> Any:
    return model if isinstance(tree, Model) else eqx.tree_at(lambda t: t.model, tree, model)


def model_field(name: str) -> Callable[[Any], Any]:
    """Where a field of the model is in a robot."""
    return lambda tree: getattr(tree if isinstance(tree, Model) else tree.model, name)


def leaf_number(tree: Any, where: Callable[[Any], Any], what: str) -> int:
    """Which leaf `where` picks. **Raises** `ModelError` if that is none."""
    leaves, structure = jax.tree.flatten(tree)
    marks = [_Mark() for _ in leaves]
    try:
        picked = where(jax.tree.unflatten(structure, marks))
    except TypeError:
        picked = None
    for i, mark in enumerate(marks):
        if mark is picked:
            return i
    raise ModelError(
        f"{what}: the function picks no single array of the robot; give one such as `lambda robot: robot.gravity`, and "
        "choose entries of the array with `at`"
    )


class _Mark:
    """Stands for a leaf."""


def leaf_name(tree: Any, number: int) -> str:
    path, _ = jax.tree_util.tree_leaves_with_path(tree)[number]
    return jax.tree_util.keystr(path).removeprefix(".")


def entries(tree: Any, number: int, flat: np.ndarray) -> jax.Array:
    """`[len(flat)]`"""
    return jnp.asarray(jax.tree.leaves(tree)[number]).reshape(-1)[flat]


def known_entries(tree: Any, number: int, flat: np.ndarray) -> np.ndarray | None:
    """`entries` as far as they are known, or None."""
    leaf = jax.tree.leaves(tree)[number]
    return None if isinstance(leaf, Tracer) else np.asarray(leaf).reshape(-1)[flat]


def with_entries(tree: Any, number: int, flat: np.ndarray, values: jax.Array) -> Any:
    def leaf(t):
        return jax.tree.leaves(t)[number]

    old = jnp.asarray(leaf(tree))
    new = old.reshape(-1).at[flat].set(values.astype(old.dtype)).reshape(old.shape)
    return eqx.tree_at(leaf, tree, new)


# Bodies and their inertias


def chosen_bodies(model: Model, bodies: Sequence[str] | None, what: str) -> tuple[int, ...]:
    """The numbers of bodies, all if none are named. **Raises** `UnknownNameError`, `ModelError`."""
    if isinstance(bodies, str):
        raise ModelError(f"{what}: bodies is the string {bodies!r}, but a sequence of names is needed: [{bodies!r}]")
    names = model.body_names if bodies is None else tuple(bodies)
    if not names or len(set(names)) < len(names):
        raise ModelError(f"{what}: bodies is {names}; different names, at least one, are needed")
    return tuple(look_up(name, model.body_names, "body") for name in names)


def require_physical(model: Model, bodies: Sequence[int], what: str) -> None:
    """**Raises** `ModelError`, where values are known, for bodies that no distribution of mass is."""
    physical = jax.jit(is_physical)(model.inertial_parameters)
    if isinstance(physical, Tracer):
        return
    physical = np.asarray(physical)[np.array(bodies)]
    bad = [model.body_names[i] for i, ok in zip(bodies, physical, strict=True) if not ok]
    if bad:
        raise ModelError(
            f"{what}: no distribution of mass has the inertial parameters of {', '.join(bad)}, so they have no "
            "coordinates; leave these bodies out with bodies=[...], or start from nearest_physical(...)"
        )


def pseudo_factor(parameters: jax.Array) -> jax.Array:
    """`[*batch, 4, 4]`: the upper-triangular `U` of the pseudo-inertia `U U^T`; NaN where it is not positive."""
    # An upper factor is the lower one of the matrix with both axes reversed.
    return jnp.linalg.cholesky(pseudo_inertia(parameters)[..., ::-1, ::-1])[..., ::-1, ::-1]


def inertia_claims(tree: Any, bodies: Sequence[int]) -> Claims:
    number = leaf_number(tree, model_field("inertial_parameters"), "inertial_parameters")
    return frozenset((number, 10 * i + k) for i in bodies for k in range(10))


def root_of_divergence(x: jax.Array) -> jax.Array:
    """`r` with `r^2 = e^x - x - 1`, the divergence of the positive number `e^x` from 1, and the sign of `x`."""
    small = jnp.abs(x) < 0.03
    y = jnp.where(small, 1.0, x)
    # (e^x - x - 1) / x^2 by its series near zero, where the difference has no digits.
    series = 1 / 2 + x * (1 / 6 + x * (1 / 24 + x * (1 / 120 + x * (1 / 720 + x * (1 / 5040 + x / 40320)))))
    return x * jnp.sqrt(jnp.where(small, series, (jnp.expm1(y) - y) / y**2))
