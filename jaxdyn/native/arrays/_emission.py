"""The text of an array program, operation by operation."""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax

from jaxdyn.native._interpreter import scan_counts
from jaxdyn.native._matrix_loops import Number
from jaxdyn.native.arrays._loops import (
    UNROLLED,
    Typed,
    fill,
    fill_part,
    lanes_along_last,
    reduced,
    reduced_rows,
    repeated,
    total,
)
from jaxdyn.native.arrays._memory import Memory
from jaxdyn.native.arrays._program import ArrayProgram, Atom, Constant, Operation, Variable, array_program
from jaxdyn.native.arrays._rules import ELEMENTWISE, IDENTITIES, JOINS, REDUCTIONS, RESHAPES, VIEWS
from jaxdyn.native.arrays._text import ArrayText, in_memory, is_float, type_of
from jaxdyn.native.arrays._values import (
    Array,
    Buffer,
    Chosen,
    Counted,
    Gathered,
    Index,
    Literal,
    Mapped,
    Reshaped,
    Scalar,
    View,
    Writer,
)

ONCE = ELEMENTWISE | REDUCTIONS | JOINS | {"scatter", "dynamic_update_slice"}
"""The operations that read each element of their operands once."""
COMPUTED = Mapped, Chosen, Counted, Gathered
"""The expressions that are evaluated once: where they are read more often, their values are kept in memory."""
OFTEN = 2
"""The number of reads that an operation counts as that reads elements of its operands again and again."""


