"""Rules of factorizations of matrices, and of solutions with triangular ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from jaxdyn.native._jaxprs import Operation
from jaxdyn.native.arrays._array_values import Array, Buffer, View
from jaxdyn.native.arrays._element_loops import fill_part, repeated
from jaxdyn.native.arrays._products import BLOCK, Products
from jaxdyn.native.arrays._text import ArrayText, Number, type_of


class _MatrixRows:
    """The rows of a matrix in memory, which have room for whole vectors, so that elimination needs no remainders. Lanes
    beyond the end of a row hold numbers that nothing reads."""

    def __init__(self, text: ArrayText, buffer: Buffer, matrix: Number):
        """`matrix` is the number of the matrix, of several in the same array."""
        self.text, self.buffer, self.dtype = text, buffer, buffer.dtype
        self.count, self.length = buffer.shape[-2:]
        self.first = text.times(matrix, self.count * self.length)

    def _number(self, row: Number, column: Number) -> Number:
        return self.text.plus(self.first, self.text.plus(self.text.times(row, self.length), column))

    def element(self, row: Number, column: Number) -> str:
        """Append the loading of an element."""
        return self.text.load(self.buffer.address, self._number(row, column), self.dtype)

    def vector(self, row: Number, place: Number) -> str:
        """Append the loading of a vector."""
        return self.text.load(self.buffer.address, self._number(row, place), self.dtype, self.text.lanes)

    def put(self, x: str, row: Number, place: Number) -> None:
        """Append the storing of a vector."""
        self.text.store(x, self.buffer.address, self._number(row, place), self.dtype, self.text.lanes)

    def change(self, row: Number, function: Callable[[str, Number], str]) -> None:
        """Append the change of a row, whose vectors `function` gets with their places."""

        def part(k: Number) -> list[str]:
            place = self.text.times(k, self.text.lanes)
            self.put(function(self.vector(row, place), place), row, place)
            return []

        repeated(self.text, self.length // self.text.lanes, part, [], "")

    def inverse(self, x: str) -> str:
        """Append the division of one by a number, and return the result in all lanes."""
        out = self.text.operate("div", [self.text.literal(1.0, self.dtype), x], self.dtype, 1)
        return self.text.splat(out, self.dtype, self.text.lanes)

    def scaled(self, x: str, factor: str) -> str:
        return self.text.operate("mul", [x, factor], self.dtype, self.text.lanes)

    def less(self, x: str, factor: str, row: Number, place: Number) -> str:
        """Append the subtraction of a number times the vector of a row."""
        text, lanes = self.text, self.text.lanes
        minus = text.splat(text.operate("neg", [factor], self.dtype, 1), self.dtype, lanes)
        with text.floats(self.dtype, lanes):
            return text.fma(minus, self.vector(row, place), x)


class Factorizations(Products):
    """The rules of operations on whole matrices, of which arrays may have several along their first axes."""

    def _cholesky(self, operation: Operation, array: Array) -> Array:
        (v,), text = operation.outputs, self.text
        n = v.shape[-1]

        def transposed(array: Array) -> Array:
            return View(array, v.shape, lambda places: [*places[:-2], places[-1], places[-2]])

        # The transposed factor is in memory, because vectors go along rows. Of the operand, only the lower triangle has
        # a meaning.
        upper = self._in_rows(transposed(array))

        def factorize(rows: _MatrixRows) -> None:
            def eliminate(j: Number) -> None:
                inverse = rows.inverse(text.operate("sqrt", [rows.element(j, j)], v.dtype, 1))
                rows.change(j, lambda x, _: rows.scaled(x, inverse))

                def subtract(i: Number) -> None:
                    row = text.plus(text.plus(i, j), 1)
                    factor = rows.element(j, row)
                    rows.change(row, lambda x, place: rows.less(x, factor, j, place))

                text.loop(text.minus(n - 1, j), subtract)

            text.loop(n, eliminate)

        self._each_matrix(upper, lambda k: factorize(_MatrixRows(text, upper, k)))
        return transposed(upper)

    def _triangular_solve(self, operation: Operation, a: Array, b: Array) -> Array:
        (v,), params, text = operation.outputs, operation.params, self.text
        n, matrix, solution = v.shape[-2], self.hold(self.in_memory(a)), self._in_rows(b)
        transposed = params["transpose_a"]
        downward = params["lower"] != transposed
        places = range(0, solution.shape[-1], text.lanes)

        def solve(k: Number) -> None:
            rows, first = _MatrixRows(text, solution, k), text.times(k, n * n)

            def element(i: Number, j: Number) -> str:
                i, j = (j, i) if transposed else (i, j)
                return text.load(matrix.address, text.plus(first, text.plus(text.times(i, n), j)), v.dtype)

            def row(step: Number) -> Number:
                return step if downward else text.minus(n - 1, step)

            def eliminate(step: Number) -> None:
                i = row(step)
                inverse = rows.inverse(element(i, i))

                def part(places: Sequence[int]) -> None:
                    def subtract(before: Number, *xs: str) -> list[str]:
                        j = row(before)
                        factor = element(i, j)
                        return [rows.less(x, factor, j, place) for place, x in zip(places, xs, strict=True)]

                    xs = [rows.vector(i, place) for place in places]
                    xs = text.loop(step, subtract, xs, type_of(v.dtype, text.lanes))
                    for place, x in zip(places, xs, strict=True):
                        rows.put(rows.scaled(x, inverse), i, place)

                for begin in range(0, len(places), BLOCK):
                    part(places[begin : begin + BLOCK])

            text.loop(n, eliminate)

        self._each_matrix(solution, solve)
        return View(solution, v.shape, lambda places: places, last="consecutive")

    def _in_rows(self, array: Array) -> Buffer:
        """A copy of an array in memory whose rows have room for whole vectors."""
        length = -(-array.shape[-1] // self.text.lanes) * self.text.lanes
        out = self.hold(self.new((*array.shape[:-1], length), array.dtype))
        fill_part(self.writer, array, out, [0] * len(array.shape))
        return out

    def _each_matrix(self, array: Buffer, inside: Callable[[Number], None]) -> None:
        """Append what `inside` appends for the number of each matrix of an array."""
        self.text.loop(math.prod(array.shape[:-2]), lambda k: self.writer.within(lambda: inside(k)))
