"""Rules of reductions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxdyn.native._jaxprs import Operation, Variable
from jaxdyn.native.arrays._array_values import Array, Buffer, Index, Literal, Scalar
from jaxdyn.native.arrays._element_loops import lanes_along_last, reduced, reduced_rows, total
from jaxdyn.native.arrays._factorizations import Factorizations
from jaxdyn.native.arrays._text import Number, is_float, is_truth, type_of


class Sums(Factorizations):
    """The rules of operations that combine elements."""

    def _reduction(self, operation: Operation, array: Array) -> Array:
        (v,), axes, text = operation.outputs, operation.params["axes"], self.text
        name = operation.name.removeprefix("reduce_")
        first = text.literal(_neutral(name, v.dtype), v.dtype)
        operation_name = {"sum": "add", "prod": "mul"}.get(name, name)

        def combine(a: str, b: str, lanes: int) -> str:
            return text.operate(operation_name, [a, b], v.dtype, lanes)

        if not array.size:
            return Literal(_neutral(name, v.dtype), v.shape, v.dtype)
        if not v.shape and array.flat:
            return Scalar(total(self.writer, array, first, combine, repeatable=name not in ("sum", "prod")), v.dtype)
        if array.flat and tuple(axes) == tuple(range(len(axes))):
            out = self.new(v.shape, v.dtype, v)

            def store(x: str, index: Index) -> None:
                text.store(x, out.address, index.places[0], v.dtype, index.lanes)

            reduced_rows(self.writer, array, v.size, first, combine, store)
            return out
        at = reduced(self.writer, array, axes, first, combine)
        if not v.shape:
            return Scalar(at(Index(())), v.dtype)
        vectors = array.along_last and len(array.shape) - 1 not in axes
        return self._filled(v, at, vectors)

    def _filled(self, v: Variable, at: Callable[[Index], str], vectors: bool) -> Buffer:
        """An array in memory with the elements that a function of the index appends."""
        out = self.new(v.shape, v.dtype, v)

        def write(index: Index) -> None:
            self.text.store(at(index), out.address, out.number_of(self.text, index.places), v.dtype, index.lanes)

        lanes_along_last(self.writer, v.shape, vectors, write)
        return out

    def _argmax(self, operation: Operation, array: Array) -> Array:
        (v,), text, dtype = operation.outputs, self.text, array.dtype
        relation = "lt" if operation.name == "argmin" else "gt"

        def at(i: Number) -> str:
            return self.writer.within(lambda: self.writer.value(array, Index((i,))))

        def better(state: Sequence[str]) -> list[str]:
            i, best, largest = state
            x = at(i)
            larger = text.operate(relation, [x, largest], dtype, 1)
            if is_float(dtype):
                # The first NaN counts as the largest and as the smallest number.
                fresh = text.operate("ne", [x, x], dtype, 1)
                number = text.operate("eq", [largest, largest], dtype, 1)
                larger = text.value(f"or i1 {larger}, {text.value(f'and i1 {fresh}, {number}')}")
            chosen = text.value(f"select i1 {larger}, i64 {i}, i64 {best}")
            return [text.value(f"add i64 {i}, 1"), chosen, text.choose(larger, x, largest, dtype, 1)]

        state = [("i64", "1"), ("i64", "0"), (type_of(dtype), at(0))]
        out = text.repeat(state, lambda s: text.value(f"icmp ult i64 {s[0]}, {array.shape[0]}"), better)
        return Scalar(text.convert(out[1], "int64", v.dtype, 1), v.dtype)

    _argmin = _argmax

    def _cumsum(self, operation: Operation, array: Array) -> Array:
        (v,), text, length = operation.outputs, self.text, array.shape[0]
        out = self.new(v.shape, v.dtype, v)

        def step(i: Number, total: str) -> list[str]:
            place = text.minus(length - 1, i) if operation.params["reverse"] else i
            x = self.writer.within(lambda: self.writer.value(array, Index((place,))))
            total = text.operate("add", [total, x], v.dtype, 1)
            text.store(total, out.address, place, v.dtype)
            return [total]

        text.loop(length, step, [text.literal(0, v.dtype)], type_of(v.dtype))
        return out


def _neutral(name: str, dtype: Any) -> Any:
    """Return the number that a reduction begins with."""
    if name in ("and", "or"):
        return name == "and"
    if name in ("sum", "prod"):
        return 0 if name == "sum" else 1
    if is_truth(dtype):
        return name == "min"
    if is_float(dtype):
        return -math.inf if name == "max" else math.inf
    limits = np.iinfo(dtype)
    return limits.min if name == "max" else limits.max