class Emission:
    """Writes programs. The rule of an operation is the method `_<name>`, which gets the operation and its operands, and
    returns its results."""

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

    def run[T](self, program: ArrayProgram, inputs: Sequence[Array], then: Callable[[list[Array]], T]) -> T:
        """Append a program, and what `then` appends, which gets the results and may use them; returns what it does."""
        arrays: dict[Atom, Array] = dict(zip(program.inputs, inputs, strict=True))
        reads, users = _reads(program), _users(program)
        self._held.append([])
        for v in program.inputs:
            if users[v]:
                _keep(arrays[v])

        def array(atom: Atom) -> Array:
            return self.constant(atom) if isinstance(atom, Constant) else arrays[atom]

        for operation in program.operations:
            if any(reads[v] for v in operation.outputs):
                results = self._results(operation, [array(a) for a in operation.inputs])
                for v, x in zip(operation.outputs, results, strict=True):
                    arrays[v] = self._kept(v, x, reads[v])
                    if users[v]:
                        _keep(arrays[v])
                for atom, x in self._moved.items():
                    if atom in arrays and arrays[atom] is not x:
                        _keep(x)
                        _release(arrays[atom])
                        arrays[atom] = x
                self._moved = {}
                for held in self._held[-1]:
                    _release(held)
                self._held[-1].clear()
            for a in operation.inputs:
                users[a] -= 1
                if not users[a] and a in arrays:
                    _release(arrays[a])
        result = then([array(a) for a in program.outputs])
        for a in set(program.outputs):
            if a in arrays:
                _release(arrays[a])
        self._held.pop()
        return result

    def write(self, program: ArrayProgram, inputs: Sequence[Array], addresses: Sequence[str]) -> None:
        """Append a program whose results are arrays at the given addresses."""
        for atom, address in zip(program.outputs, addresses, strict=True):
            if isinstance(atom, Variable) and atom.shape and atom not in program.inputs:
                self._targets.setdefault(atom, address)

        def finish(arrays: Sequence[Array]) -> None:
            for array, address in zip(arrays, addresses, strict=True):
                if getattr(array, "address", "") != address:
                    fill(self.writer, array, address)

        self.run(program, inputs, finish)

    def hold[A: Array](self, array: A) -> A:
        """Keep the memory of an array until the present operation is done."""
        _keep(array)
        self._held[-1].append(array)
        return array

    def constant(self, atom: Constant) -> Array:
        values = np.asarray(atom.value, atom.dtype)
        if values.size < 2 or (values == values.flat[0]).all():
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

    def _kept(self, v: Variable, x: Array, reads: int) -> Array:
        if not v.size:
            return Literal(0, v.shape, v.dtype)
        if not v.shape:
            return x if isinstance(x, Literal | Scalar) else Scalar(self.scalar(x), v.dtype)
        if isinstance(x, COMPUTED) and (reads > 1 or v in self._targets):
            return self.in_memory(x, v)
        return x

    def _results(self, operation: Operation, arrays: Sequence[Array]) -> Sequence[Array]:
        name = operation.name
        if not any(v.size for v in operation.outputs):
            return [Literal(0, v.shape, v.dtype) for v in operation.outputs]
        rule: Callable[..., Any]
        if name in IDENTITIES:
            return arrays
        if name in ELEMENTWISE:
            rule = self._elementwise
        elif name in RESHAPES:
            rule = self._reshaped
        elif name in REDUCTIONS:
            rule = self._reduction
        else:
            rule = getattr(self, f"_{name}")
        out = rule(operation, *arrays)
        return [out] if isinstance(out, Array) else out

    # Elementwise operations.

    def _elementwise(self, operation: Operation, *arrays: Array) -> Array:
        (v,) = operation.outputs
        text, name, source = self.text, operation.name, arrays[0].dtype
        arrays = [self.broadcast(a, v.shape, range(len(v.shape))) if a.shape else a for a in arrays]
        vectors = bool(v.shape) and v.shape[-1] >= text.lanes and all(a.along_last for a in arrays)
        if v.size >= text.lanes and not vectors:
            # In flat order, several elements are taken at once, whatever the length of the last axis.
            arrays = [a if a.flat else self.in_memory(a) for a in arrays]
            moved = zip(operation.inputs, arrays, strict=True)
            self._moved = {atom: a for atom, a in moved if isinstance(a, Buffer) and a.shape == atom.shape}
        if name == "select_n":
            return self._choice(*arrays)
        if name == "convert_element_type":
            if source == v.dtype:
                return arrays[0]
            if isinstance(arrays[0], Literal):
                return Literal(np.asarray(arrays[0].value, v.dtype), v.shape, v.dtype)
            function = lambda lanes, x: text.convert(x, source, v.dtype, lanes)  # noqa: E731
        elif name == "integer_pow":
            function = lambda lanes, x: text.power(x, operation.params["y"], source, lanes)  # noqa: E731
        elif name == "round":
            half = {lax.RoundingMethod.TO_NEAREST_EVEN: "roundeven", lax.RoundingMethod.AWAY_FROM_ZERO: "round"}
            name = half[operation.params["rounding_method"]]
            function = lambda lanes, x: text.operate(name, [x], source, lanes)  # noqa: E731
        elif name == "pow" and arrays[1].dtype != source:
            of_power = arrays[1].dtype
            function = lambda lanes, x, n: text.operate(  # noqa: E731
                "pow", [x, text.convert(n, of_power, source, lanes)], source, lanes
            )
        else:
            function = lambda lanes, *xs: text.operate(name, xs, source, lanes)  # noqa: E731
        return Mapped(arrays, v.shape, v.dtype, function)

    def _choice(self, condition: Array, otherwise: Array, then: Array) -> Array:
        if condition.shape or not then.shape:
            dtype, text = then.dtype, self.text

            def function(lanes: int, which: str, otherwise: str, then: str) -> str:
                return text.choose(which, then, otherwise, dtype, lanes)

            return Mapped([condition, otherwise, then], then.shape, dtype, function)
        which = self.scalar(condition)
        if isinstance(then, Buffer) and isinstance(otherwise, Buffer):
            if then.address == otherwise.address:
                return then
            # The arrays stay where they are: only an address is chosen.
            address = self.text.value(f"select i1 {which}, ptr {then.address}, ptr {otherwise.address}")
            return Buffer(address, then.shape, then.dtype, then.memory | otherwise.memory)
        return Chosen(which, then, otherwise)

    # Arrays with the elements of others.

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
        places = [
            self.text.between(self.index(start), 0, n - m) if n > m else 0
            for start, n, m in zip(starts, array.shape, shape, strict=True)
        ]
        return self._part(array, places, shape, (1,) * len(shape))

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
        places = [
            self.text.between(self.index(start), 0, n - m) if n > m else 0
            for start, n, m in zip(starts, array.shape, update.shape, strict=True)
        ]
        out = self.new(v.shape, v.dtype, v)
        fill(self.writer, array, out.address)
        fill_part(self.writer, update, out, places)
        return out

    def _scatter(self, operation: Operation, array: Array, indices: Array, update: Array) -> Array:
        (v,), text = operation.outputs, self.text
        row = text.integer_of(self.writer.value(indices, Index((0,))), indices.dtype)
        out = self.new(v.shape, v.dtype, v)
        fill(self.writer, array, out.address)
        if str(operation.params["mode"]) == str(lax.GatherScatterMode.CLIP):
            fill_part(self.writer, _one_row(update), out, [text.between(row, 0, v.shape[0] - 1), *(0 for _ in update.shape)])
            return out
        inside = text.value(f"icmp ult i64 {row}, {v.shape[0]}")

        def write() -> list[str]:
            self.writer.within(lambda: fill_part(self.writer, _one_row(update), out, [row, *(0 for _ in update.shape)]))
            return []

        text.branch(inside, bool, [list, write], [])
        return out

    def _gather(self, operation: Operation, array: Array, indices: Array) -> Array:
        (v,), params, text = operation.outputs, operation.params, self.text
        d, sizes = params["dimension_numbers"], params["slice_sizes"]
        mode = str(params["mode"])
        batch = [i for i in range(len(v.shape)) if i not in d.offset_dims]
        outside = (*d.collapsed_slice_dims, *d.operand_batching_dims)
        offset_axes = [i for i in range(len(array.shape)) if i not in outside]
        fill_value = params["fill_value"]
        if fill_value is None:
            fill_value = math.nan if is_float(v.dtype) else 0 if v.dtype == bool else np.iinfo(v.dtype).min

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
                if mode == str(lax.GatherScatterMode.FILL_OR_DROP):
                    here = text.value(f"icmp ule i64 {start}, {last}")
                    good = text.value(f"and i1 {good}, {here}") if good else here
                if mode != str(lax.GatherScatterMode.PROMISE_IN_BOUNDS):
                    start = text.between(start, 0, last)
                places[axis] = text.plus(places[axis], start)
            x = writer.value(array, Index(tuple(places)))
            return text.choose(good, x, text.literal(fill_value, v.dtype), v.dtype, 1) if good else x

        return Gathered([array, indices], v.shape, function)

    # Sums and products.

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

    def _dot_general(self, operation: Operation, a: Array, b: Array) -> Array:
        (v,), text, writer = operation.outputs, self.text, self.writer
        (ca, cb), (ba, bb) = operation.params["dimension_numbers"]
        fa = [i for i in range(len(a.shape)) if i not in (*ca, *ba)]
        fb = [i for i in range(len(b.shape)) if i not in (*cb, *bb)]
        lengths = [a.shape[i] for i in ca]
        if not math.prod(lengths):
            return Literal(0.0, v.shape, v.dtype)

        def at(index: Index) -> str:
            of_a: list[Number] = [0] * len(a.shape)
            of_b: list[Number] = [0] * len(b.shape)
            batch, rest = index.places[: len(ba)], index.places[len(ba) :]
            for axes, of, places in ((ba, of_a, batch), (bb, of_b, batch), (fa, of_a, rest), (fb, of_b, rest[len(fa) :])):
                for axis, place in zip(axes, places, strict=False):
                    of[axis] = place

            def along(k: int, total: str) -> str:
                if k == len(lengths):
                    x = text.splat(writer.value(a, Index(tuple(of_a))), v.dtype, index.lanes)
                    y = writer.value(b, Index(tuple(of_b), index.lanes))
                    with text.floats(v.dtype, index.lanes):
                        return text.fma(x, y, total)

                def step(i: Number, total: str) -> str:
                    of_a[ca[k]] = of_b[cb[k]] = i
                    return writer.within(lambda: along(k + 1, total))

                kind = Typed(type_of(v.dtype, index.lanes))
                return repeated(text, lengths[k], step, total, kind, UNROLLED if k == len(lengths) - 1 else 1)

            return along(0, text.literal(0.0, v.dtype, index.lanes))

        if not v.shape:
            return Scalar(at(Index(())), v.dtype)
        return self._filled(v, at, bool(fb) and fb[-1] == len(b.shape) - 1 and b.along_last)

    def _argmax(self, operation: Operation, array: Array) -> Array:
        (v,), text, dtype = operation.outputs, self.text, array.dtype

        def at(i: Number) -> str:
            return self.writer.within(lambda: self.writer.value(array, Index((i,))))

        def better(state: Sequence[str]) -> list[str]:
            i, best, largest = state
            x = at(i)
            larger = text.operate("gt", [x, largest], dtype, 1)
            chosen = text.value(f"select i1 {larger}, i64 {i}, i64 {best}")
            return [text.value(f"add i64 {i}, 1"), chosen, text.choose(larger, x, largest, dtype, 1)]

        state = [("i64", "1"), ("i64", "0"), (type_of(dtype), at(0))]
        out = text.repeat(state, lambda s: text.value(f"icmp ult i64 {s[0]}, {array.shape[0]}"), better)
        return Scalar(text.convert(out[1], "int64", v.dtype, 1), v.dtype)

    # Loops and branches.

    def _carried(self, arrays: Sequence[Array]) -> tuple[list[Buffer | None], list]:
        """Memory for the arrays that a loop carries, which has the first ones, and the numbers that it carries."""
        memory = [self.hold(self.new(a.shape, a.dtype)) if a.shape and a.size else None for a in arrays]
        numbers = []
        for array, buffer in zip(arrays, memory, strict=True):
            if buffer is not None:
                fill(self.writer, array, buffer.address)
            elif array.size:
                numbers.append((type_of(array.dtype), self.scalar(array)))
        return memory, numbers

    def _state(self, variables: Sequence[Variable], memory: Sequence[Buffer | None], names: Sequence[str]) -> list[Array]:
        """The arrays that a loop carries."""
        given = iter(names)
        return [
            buffer or (Scalar(next(given), v.dtype) if v.size else Literal(0, v.shape, v.dtype))
            for v, buffer in zip(variables, memory, strict=True)
        ]

    def _carry(self, memory: Sequence[Buffer | None], after: Sequence[Array]) -> list[str]:
        """Append what makes the results of a round those that the next one begins with; returns the numbers."""
        own = frozenset().union(*(m.memory for m in memory if m is not None))
        pairs, numbers = [], []
        for buffer, x in zip(memory, after, strict=True):
            if buffer is None:
                numbers += [self.scalar(x)] if x.size else []
            elif getattr(x, "address", "") != buffer.address:
                # What depends on what the loop carries is computed before any of that changes.
                safe = isinstance(x, Literal | Buffer) and not x.memory & own
                pairs.append((x if safe else self._copied(x), buffer))
        for x, buffer in pairs:
            fill(self.writer, x, buffer.address)
        return numbers

    def _copied(self, array: Array) -> Buffer:
        out = self.hold(self.new(array.shape, array.dtype))
        fill(self.writer, array, out.address)
        return out

    def _while(self, operation: Operation, *arrays: Array) -> list[Array]:
        params, text = operation.params, self.text
        n, m = params["cond_nconsts"], params["body_nconsts"]
        condition, body = array_program(params["cond_jaxpr"]), array_program(params["body_jaxpr"])
        memory, numbers = self._carried(arrays[n + m :])

        def again(names: Sequence[str]) -> str:
            state = self._state(operation.outputs, memory, names)
            return self.writer.within(lambda: self.run(condition, [*arrays[:n], *state], lambda out: self.scalar(out[0])))

        def step(names: Sequence[str]) -> list[str]:
            state = self._state(operation.outputs, memory, names)
            inputs = [*arrays[n : n + m], *state]
            return self.writer.within(lambda: self.run(body, inputs, lambda out: self._carry(memory, out)))

        return self._state(operation.outputs, memory, text.repeat(numbers, again, step))

    def _scan(self, operation: Operation, *arrays: Array) -> list[Array]:
        params, text = operation.params, self.text
        body, length = array_program(params["jaxpr"]), params["length"]
        shapes = ([x.shape for x in xs] for xs in (arrays, body.inputs, operation.outputs, body.outputs))
        n, m = scan_counts(*shapes)
        memory, numbers = self._carried(arrays[n : n + m])
        stacked = [self.hold(self.new(v.shape, v.dtype, v)) if v.size else None for v in operation.outputs[m:]]

        def step(names: Sequence[str]) -> list[str]:
            i, *carried = names
            row = text.minus(length - 1, i) if params["reverse"] else i
            state = self._state(operation.outputs[:m], memory, carried)
            rows = [self._row_of(x, row, v) for x, v in zip(arrays[n + m :], body.inputs[n + m :], strict=True)]

            def finish(out: Sequence[Array]) -> list[str]:
                for stack, x in zip(stacked, out[m:], strict=True):
                    if stack is not None:
                        fill(self.writer, x, text.place(stack.address, text.times(row, x.size), x.dtype))
                return [text.value(f"add i64 {i}, 1"), *self._carry(memory, out[:m])]

            return self.run(body, [*arrays[:n], *state, *rows], finish)

        _, *names = text.repeat(
            [("i64", "0"), *numbers],
            lambda names: text.value(f"icmp ult i64 {names[0]}, {length}"),
            lambda names: self.writer.within(lambda: step(names)),
        )
        stacks = [x or Literal(0, v.shape, v.dtype) for x, v in zip(stacked, operation.outputs[m:], strict=True)]
        return [*self._state(operation.outputs[:m], memory, names), *stacks]

    def _row_of(self, array: Array, row: Number, v: Variable) -> Array:
        if not v.size:
            return Literal(0, v.shape, v.dtype)
        x = self._row(array, 0, row, v)
        return x if v.shape else Scalar(self.scalar(x), v.dtype)

    def _cond(self, operation: Operation, index: Array, *arrays: Array) -> list[Array]:
        variables = operation.outputs
        memory = [self.hold(self.new(v.shape, v.dtype, v)) if v.shape and v.size else None for v in variables]
        programs = [array_program(branch) for branch in operation.params["branches"]]

        def finish(out: Sequence[Array]) -> list[str]:
            for x, buffer in zip(out, memory, strict=True):
                if buffer is not None:
                    fill(self.writer, x, buffer.address)
            return [self.scalar(x) for x in out if not x.shape]

        def branch(program: ArrayProgram) -> list[str]:
            return self.writer.within(lambda: self.run(program, arrays, finish))

        inside = [functools.partial(branch, p) for p in programs]
        types = [type_of(v.dtype) for v in variables if not v.shape]
        return self._state(variables, memory, self.text.branch(self.scalar(index), index.dtype, inside, types))


