"""Functions that call another one again and again, such as the steps of a roll-out, and their derivatives.

The native program of such a function has one loop over the calls. So have its derivatives where only the end of the
loop counts: the function itself then also returns what the linear map of each call is made of, its residuals, and the
derivative is a loop of these maps, whose transpose is a loop from the last call to the first. What a call solves for is
not solved for again.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from jaxdyn.native._batched_functions import Plain, batch_axes, over_batches
from jaxdyn.native._specialize import Repetition


@dataclasses.dataclass(frozen=True)
class Repeated(Plain):
    """A function that calls `function` again and again. See `repeated`."""

    length: int = 1
    carried: int = 0
    rows: int = 0
    every: int | None = 1
    held: int = 1
    reverse: bool = False
    linear: tuple[int, ...] = ()
    """The operands in which it is linear."""

    @property
    def repetition(self) -> Repetition:
        """The loop, for native code."""
        options = self.length, self.carried, self.rows, self.every, self.held, self.reverse
        return Repetition(self.function, *options)

    def __call__(self, *operands):
        batch = jnp.broadcast_shapes(*map(batch_axes, (x.shape for x in operands), self.cores))
        first = len(operands) - self.rows
        fixed, carry = operands[: first - self.carried], operands[first - self.carried : first]
        carry = [
            jnp.broadcast_to(x, (*batch, *x.shape[x.ndim - n :])) for x, n in zip(carry, self.carry_cores, strict=True)
        ]
        rows = [jnp.moveaxis(x, x.ndim - n, 0) for x, n in zip(operands[first:], self.cores[first:], strict=True)]
        every = self.every
        if every is None:
            return self._end(fixed, carry, rows, batch)
        results = self.length // every
        rows = [x.reshape(results, every // self.held, *x.shape[1:]) for x in rows]

        def with_a_row(carry, row):
            return _times(self.held, lambda x: jax.tree.leaves(self.function(*fixed, *x, *row)), carry), None

        def to_a_result(carry, rows):
            if every == self.held:
                after, _ = with_a_row(carry, [x[0] for x in rows])
            else:
                after, _ = lax.scan(with_a_row, carry, rows, length=every // self.held)
            return after, after

        stacked = lax.scan(to_a_result, carry, rows, length=results)[1]
        return [
            jnp.moveaxis(jnp.concatenate([first[None], later]), 0, len(batch))
            for first, later in zip(carry, stacked, strict=True)
        ]

    def _end(self, fixed, carry, rows, batch: tuple[int, ...]) -> list:
        """Return what is carried at the end, and what else the calls return."""
        sizes = [len(shape) for shape in self.results[: self.carried]]
        sizes += [len(shape) - 1 for shape in self.results[self.carried :]]

        def one(carry, row):
            out = jax.tree.leaves(self.function(*fixed, *carry, *row))
            out = [jnp.broadcast_to(x, (*batch, *x.shape[x.ndim - n :])) for x, n in zip(out, sizes, strict=True)]
            return out[: self.carried], out[self.carried :]

        carry, more = lax.scan(one, carry, rows, length=self.length, reverse=self.reverse)
        return [*carry, *(jnp.moveaxis(x, 0, len(batch)) for x in more)]

    @property
    def carry_cores(self) -> tuple[int, ...]:
        """The number of axes of each carried operand that are not batch axes."""
        first = len(self.cores) - self.rows
        return self.cores[first - self.carried : first]


def _times(count: int, function: Callable, x):
    """`function` of `x`, of the result of that, and so on."""
    return function(x) if count == 1 else lax.scan(lambda x, _: (function(x), None), x, length=count)[0]


def repeated(
    function: Plain, length: int, carried: int, rows: int = 0, every: int | None = 1, held: int = 1
) -> Repeated:
    """Return the function that calls another `length` times, with operands that stay, then `carried` operands that the
    results of one call replace for the next, then `rows` operands of which `held` calls each get a row, along an axis
    behind the batch. It returns what is carried at the start and after `every` calls each, with such an axis; `every`
    is a multiple of `held`. With None it returns what is carried at the end."""
    first = len(function.cores) - rows
    cores = *function.cores[:first], *(n + 1 for n in function.cores[first:])
    results = function.results
    if every is not None:
        results = tuple((1 + length // every, *shape) for shape in results)
    scheme = length, carried, rows, every, held
    return Repeated(function.function, cores, results, None, function.shared, *scheme)


class Linearized(NamedTuple):
    """The derivative of a loop."""

    moving: tuple[int, ...]
    """The operands of which it needs the tangents."""
    forward: Repeated
    """The function with the residuals of each call as a further result."""
    linear: Repeated
    """The loop of the linear maps."""
    order: tuple[tuple[str, int], ...]
    """The operands of the linear loop: `("operand", i)`, `("tangent", i)` and `("residuals", 0)`."""

    def operands(self, primals: Sequence, tangents: Sequence, residuals: Any) -> list:
        """Return the operands of the linear loop."""
        given = {"operand": primals, "tangent": tangents, "residuals": [residuals]}
        return [given[kind][i] for kind, i in self.order]


def linearized(function: Repeated, perturbed: Sequence[int], shapes: Sequence[tuple[int, ...]], dtype) -> Linearized:
    """Return the derivative of a function that returns the end of its loop, by the `perturbed` operands, and all that
    it carries; `shapes` are those of its operands without batch axes."""
    first = len(shapes) - function.rows
    carried = range(first - function.carried, first)
    moving = tuple(sorted({*perturbed, *carried}))
    call = _OneCall(function.function, function.repetition.one_call(shapes), jnp.dtype(dtype), tuple(carried))
    traced = _linear_map(call, moving)
    results = *function.results, (function.length, traced.size)
    forward = dataclasses.replace(function, function=_WithResiduals(call, moving), results=results)
    before = [("operand", i) for i in traced.read if i < first], [("tangent", i) for i in moving if i < first]
    rows = [("operand", i) for i in traced.read if i >= first], [("tangent", i) for i in moving if i >= first]
    order = *before[0], *before[1], ("residuals", 0), *rows[0], *rows[1]
    linear = dataclasses.replace(
        function,
        function=_LinearMap(call, moving, order),
        cores=tuple(2 if kind == "residuals" else function.cores[i] for kind, i in order),
        shared=sum(i < function.shared for _, i in before[0]),
        rows=1 + len(rows[0]) + len(rows[1]),
        linear=tuple(k for k, (kind, _) in enumerate(order) if kind == "tangent"),
    )
    return Linearized(moving, forward, linear, order)


def transposed(function: Repeated, shapes: Sequence[tuple[int, ...]], dtype) -> Repeated:
    """Return the transpose of a loop that is linear in all that it carries. Its operands are those that the loop is not
    linear in, and instead of the others those that it carries (the cotangents of its ends, and zeros for each of the
    linear operands that stay), then, after the other rows, the cotangents of the further results. It returns the
    cotangents of the linear operands: of the carried ones, of those that stay, and of the rows."""
    parts = OperandKinds.of(function, len(shapes))
    one = function.repetition.one_call(shapes)
    call = _OneCall(function.function, one, jnp.dtype(dtype), parts.carried)
    more = [shape[1:] for shape in function.results[function.carried :]]
    known, rows = [one[i] for i in parts.fixed], [*(one[i] for i in parts.rows), *more]
    carry = [one[i] for i in (*parts.carried, *parts.linear_fixed)]
    cores = *map(len, (*known, *carry)), *(len(shape) + 1 for shape in rows)
    first_of_rows = len(known) + len(carry) + len(parts.rows)
    results = *carry, *((function.length, *one[i]) for i in parts.linear_rows)
    return Repeated(
        _TransposedMap(call, parts),
        cores,
        results,
        length=function.length,
        carried=len(carry),
        rows=len(rows),
        every=None,
        reverse=not function.reverse,
        linear=(*range(len(known), len(known) + len(carry)), *range(first_of_rows, first_of_rows + len(more))),
    )


class OperandKinds(NamedTuple):
    """The operands of a loop that is linear in some of them, by their numbers."""

    fixed: tuple[int, ...]
    linear_fixed: tuple[int, ...]
    carried: tuple[int, ...]
    rows: tuple[int, ...]
    linear_rows: tuple[int, ...]

    @classmethod
    def of(cls, function: Repeated, count: int) -> OperandKinds:
        first = count - function.rows
        start = first - function.carried
        split = [
            tuple(i for i in part if (i in function.linear) == linear)
            for part in (range(start), range(first, count))
            for linear in (False, True)
        ]
        return cls(split[0], split[1], tuple(range(start, first)), split[2], split[3])

    @property
    def linear(self) -> tuple[int, ...]:
        """The operands in which it is linear, in the order of the results of the transpose."""
        return (*self.carried, *self.linear_fixed, *self.linear_rows)


@dataclasses.dataclass(frozen=True)
class _OneCall:
    """A call of a function of arrays without batch axes, of these shapes."""

    function: Callable
    shapes: tuple[tuple[int, ...], ...]
    dtype: Any
    carried: tuple[int, ...]
    """The operands that another call has otherwise."""

    @property
    def avals(self) -> list[jax.ShapeDtypeStruct]:
        """The types of the operands."""
        return [jax.ShapeDtypeStruct(shape, self.dtype) for shape in self.shapes]

    def whole(self, *operands) -> list:
        """Return the results."""
        return [jnp.asarray(x, self.dtype) for x in jax.tree.leaves(self.function(*operands))]

    def of(self, numbers: Sequence[int], operands: Sequence) -> Callable[..., list]:
        """Return it as a function of the operands with these numbers."""

        def partial(*values):
            changed = list(operands)
            for i, x in zip(numbers, values, strict=True):
                changed[i] = x
            return self.whole(*changed)

        return partial


class _Traced(NamedTuple):
    """A call with its derivative."""

    forward: Callable
    """Called with the operands. Returns the results and the residuals in one array."""
    map: Callable
    """Called with the operands that it reads, the residuals and the tangents. Returns the tangents of the results."""
    read: tuple[int, ...]
    """The operands that the map reads, but for those that are carried, which are among the residuals."""
    size: int
    """The number of residuals, at least one."""


@functools.lru_cache(maxsize=256)
def _linear_map(call: _OneCall, moving: tuple[int, ...]) -> _Traced:
    """Return a call with its derivative. Residuals are what is carried and what calls of robots' functions return:
    other operations are cheap, so that the map has them again."""
    maps: list[Any] = []
    # The results of a function that is compiled by itself would be residuals, also where they are constants.
    inlined = dataclasses.replace(call, function=_without_jit(jax.make_jaxpr(call.whole)(*call.avals)))

    def forward(*operands):
        out, linear = jax.linearize(inlined.of(moving, operands), *(operands[i] for i in moving))
        closed: Any = jax.make_jaxpr(linear)(*(call.avals[i] for i in moving))
        maps[:] = [closed.jaxpr.replace(constvars=[], invars=[*closed.jaxpr.constvars, *closed.jaxpr.invars])]
        return out, closed.consts

    closed, (out, _) = jax.make_jaxpr(forward, return_shape=True)(*call.avals)
    jaxpr, count = closed.jaxpr, len(out)
    cheap, needed = [], {v for v in jaxpr.outvars[count:] if not isinstance(v, core.Literal)}
    for eqn in reversed(jaxpr.eqns):
        if needed.intersection(eqn.outvars) and not _has_calls(eqn):
            cheap.insert(0, eqn)
            needed.update(v for v in eqn.invars if not isinstance(v, core.Literal))
    numbers = {v: i for i, v in enumerate(jaxpr.invars)}
    read = tuple(i for v, i in numbers.items() if v in needed and i not in call.carried)
    made = {v for eqn in cheap for v in eqn.outvars} | set(jaxpr.constvars) | {jaxpr.invars[i] for i in read}
    kept: list[Any] = [
        v for v in (*jaxpr.invars, *(v for eqn in jaxpr.eqns for v in eqn.outvars)) if v in needed - made
    ]
    results = _function_of(jaxpr.replace(outvars=[*jaxpr.outvars[:count], *kept]), closed.consts)
    invars = [*(jaxpr.invars[i] for i in read), *kept]
    again = _function_of(jaxpr.replace(invars=invars, outvars=jaxpr.outvars[count:], eqns=cheap), closed.consts)
    tangents = _function_of(maps[0], ())

    def with_residuals(*operands) -> list:
        values = results(*operands)
        flat = [jnp.asarray(x, call.dtype).ravel() for x in values[count:]]
        # A loop has a row for each call, so there is one number at least.
        return [*values[:count], jnp.concatenate(flat or [jnp.zeros(1, call.dtype)])]

    def mapped(operands, residuals, dots) -> list:
        values, start = [], 0
        for v in kept:
            end = start + math.prod(v.aval.shape)
            x = residuals[start:end].reshape(v.aval.shape)
            values.append(x > 0.5 if v.aval.dtype == bool else x.astype(v.aval.dtype))
            start = end
        return tangents(*again(*operands, *values), *dots)

    return _Traced(with_residuals, mapped, read, max(1, sum(math.prod(v.aval.shape) for v in kept)))


def _function_of(jaxpr: Any, constants: Sequence) -> Callable[..., list]:
    return core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, constants))  # pyright: ignore[reportPrivateImportUsage]


def _without_jit(closed: Any) -> Callable[..., list]:
    """Return a traced function with all that it calls by `jax.jit` as its own operations."""

    def evaluated(*operands) -> list:
        jaxpr = closed.jaxpr
        values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*closed.consts, *operands], strict=True))
        used = {v for eqn in jaxpr.eqns for v in eqn.invars if not isinstance(v, core.Literal)}.union(
            v for v in jaxpr.outvars if not isinstance(v, core.Literal)
        )

        def read(v):
            return v.val if isinstance(v, core.Literal) else values[v]

        for eqn in jaxpr.eqns:
            results = [v for v in eqn.outvars if v in used]
            if eqn.primitive.name in ("jit", "pjit"):
                found = zip(eqn.outvars, _without_jit(eqn.params["jaxpr"])(*map(read, eqn.invars)), strict=True)
            else:
                inputs = list(dict.fromkeys(v for v in eqn.invars if not isinstance(v, core.Literal)))
                one = jaxpr.replace(constvars=[], invars=inputs, outvars=results, eqns=[eqn])
                found = zip(results, _function_of(one, ())(*map(read, inputs)), strict=True)
            values.update(found)
        return [read(v) for v in jaxpr.outvars]

    return evaluated


def _has_calls(eqn: Any) -> bool:
    """Return whether an equation is, or has in it, a call of a robot's function."""
    inner = [p for p in jax.tree.leaves(list(eqn.params.values()), is_leaf=_is_jaxpr) if _is_jaxpr(p)]
    return eqn.primitive.name == "jaxdyn_call" or any(_has_calls(e) for p in inner for e in p.eqns)


