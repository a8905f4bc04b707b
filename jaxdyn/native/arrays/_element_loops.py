"""Loops that fill arrays, and that reduce them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from jaxdyn.native.arrays._array_values import Array, Buffer, Index, Writer
from jaxdyn.native.arrays._text import ArrayText, Number, type_of

UNROLLED = 4
"""The most rounds of an inner loop that are written out one after the other."""


def repeated(
    text: ArrayText,
    count: int,
    step: Callable[..., Sequence[str]],
    first: Sequence[str],
    type: str,
    unrolled: int = UNROLLED,
) -> Sequence[str]:
    """Append a loop whose rounds change values of a type, and return the last ones. `step` gets an index and values."""
    if count > unrolled:
        return text.loop(count, step, first, type)
    for i in range(count):
        first = step(i, *first)
    return first


def each(writer: Writer, shape: Sequence[int], inside: Callable[[tuple[Number, ...]], None]) -> None:
    """Append loops over all indices of a shape."""

    def along(places: tuple[Number, ...]) -> None:
        if len(places) == len(shape):
            writer.within(lambda: inside(places))
        elif shape[len(places)] == 1:
            along((*places, 0))
        else:
            writer.text.loop(shape[len(places)], lambda i: along((*places, i)))

    along(())


def each_part(writer: Writer, size: int, lanes: int, inside: Callable[[Number], None]) -> None:
    """Append a loop over parts of so many elements. The last one begins earlier, so that it is whole, too."""
    text = writer.text
    if size == lanes:
        writer.within(lambda: inside(0))
        return
    last = size - lanes

    def part(k: Number) -> None:
        start = text.times(k, lanes)
        writer.within(lambda: inside(text.least(start, last) if size % lanes else start))

    text.loop(-(-size // lanes), part)


def fill(writer: Writer, array: Array, address: str) -> None:
    """Append loops that write all elements of an array."""
    text, shape, lanes = writer.text, array.shape, writer.text.lanes
    target = Buffer(address, shape, array.dtype)

    def write(index: Index) -> None:
        number = index.places[0] if index.flat else target.number_of(text, index.places)
        text.store(writer.value(array, index), address, number, array.dtype, index.lanes)

    if isinstance(array, Buffer):
        copy(text, array.address, address, array.size * np.dtype(array.dtype).itemsize)
    elif array.flat and array.size >= lanes:
        each_part(writer, array.size, lanes, lambda i: write(Index((i,), lanes, flat=True)))
    elif array.flat and array.size > 1:
        each(writer, (array.size,), lambda i: write(Index(i, flat=True)))
    else:
        lanes_along_last(writer, shape, array.along_last, write)


def lanes_along_last(writer: Writer, shape: Sequence[int], vectors: bool, inside: Callable[[Index], None]) -> None:
    """Append loops over all indices of a shape, with `vectors` along the last axis where it is long enough."""
    lanes = writer.text.lanes_within(shape[-1]) if vectors and shape else 1
    if lanes == 1:
        each(writer, shape, lambda places: inside(Index(places)))
        return

    def row(places: tuple[Number, ...]) -> None:
        each_part(writer, shape[-1], lanes, lambda i: inside(Index((*places, i), lanes)))

    each(writer, shape[:-1], row)


def fill_part(writer: Writer, array: Array, target: Buffer, starts: Sequence[Number]) -> None:
    """Append loops that write an array into a part of another one, which begins at a place."""
    text = writer.text
    if not array.size:
        return
    if array.shape[1:] == target.shape[1:]:
        # Whole rows follow each other.
        offset = text.times(starts[0], math.prod(target.shape[1:]))
        fill(writer, array, text.place(target.address, offset, target.dtype))
        return

    def write(index: Index) -> None:
        places = [text.plus(a, i) for a, i in zip(starts, index.places, strict=True)]
        x = writer.value(array, index)
        text.store(x, target.address, target.number_of(text, places), target.dtype, index.lanes)

    lanes_along_last(writer, array.shape, array.along_last, write)


def copy(text: ArrayText, source: str, target: str, size: int) -> None:
    """Append the copying of so many bytes."""
    text.declared.add("declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1 immarg)")
    text.line(f"call void @llvm.memmove.p0.p0.i64(ptr {target}, ptr {source}, i64 {size}, i1 false)")


def reduced(
    writer: Writer, array: Array, axes: Sequence[int], first: str, combine: Callable[[str, str, int], str]
) -> Callable[[Index], str]:
    """Return the function that appends the loops over some axes of an array, for an index along the others, and returns
    what their elements are combined to. It begins with the text of a number, `first`."""
    text, kept = writer.text, [i for i in range(len(array.shape)) if i not in axes]

    def at(index: Index) -> str:
        places: list[Number] = [0] * len(array.shape)
        for i, place in zip(kept, index.places, strict=True):
            places[i] = place

        def along(remaining: Sequence[int], total: str) -> str:
            if not remaining:
                x = writer.value(array, Index(tuple(places), index.lanes))
                return combine(total, x, index.lanes)
            axis, *others = remaining

            def step(i: Number, total: str) -> list[str]:
                places[axis] = i
                return [writer.within(lambda: along(others, total))]

            unrolled = 1 if others else UNROLLED
            return repeated(text, array.shape[axis], step, [total], type_of(array.dtype, index.lanes), unrolled)[0]

        return along(list(axes), text.splat(first, array.dtype, index.lanes))

    return at


def total(
    writer: Writer, array: Array, first: str, combine: Callable[[str, str, int], str], *, repeatable: bool
) -> str:
    """Append the loop that combines all elements of an array in flat order, and return what it leaves. Where it is not
    `repeatable`, no element is taken twice."""
    text, lanes, size = writer.text, writer.text.lanes, array.size

    def step(k: Number, total: str) -> list[str]:
        start = text.times(k, lanes)
        place = text.least(start, size - lanes) if repeatable and size % lanes else start
        x = writer.within(lambda: writer.value(array, Index((place,), lanes, flat=True)))
        return [combine(total, x, lanes)]

    def rest(k: Number, total: str) -> list[str]:
        place = text.plus(k, done)
        x = writer.within(lambda: writer.value(array, Index((place,), flat=True)))
        return [combine(total, x, 1)]

    out, whole = first, -(-size // lanes) if repeatable else size // lanes
    whole = 0 if size < lanes else whole
    done = min(size, whole * lanes)
    if whole:
        start = text.splat(first, array.dtype, lanes)
        (vector,) = repeated(text, whole, step, [start], type_of(array.dtype, lanes), 1)
        for k in range(lanes):
            out = combine(out, text.lane(vector, array.dtype, lanes, k), 1)
    return repeated(text, size - done, rest, [out], type_of(array.dtype), 1)[0]


def reduced_rows(
    writer: Writer,
    array: Array,
    length: int,
    first: str,
    combine: Callable[[str, str, int], str],
    store: Callable[[str, Index], None],
) -> None:
    """Append the loops that combine the rows of an array in flat order, each of so many elements. `store` appends what
    takes what they leave."""
    text, lanes, count = writer.text, writer.text.lanes, array.size // length

    def at(index: Index) -> str:
        def step(i: Number, total: str) -> list[str]:
            place = text.plus(text.times(i, length), index.places[0])
            x = writer.within(lambda: writer.value(array, index.moved([place])))
            return [combine(total, x, index.lanes)]

        start = text.splat(first, array.dtype, index.lanes)
        return repeated(text, count, step, [start], type_of(array.dtype, index.lanes))[0]

    def part(i: Number, lanes: int) -> None:
        index = Index((i,), lanes, flat=True)
        store(at(index), index)

    if length >= lanes:
        each_part(writer, length, lanes, lambda i: part(i, lanes))
        return

    # All elements of a short row at once: they do not wait for each other.
    def row(i: Number, *totals: str) -> list[str]:
        start = text.times(i, length)
        places = [text.plus(start, k) for k in range(length)]
        xs = [writer.within(lambda place=place: writer.value(array, Index((place,), flat=True))) for place in places]
        return [combine(total, x, 1) for total, x in zip(totals, xs, strict=True)]

    for k, x in enumerate(repeated(text, count, row, [first] * length, type_of(array.dtype), 1)):
        store(x, Index((k,), flat=True))
