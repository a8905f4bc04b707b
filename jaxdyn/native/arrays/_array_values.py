"""The arrays of a program while its text is written: in memory, or as expressions of other arrays.

An expression is evaluated for an element, or for as many consecutive ones as a vector has lanes, where a loop needs
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jaxdyn.native.arrays._text import ArrayText, Number, is_float, type_of

ALIGNMENT = 64
"""The alignment of arrays, in bytes: that of the longest vectors."""


class Allocation:
    """A part of the memory, which is given back when nothing needs it any more."""

    def __init__(self, memory: Memory, start: int, length: int):
        self.memory, self.start, self.length = memory, start, length
        self.users = 0

    def keep(self) -> None:
        self.users += 1

    def release(self) -> None:
        self.users -= 1
        if not self.users:
            self.memory.give_back(self.start, self.length)


class Memory:
    """Gives out the first part that is free and long enough."""

    def __init__(self):
        self.size = 0
        """The most bytes that were in use at once."""
        self._free: list[tuple[int, int]] = []

    def take(self, size: int) -> Allocation:
        """Return a part of so many bytes."""
        length = -(-size // ALIGNMENT) * ALIGNMENT
        for k, (start, free) in enumerate(self._free):
            if free >= length:
                self._free[k : k + 1] = [(start + length, free - length)] if free > length else []
                return Allocation(self, start, length)
        start = self.size
        if self._free and sum(self._free[-1]) == self.size:
            start = self._free.pop()[0]
        self.size = start + length
        return Allocation(self, start, length)

    def give_back(self, start: int, length: int) -> None:
        """Make a part free, and join it to its neighbors."""
        parts = sorted([*self._free, (start, length)])
        self._free = []
        for start, length in parts:
            if self._free and sum(self._free[-1]) == start:
                self._free[-1] = self._free[-1][0], self._free[-1][1] + length
            else:
                self._free.append((start, length))


class Index(NamedTuple):
    """A place in an array: an element, or the first of several consecutive ones."""

    places: tuple[Number, ...]
    """The place along each axis, or in `flat` order, the one number of the element."""
    lanes: int = 1
    flat: bool = False

    def moved(self, places: Sequence[Number]) -> Index:
        return self._replace(places=tuple(places))


class Writer:
    """The text, and the values that are known at the present place of it."""

    def __init__(self, text: ArrayText):
        self.text = text
        self._known: list[dict[tuple, str]] = [{}]

    def value(self, array: Array, index: Index) -> str:
        """Return the value of an array at an index, evaluated once where it stays known."""
        key = array, index
        for known in self._known:
            if key in known:
                return known[key]
        self._known[-1][key] = x = array.evaluate(self, index)
        return x

    def within[T](self, function: Callable[[], T]) -> T:
        """Call a function that appends text whose values are not known behind it."""
        self._known.append({})
        try:
            return function()
        finally:
            self._known.pop()


class Array:
    """An array, or an expression that stands for one."""

    flat = False
    """Whether it can be evaluated at the number of an element."""
    along_last = False
    """Whether it can be evaluated for several consecutive elements of the last axis."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, of: Sequence[Array] = ()):
        """`of` are the arrays that it is an expression of."""
        self.shape, self.dtype = shape, dtype
        self.memory: frozenset[Allocation] = frozenset().union(*(a.memory for a in of))
        self.depth: int = 1 + max((a.depth for a in of), default=-1)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def evaluate(self, writer: Writer, index: Index) -> str:
        raise NotImplementedError

    def number_of(self, text: ArrayText, places: Sequence[Number]) -> Number:
        """Return the number of an element."""
        out: Number = 0
        for place, length in zip(places, self.shape, strict=True):
            out = text.plus(text.times(out, length), place)
        return out


class Scalar(Array):
    """An array without axes: the name of a value that is known from here on, or the text of a constant."""

    flat = along_last = True

    def __init__(self, name: str, dtype: Any):
        super().__init__((), dtype)
        self.name = name

    def evaluate(self, writer: Writer, index: Index) -> str:
        return writer.text.splat(self.name, self.dtype, index.lanes)


class Literal(Array):
    """An array whose elements are the same number."""

    flat = along_last = True

    def __init__(self, value: Any, shape: tuple[int, ...], dtype: Any):
        super().__init__(shape, dtype)
        self.value = value

    def evaluate(self, writer: Writer, index: Index) -> str:
        return writer.text.literal(self.value, self.dtype, index.lanes)


