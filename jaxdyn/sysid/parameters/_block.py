"""Blocks of a parametrization, each a bijection from some numbers to some entries of a model."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.sysid.parameters._leaves import Claims, entries, model_of, with_entries
from jaxdyn.sysid.parameters._log_cholesky import root_of_divergence


class AbstractChoice(abc.ABC):
    """A choice of entries that are free; `bind` makes it a block for one robot."""

    @abc.abstractmethod
    def bind(self, tree: Any) -> AbstractBlock:
        """Return the block for a robot without batch axes. **Raises** `ModelError`, `UnknownNameError`."""


class AbstractBlock(eqx.Module):
    """A bijection from `size` numbers to the entries `claims` of a robot. All zeros stand for the reference."""

    names: tuple[str, ...] = eqx.field(static=True)
    """Names of the numbers."""
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

    def moved(self, x: jax.Array, step: jax.Array) -> jax.Array:
        """Return the numbers, about the reference, of the robot with the numbers `step` about the one at `x`."""
        return x + step

    def pull(self, x: jax.Array) -> jax.Array:
        """Return terms `[n]` whose squares sum to the divergence from the reference, with a regular slope at zero; by
        default the divergence is half of the sum of the squares of `x`."""
        return x / np.sqrt(2.0)


class ScaledEntries(AbstractBlock):
    """Entries that are those of the reference times `e^x`, one number `x` for each group of entries."""

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


class JoinedBlocks(AbstractBlock):
    """Several blocks, one after the other."""

    blocks: tuple[AbstractBlock, ...]

    @classmethod
    def of(cls, blocks: Sequence[AbstractBlock]) -> JoinedBlocks:
        names = tuple(name for block in blocks for name in block.names)
        return JoinedBlocks(names, frozenset().union(*(block.claims for block in blocks)), tuple(blocks))

    def _parts(self, *numbers: jax.Array) -> Iterator[tuple[Any, ...]]:
        """Yield each block with its numbers."""
        ends = np.cumsum([block.size for block in self.blocks])[:-1]
        return zip(self.blocks, *(jnp.split(x, ends) for x in numbers), strict=True)

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
