"""The rule of products of arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from jaxdyn.native._jaxprs import Operation
from jaxdyn.native.arrays._array_values import Array, Buffer, Index, Literal, Scalar
from jaxdyn.native.arrays._element_loops import UNROLLED, each, repeated
from jaxdyn.native.arrays._gathers import Gathers
from jaxdyn.native.arrays._text import Number, type_of

BLOCK = 4
"""The number of sums that a loop adds up side by side: each waits for its last addition, but not for the others."""
ROWS, SUMS = 4, 12
"""The rows and the most vectors of a product that are summed up side by side: with them, three vectors of the second
operand and a factor, sixteen registers are full."""
WRITTEN_OUT = 3
"""The most blocks of a row that are written out one after the other."""


class _Axes(NamedTuple):
    """The axes of two operands of a product."""

    batch: tuple[Sequence[int], Sequence[int]]
    free: tuple[Sequence[int], Sequence[int]]
    contracted: tuple[Sequence[int], Sequence[int]]

    def places(self, which: int, rank: int, of_result: Sequence[Number], contracted: Sequence[Number]) -> Index:
        """Return the place in an operand from that in the result, batch axes first, and those along the sums."""
        batch, rest = of_result[: len(self.batch[0])], of_result[len(self.batch[0]) :]
        free = rest[len(self.free[0]) :] if which else rest[: len(self.free[0])]
        out: list[Number] = [0] * rank
        for axes, places in ((self.batch, batch), (self.free, free), (self.contracted, contracted)):
            for axis, place in zip(axes[which], places, strict=True):
                out[axis] = place
        return Index(tuple(out))


class Products(Gathers):
    """The rule of products, which sum up over axes of two arrays."""

    def _dot_general(self, operation: Operation, a: Array, b: Array) -> Array:
        (v,) = operation.outputs
        contracted, batch = operation.params["dimension_numbers"]
        free = [
            [i for i in range(len(x.shape)) if i not in (*c, *d)]
            for x, c, d in zip((a, b), contracted, batch, strict=True)
        ]
        axes = _Axes(batch, (free[0], free[1]), contracted)
        if not math.prod(a.shape[i] for i in contracted[0]):
            return Literal(0.0, v.shape, v.dtype)
        if not v.shape:
            return Scalar(self._sums(axes, a, b, [Index(())])[0], v.dtype)
        out = self.new(v.shape, v.dtype, v)
        vectors = bool(free[1]) and free[1][-1] == len(b.shape) - 1 and b.along_last
        self._write_product(axes, a, b, out, self.text.lanes_within(v.shape[-1]) if vectors else 1)
        return out

    def _write_product(self, axes: _Axes, a: Array, b: Array, out: Buffer, lanes: int) -> None:
        """Append the loops that fill a product with vectors of so many lanes."""
        text, length = self.text, out.shape[-1]
        # The last vector begins earlier, so that it is whole.
        starts = [*range(0, length - lanes, lanes), length - lanes]

        def block(rows: Sequence[tuple[Number, ...]], places: Sequence[Number]) -> None:
            indices = [Index((*row, place), lanes) for row in rows for place in places]
            for index, x in zip(indices, self._sums(axes, a, b, indices), strict=True):
                text.store(x, out.address, out.number_of(text, index.places), out.dtype, lanes)

        def along(*rows: tuple[Number, ...]) -> None:
            width = BLOCK if len(rows) == 1 else SUMS // len(rows)
            whole = (len(starts) - 1) // width if len(starts) > WRITTEN_OUT * width else 0
            if whole:

                def part(k: Number) -> None:
                    start = text.times(k, width * lanes)
                    self.writer.within(lambda: block(rows, [text.plus(start, i * lanes) for i in range(width)]))

                text.loop(whole, part)
            for k in range(whole * width, len(starts), width):
                self.writer.within(lambda k=k: block(rows, starts[k : k + width]))

        def matrix(places: tuple[Number, ...]) -> None:
            def rows(start: Number, count: int) -> None:
                along(*((*places, text.plus(start, i)) for i in range(count)))

            whole, rest = divmod(out.shape[-2], ROWS)
            text.loop(whole, lambda k: rows(text.times(k, ROWS), ROWS))
            if rest:
                rows(whole * ROWS, rest)

        if lanes > 1 and len(out.shape) > 1 and out.shape[-2] >= ROWS:
            each(self.writer, out.shape[:-2], matrix)
        else:
            each(self.writer, out.shape[:-1], along)

    def _sums(self, axes: _Axes, a: Array, b: Array, indices: Sequence[Index]) -> Sequence[str]:
        """The elements of a product at some indices, by the same loops."""
        text, writer, dtype, lanes = self.text, self.writer, a.dtype, indices[0].lanes
        lengths = [a.shape[i] for i in axes.contracted[0]]

        def along(places: tuple[Number, ...], sums: Sequence[str]) -> Sequence[str]:
            if len(places) == len(lengths):
                return [add(index, places, x) for index, x in zip(indices, sums, strict=True)]

            def step(i: Number, *sums: str) -> Sequence[str]:
                return writer.within(lambda: along((*places, i), sums))

            unrolled = UNROLLED if len(places) == len(lengths) - 1 else 1
            return repeated(text, lengths[len(places)], step, sums, type_of(dtype, lanes), unrolled)

        def add(index: Index, places: tuple[Number, ...], x: str) -> str:
            of_a = axes.places(0, len(a.shape), index.places, places)
            of_b = axes.places(1, len(b.shape), index.places, places)
            factor = text.splat(writer.value(a, of_a), dtype, lanes)
            with text.floats(dtype, lanes):
                return text.fma(factor, writer.value(b, of_b._replace(lanes=lanes)), x)

        return along((), [text.literal(0.0, dtype, lanes)] * len(indices))
