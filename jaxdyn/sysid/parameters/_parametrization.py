"""Parametrizations: bijections between free numbers and robots, physical by construction, and the blocks of them."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._compile import tracing
from jaxdyn._errors import ModelError, naming_arguments, require_last_axes
from jaxdyn._types import Array, Float
from jaxdyn.sysid.parameters._leaves import (
    Claims,
    entries,
    following,
    leaf_name,
    model_of,
    warn_of_held_constants,
    with_entries,
)
from jaxdyn.sysid.parameters._log_cholesky import root_of_divergence


class AbstractChoice(abc.ABC):
    """A choice of entries that are free; `bind` makes it a block for one robot."""

    @abc.abstractmethod
    def bind(self, tree: Any) -> AbstractBlock:
        """Return the block for a robot without batch axes. **Raises** `ModelError`, `UnknownNameError`."""


class AbstractBlock(eqx.Module):
    """A bijection from `size` numbers to the entries `claims` of a robot. All zeros stand for the reference."""

    names: tuple[str, ...] = eqx.field(static=True)
    claims: Claims = eqx.field(static=True)
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

    def labels(self) -> dict[tuple[int, int], str | None]:
        """Return the names of entries, where the block has better ones than those of their arrays; None for entries
        that only repeat another one."""
        return {}

    def moved(self, x: jax.Array, step: jax.Array) -> jax.Array:
        """Return the numbers, about the reference, of the robot with the numbers `step` about the one at `x`."""
        return x + step

    def pull(self, x: jax.Array) -> jax.Array:
        """Return terms `[n]` whose squares sum to the divergence from the reference, with a regular slope at zero; by
        default the divergence is half of the sum of the squares of `x`."""
        return x / float(np.sqrt(2.0))


class ScaledEntries(AbstractBlock):
    """Entries that are those of the reference times `e^x`, one number `x` for each group of entries."""

    places: tuple[tuple[int, int, int], ...] = eqx.field(static=True)
    """Leaf, entry, and group."""
    weight: float = eqx.field(static=True)
    """The divergence of a number is `weight (e^x - x - 1)`."""
    named: tuple[tuple[tuple[int, int], str | None], ...] = eqx.field(static=True)
    """`labels`"""

    def __init__(
        self, names: tuple[str, ...], places: Sequence[tuple[int, int, int]], weight: float = 1.0, named: Any = ()
    ):
        self.names, self.places, self.weight, self.named = names, tuple(places), weight, tuple(named)
        self.claims = frozenset((leaf, entry) for leaf, entry, _ in places)

    def labels(self) -> dict[tuple[int, int], str | None]:
        return dict(self.named)

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
        return float(np.sqrt(self.weight)) * root_of_divergence(x)


class JoinedBlocks(AbstractBlock):
    """Several blocks, one after the other."""

    blocks: tuple[AbstractBlock, ...]

    @classmethod
    def of(cls, blocks: Sequence[AbstractBlock]) -> JoinedBlocks:
        names = tuple(name for block in blocks for name in block.names)
        return JoinedBlocks(names, frozenset().union(*(block.claims for block in blocks)), tuple(blocks))

    def _parts(self, *numbers: jax.Array) -> Iterator[tuple[Any, ...]]:
        ends = np.cumsum([block.size for block in self.blocks])[:-1]
        return zip(self.blocks, *(jnp.split(x, ends) for x in numbers), strict=True)

    def labels(self) -> dict[tuple[int, int], str | None]:
        return {entry: name for block in self.blocks for entry, name in block.labels().items()}

    def apply(self, reference: Any, tree: Any, x: jax.Array) -> Any:
        for block, part in self._parts(x):
            tree = block.apply(reference, tree, part)
        return tree

    def coordinates(self, reference: Any, tree: Any) -> jax.Array:
        return jnp.concatenate([block.coordinates(reference, tree) for block in self.blocks])

    def moved(self, x: jax.Array, step: jax.Array) -> jax.Array:
        return jnp.concatenate([block.moved(part, change) for block, part, change in self._parts(x, step)])

    def pull(self, x: jax.Array) -> jax.Array:
        return jnp.concatenate([block.pull(part) for block, part in self._parts(x)])


class Parametrization(eqx.Module):
    """A smooth bijection from `size` unconstrained numbers, the free numbers, to robots.

    ```python
    p = Parametrization(model, LogCholesky(), Positive("damping"), Additive("gravity", at=2))
    better = p.model(free)  # free: [p.size], any numbers at all
    free = p.free(better)
    ```

    The robot is a `Model`, or a pytree that has one as its attribute `model`, such as `Robot` and `World`. Constants of
    a world that follow from its model's inertias, armature and placements change with them (`World.with_model`). All
    zeros stand for the reference; numbers have no units and about the size of relative changes. A pytree: `jax.vmap`
    maps over free numbers, and over parametrizations whose references differ
    (`equinox.filter_vmap(lambda model: Parametrization(model, ...))(models)`).

    **Arguments**

    - `reference`: the robot, without batch axes, which has the values of all entries that are not free.
    - `choices`: `LogCholesky`, `FixedMass`, `InertiaScale`, `Payload`, `Positive`, `Additive`, `LinkLength`,
      `Placement`, `Symmetric`; for contacts `ContactNumbers`, `ContactSizes`, `ContactPlacement`, `ContactPlane`.

    **Raises** `ModelError` where two choices free the same entry, where a reference has no coordinates (an inertia that
    no distribution of mass has, friction of zero), and for batch axes; `UnknownNameError` for names.
    """

    reference: Any
    blocks: tuple[AbstractBlock, ...]

    def __init__(self, reference: Any, *choices: AbstractChoice):
        model = model_of(reference)
        if model.inertial_parameters.ndim != 2:
            raise ModelError(
                f"the reference has batch axes {list(model.inertial_parameters.shape[:-2])}: take one element, or map "
                "over them with equinox.filter_vmap(lambda model: Parametrization(model, ...))"
            )
        if not choices:
            raise ModelError("no choices are given, so nothing is free; give LogCholesky(), for instance")
        for choice in choices:
            if not isinstance(choice, AbstractChoice):
                raise ModelError(
                    f"{choice!r} is not a choice of free entries; give LogCholesky() or Positive('damping')"
                )
        reference = jax.tree.map(jnp.asarray, reference)
        blocks = tuple(choice.bind(reference) for choice in choices)
        taken: dict[tuple[int, int], str] = {}
        for choice, block in zip(choices, blocks, strict=True):
            for leaf, place in sorted(block.claims & taken.keys()):
                raise ModelError(
                    f"{taken[leaf, place]} and {type(choice).__name__} are both about entry {place} of "
                    f"{leaf_name(reference, leaf)}, which can have one value only; divide the bodies or joints "
                    "among them"
                )
            taken |= dict.fromkeys(block.claims, type(choice).__name__)
        warn_of_held_constants(reference, frozenset(taken))
        self.reference, self.blocks = reference, blocks

    @property
    def size(self) -> int:
        """The number of free numbers."""
        return sum(block.size for block in self.blocks)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the free numbers."""
        return tuple(name for block in self.blocks for name in block.names)

    def zeros(self) -> Float[Array, "size"]:
        """The free numbers of the reference."""
        return jnp.zeros(self.size, model_of(self.reference).dtype)

    @naming_arguments
    def model(self, free: Float[Array | np.ndarray, "*batch size"]) -> Any:
        """The robot for free numbers `[*batch, size]`; its leaves have the batch axes. **Raises** `ShapeError`."""
        constant = tracing() and not any(isinstance(x, Tracer) for x in jax.tree.leaves(self))
        # The numbers of a reference that a user's program has as constants, apart from the free ones, stay constants.
        return self._batched(_with_free if constant else _model, free)

    def free(self, model: Any) -> Float[Array, "size"]:
        """The free numbers of a robot: the inverse of `model`. **Raises** `ModelError`, unless tracing, for a
        robot that differs from the reference in entries that are not free."""
        if jax.tree.structure(model) != jax.tree.structure(self.reference):
            raise ModelError("the robot has another structure than the reference of the parametrization")
        x, again = _free(self, model)
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((x, model, self.reference))):
            return x
        eps = float(jnp.finfo(model_of(model).dtype).eps)
        for i, (ours, theirs) in enumerate(zip(jax.tree.leaves(again), jax.tree.leaves(model), strict=True)):
            a, b = np.asarray(ours), np.asarray(theirs)
            scale = np.abs(b[np.isfinite(b)]).max(initial=0.0)
            if a.shape != b.shape or not np.allclose(a, b, rtol=1e3 * eps, atol=1e3 * eps * scale, equal_nan=True):
                raise ModelError(
                    f"no free numbers give this robot: its {leaf_name(self.reference, i)} differs from the "
                    "reference in entries that are not free"
                )
        return x

    @naming_arguments
    def moved(self, free: Float[Array, "size"], step: Float[Array, "size"]) -> Float[Array, "size"]:
        """The free numbers of the robot with the numbers `step` in the parametrization `about` the one at `free`."""
        return _moved(self, free, step)

    def about(self, model: Any) -> Parametrization:
        """The same choice with another reference, in its precision."""
        dtype = model_of(model).dtype
        new = jax.tree.map(jnp.asarray, model), jax.tree.map(lambda x: x.astype(dtype), self.blocks)
        return eqx.tree_at(lambda p: (p.reference, p.blocks), self, new)

    @naming_arguments
    def pull(self, free: Float[Array, "*batch size"]) -> Float[Array, "*batch terms"]:
        """Residuals whose sum of squares is `divergence(free)`, to regularize least squares. Smooth, with a derivative
        of full rank: with any weight every free number has an equation."""
        return self._batched(_pull, free)

    def divergence(self, free: Float[Array, "*batch size"]) -> Float[Array, "*batch"]:
        """The divergence of a robot from the reference, summed over the choices. For inertias it is the entropic
        divergence of pseudo-inertias, which does not depend on frames and units (Lee, Wensing & Park, Geometric robot
        dynamic identification, T-RO 2020), and is infinite at the edge of the physical ones."""
        return jnp.sum(self.pull(free) ** 2, axis=-1)

    def _batched(self, function, free):
        free = jnp.asarray(free)
        require_last_axes(free, (self.size,), "free", f"one number for each of {self.size} in Parametrization.names")
        for _ in free.shape[:-1]:
            function = jax.vmap(function, in_axes=(None, 0))
        return function(self, free)


# Compiled for eager use; inside a user's `jit` they are parts of its program.


def _with_free(p: Parametrization, free: jax.Array) -> Any:
    joined = JoinedBlocks.of(p.blocks)
    return following(p.reference, joined.apply(p.reference, p.reference, free), joined.claims)


_model = eqx.filter_jit(_with_free)


@eqx.filter_jit
def _free(p: Parametrization, model: Any) -> tuple[jax.Array, Any]:
    """The free numbers, and the robot that has them."""
    x = JoinedBlocks.of(p.blocks).coordinates(p.reference, model)
    return x, _model(p, x)


@eqx.filter_jit
def _moved(p: Parametrization, free: jax.Array, step: jax.Array) -> jax.Array:
    return JoinedBlocks.of(p.blocks).moved(free, step)


@eqx.filter_jit
def _pull(p: Parametrization, free: jax.Array) -> jax.Array:
    return JoinedBlocks.of(p.blocks).pull(free)
