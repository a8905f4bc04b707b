"""Functions that are called in loops over tables, and what they find: the native program of a `Collection`.

Straight-line programs grow with the number of alike things, such as the pairs of geoms of a robot. Here each kind of
them is one function, and a loop copies the rows of operands that a line of its table names to where the function reads
them, calls it, and appends what it finds to a list of each element of the batch. A function whose work is in a loop
that no element of a vector enters costs little more than the test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.native._arrays import UnsupportedError
from jaxdyn.native._emit import Backend, Body
from jaxdyn.native._graph import Graph
from jaxdyn.native._kernel_functions import ARGUMENTS, MemoryPlaces, part_functions, rows_of
from jaxdyn.native._module import (
    Handlers,
    Module,
    Transfers,
    angle_rows,
    calls_of_steps,
    module_text,
    transposes,
)
from jaxdyn.native._order import divided, rows_of_crossing
from jaxdyn.native._specialize import Program, specialize
from jaxdyn.native._threads import piece_length


class Searched(NamedTuple):
    """Things that are alike: a function, and a table with a line for each of them."""

    function: Callable
    """Called with a row of each operand of `sources`. Returns `[candidates, width]`, of which the first number of each
    is compared with the `limit` of the collection."""
    sources: tuple[tuple[int, int], ...]
    """For each operand of the function the operand of the collection, and the length of its rows."""
    rows: tuple[tuple[int, ...], ...]
    """For each thing the number of the row of each operand."""
    lists: tuple[int, ...]
    """For each thing the list that its candidates belong to."""
    numbers: tuple[int, ...]
    """For each thing the number of its first candidate in this list."""
    candidates: int


class Collection(NamedTuple):
    """Functions and their tables. The result for each list is, in one array, the number of its candidates that were
    found, and for each of the first ones its numbers and its own number; where there are fewer, candidates at
    `absent`, with zeros for the other numbers."""

    searched: tuple[Searched, ...]
    room: tuple[int, ...]
    """For each list the most candidates that it holds."""
    width: int
    limit: float
    """Candidates are found where their first number is smaller."""
    absent: float

    def function(self, *operands) -> list:
        """Return the results for operands `[k, *batch]`, all things at once."""
        found: list[list] = [[] for _ in self.room]
        for each in self.searched:
            rows = []
            for (operand, length), which in zip(each.sources, np.array(each.rows).T, strict=True):
                x = operands[operand].reshape(-1, length, *operands[operand].shape[1:])
                rows.append(jnp.moveaxis(x[which], 0, 1))
            values = jnp.moveaxis(each.function(*rows), 2, 0)
            for k, own in enumerate(found):
                things = np.flatnonzero(np.array(each.lists) == k)
                if len(things):
                    own.append(values[things].reshape(-1, *values.shape[2:]))
        batch = jnp.broadcast_shapes(*(x.shape[1:] for x in operands))
        # A list that no function belongs to.
        nothing = jnp.full((1, self.width, *batch), self.absent, operands[0].dtype)
        return [
            self._listed(jnp.concatenate(own or [nothing]), room) for own, room in zip(found, self.room, strict=True)
        ]

    def _listed(self, values, room: int):
        """Return the list of those of the candidates `[n, width, *batch]` that are found."""
        there = values[:, 0] < self.limit
        rank = jnp.cumsum(there, axis=0)
        slots = jnp.arange(room).reshape(-1, *[1] * (values.ndim - 2))
        place = jax.vmap(lambda k: (rank <= k).sum(axis=0))(slots)
        taken = jnp.take_along_axis(values, jnp.minimum(place, len(values) - 1)[:, None], axis=0)
        numbered = jnp.concatenate([taken, place[:, None].astype(values.dtype)], axis=1)
        empty = jnp.zeros_like(numbered).at[:, 0].set(self.absent)
        listed = jnp.where((slots < rank[-1])[:, None], numbered, empty)
        return jnp.concatenate([rank[-1:].astype(values.dtype), listed.reshape(-1, *listed.shape[2:])])

    def result_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of the results."""
        return tuple((1 + room * (self.width + 1),) for room in self.room)


class _Kernel(NamedTuple):
    """The program of one function of a collection, as text."""

    program: Program
    waiting: int
    """The rows of memory that it needs."""
    offsets: list[int]
    """The first row of each of its operands."""


