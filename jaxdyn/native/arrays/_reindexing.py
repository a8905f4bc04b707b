"""Rules of operations whose results have the elements of their operands at other places."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jaxdyn.native._jaxprs import Operation, Variable
from jaxdyn.native.arrays._array_values import Array, Buffer, Counted, Literal, Reshaped, View
from jaxdyn.native.arrays._text import Number
from jaxdyn.native.arrays._workspace import Workspace


class Views(Workspace):
    """The rules of operations that compute nothing."""

    def _reshaped(self, operation: Operation, array: Array) -> Array:
        return self.in_shape(array, operation.outputs[0].shape)

    def in_shape(self, array: Array, shape: tuple[int, ...]) -> Array:
        """Return the elements of an array in another shape."""
        if isinstance(array, Buffer):
            return Buffer(array.address, shape, array.dtype, array.memory)
        if isinstance(array, Literal):
            return Literal(array.value, shape, array.dtype)
        if not array.shape:
            return View(array, shape, lambda places: (), last="same", number=lambda n: n)
        if array.flat:
            return Reshaped(array, shape)
        kept = [i for i, n in enumerate(array.shape) if n != 1]
        places = [i for i, n in enumerate(shape) if n != 1]
        if [array.shape[i] for i in kept] != [shape[i] for i in places]:
            buffer = self.in_memory(array)
            return Buffer(buffer.address, shape, array.dtype, buffer.memory)

        def place(index: Sequence[Number]) -> list[Number]:
            out: list[Number] = [0] * len(array.shape)
            for i, k in zip(kept, places, strict=True):
                out[i] = index[k]
            return out

        same_last = bool(kept) and kept[-1] == len(array.shape) - 1 and places[-1] == len(shape) - 1
        return View(array, shape, place, last="consecutive" if same_last else "")

    def _broadcast_in_dim(self, operation: Operation, array: Array, *_: Array) -> Array:
        return self.broadcast(array, operation.outputs[0].shape, operation.params["broadcast_dimensions"])

    def broadcast(self, array: Array, shape: tuple[int, ...], axes: Sequence[int]) -> Array:
        """Return an array with more axes, or longer ones, for whose places `axes` names those of the array."""
        if array.shape == shape:
            return array
        if isinstance(array, Literal):
            return Literal(array.value, shape, array.dtype)
        if not array.shape:
            return View(array, shape, lambda places: (), last="same", number=lambda n: n)
        if array.size == math.prod(shape) and array.flat:
            return self.in_shape(array, shape)

        def place(index: Sequence[Number]) -> list[Number]:
            return [0 if n == 1 else index[i] for i, n in zip(axes, array.shape, strict=True)]

        end = len(shape) - 1
        constant = end not in axes or array.shape[axes.index(end)] == 1
        last = "same" if constant else "consecutive" if axes[-1] == end else ""
        return View(array, shape, place, last=last)

    def _transpose(self, operation: Operation, array: Array) -> Array:
        permutation, shape = operation.params["permutation"], operation.outputs[0].shape
        if isinstance(array, Literal):
            return Literal(array.value, shape, array.dtype)

        def place(index: Sequence[Number]) -> list[Number]:
            out: list[Number] = [0] * len(index)
            for k, axis in enumerate(permutation):
                out[axis] = index[k]
            return out

        return View(array, shape, place, last="consecutive" if permutation[-1] == len(shape) - 1 else "")

    def _rev(self, operation: Operation, array: Array) -> Array:
        axes = operation.params["dimensions"]
        n = array.shape

        def place(index: Sequence[Number]) -> list[Number]:
            return [self.text.minus(n[i] - 1, k) if i in axes else k for i, k in enumerate(index)]

        return View(array, n, place, last="" if len(n) - 1 in axes else "consecutive")

    def _part(self, array: Array, starts: Sequence[Number], shape: tuple[int, ...], strides: Sequence[int]) -> Array:
        """The part of an array that begins at a place."""
        text = self.text
        if isinstance(array, Literal):
            return Literal(array.value, shape, array.dtype)

        def place(index: Sequence[Number]) -> list[Number]:
            return [text.plus(a, text.times(s, i)) for a, s, i in zip(starts, strides, index, strict=True)]

        rows = shape[1:] == array.shape[1:] and (len(strides) == 0 or strides[0] == 1)
        if rows and isinstance(array, Buffer):
            # The rows of an array in memory are in memory.
            offset = text.times(starts[0], math.prod(shape[1:]))
            return Buffer(text.place(array.address, offset, array.dtype), shape, array.dtype, array.memory)
        number = None
        if rows and array.flat:
            number = lambda n: text.plus(text.times(starts[0], math.prod(shape[1:])), n)  # noqa: E731
        return View(array, shape, place, last="consecutive" if strides[-1] == 1 else "", number=number)

    def _slice(self, operation: Operation, array: Array) -> Array:
        shape, params = operation.outputs[0].shape, operation.params
        return self._part(array, params["start_indices"], shape, params["strides"] or (1,) * len(shape))

    def _dynamic_slice(self, operation: Operation, array: Array, *starts: Array) -> Array:
        shape = operation.outputs[0].shape
        return self._part(array, self.places_of(starts, array.shape, shape), shape, (1,) * len(shape))

    def places_of(self, starts: Sequence[Array], shape: Sequence[int], part: Sequence[int]) -> list[Number]:
        """Return where a part of an array begins, at given places or at the nearest ones at which it is inside."""
        lengths = zip(starts, shape, part, strict=True)
        return [self.text.between(self.index(start), 0, n - m) if n > m else 0 for start, n, m in lengths]

    def _unstack(self, operation: Operation, array: Array) -> list[Array]:
        axis = operation.params["axis"]
        return [self._row(array, axis, k, v) for k, v in enumerate(operation.outputs)]

    def _row(self, array: Array, axis: int, k: Number, v: Variable) -> Array:
        """The part of an array at a place along an axis, without that axis."""
        starts: list[Number] = [0] * len(array.shape)
        starts[axis] = k
        part = self._part(array, starts, (*v.shape[:axis], 1, *v.shape[axis:]), (1,) * len(array.shape))
        return self.in_shape(part, v.shape)

    def _split(self, operation: Operation, array: Array) -> list[Array]:
        axis, start, out = operation.params["axis"], 0, []
        for v in operation.outputs:
            starts = [0] * len(array.shape)
            starts[axis] = start
            out.append(self._part(array, starts, v.shape, (1,) * len(v.shape)))
            start += v.shape[axis]
        return out

    def _iota(self, operation: Operation, *_: Array) -> Array:
        (v,) = operation.outputs
        return Counted(v.shape, v.dtype, operation.params["dimension"])
