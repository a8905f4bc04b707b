"""Rules of arithmetic: elementwise operations, sums, products of matrices, factorizations."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import jax
import numpy as np

from jaxdyn.native._arrays import UnsupportedError, common, constant, is_static, mapped, single, static_again
from jaxdyn.native._graph import Graph
from jaxdyn.native._jaxprs import Operation
from jaxdyn.native._operations import COMPOSITES, OPERATIONS


def _reduction(op: str, static: Callable) -> Callable:
    """Return the rule of a reduction by an operation on scalars; `static` is the one of numbers."""
    return lambda self, operation, xs: self.reduce(operation, xs[0], op, static)


class Arithmetic:
    """The rules of operations that compute. The rule of a primitive is the method `_<name>`, which gets an `Operation`
    and the arrays of its operands."""

    def __init__(self, graph: Graph, precision: float):
        self.graph, self.precision = graph, precision
        g = graph
        own = {"neg": g.neg, "not": g.logical_not, "add": g.add, "sub": g.sub, "mul": g.mul, "div": g.div}
        own |= {"and": g.logical_and, "or": g.logical_or, "xor": g.logical_xor}
        folded = {name: functools.partial(g.apply, name) for name, x in OPERATIONS.items() if x.number}
        self.scalar: dict[str, Callable] = {**own, **folded}
        """The elementwise operations on scalars."""
        self.elementwise = {name: mapped(f, OPERATIONS[name].operands) for name, f in self.scalar.items()}
        self.select = mapped(g.select, 3)

    def by_jax(self, operation: Operation, xs):
        """Evaluate an operation on numbers by JAX itself."""
        with jax.ensure_compile_time_eval():
            arrays = [np.asarray(x, v.dtype) for x, v in zip(xs, operation.inputs, strict=True)]
            out = operation.primitive.bind(*map(jax.numpy.asarray, arrays), **operation.params)
        return [constant(x) for x in out] if operation.primitive.multiple_results else constant(out)

    def elementwise_rule(self, operation: Operation) -> Callable:
        """Return the rule of an elementwise operation, which loops evaluate again and again."""
        of_scalars = self.scalar[operation.name]
        if operation.kinds != {"f"}:
            return self.map

        def rule(operation, xs):
            static = True
            for x in xs:
                if x.ndim:
                    return self.map(operation, xs)
                static = static and x.dtype != object
            return self.map(operation, xs) if static else single(of_scalars(*[x.item() for x in xs]))

        return rule

    def map(self, operation: Operation, xs):
        name, dtype, kinds = operation.name, np.dtype(operation.outputs[0].dtype), operation.kinds
        array = OPERATIONS[name].array
        if all(map(is_static, xs)):
            # NumPy divides integers, and takes their roots, as if they were floats.
            if array is None or not (dtype.kind in "fb" or name in EXACT_FOR_INTEGERS):
                return self.by_jax(operation, xs)
            with np.errstate(all="ignore"):
                out = array(*xs)
            return self.cleared(out, *xs) if name in ("add", "sub") and dtype.kind == "f" else out
        if kinds & set("iu"):
            if not OPERATIONS[name].of_indices:
                raise UnsupportedError(f"the operation {name} on integers that depend on data")
            xs = [x.astype(float) if is_static(x) else x for x in xs]
        out = self.elementwise["xor" if kinds == {"b"} and name in ("eq", "ne") else name](*common(xs))
        return static_again(self.elementwise["not"](out) if kinds == {"b"} and name == "eq" else out)

    def composite(self, operation: Operation, xs):
        """The rule of an operation that is made of others."""
        if all(map(is_static, xs)) and operation.kinds != {"f"}:
            return self.by_jax(operation, xs)

        def evaluated(name: str, *xs):
            arrays = [np.asarray(float(x)) if isinstance(x, int | float) else np.asarray(x) for x in xs]
            array = OPERATIONS[name].array if name != "select" else None
            if array is not None and all(map(is_static, arrays)):
                with np.errstate(all="ignore"):
                    return array(*arrays)
            function = self.elementwise[name] if name != "select" else self.select
            return static_again(function(*common([x.astype(object) for x in arrays])))

        return COMPOSITES[operation.name](evaluated, *xs, **operation.params)

    def cleared(self, total, a, b):
        """Return a sum of constants that is 0 or 1 up to rounding as that: a rotation by a quarter turn has such
        entries, and products with them vanish from the program."""
        close = 4 * self.precision * np.maximum(np.abs(a), np.abs(b))
        for exact in (-1.0, 0.0, 1.0):
            total = np.where(np.abs(total - exact) <= close, exact, total)
        return total

    def _select_n(self, operation, xs):
        which, *cases = xs
        if is_static(which):
            if all(map(is_static, cases)):
                return np.choose(which.astype(int), cases) if cases[0].ndim else cases[int(which)]
            index = np.broadcast_to(which.astype(int), cases[0].shape)
            stack = np.stack(common(cases)).reshape(len(cases), -1)
            return static_again(stack[index.ravel(), np.arange(index.size)].reshape(cases[0].shape))
        if np.dtype(operation.inputs[0].dtype) != bool:
            raise UnsupportedError("a choice by an integer that depends on data")
        if np.dtype(operation.inputs[1].dtype).kind in "iu":
            cases = [x.astype(float) if is_static(x) else x for x in cases]
        return static_again(self.select(which, *common(cases)))

    _reduce_sum = _reduction("add", np.sum)
    _reduce_max, _reduce_min = _reduction("max", np.max), _reduction("min", np.min)
    _reduce_and, _reduce_or = _reduction("and", np.all), _reduction("or", np.any)
    _reduce_prod = _reduction("mul", np.prod)

    def reduce(self, operation, x, op: str, static: Callable):
        axes = tuple(operation.params["axes"])
        if not math.prod(x.shape[i] for i in axes):
            return self.by_jax(operation, [np.zeros(x.shape)])
        if is_static(x):
            return static(x, axis=axes)
        if np.dtype(operation.inputs[0].dtype).kind in "iu":
            raise UnsupportedError("a sum of integers that depend on data")
        kept = [i for i in range(x.ndim) if i not in axes]
        parts = np.transpose(x, [*axes, *kept]).reshape((-1, *(x.shape[i] for i in kept)))
        return static_again(_summed(list(parts), self.elementwise[op]))

    def _cumsum(self, operation, xs):
        x, axis = xs[0], operation.params["axis"]
        if is_static(x):
            return self.by_jax(operation, xs)
        rows = list(np.moveaxis(x, axis, 0))
        if operation.params["reverse"]:
            rows = rows[::-1]
        for i in range(1, len(rows)):
            rows[i] = self.elementwise["add"](rows[i - 1], rows[i])
        return np.moveaxis(np.stack(rows[::-1] if operation.params["reverse"] else rows), 0, axis)

    def _dot_general(self, operation, xs):
        a, b = xs
        (ca, cb), (ba, bb) = operation.params["dimension_numbers"]
        fa = [i for i in range(a.ndim) if i not in (*ca, *ba)]
        fb = [i for i in range(b.ndim) if i not in (*cb, *bb)]
        batch, rows, columns = ([x.shape[i] for i in axes] for x, axes in ((a, ba), (a, fa), (b, fb)))
        a, b = common(xs)
        depth = math.prod(a.shape[i] for i in ca)
        a = np.transpose(a, [*ba, *fa, *ca]).reshape((math.prod(batch), math.prod(rows), depth))
        b = np.transpose(b, [*bb, *fb, *cb]).reshape((math.prod(batch), math.prod(columns), depth))
        if is_static(a):
            return np.einsum("nik,njk->nij", a, b).reshape((*batch, *rows, *columns))
        terms = [self.product(a[:, :, None, k], b[:, None, :, k]) for k in range(depth)]
        out = _summed(terms, self.elementwise["add"]) if terms else np.zeros((len(a), a.shape[1], b.shape[1]))
        return static_again(out).reshape((*batch, *rows, *columns))

    def product(self, a, b):
        return self.elementwise["mul"](a, b) if not (is_static(a) and is_static(b)) else a * b

    def _cholesky(self, operation, xs):
        (A,) = xs
        if is_static(A):
            return np.linalg.cholesky(A)
        g, n = self.elementwise, A.shape[-1]
        L = np.zeros(A.shape, object)
        L[...] = 0.0
        for j in range(n):
            rest = A[..., j:, j]
            for k in range(j):
                rest = g["sub"](rest, g["mul"](L[..., j:, k], L[..., j : j + 1, k]))
            root = g["sqrt"](rest[..., :1].astype(object))
            L[..., j, j] = root[..., 0]
            L[..., j + 1 :, j] = g["mul"](rest[..., 1:], g["div"](1.0, root))
        return L

    def _lu(self, operation, xs):
        """The factorization with the pivots of LAPACK: rows are exchanged by choices between their numbers."""
        if is_static(xs[0]):
            return self.by_jax(operation, xs)
        A, (n, m) = xs[0].astype(object), xs[0].shape[-2:]
        if max(n, m) > MOST_ROWS:
            raise UnsupportedError(f"a factorization of more than {MOST_ROWS} rows", "lu")
        g = self.elementwise
        numbers = np.broadcast_to(np.arange(float(n))[:, None], (*A.shape[:-1], 1)).astype(object)
        A, pivots = np.concatenate([A, numbers], axis=-1), []
        for k in range(min(n, m)):
            first = best = A[..., k, :]
            pivot = np.full(A.shape[:-2], float(k), object)
            for i in range(k + 1, n):
                larger = g["gt"](g["abs"](A[..., i, k]), g["abs"](best[..., k]))
                best = self.select(larger[..., None], best, A[..., i, :])
                pivot = self.select(larger, pivot, float(i))
            for i in range(k + 1, n):
                A[..., i, :] = self.select(g["eq"](pivot, float(i))[..., None], A[..., i, :], first)
            A[..., k, :] = best
            pivots.append(pivot)
            A[..., k + 1 :, k] = g["mul"](A[..., k + 1 :, k], g["div"](1.0, A[..., k, k])[..., None])
            change = g["mul"](A[..., k + 1 :, k : k + 1], A[..., k : k + 1, k + 1 : m])
            A[..., k + 1 :, k + 1 : m] = g["sub"](A[..., k + 1 :, k + 1 : m], change)
        return [A[..., :m], np.stack(pivots, axis=-1), A[..., m]]

    def _sort(self, operation, xs):
        """Sorted integers, such as the rows' numbers of a factorization, and what goes along, by exchanges of
        neighbors."""
        p = operation.params
        whole = np.dtype(operation.inputs[0].dtype).kind in "iu"
        if all(map(is_static, xs)):
            return self.by_jax(operation, xs)
        if not whole or p["num_keys"] != 1 or xs[0].shape[p["dimension"]] > MOST_ROWS:
            raise UnsupportedError("the operation sort", "sort")
        rows = [list(np.moveaxis(x.astype(float) if is_static(x) else x, p["dimension"], 0)) for x in xs]
        for last in range(len(rows[0]) - 1, 0, -1):
            for i in range(last):
                larger = self.elementwise["gt"](rows[0][i], rows[0][i + 1])
                for row in rows:
                    a, b = common([np.asarray(row[i]), np.asarray(row[i + 1])])
                    row[i], row[i + 1] = self.select(larger, a, b), self.select(larger, b, a)
        return [np.moveaxis(np.stack([np.asarray(x, object) for x in row]), 0, p["dimension"]) for row in rows]

    def _triangular_solve(self, operation, xs):
        p = operation.params
        a, b = common(xs)
        if is_static(a):
            return self.by_jax(operation, xs)
        if p["transpose_a"]:
            a = a.swapaxes(-1, -2)
        if not p["left_side"]:
            a, b = a.swapaxes(-1, -2), b.swapaxes(-1, -2)
        lower = p["lower"] ^ p["transpose_a"] ^ (not p["left_side"])
        g, n = self.elementwise, a.shape[-1]
        x = b.copy()
        for i in range(n) if lower else reversed(range(n)):
            row = x[..., i, :]
            for k in range(i) if lower else range(i + 1, n):
                row = g["sub"](row, g["mul"](a[..., i : i + 1, k], x[..., k, :]))
            x[..., i, :] = row if p["unit_diagonal"] else g["mul"](row, g["div"](1.0, a[..., i : i + 1, i]))
        return x if p["left_side"] else x.swapaxes(-1, -2)


EXACT_FOR_INTEGERS = {"add", "sub", "mul", "max", "min", "neg", "abs"}
"""The operations for which NumPy stands in for JAX on integers, too."""

MOST_ROWS = 16
"""The most rows of a matrix that is factorized by a straight-line program, which grows with their third power: that of
16 rows has some 10,000 operations."""


def _summed(parts: list, add: Callable):
    return functools.reduce(add, parts)