def collection_module(
    collection: Collection, shapes: Sequence[tuple[int, ...]], backend: Backend, interface: Handlers
) -> Module:
    """Return the module of a collection with operands of these shapes. **Raises** `UnsupportedError` where one of the
    functions has no program."""
    declared: set[str] = set()
    texts, kernels = [], []
    for number, searched in enumerate(collection.searched):
        more, kernel = _kernel(number, searched, backend, declared)
        texts += more
        kernels.append(kernel)
    graph = Graph()
    nodes = [graph.input(k, 0, False) for k in range(len(shapes))]
    outputs: tuple[list[Any], ...] = tuple([0.0] * shape[0] for shape in collection.result_shapes())
    record = Program(nodes, tuple(shapes), (False,) * len(shapes), outputs)
    texts += transposes(record, backend, declared)
    texts += [_tables(number, searched) for number, searched in enumerate(collection.searched)]
    rows = rows_of(record)
    texts += [_numbers("lists", rows.outputs), _numbers("rooms", collection.room)]
    texts += [_append(collection, backend), _blocks(collection, record, kernels, backend)]
    operations = sum(len(k.program.nodes) * len(s.rows) for k, s in zip(kernels, collection.searched, strict=True))
    # Most calls end at their tests, which are a part of their operations.
    piece = piece_length(operations // 8, backend.lanes)
    texts.append(interface.handlers(record, 0, piece, ""))
    return Module(module_text(declared, texts, backend), 0, piece, 0)


def _kernel(number: int, searched: Searched, backend: Backend, declared: set[str]) -> tuple[list[str], _Kernel]:
    """Return the functions of one program, and what a call of it, `@search<number>`, needs."""
    inputs = [jax.ShapeDtypeStruct((length,), f"float{backend.bits}") for _, length in searched.sources]
    program = specialize(searched.function, inputs, (False,) * len(inputs), backend.bits)
    rows = rows_of(program)
    if angle_rows(program, rows):
        raise UnsupportedError("sines of operands in a collection")
    steps = divided([x for output in program.outputs for x in output], backend.longest_part(len(program.nodes)))
    crossing, waiting = rows_of_crossing(steps)
    places = MemoryPlaces(rows, {}, crossing, waiting)
    texts, calls = part_functions(program, steps, places, backend, declared, prefix=f"{number}.")
    body = backend.body(declared)
    calls_of_steps(body, steps, calls, crossing, rows)
    arguments, begin = backend.received(ARGUMENTS)
    header = f"define internal void @search{number}({arguments}) noinline #0 {{"
    texts.append("\n".join([header, "entry:", *begin, *body.lines, "  ret void", "}"]))
    return texts, _Kernel(program, waiting + 1, rows.inputs)


def _tables(number: int, searched: Searched) -> str:
    """Return the table of things: the rows of the operands, the list, and the number of the first candidate."""
    lines = []
    for rows, own, first in zip(searched.rows, searched.lists, searched.numbers, strict=True):
        places = [row * length for row, (_, length) in zip(rows, searched.sources, strict=True)]
        lines += [*places, own, first]
    return _numbers(f"things{number}", lines)


def _numbers(name: str, numbers: Sequence[int]) -> str:
    """Return a constant array."""
    entries = ", ".join(f"i64 {x}" for x in numbers)
    return f"@{name} = internal constant [{len(numbers)} x i64] [{entries}]"


def _append(collection: Collection, backend: Backend) -> str:
    """Return the function that appends the candidates of one call that are found to the lists of all lanes."""
    width, lanes, scalar = collection.width, backend.lanes, backend.scalar
    one = backend.one()
    limit, unit = backend.constant(collection.limit), one.constant(1.0)
    # LLVM refuses a cast from a type to itself.
    bit = f"trunc i{lanes} %shifted to i1" if lanes > 1 else "and i1 %shifted, true"
    return f"""define internal void @append(ptr %out, i64 %candidates, ptr %list, i64 %room, i64 %first) noinline #0 {{
entry:
  br label %candidate
candidate:
  %c = phi i64 [ 0, %entry ], [ %next_c, %after ]
  %at = mul i64 %c, {width * backend.bytes}
  %row = getelementptr i8, ptr %out, i64 %at
  %x = load {backend.float}, ptr %row, align {backend.bytes}
  %found = fcmp olt {backend.float} %x, {limit}
  %mask = bitcast {backend.bool} %found to i{lanes}
  %any = icmp ne i{lanes} %mask, 0
  br i1 %any, label %lane, label %after
lane:
  %l = phi i64 [ 0, %candidate ], [ %next_l, %lane_after ]
  %short = trunc i64 %l to i{lanes}
  %shifted = lshr i{lanes} %mask, %short
  %bit = {bit}
  br i1 %bit, label %take, label %lane_after
take:
  %place_n = getelementptr {scalar}, ptr %list, i64 %l
  %count = load {scalar}, ptr %place_n
  %n = fptosi {scalar} %count to i64
  %more = fadd {scalar} %count, {unit}
  store {scalar} %more, ptr %place_n
  %fits = icmp slt i64 %n, %room
  br i1 %fits, label %copy, label %lane_after
copy:
  %start = mul i64 %n, {(width + 1) * lanes}
  %start_l = add i64 %start, %l
  %begin = add i64 %start_l, {lanes}
  br label %number
number:
  %j = phi i64 [ 0, %copy ], [ %next_j, %number ]
  %offset = mul i64 %j, {lanes}
  %source_n = add i64 %offset, %l
  %source = getelementptr {scalar}, ptr %row, i64 %source_n
  %value = load {scalar}, ptr %source
  %target_n = add i64 %begin, %offset
  %target = getelementptr {scalar}, ptr %list, i64 %target_n
  store {scalar} %value, ptr %target
  %next_j = add i64 %j, 1
  %again_j = icmp ult i64 %next_j, {width}
  br i1 %again_j, label %number, label %own
own:
  %own_n = add i64 %begin, {width * lanes}
  %own_at = getelementptr {scalar}, ptr %list, i64 %own_n
  %own_i = add i64 %first, %c
  %own_x = sitofp i64 %own_i to {scalar}
  store {scalar} %own_x, ptr %own_at
  br label %lane_after
lane_after:
  %next_l = add i64 %l, 1
  %again_l = icmp ult i64 %next_l, {lanes}
  br i1 %again_l, label %lane, label %after
after:
  %next_c = add i64 %c, 1
  %again_c = icmp ult i64 %next_c, %candidates
  br i1 %again_c, label %candidate, label %done
done:
  ret void
}}"""


def _blocks(collection: Collection, record: Program, kernels: Sequence[_Kernel], backend: Backend) -> str:
    """Return the function that goes over a stretch of the batch."""
    body, rows = backend.body(set()), rows_of(record)
    transfers = Transfers(body, record, rows)
    counts = {
        "in": rows.input_count,
        "out": rows.output_count,
        "given": max(sum(math.prod(s) for s in k.program.inputs) for k in kernels),
        "found": max(sum(map(len, k.program.outputs)) for k in kernels),
        "waiting": max(k.waiting for k in kernels),
    }
    transfers.reserve(counts)
    body.line("%thing_at = alloca i64")
    transfers.begin_blocks()
    _clear(body, collection, rows.outputs)
    for number, (searched, kernel) in enumerate(zip(collection.searched, kernels, strict=True)):
        _search(body, collection, number, searched, kernel, rows)
    transfers.scatter_all(range(len(rows.outputs)))
    body.line("br label %last")
    return transfers.end_blocks()


def _loop(body: Body, name: str, count: int, write: Callable[[str], None]) -> None:
    """Append a loop over numbers up to a count of at least one."""
    body.line("store i64 0, ptr %thing_at")
    body.line(f"br label %{name}")
    body.lines.append(f"{name}:")
    index = body.value("load i64, ptr %thing_at")
    write(index)
    following = body.value(f"add i64 {index}, 1")
    body.line(f"store i64 {following}, ptr %thing_at")
    again = body.value(f"icmp ult i64 {following}, {count}")
    body.line(f"br i1 {again}, label %{name}, label %after_{name}")
    body.lines.append(f"after_{name}:")


def _clear(body: Body, collection: Collection, outputs: Sequence[int]) -> None:
    """Append the emptying of all lists."""
    backend, align = body.backend, f"align {body.backend.bytes}"
    for k, (row, room) in enumerate(zip(outputs, collection.room, strict=True)):
        start = body.element("%out", row)
        body.line(f"store {backend.float} zeroinitializer, ptr {start}, {align}")

        def one(index: str, start: str = start) -> None:
            place = body.value(f"mul i64 {index}, {collection.width + 1}")
            for j in range(collection.width + 1):
                x = backend.constant(collection.absent) if j == 0 else "zeroinitializer"
                at = body.value(
                    f"getelementptr {backend.float}, ptr {start}, i64 {body.value(f'add i64 {place}, {j + 1}')}"
                )
                body.line(f"store {backend.float} {x}, ptr {at}, {align}")

        _loop(body, f"clear{k}", room, one)


def _search(body: Body, collection: Collection, number: int, searched: Searched, kernel: _Kernel, rows) -> None:
    """Append the loop over the things of one kind."""
    backend, align = body.backend, f"align {body.backend.bytes}"
    entry = len(searched.sources) + 2

    def one(index: str) -> None:
        start = body.value(f"getelementptr i64, ptr @things{number}, i64 {body.value(f'mul i64 {index}, {entry}')}")

        def of_entry(k: int) -> str:
            return body.value(f"load i64, ptr {body.value(f'getelementptr i64, ptr {start}, i64 {k}')}")

        for k, ((operand, length), target) in enumerate(zip(searched.sources, kernel.offsets, strict=True)):
            source = body.element("%in", rows.inputs[operand])
            own = body.value(f"getelementptr {backend.float}, ptr {source}, i64 {of_entry(k)}")
            for j in range(length):
                x = body.value(f"load {backend.float}, ptr {body.element(own, j)}, {align}")
                body.line(f"store {backend.float} {x}, ptr {body.element('%given', target + j)}, {align}")
        body.line(f"call void @search{number}(ptr %given, ptr %found, ptr null, ptr null, ptr %waiting, ptr %given)")
        which, first = of_entry(entry - 2), of_entry(entry - 1)
        place = body.value(f"load i64, ptr {body.value(f'getelementptr i64, ptr @lists, i64 {which}')}")
        room = body.value(f"load i64, ptr {body.value(f'getelementptr i64, ptr @rooms, i64 {which}')}")
        own = body.value(f"getelementptr {backend.float}, ptr %out, i64 {place}")
        body.line(f"call void @append(ptr %found, i64 {searched.candidates}, ptr {own}, i64 {room}, i64 {first})")

    _loop(body, f"things{number}", len(searched.rows), one)
