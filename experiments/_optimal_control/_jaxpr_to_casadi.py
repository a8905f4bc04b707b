"""Functions of JAX as expressions of CasADi: the jaxpr of a function is evaluated on arrays of scalar symbols.

What does not depend on the symbols is computed as numbers. Loops are unrolled. A robot's algorithms, which are one
primitive each, are read as the functions that they stand for.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import casadi
import jax
import numpy as np
from jax.extend import core

from jaxdyn import native


class UnreadableError(ValueError):
    """A function has an operation that is not among those translated here."""


def symbols(name: str, n: int) -> tuple[casadi.SX, np.ndarray]:
    """Return a vector of CasADi's symbols, and the same as an array of objects `[n]`."""
    vector = casadi.SX.sym(name, n)
    array = np.empty(n, object)
    for i in range(n):
        array[i] = vector[i]
    return vector, array


def column(array: np.ndarray) -> casadi.SX:
    """Return an array of symbols or numbers as one column of CasADi."""
    return casadi.vertcat(*(casadi.SX(x) for x in array.ravel().tolist())) if array.size else casadi.SX(0, 1)


def translate(function: Callable, arguments: Sequence[np.ndarray], dtypes: Sequence[Any]) -> list[np.ndarray]:
    """Return the results of a function of arrays, for arguments that are arrays of symbols. **Raises**
    `UnreadableError` for an operation that is not translated."""
    shapes = [jax.ShapeDtypeStruct(a.shape, d) for a, d in zip(arguments, dtypes, strict=True)]
    closed = jax.make_jaxpr(function)(*shapes)
    return _run(closed.jaxpr, closed.consts, list(arguments))


def _run(jaxpr, consts, arguments: list[np.ndarray]) -> list[np.ndarray]:
    values: dict[Any, np.ndarray] = dict(zip(jaxpr.invars, arguments, strict=True))
    values.update(zip(jaxpr.constvars, map(np.asarray, consts), strict=True))

    def read(v) -> np.ndarray:
        return np.asarray(v.val) if isinstance(v, core.Literal) else values[v]

    for eqn in jaxpr.eqns:
        out = _equation(eqn, [read(v) for v in eqn.invars])
        for v, x in zip(eqn.outvars, out, strict=True):
            values[v] = x
    return [read(v) for v in jaxpr.outvars]


def _equation(eqn, xs: list[np.ndarray]) -> list[np.ndarray]:
    name, params = eqn.primitive.name, eqn.params
    if name in _RULES:
        out = _RULES[name](eqn, xs)
        return out if isinstance(out, list) else [out]
    if all(map(_known, xs)) and not _inner(params):
        out = eqn.primitive.bind(*xs, **params)
        return [np.asarray(x) for x in out] if eqn.primitive.multiple_results else [np.asarray(out)]
    if name in _OF_SYMBOLS:
        return [_OF_SYMBOLS[name](eqn, xs)]
    if name in _SCALAR:
        return [_map(_SCALAR[name], *xs)]
    if name in _INDEXED:
        return [_by_places(eqn, xs)]
    function = native.expansion(eqn.primitive)
    if function is not None:
        shapes = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
        closed = jax.make_jaxpr(functools.partial(function, **params))(*shapes)
        return _run(closed.jaxpr, closed.consts, xs)
    inner = _inner(params)
    if len(inner) == 1 and name not in ("while", "cond"):
        return _run(inner[0].jaxpr, inner[0].consts, xs)
    raise UnreadableError(f"the operation {name} is not translated to CasADi")


def _inner(params) -> list:
    return [p for p in params.values() if hasattr(p, "jaxpr") and hasattr(p, "consts")]


def _known(x: np.ndarray) -> bool:
    return x.dtype != object


def _map(function: Callable, *xs: np.ndarray) -> np.ndarray:
    """Return the results of a function of scalars for each element."""
    out = np.empty(np.broadcast_shapes(*(x.shape for x in xs)), object)
    parts = [np.broadcast_to(x, out.shape) for x in xs]
    for place in np.ndindex(out.shape):
        out[place] = function(*(part[place] for part in parts))
    return out


