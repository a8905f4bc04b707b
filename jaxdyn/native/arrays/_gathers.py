"""Rules of operations that put arrays together, and that read or change places that depend on data."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jax import lax

from jaxdyn.native._jaxprs import Operation, Variable
from jaxdyn.native.arrays._array_values import Array, Gathered, Index, View, Writer
from jaxdyn.native.arrays._element_loops import each, fill, fill_part
from jaxdyn.native.arrays._elementwise import Elementwise
from jaxdyn.native.arrays._text import Number, is_float, is_truth


class Gathers(Elementwise):
    """The rules of joins, and of gathering and scattering."""

    def _concatenate(self, operation: Operation, *arrays: Array) -> Array:
        return self._joined(operation.outputs[0], arrays, operation.params["dimension"])

    def _stack(self, operation: Operation, *arrays: Array) -> Array:
        (v,), axis = operation.outputs, operation.params["axis"]
        shape = (*v.shape[:axis], 1, *v.shape[axis + 1 :])
        return self._joined(v, [self.in_shape(a, shape) for a in arrays], axis)

    def _joined(self, v: Variable, arrays: Sequence[Array], axis: int) -> Array:
        out, start = self.new(v.shape, v.dtype, v), 0
        for array in arrays:
            starts = [0] * len(v.shape)
            starts[axis] = start
            fill_part(self.writer, array, out, starts)
            start += array.shape[axis]
        return out

    def _pad(self, operation: Operation, array: Array, value: Array) -> Array:
        (v,), config = operation.outputs, operation.params["padding_config"]
        if v.shape == array.shape:
            return array
        out = self.new(v.shape, v.dtype, v)
        fill(self.writer, View(value, v.shape, lambda places: (), last="same", number=lambda n: n), out.address)
        fill_part(self.writer, array, out, [low for low, _, _ in config])
        return out

    def _dynamic_update_slice(self, operation: Operation, array: Array, update: Array, *starts: Array) -> Array:
        (v,) = operation.outputs
        places = self.places_of(starts, array.shape, update.shape)
        out = self.new(v.shape, v.dtype, v)
        fill(self.writer, array, out.address)
        fill_part(self.writer, update, out, places)
        return out

    def _scatter(self, operation: Operation, array: Array, indices: Array, update: Array) -> Array:
        (v,), text, mode, modes = operation.outputs, self.text, operation.params["mode"], lax.GatherScatterMode
        out, axes = self.new(v.shape, v.dtype, v), indices.shape[-1]
        fill(self.writer, array, out.address)
        window = v.shape[axes:]

        def put(places: tuple[Number, ...]) -> None:
            starts, inside = [], ""
            for k in range(axes):
                start = text.integer_of(self.writer.value(indices, Index((*places, k))), indices.dtype)
                if mode == modes.CLIP:
                    start = text.between(start, 0, v.shape[k] - 1)
                else:
                    here = text.value(f"icmp ult i64 {start}, {v.shape[k]}")
                    inside = text.value(f"and i1 {inside}, {here}") if inside else here
                starts.append(start)
            zeros = [0] * len(window)
            part = update
            if places:
                part = self._part(update, [*places, *zeros], (1,) * len(places) + window, (1,) * len(update.shape))
            row = self.in_shape(part, (1,) * axes + window)

            def write() -> list[str]:
                self.writer.within(lambda: fill_part(self.writer, row, out, [*starts, *zeros]))
                return []

            if inside:
                text.branch(inside, bool, [list, write], [])
            else:
                write()

        each(self.writer, indices.shape[:-1], put)
        return out

    def _gather(self, operation: Operation, array: Array, indices: Array) -> Array:
        (v,), params, text = operation.outputs, operation.params, self.text
        d, sizes = params["dimension_numbers"], params["slice_sizes"]
        mode, modes = params["mode"], lax.GatherScatterMode
        batch = [i for i in range(len(v.shape)) if i not in d.offset_dims]
        outside = (*d.collapsed_slice_dims, *d.operand_batching_dims)
        offset_axes = [i for i in range(len(array.shape)) if i not in outside]
        fill_value = params["fill_value"]
        if fill_value is None:
            fill_value = math.nan if is_float(v.dtype) else True if is_truth(v.dtype) else np.iinfo(v.dtype).min

        def function(writer: Writer, index: Index) -> str:
            of_batch = [index.places[i] for i in batch]
            places: list[Number] = [0] * len(array.shape)
            for axis, i in zip(offset_axes, d.offset_dims, strict=True):
                places[axis] = index.places[i]
            for axis, i in zip(d.operand_batching_dims, d.start_indices_batching_dims, strict=True):
                places[axis] = of_batch[i]
            good = ""
            for k, axis in enumerate(d.start_index_map):
                start: Number = text.integer_of(writer.value(indices, Index((*of_batch, k))), indices.dtype)
                last = array.shape[axis] - sizes[axis]
                if mode == modes.FILL_OR_DROP:
                    here = text.value(f"icmp ule i64 {start}, {last}")
                    good = text.value(f"and i1 {good}, {here}") if good else here
                # Also where the function promises that all are inside: XLA's programs read nothing else, either.
                start = text.between(start, 0, last)
                places[axis] = text.plus(places[axis], start)
            x = writer.value(array, Index(tuple(places)))
            return text.choose(good, x, text.literal(fill_value, v.dtype), v.dtype, 1) if good else x

        return Gathered([array, indices], v.shape, function)
