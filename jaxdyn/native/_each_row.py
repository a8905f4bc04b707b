"""Functions of the rows of a list, of which only the first ones count: a primitive that is a loop in native programs.

Straight-line programs grow with what a list has room for. Here the function of one row is the body of a loop with as
many rounds as there are rows that count, and XLA maps it over all rows. Derivatives are of the same kind: the JVP is
the function of the rows of the operands and their tangents, and its transpose that of the rows of cotangents.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend import core
from jax.interpreters import ad, batching, mlir

each_row_p = core.Primitive("jaxdyn_each_row")
each_row_p.multiple_results = True


def each_row(function: Callable, count, rows: Any) -> tuple[Any, Any]:
    """Return the sums over rows, and the rows, of what `function` returns as a pair for each of the first `count` rows.

    `rows` is a pytree of arrays `[length, ..., *batch]`, of which the function gets `[..., *batch]`, and `count` is
    `[*batch]`. All results of the function have the axes of the batch. Rows that do not count are zero.
    """
    leaves, structure = jax.tree.flatten(rows)
    structures: list = []

    def flat(*leaves):
        total, each = function(jax.tree.unflatten(structure, leaves))
        results = [jax.tree.flatten(x) for x in (total, each)]
        structures[:] = [x[1] for x in results]
        return [x for part, _ in results for x in part]

    out = _bind(flat, jax.lax.stop_gradient(count), (), leaves, None, lambda: structures[0].num_leaves)
    sums = structures[0].num_leaves
    return jax.tree.unflatten(structures[0], out[:sums]), jax.tree.unflatten(structures[1], out[sums:])


def _bind(function: Callable, count, shared: Sequence, rows: Sequence, length: int | None, sums: Callable) -> list:
    """Bind the primitive for a function of `shared` arrays and of rows, which may use other arrays; `sums` is called
    after the function, and returns how many of its first results are summed up."""
    avals = [ShapedArray(jnp.shape(x), jnp.result_type(x)) for x in shared]
    avals += [ShapedArray(jnp.shape(x)[1:], jnp.result_type(x)) for x in rows]
    closed = jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals))
    jaxpr, consts = closed.jaxpr, closed.consts
    jaxpr = jaxpr.replace(constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars])
    length = len(rows[0]) if length is None else length
    closed = core.ClosedJaxpr(jaxpr, ())  # pyright: ignore[reportPrivateImportUsage]
    params = {"jaxpr": closed, "shared": len(consts) + len(shared), "sums": sums(), "length": length}
    return each_row_p.bind(count, *consts, *shared, *rows, **params)


@each_row_p.def_abstract_eval
def _results(count, *_, jaxpr, shared: int, sums: int, length: int):
    out = [v.aval for v in jaxpr.jaxpr.outvars]
    return [ShapedArray(a.shape if k < sums else (length, *a.shape), a.dtype) for k, a in enumerate(out)]


def over_all_rows(count, *operands, jaxpr, shared: int, sums: int, length: int) -> list:
    """Return the results from all rows at once."""
    function = core.jaxpr_as_fun(jaxpr)  # pyright: ignore[reportPrivateImportUsage]
    axes = (None,) * shared + (0,) * (len(operands) - shared)
    there = jnp.arange(length).reshape(-1, *[1] * jnp.ndim(count)) < count

    def kept(x):
        mask = there.reshape(length, *[1] * (x.ndim - there.ndim), *there.shape[1:])
        return jnp.where(mask, x, jnp.zeros((), x.dtype))

    out = [kept(x) for x in jax.vmap(function, axes, axis_size=length)(*operands)]
    return [x.sum(axis=0) if k < sums else x for k, x in enumerate(out)]


each_row_p.def_impl(functools.partial(jax.jit, static_argnames=("jaxpr", "shared", "sums", "length"))(over_all_rows))
mlir.register_lowering(each_row_p, mlir.lower_fun(over_all_rows, multiple_results=True))


def _jvp(primals, tangents, *, jaxpr, shared: int, sums: int, length: int):
    out = each_row_p.bind(*primals, jaxpr=jaxpr, shared=shared, sums=sums, length=length)
    count, *operands = primals
    dots = [None if type(t) is ad.Zero else t for t in tangents[1:]]
    moving = [i for i, dot in enumerate(dots) if dot is not None]
    of_shared = [i for i in moving if i < shared]
    function = core.jaxpr_as_fun(jaxpr)  # pyright: ignore[reportPrivateImportUsage]
    n, m = len(operands), len(of_shared)

    def derivative(*values):
        own = [*values[:shared], *values[shared + m : n + m]]
        changes = [*values[shared : shared + m], *values[n + m :]]

        def partial(*moved):
            changed = list(own)
            for i, x in zip(moving, moved, strict=True):
                changed[i] = x
            return function(*changed)

        return jax.jvp(partial, [own[i] for i in moving], changes)[1]

    of_rows = [dots[i] for i in moving if i >= shared]
    values = [*operands[:shared], *(dots[i] for i in of_shared)], [*operands[shared:], *of_rows]
    return out, _bind(derivative, count, *values, length, lambda: sums)


def _transpose(cotangents, count, *operands, jaxpr, shared: int, sums: int, length: int):
    function = core.jaxpr_as_fun(jaxpr)  # pyright: ignore[reportPrivateImportUsage]
    avals = [v.aval for v in jaxpr.jaxpr.invars]
    # The results of the transpose that are sums come first.
    linear = [i for i, x in enumerate(operands) if ad.is_undefined_primal(x)]
    values = {("operand", i): x for i, x in enumerate(operands) if i not in linear}
    values |= {("result", k): c for k, c in enumerate(cotangents) if type(c) is not ad.Zero}
    given = [k for of, k in values if of == "result"]
    back: list = [None] * len(operands)
    if not given:
        return [None, *back]
    first = {"operand": shared, "result": sums}
    keys = {row: [(of, k) for of, k in values if (k >= first[of]) == row] for row in (False, True)}

    def transposed(*xs):
        now = dict(zip([*keys[False], *keys[True]], xs, strict=True))

        def of_linear(*moved):
            all_of = now | {("operand", i): x for i, x in zip(linear, moved, strict=True)}
            out = function(*(all_of["operand", i] for i in range(len(operands))))
            return [out[k] for k in given]

        types = [jax.ShapeDtypeStruct(avals[i].shape, avals[i].dtype) for i in linear]
        cts = jax.linear_transpose(of_linear, *types)([now["result", k] for k in given])
        return [jnp.broadcast_to(x, avals[i].shape) for x, i in zip(cts, linear, strict=True)]

    of_shared, of_rows = ([values[key] for key in keys[row]] for row in (False, True))
    summed = sum(i < shared for i in linear)
    for i, x in zip(linear, _bind(transposed, count, of_shared, of_rows, length, lambda: summed), strict=True):
        back[i] = x
    return [None, *back]


def _batching(operands, dims, **params):
    out = jax.vmap(functools.partial(over_all_rows, **params), dims)(*operands)
    return out, [0] * len(out)


ad.primitive_jvps[each_row_p] = _jvp
ad.primitive_transposes[each_row_p] = _transpose
batching.primitive_batchers[each_row_p] = _batching