def _fold(function: Callable, x: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    """Return the reduction of an array over some axes by a function of two scalars."""
    kept = [i for i in range(x.ndim) if i not in axes]
    rows = x.transpose([*kept, *axes]).reshape((*(x.shape[i] for i in kept), -1))
    out = np.empty(rows.shape[:-1], object)
    for place in np.ndindex(out.shape):
        out[place] = functools.reduce(function, rows[place])
    return out


def _add(a, b):
    # Sums and products with zero stay small.
    if isinstance(a, float | int) and a == 0:
        return b
    return a if isinstance(b, float | int) and b == 0 else a + b


def _multiply(a, b):
    return 0.0 if any(isinstance(x, float | int) and x == 0 for x in (a, b)) else a * b


def _select(condition, otherwise, then):
    if isinstance(condition, casadi.SX) and not condition.is_constant():
        return casadi.if_else(condition, then, otherwise)
    return then if bool(float(condition)) else otherwise


_SCALAR: dict[str, Callable] = {
    "add": _add,
    "add_any": _add,
    "sub": lambda a, b: a - b,
    "mul": _multiply,
    "div": lambda a, b: a / b,
    "neg": lambda a: -a,
    "square": lambda a: a * a,
    "sqrt": casadi.sqrt,
    "rsqrt": lambda a: 1 / casadi.sqrt(a),
    "sin": casadi.sin,
    "cos": casadi.cos,
    "tan": casadi.tan,
    "asin": casadi.asin,
    "acos": casadi.acos,
    "atan": casadi.atan,
    "atan2": casadi.atan2,
    "sinh": casadi.sinh,
    "cosh": casadi.cosh,
    "tanh": casadi.tanh,
    "exp": casadi.exp,
    "log": casadi.log,
    "log1p": casadi.log1p,
    "expm1": casadi.expm1,
    "pow": lambda a, b: a**b,
    "abs": casadi.fabs,
    "sign": casadi.sign,
    "max": casadi.fmax,
    "min": casadi.fmin,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "and": casadi.logic_and,
    "or": casadi.logic_or,
    "not": casadi.logic_not,
    "convert_element_type": lambda a: a,
    "stop_gradient": lambda a: a,
    "copy": lambda a: a,
    "copy_p": lambda a: a,
}
_INDEXED = {"gather", "scatter", "dynamic_slice", "dynamic_update_slice", "pad", "rev", "tile"}
"""Operations that only move elements, to places that do not depend on the symbols."""


def _by_places(eqn, xs: list[np.ndarray]) -> np.ndarray:
    """Move elements as JAX moves their numbers."""
    moved = {"scatter": (0, 2), "dynamic_update_slice": (0, 1), "pad": (0, 1)}.get(eqn.primitive.name, (0,))
    elements, places, start = [], list(xs), 0
    for i in moved:
        elements.append(xs[i].astype(object).ravel())
        places[i] = np.arange(start, start + xs[i].size).reshape(xs[i].shape)
        start += xs[i].size
    if not all(map(_known, places)):
        raise UnreadableError(f"{eqn.primitive.name} at a place that depends on states or controls")
    found = np.asarray(eqn.primitive.bind(*places, **eqn.params))
    if found.size and not 0 <= found.min() <= found.max() < start:
        raise UnreadableError(f"{eqn.primitive.name} beyond the ends of an array")
    return np.concatenate(elements)[found.ravel()].reshape(found.shape)


def _broadcast(eqn, xs):
    shape, places = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    wide = [1] * len(shape)
    for i, place in enumerate(places):
        wide[place] = xs[0].shape[i]
    return np.broadcast_to(xs[0].reshape(wide), shape)


def _slice(eqn, xs):
    p = eqn.params
    strides = p["strides"] or (1,) * xs[0].ndim
    cuts = zip(p["start_indices"], p["limit_indices"], strides, strict=True)
    return xs[0][(*(slice(*cut) for cut in cuts), ...)]


def _unstack(eqn, xs):
    rows = np.moveaxis(xs[0], eqn.params["axis"], 0)
    return [rows[i, ...] for i in range(len(rows))]


def _choose(eqn, xs):
    if len(xs) != 3:
        raise UnreadableError("a choice between more than two values is not translated to CasADi")
    if all(map(_known, xs)):
        return np.where(xs[0], xs[2], xs[1])
    return _map(_select, *xs)


def _dot(eqn, xs):
    (ca, cb), (ba, bb) = eqn.params["dimension_numbers"]
    a, b = xs

    def arranged(x, batch, contracted):
        free = [i for i in range(x.ndim) if i not in batch and i not in contracted]
        shapes = [[x.shape[i] for i in axes] for axes in (batch, free, contracted)]
        return x.transpose([*batch, *free, *contracted]).reshape([math.prod(s) for s in shapes]), shapes

    a, (batch, rows, _) = arranged(a, ba, ca)
    b, (_, columns, _) = arranged(b, bb, cb)
    if _known(a) and _known(b):
        return np.einsum("zik,zjk->zij", a, b).reshape((*batch, *rows, *columns))
    out = np.empty((a.shape[0], a.shape[1], b.shape[1]), object)
    for z, i, j in np.ndindex(out.shape):
        out[z, i, j] = functools.reduce(_add, map(_multiply, a[z, i].tolist(), b[z, j].tolist()), 0.0)
    return out.reshape((*batch, *rows, *columns))


def _reduction(function: Callable) -> Callable:
    def rule(eqn, xs):
        return _fold(function, xs[0].astype(object), eqn.params["axes"])

    return rule


def _largest(eqn, xs):
    (axis,) = eqn.params["axes"]
    rows = np.moveaxis(xs[0], axis, -1)
    out = np.empty(rows.shape[:-1], object)
    for place in np.ndindex(out.shape):
        best, index = rows[place][0], 0.0
        for k, x in enumerate(rows[place][1:].tolist(), start=1):
            index, best = _select(x > best, index, float(k)), casadi.fmax(best, x)
        out[place] = index
    return out


def _sums_so_far(eqn, xs):
    x, axis = xs[0].astype(object), eqn.params["axis"]
    rows = np.moveaxis(np.flip(x, axis) if eqn.params["reverse"] else x, axis, 0)
    out = np.empty(rows.shape, object)
    for place in np.ndindex(rows.shape[1:]):
        total = 0.0
        for i in range(len(rows)):
            total = out[(i, *place)] = _add(total, rows[(i, *place)])
    out = np.moveaxis(out, 0, axis)
    return np.flip(out, axis) if eqn.params["reverse"] else out


def _scan(eqn, xs):
    p, closed = eqn.params, eqn.params["jaxpr"]
    body, length = closed.jaxpr, p["length"]
    # What a scan carries has the body's shape; what it scans over has one axis more.
    mapped = [x.ndim > v.aval.ndim for x, v in zip(xs, body.invars, strict=True)]
    stacked = [v.aval.ndim > w.aval.ndim for v, w in zip(eqn.outvars, body.outvars, strict=True)]
    carried = stacked.index(True) if True in stacked else len(stacked)
    fixed = (mapped.index(True) if True in mapped else len(mapped)) - carried
    first, carry, rows = xs[:fixed], xs[fixed : fixed + carried], xs[fixed + carried :]
    out: list[Any] = [None] * length
    for i in reversed(range(length)) if p["reverse"] else range(length):
        result = _run(body, closed.consts, [*first, *carry, *(x[i, ...] for x in rows)])
        carry, out[i] = result[:carried], result[carried:]
    return [*carry, *(np.stack([step[k] for step in out]) for k in range(len(stacked) - carried))]


def _while(eqn, xs):
    p = eqn.params
    n, m = p["cond_nconsts"], p["body_nconsts"]
    of_go, of_body, state = xs[:n], xs[n : n + m], xs[n + m :]
    while True:
        (again,) = _run(p["cond_jaxpr"].jaxpr, p["cond_jaxpr"].consts, [*of_go, *state])
        if not _known(again):
            raise UnreadableError("a loop that ends depending on states or controls is not translated to CasADi")
        if not again:
            return state
        state = _run(p["body_jaxpr"].jaxpr, p["body_jaxpr"].consts, [*of_body, *state])


def _cond(eqn, xs):
    index, *operands = xs
    branches = eqn.params["branches"]
    if _known(index):
        chosen = branches[int(np.clip(int(index), 0, len(branches) - 1))]
        return _run(chosen.jaxpr, chosen.consts, operands)
    if len(branches) != 2:
        raise UnreadableError("a choice between more than two branches is not translated to CasADi")
    otherwise, then = (_run(b.jaxpr, b.consts, operands) for b in branches)
    return [_map(_select, index, a, b) for a, b in zip(otherwise, then, strict=True)]


_RULES: dict[str, Callable] = {
    "broadcast_in_dim": _broadcast,
    "reshape": lambda eqn, xs: xs[0].reshape(eqn.params["new_sizes"]),
    "squeeze": lambda eqn, xs: xs[0].reshape(eqn.outvars[0].aval.shape),
    "expand_dims": lambda eqn, xs: xs[0].reshape(eqn.outvars[0].aval.shape),
    "transpose": lambda eqn, xs: xs[0].transpose(eqn.params["permutation"]),
    "concatenate": lambda eqn, xs: np.concatenate(xs, axis=eqn.params["dimension"]),
    "slice": _slice,
    "split": lambda eqn, xs: np.split(xs[0], np.cumsum(eqn.params["sizes"])[:-1], axis=eqn.params["axis"]),
    "stack": lambda eqn, xs: np.stack(xs, axis=eqn.params["axis"]),
    "unstack": _unstack,
    "select_n": _choose,
    "dot_general": _dot,
    "integer_pow": lambda eqn, xs: (
        xs[0] ** eqn.params["y"] if _known(xs[0]) else _map(lambda a: a ** eqn.params["y"], xs[0])
    ),
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "optimization_barrier": lambda eqn, xs: xs,
}
_OF_SYMBOLS: dict[str, Callable] = {
    "reduce_sum": _reduction(_add),
    "reduce_max": _reduction(casadi.fmax),
    "reduce_min": _reduction(casadi.fmin),
    "reduce_prod": _reduction(_multiply),
    "reduce_and": _reduction(casadi.logic_and),
    "reduce_or": _reduction(casadi.logic_or),
    "argmax": _largest,
    "cumsum": _sums_so_far,
}
