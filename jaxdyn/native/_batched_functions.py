"""Functions of arrays with leading batch axes, and their derivatives of all orders, as hashable objects."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Self

import jax
import jax.numpy as jnp

from jaxdyn.native._collection import Collection


@dataclasses.dataclass(frozen=True)
class Plain:
    """A function of arrays `[*batch, *core]` whose batch axes broadcast; its results have all batch axes."""

    function: Callable
    """Called with the operands. Must be hashable and return a pytree."""
    cores: tuple[int, ...]
    """The number of axes of each operand that are not batch axes."""
    results: tuple[tuple[int, ...], ...]
    """The shapes of the results without batch axes."""
    derivatives: Derivatives | None = None
    shared: int = 0
    """The number of the first operands that mostly have no batch axes, such as a robot's parameters."""

    linear = ()

    @property
    def like(self) -> tuple[int | None, ...]:
        """For each result the operand whose batch axes it has, or None if it has all."""
        return (None,) * len(self.results)

    def __call__(self, *operands):
        return jax.tree.leaves(self.function(*operands))


@dataclasses.dataclass(frozen=True)
class Collected(Plain):
    """The candidates that functions find, of many alike things: see `Collection`. It has no derivatives."""

    collection: Collection | None = None

    @classmethod
    def of(cls, collection: Collection, operands: int) -> Self:
        """Return the function of a collection with so many operands."""
        return cls(collection.function, (1,) * operands, collection.result_shapes(), collection=collection)

    def __call__(self, *operands):
        batch = jnp.broadcast_shapes(*(x.shape[:-1] for x in operands))
        rows = [jnp.moveaxis(jnp.broadcast_to(x, (*batch, x.shape[-1])), -1, 0) for x in operands]
        return [jnp.moveaxis(x, 0, -1) for x in self.function(*rows)]


@dataclasses.dataclass(frozen=True)
class Single(Plain):
    """A function of arrays without batch axes, which is mapped over these."""

    of_user = True
    one_by_one: bool = False
    """Whether XLA's program for a CPU takes one element of the batch after the other."""

    def __call__(self, *operands):
        return over_batches(super().__call__, operands, self.cores)


def over_batches(function: Callable, operands, cores: tuple[int, ...]) -> list:
    """Map a function of arrays over the leading batch axes that these have besides their core axes. An operand that is
    the same along an axis is not copied along it."""
    rank = max(x.ndim - c for x, c in zip(operands, cores, strict=True))
    if rank == 0:
        return function(*operands)
    first = [x.ndim - c == rank for x, c in zip(operands, cores, strict=True)]
    sizes = {len(x) for x, has in zip(operands, first, strict=True) if has}
    size = max(sizes - {1}, default=1)
    mapped = [has and len(x) == size for x, has in zip(operands, first, strict=True)]
    one = [x if m or not has else x[0] for x, has, m in zip(operands, first, mapped, strict=True)]
    axes = [0 if m else None for m in mapped]
    return jax.vmap(lambda *xs: over_batches(function, xs, cores), in_axes=axes)(*one)


@dataclasses.dataclass(frozen=True)
class Derivatives:
    """Formulas for the derivatives of a function with one result `[m]` by some operands, all of core shape `[n_i]`."""

    operands: tuple[int, ...]
    """The numbers of these operands."""
    jacobian: Plain
    """A function of all operands that returns the matrices `[*batch, m, n_i]`, one for each of `operands`."""
    pullback: Callable
    """Called with all operands and a cotangent. Returns the cotangent's products `[*batch, n_i]` with the matrices."""


@dataclasses.dataclass(frozen=True)
class Jvp:
    """The derivative of a function. Its operands are those of the function, then the tangents of the `perturbed` ones,
    in which it is linear."""

    of: Call
    perturbed: tuple[int, ...]

    @property
    def cores(self) -> tuple[int, ...]:
        return self.of.cores + tuple(self.of.cores[i] for i in self.perturbed)

    @property
    def results(self):
        return self.of.results

    @property
    def like(self):
        return self.of.like

    @property
    def linear(self) -> tuple[int, ...]:
        n = len(self.of.cores)
        return tuple(range(n, n + len(self.perturbed)))

    def __call__(self, *operands):
        n = len(self.of.cores)
        primals = list(operands[:n])
        tangents = list(operands[n:])
        for k, i in enumerate(self.perturbed):
            primals[i], tangents[k] = jnp.broadcast_arrays(primals[i], tangents[k])
        return jax.jvp(of_operands(self.of, primals, self.perturbed), [primals[i] for i in self.perturbed], tangents)[1]