def _is_jaxpr(x: Any) -> bool:
    return hasattr(x, "eqns")


@dataclasses.dataclass(frozen=True)
class _WithResiduals:
    """A call that also returns the residuals of its derivative."""

    call: _OneCall
    moving: tuple[int, ...]

    def __call__(self, *operands):
        cores = tuple(map(len, self.call.shapes))
        return over_batches(_linear_map(self.call, self.moving).forward, operands, cores)


@dataclasses.dataclass(frozen=True)
class _LinearMap:
    """The derivative of a call, by the operands of a `Linearized` loop in their order."""

    call: _OneCall
    moving: tuple[int, ...]
    order: tuple[tuple[str, int], ...]

    def __call__(self, *operands):
        def of_one(*operands):
            parts = {
                kind: [x for x, (other, _) in zip(operands, self.order, strict=True) if other == kind]
                for kind in ("operand", "residuals", "tangent")
            }
            return _linear_map(self.call, self.moving).map(parts["operand"], *parts["residuals"], parts["tangent"])

        cores = tuple(1 if kind == "residuals" else len(self.call.shapes[i]) for kind, i in self.order)
        return over_batches(of_one, operands, cores)


@dataclasses.dataclass(frozen=True)
class _TransposedMap:
    """The transpose of a call, with the sums of the cotangents of operands that stay."""

    call: _OneCall
    parts: OperandKinds

    def __call__(self, *operands):
        parts, call, given = self.parts, self.call, list(operands)
        shapes = [call.shapes[i] for i in (*parts.fixed, *parts.carried, *parts.linear_fixed, *parts.rows)]
        cores = *map(len, shapes), *(len(s) for s in self._more())

        def of_one(*operands):
            given = iter(operands)
            values: list[Any] = [None] * len(call.shapes)

            def take(count: int) -> list:
                return [next(given) for _ in range(count)]

            for i, x in zip(parts.fixed, take(len(parts.fixed)), strict=True):
                values[i] = x
            ends, sums = take(len(parts.carried)), take(len(parts.linear_fixed))
            for i, x in zip(parts.rows, take(len(parts.rows)), strict=True):
                values[i] = x
            avals = [call.avals[i] for i in parts.linear]
            cotangents = jax.linear_transpose(call.of(parts.linear, values), *avals)([*ends, *given])
            n, m = len(ends), len(ends) + len(sums)
            return [*cotangents[:n], *(x + y for x, y in zip(sums, cotangents[n:m], strict=True)), *cotangents[m:]]

        return over_batches(of_one, given, cores)

    def _more(self) -> list[tuple[int, ...]]:
        """The shapes of the further results of a call."""
        out = jax.eval_shape(lambda *x: jax.tree.leaves(self.call.function(*x)), *self.call.avals)
        return [x.shape for x in out[len(self.parts.carried) :]]