def _one_row(array: Array) -> Array:
    """An array with one more axis before the others."""
    return View(array, (1, *array.shape), lambda places: places[1:], last="consecutive" if array.shape else "same")


def _neutral(name: str, dtype: Any) -> Any:
    """What a reduction begins with."""
    if name in ("and", "or"):
        return name == "and"
    if name in ("sum", "prod"):
        return 0 if name == "sum" else 1
    if dtype == bool:
        return name == "min"
    if is_float(dtype):
        return -math.inf if name == "max" else math.inf
    limits = np.iinfo(dtype)
    return limits.min if name == "max" else limits.max


def _users(program: ArrayProgram) -> collections.Counter[Atom]:
    """How often each array is an operand or a result."""
    users: collections.Counter[Atom] = collections.Counter(program.outputs)
    for operation in program.operations:
        users.update(operation.inputs)
    return users


def _reads(program: ArrayProgram) -> collections.Counter[Atom]:
    """How often each array is read, from the results back; an array that no result needs is never read."""
    reads: collections.Counter[Atom] = collections.Counter(program.outputs)
    for operation in reversed(program.operations):
        own = sum(reads[v] for v in operation.outputs)
        if not own:
            continue
        name = operation.name
        for k, a in enumerate(operation.inputs):
            if name in VIEWS:
                larger = k == 0 and operation.outputs[0].size > a.size
                reads[a] += OFTEN if larger else own
            else:
                larger = name in ELEMENTWISE and operation.outputs[0].size > a.size
                reads[a] += 1 if name in ONCE and not larger else OFTEN
    return reads


def _keep(array: Array) -> None:
    for part in array.memory:
        part.keep()


def _release(array: Array) -> None:
    for part in array.memory:
        part.release()

