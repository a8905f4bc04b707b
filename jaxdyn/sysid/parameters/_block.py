"""Blocks of a parametrization, each a bijection from some numbers to some entries of a model."""

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
from jaxdyn.sysid.parameters._log_cholesky import is_physical, root_of_divergence

type Claims = frozenset[tuple[int, int]]
"""Entries of a pytree: the number of a leaf, in the order of `jax.tree.leaves`, and the place in it when flattened."""


class AbstractChoice(abc.ABC):
    """A choice of entries that are free; `bind` makes it a block for one robot."""

    @abc.abstractmethod
    def bind(self, tree: Any) -> AbstractBlock:
        """Return the block for a robot without batch axes. **Raises** `ModelError`, `UnknownNameError`."""


class AbstractBlock(eqx.Module):
    """A bijection from `size` numbers to the entries `claims` of a robot. All zeros stand for the reference."""

    names: eqx.AbstractVar[tuple[str, ...]]
    """Names of the numbers."""
    claims: eqx.AbstractVar[Claims]
    """Entries that no other block may change."""

    @property
    def size(self) -> int:
        return len(self.names)

    @abc.abstractmethod
    def apply(self, reference: Any, tree: Any, x: jax.Array) -> Any:
        """Return `tree` with the entries for the numbers `x` `[size]`."""

    @abc.abstractmethod
    def coordinates(self, reference: Any, tree: Any) -> jax.Array:
        """The inverse of `apply`, `[size]`."""

    def moved(self, x: jax.Array, step: jax.Array) -> jax.Array:
        """Return the numbers, about the reference, of the robot with the numbers `step` about the one at `x`."""
        return x + step

    @abc.abstractmethod
    def pull(self, x: jax.Array) -> jax.Array:
        """Return terms `[n]` whose squares sum to the divergence from the reference, with a regular slope at zero."""


class ScaledEntries(AbstractBlock):
    """Entries that are those of the reference times `e^x`, one number `x` for each group of entries."""

    names: tuple[str, ...] = eqx.field(static=True)
    claims: Claims = eqx.field(static=True)
    places: tuple[tuple[int, int, int], ...] = eqx.field(static=True)
    """Leaf, entry, and group."""
    weight: float = eqx.field(static=True)
    """The divergence of a number is `weight (e^x - x - 1)`."""

    def __init__(self, names: tuple[str, ...], places: Sequence[tuple[int, int, int]], weight: float = 1.0):
        self.names, self.places, self.weight = names, tuple(places), weight
        self.claims = frozenset((leaf, entry) for leaf, entry, _ in places)

    def _by_leaf(self) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """Return each leaf with its entries and their groups."""
        table = np.array(self.places)
        return [(int(leaf), *table[table[:, 0] == leaf, 1:].T) for leaf in np.unique(table[:, 0])]

    def apply(self, reference: Any, tree: Any, x: jax.Array) -> Any:
        for leaf, flat, group in self._by_leaf():
            tree = with_entries(tree, leaf, flat, entries(reference, leaf, flat) * jnp.exp(x)[group])
        return tree

    def coordinates(self, reference: Any, tree: Any) -> jax.Array:
        # The ratio of a group by least squares: some of its entries may be zero.
        product = squares = jnp.zeros(self.size, model_of(reference).dtype)
        for leaf, flat, group in self._by_leaf():
            before, now = entries(reference, leaf, flat), entries(tree, leaf, flat)
            product, squares = product.at[group].add(now * before), squares.at[group].add(before * before)
        return jnp.log(product / squares)

    def pull(self, x: jax.Array) -> jax.Array:
        return np.sqrt(self.weight) * root_of_divergence(x)


def split_by_block(blocks: Sequence[AbstractBlock], x: jax.Array) -> list[jax.Array]:
    """Return the numbers of each block."""
    return jnp.split(x, np.cumsum([block.size for block in blocks])[:-1])


# The robot: a model, or a pytree that has one as its attribute `model`.


def model_of(tree: Any) -> Model:
    """Return the model of a robot. **Raises** `ModelError` for a pytree without one."""
    model = tree if isinstance(tree, Model) else getattr(tree, "model", None)
    if not isinstance(model, Model):
        raise ModelError(
            f"{type(tree).__name__} is not a Model and has no attribute 'model' that is one; a parametrization needs it"
        )
    return model


def with_model(tree: Any, model: Model) -> Any:
    return model if isinstance(tree, Model) else eqx.tree_at(lambda t: t.model, tree, model)


def model_field(name: str) -> Callable[[Any], Any]:
    """Return the function that picks a field of the model from a robot."""
    return lambda tree: getattr(tree if isinstance(tree, Model) else tree.model, name)


def leaf_number(tree: Any, where: Callable[[Any], Any], what: str) -> int:
    """Return the number of the leaf that `where` picks. **Raises** `ModelError` if it picks none."""
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
        f"{what}: the function does not pick one array of the robot; give one such as `lambda robot: robot.gravity`, "
        "and choose entries of the array with `at`"
    )


class _Mark:
    """A placeholder for a leaf."""


def leaf_name(tree: Any, number: int) -> str:
    path, _ = jax.tree_util.tree_leaves_with_path(tree)[number]
    return jax.tree_util.keystr(path).removeprefix(".")


def entries(tree: Any, number: int, flat: np.ndarray) -> jax.Array:
    """Return the entries `flat` of a leaf."""
    return jnp.asarray(jax.tree.leaves(tree)[number]).reshape(-1)[flat]


def known_entries(tree: Any, number: int, flat: np.ndarray) -> np.ndarray | None:
    """Return `entries` in NumPy, or None while tracing."""
    leaf = jax.tree.leaves(tree)[number]
    return None if isinstance(leaf, Tracer) else np.asarray(leaf).reshape(-1)[flat]


def with_entries(tree: Any, number: int, flat: np.ndarray, values: jax.Array) -> Any:
    def leaf(t):
        return jax.tree.leaves(t)[number]

    old = jnp.asarray(leaf(tree))
    new = old.reshape(-1).at[flat].set(values.astype(old.dtype)).reshape(old.shape)
    return eqx.tree_at(leaf, tree, new)


# Bodies and their inertias


def chosen_names(names: Sequence[str] | None, known: Sequence[str], kind: str, what: str) -> tuple[int, ...]:
    """Return the indices of names in `known`, all if None is given; `kind` is `"body"` or `"joint"`.

    **Raises** `UnknownNameError`, `ModelError`.
    """
    plural = {"body": "bodies", "joint": "joints"}[kind]
    if isinstance(names, str):
        raise ModelError(f"{what}: {plural} is the string {names!r}, but a sequence of names is needed: [{names!r}]")
    names = tuple(known if names is None else names)
    if not names or len(set(names)) < len(names):
        raise ModelError(f"{what}: {plural} is {names}; different names, at least one, are needed")
    return tuple(look_up(name, known, kind) for name in names)


def require_physical(model: Model, bodies: Sequence[int], what: str) -> None:
    """Raise `ModelError`, unless tracing, for bodies whose inertial parameters no distribution of mass has."""
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


def inertia_claims(tree: Any, bodies: Sequence[int]) -> Claims:
    number = leaf_number(tree, model_field("inertial_parameters"), "inertial_parameters")
    return frozenset((number, 10 * i + k) for i in bodies for k in range(10))
