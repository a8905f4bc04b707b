"""The common base of the rules: the text of a program, its memory, and arrays in it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from jaxdyn.native._jaxprs import ArrayConstant, Atom, Variable
from jaxdyn.native.arrays._array_values import Array, Buffer, Index, Literal, Memory, Writer
from jaxdyn.native.arrays._element_loops import fill
from jaxdyn.native.arrays._text import ArrayText, Number, in_memory


class Workspace:
    """The text of a program so far, and its arrays in memory. The rule of an operation is the method `_<name>` of a
    class that has this one as its base; it gets the operation and its operands, and returns its results."""

    def __init__(self, text: ArrayText, memory: str):
        self.text, self.writer = text, Writer(text)
        self.memory = Memory()
        self._start = memory
        self._targets: dict[Variable, str] = {}
        """The addresses of results that are computed where XLA wants them."""
        self._moved: dict[Atom, Buffer] = {}
        """The operands that the present operation has put in memory, where later ones find them."""
        self._held: list[list[Array]] = []
        """The arrays that the present operations keep, a list for each program within another."""

    def hold[A: Array](self, array: A) -> A:
        """Keep the memory of an array until the present operation is done."""
        keep(array)
        self._held[-1].append(array)
        return array

    def constant(self, atom: ArrayConstant) -> Array:
        """Return an array that is known."""
        values = np.asarray(atom.value, atom.dtype)
        # By their bits: NaN is like NaN, and zero is not like minus zero.
        if values.tobytes() == values.ravel()[:1].tobytes() * values.size:
            return Literal(values.flat[0] if values.size else 0, atom.shape, atom.dtype)
        numbers = ", ".join(f"{in_memory(atom.dtype)} {self.text.stored_literal(x, atom.dtype)}" for x in values.flat)
        name = f"@numbers{len(self.text.declared)}"
        kind = f"[{values.size} x {in_memory(atom.dtype)}]"
        self.text.declared.add(f"{name} = internal constant {kind} [{numbers}]")
        return Buffer(name, atom.shape, atom.dtype)

    def new(self, shape: tuple[int, ...], dtype: Any, v: Variable | None = None) -> Buffer:
        """Return memory for an array: that of a result, if `v` is one."""
        if v is not None and v in self._targets:
            return Buffer(self._targets.pop(v), shape, dtype)
        part = self.memory.take(math.prod(shape) * np.dtype(dtype).itemsize)
        address = self.text.value(f"getelementptr i8, ptr {self._start}, i64 {part.start}")
        return Buffer(address, shape, dtype, frozenset([part]))

    def in_memory(self, array: Array, v: Variable | None = None) -> Buffer:
        """Return an array in memory."""
        if isinstance(array, Buffer):
            return array
        out = self.new(array.shape, array.dtype, v)
        fill(self.writer, array, out.address)
        return out

    def scalar(self, array: Array) -> str:
        """Return the value of an array without axes."""
        return self.writer.value(array, Index(()))

    def index(self, array: Array) -> Number:
        """Return an integer without axes as an index."""
        if isinstance(array, Literal):
            return int(array.value)
        return self.text.integer_of(self.scalar(array), array.dtype)


def keep(array: Array) -> None:
    """Keep the memory of an array until it is released."""
    for part in array.memory:
        part.keep()


def release(array: Array) -> None:
    """Give back the memory of an array, unless others need it."""
    for part in array.memory:
        part.release()


def release_all(arrays: Iterable[Array]) -> None:
    """Release several arrays."""
    for array in arrays:
        release(array)