@dataclasses.dataclass(frozen=True)
class Vjp:
    """The transposed derivative of a function by the operands `wrt`. Its operands are those of the function, then the
    cotangents of the results, in which it is linear; its results have the shapes of the operands `wrt`."""

    of: Call
    wrt: tuple[int, ...]

    @property
    def cores(self) -> tuple[int, ...]:
        ranks = (len(r) if i is None else self.of.cores[i] for r, i in zip(self.of.results, self.of.like, strict=True))
        return self.of.cores + tuple(ranks)

    @property
    def results(self):
        return ((),) * len(self.wrt)

    @property
    def like(self):
        return self.wrt

    @property
    def linear(self) -> tuple[int, ...]:
        n = len(self.of.cores)
        return tuple(range(n, n + len(self.of.results)))

    def __call__(self, *operands):
        n = len(self.of.cores)
        primals, cotangents = list(operands[:n]), operands[n:]
        own = self.of.derivatives if isinstance(self.of, Plain) else None
        if own is not None and set(self.wrt) <= set(own.operands):
            products = dict(zip(own.operands, own.pullback(*operands), strict=True))
            return [summed_to(products[i], primals[i].shape) for i in self.wrt]
        out, pullback = jax.vjp(of_operands(self.of, primals, self.wrt), *(primals[i] for i in self.wrt))
        return list(pullback([jnp.broadcast_to(c, o.shape) for c, o in zip(cotangents, out, strict=True)]))


type Call = Plain | Jvp | Vjp


def of_operands(function: Call, operands: list, wrt: tuple[int, ...]) -> Callable:
    """Return `function` as one of the operands `wrt` only."""

    def partial(*values):
        changed = list(operands)
        for i, value in zip(wrt, values, strict=True):
            changed[i] = value
        return function(*changed)

    return partial


def batch_axes(shape: tuple[int, ...], core_axes: int) -> tuple[int, ...]:
    return shape[: len(shape) - core_axes]


def result_batches(function: Call, batches) -> list[tuple[int, ...]]:
    """Return the batch axes of the results from the batch axes of the operands."""
    batches, of = list(batches), function
    while isinstance(of, Jvp):
        # A derivative has the batch axes of the operand and of its tangent.
        n = len(of.of.cores)
        for k, i in enumerate(of.perturbed):
            batches[i] = jnp.broadcast_shapes(batches[i], batches[n + k])
        of = of.of
    everything = jnp.broadcast_shapes(*batches)
    return [everything if i is None else batches[i] for i in function.like]  # pyright: ignore[reportReturnType]


def result_cores(function: Call, operands) -> list[tuple[int, ...]]:
    """Return the shapes of the results without batch axes."""
    return [
        result if i is None else operands[i].shape[operands[i].ndim - function.cores[i] :]
        for result, i in zip(function.results, function.like, strict=True)
    ]


def summed_to(x, shape: tuple[int, ...]):
    """Sum over the axes along which `shape` was broadcast to the shape of `x`."""
    extra = x.ndim - len(shape)
    ones = [i for i, n in enumerate(shape) if n == 1 and x.shape[extra + i] != 1]
    x = x.sum(axis=tuple(range(extra)))
    return x.sum(axis=tuple(ones), keepdims=True)


def followed_operands(function: Call) -> set[int]:
    """The operands whose batch axes results, or cotangents of results, have: if one is mapped, so is the other."""
    own = {i for i in function.like if i is not None}
    return own if isinstance(function, Plain) else own | followed_operands(function.of)


def plain_of(function: Call) -> Plain:
    return function if isinstance(function, Plain) else plain_of(function.of)


def linear_operands(function: Call) -> set[int]:
    if isinstance(function, Plain):
        return set()
    return linear_operands(function.of) | set(function.linear)