class Buffer(Array):
    """An array in memory."""

    flat = True

    def __init__(self, address: str, shape: tuple[int, ...], dtype: Any, memory: frozenset[Allocation] = frozenset()):
        super().__init__(shape, dtype)
        self.address, self.memory = address, memory
        self.along_last = bool(shape)

    def evaluate(self, writer: Writer, index: Index) -> str:
        text = writer.text
        number = index.places[0] if index.flat else self.number_of(text, index.places)
        return text.load(self.address, number, self.dtype, index.lanes)


class Mapped(Array):
    """An elementwise function of arrays of the same shape, or without axes."""

    def __init__(self, arrays: Sequence[Array], shape: tuple[int, ...], dtype: Any, function: Callable[..., str]):
        super().__init__(shape, dtype, arrays)
        self.arrays, self.function = arrays, function
        self.flat, self.along_last = all(a.flat for a in arrays), all(a.along_last for a in arrays)

    def evaluate(self, writer: Writer, index: Index) -> str:
        without = Index((), index.lanes)
        xs = [writer.value(a, index if a.shape else without) for a in self.arrays]
        return self.function(index.lanes, *xs)


class Chosen(Array):
    """The elements of one of two arrays, by a condition without axes."""

    def __init__(self, condition: str, then: Array, otherwise: Array):
        super().__init__(then.shape, then.dtype, [then, otherwise])
        self.condition, self.then, self.otherwise = condition, then, otherwise
        self.flat = then.flat and otherwise.flat
        self.along_last = then.along_last and otherwise.along_last

    def evaluate(self, writer: Writer, index: Index) -> str:
        then, otherwise = writer.value(self.then, index), writer.value(self.otherwise, index)
        return writer.text.choose(self.condition, then, otherwise, self.dtype, index.lanes, scalar=True)


class View(Array):
    """The elements of another array at other places."""

    def __init__(
        self,
        source: Array,
        shape: tuple[int, ...],
        place: Callable[[Sequence[Number]], Sequence[Number]],
        *,
        last: str = "",
        number: Callable[[Number], Number] | None = None,
    ):
        """`place` returns where an element is in `source`, and `number` its number there from its own, if it has one.
        `last` says whether consecutive elements of the last axis are `"consecutive"` in the source, or the `"same"`."""
        super().__init__(shape, source.dtype, [source])
        self.source, self.place, self.number = source, place, number
        self.same = last == "same"
        self.along_last = self.same or (last == "consecutive" and source.along_last)
        self.flat = number is not None and source.flat

    def evaluate(self, writer: Writer, index: Index) -> str:
        if index.flat:
            assert self.number is not None
            return writer.value(self.source, index.moved([self.number(index.places[0])]))
        places = tuple(self.place(index.places))
        if index.lanes > 1 and self.same:
            return writer.text.splat(writer.value(self.source, Index(places)), self.dtype, index.lanes)
        return writer.value(self.source, index.moved(places))


class Reshaped(Array):
    """The elements of an array that has them in flat order, in another shape."""

    flat = along_last = True

    def __init__(self, source: Array, shape: tuple[int, ...]):
        super().__init__(shape, source.dtype, [source])
        self.source = source

    def evaluate(self, writer: Writer, index: Index) -> str:
        number = index.places[0] if index.flat else self.number_of(writer.text, index.places)
        return writer.value(self.source, Index((number,), index.lanes, flat=True))


class Counted(Array):
    """The place of each element along an axis."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, axis: int):
        super().__init__(shape, dtype)
        self.axis = axis
        self.along_last = True
        self.flat = len(shape) == 1

    def evaluate(self, writer: Writer, index: Index) -> str:
        text, place = writer.text, index.places[0 if index.flat else self.axis]
        dtype = self.dtype
        x = text.splat(text.convert(str(place), "int64", dtype, 1), dtype, index.lanes)
        if index.lanes == 1 or self.axis != len(self.shape) - 1:
            return x
        numbers = ", ".join(f"{type_of(dtype)} {text.literal(k, dtype)}" for k in range(index.lanes))
        return text.value(f"{'fadd' if is_float(dtype) else 'add'} {type_of(dtype, index.lanes)} {x}, <{numbers}>")


class Gathered(Array):
    """The elements of another array at places that depend on data, or a number where there is none."""

    def __init__(self, arrays: Sequence[Array], shape: tuple[int, ...], function: Callable[[Writer, Index], str]):
        super().__init__(shape, arrays[0].dtype, arrays)
        self.function = function

    def evaluate(self, writer: Writer, index: Index) -> str:
        return self.function(writer, index)
