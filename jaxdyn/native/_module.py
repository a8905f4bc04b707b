"""The LLVM module of a program: a kernel for as many elements of the batch as a vector has lanes, and the handlers that
XLA calls.

A kernel is functions that follow each other, and loops around some of them. It reads rows, a vector for each number of
the operands, and writes rows. Users' arrays have the batch first, so blocks of them are transposed in registers on the
way in and out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from jaxdyn.native._alike import Keys, with_alike_parts
from jaxdyn.native._emit import LARGEST_ANGLE, Backend, Body
from jaxdyn.native._graph import GraphLoop, Node
from jaxdyn.native._kernel_functions import (
    KernelRows,
    MemoryPlaces,
    paired_angles,
    part_functions,
    prepare_functions,
    results,
    rows_of,
)
from jaxdyn.native._order import KernelPart, Rounds, cut_common, divided, each_part, joined, operands, rows_of_crossing
from jaxdyn.native._specialize import Program, Repetition
from jaxdyn.native._sums import piece_row, sum_functions
from jaxdyn.native._threads import piece_length
from jaxdyn.native._transpose import transpose_text
from jaxdyn.native._values import angle_of_input, any_lane


class Handlers(Protocol):
    """The functions of a module that are called from outside."""

    def handlers(self, program: Program, common: int, piece: int, totals: str) -> str:
        """Return their text: they call `@blocks`, and where there are `common` values, `@prepare`."""
        ...


class Module(NamedTuple):
    """The module of a program."""

    text: str
    common: int
    """The number of values that are the same for the whole batch, which `prepare_handler` computes."""
    piece: int
    """The number of elements of the batch in a piece."""
    piece_row: int
    """The numbers that each piece needs for its sums over the batch."""


def module_of(program: Program, backend: Backend, interface: Handlers) -> Module:
    """Return the module of a program."""
    one = backend.one()
    common = [n for n in program.nodes if n.uniform]
    declared: set[str] = set()
    # A value that is the same for the whole batch and that the kernel uses is computed once a call.
    wanted = {a.number for n in program.nodes if not n.uniform for a in operands(n) if a.uniform}
    wanted |= {x.number for output in program.outputs for x in output if type(x) is Node and x.uniform}
    shared = {n.number: k for k, n in enumerate(n for n in common if n.number in wanted)}
    steps = divided([x for output in program.outputs for x in output], backend.longest_part(len(program.nodes)))
    whole = len(list(each_part(steps))) == 1 and program.repetition is None
    rows = rows_of(program, backend.read_in_place(program), written_in_place=whole and backend.memory_of_arrays != "")
    if program.one:
        # Vectors hold several operations, but only those of one part.
        steps = joined(steps, backend.lanes * backend.longest)
    else:
        kept_as: dict[int, tuple] = {}
        for x, _, summed in results(program, rows):
            if type(x) is Node:
                kept_as[x.number] = (*kept_as.get(x.number, ()), summed)
        steps = with_alike_parts(steps, Keys(kept_as, paired_angles(program)))
    crossing, waiting = rows_of_crossing(steps)
    prepared, kept = cut_common(common, shared)
    texts = prepare_functions(prepared, kept, one, declared) if shared else []
    functions, calls = part_functions(program, steps, MemoryPlaces(rows, shared, crossing, waiting), backend, declared)
    texts += functions
    waiting += 1
    texts.append(_angles(angle_rows(program, rows), backend, declared))
    texts += transposes(program, backend, declared)
    piece = piece_length(program.length * sum(not n.uniform for n in program.nodes), backend.lanes)
    texts.append(_blocks(program, rows, steps, calls, crossing, waiting, backend, piece, declared))
    row = piece_row(rows.sum_count, backend.lanes) if program.summed else 0
    if row:
        texts.append(sum_functions(backend, row))
        suffix = f"{backend.suffix}.p0({backend.float}, ptr, i32, <{backend.lanes} x i1>)"
        declared.add(f"declare void @llvm.masked.store.{suffix}")
    texts.append(interface.handlers(program, len(kept), piece, _totals(program, rows, backend, piece) if row else ""))
    return Module(module_text(declared, texts, backend), len(kept), piece, row)


def module_text(declared: set[str], texts: Sequence[str], backend: Backend) -> str:
    """Return the text of a module with some declarations and functions, whose vectors may be as long as those of
    `backend`."""
    declarations = sorted(declared, key=lambda text: (text.startswith("define"), text))
    width = f'"min-legal-vector-width"="{8 * backend.bytes}" "prefer-vector-width"="{8 * backend.bytes}"'
    attributes = f"attributes #0 = {{ nounwind {width} }}"
    metadata = '!0 = !{!"branch_weights", i32 1, i32 100000}\n!1 = !{}'
    return "\n\n".join([*declarations, *texts, attributes, metadata]) + "\n"


def angle_rows(program: Program, rows: KernelRows) -> list[int]:
    """Return the rows of the inputs that are, times 1 or 1/2, arguments of sine and cosine."""
    roots = (angle_of_input(n.args[0])[1] for n in program.nodes if n.op in ("sin", "cos") and not n.uniform)
    return sorted({rows.of_input(r) for r in roots if r is not None and not r.uniform})


def _angles(angle_rows: Sequence[int], backend: Backend, declared: set[str]) -> str:
    """The function that returns the rows in which the kernel reads angles: those of the operands, or where an angle is
    very large, rows with smaller angles of the same sine and cosine."""
    body = backend.body(declared)
    align = f"align {backend.bytes}"
    largest = None
    for row in angle_rows:
        x = body.value(f"load {backend.float}, ptr {body.element('%in', row)}, {align}")
        size = body.intrinsic("fabs", x)
        largest = size if largest is None else body.select(body.compare("ogt", size, largest), size, largest)
    if largest is not None:
        large = any_lane(body, body.compare("ogt", largest, backend.constant(LARGEST_ANGLE[backend.bits])))
        body.line(f"br i1 {large}, label %reduce, label %as_they_are, !prof !0")
        body.lines.append("reduce:")
        for row in angle_rows:
            x = body.value(f"load {backend.float}, ptr {body.element('%in', row)}, {align}")
            row = body.element("%small", row)
            body.line(f"store {backend.float} {body.small_angle(x)}, ptr {row}, {align}")
        body.line("ret ptr %small")
        body.lines.append("as_they_are:")
        if backend.inlining == "alwaysinline":
            # Memory of which the address is not chosen can be kept in registers.
            for row in angle_rows:
                _move_row(body, body.element("%in", row), body.element("%small", row))
            body.line("ret ptr %small")
    header = f"define internal ptr @angles(ptr noalias %in, ptr noalias %small) {backend.inlining} #0 {{"
    return "\n".join([header, *body.lines, "  ret ptr %in", "}"])


def calls_of_steps(
    body: Body, steps: Iterable[KernelPart | Rounds], calls: dict[KernelPart, str], crossing: Mapping, rows: KernelRows
) -> None:
    """Append the calls of parts, and the loops around them, which go on as long as any lane does."""
    for step in steps:
        if isinstance(step, KernelPart):
            body.line(calls[step])
            continue
        backend, (top, more, after) = body.backend, [body.block() for _ in range(3)]
        _begin_rows(body, step.loop, crossing)
        body.line(f"br label %{top}")
        body.lines.append(f"{top}:")
        calls_of_steps(body, step.condition, calls, crossing, rows)
        row = body.element("%waiting", crossing[step.loop])
        again = body.compare(
            "une", body.value(f"load {backend.float}, ptr {row}, align {backend.bytes}"), backend.constant(0.0)
        )
        body.line(f"br i1 {any_lane(body, again)}, label %{more}, label %{after}")
        body.lines.append(f"{more}:")
        _read_rows(body, step.loop, crossing, rows)
        calls_of_steps(body, step.body, calls, crossing, rows)
        _write_rows(body, step.loop, crossing)
        body.line(f"br label %{top}")
        body.lines.append(f"{after}:")


def _begin_rows(body: Body, loop: GraphLoop, crossing: Mapping) -> None:
    """Append what comes before a loop over rows: its rounds are counted, and rows that no round writes are zero."""
    if loop.counter is None:
        return
    backend = body.backend
    body.line(f"store {backend.index} 0, ptr {body.element('%waiting', crossing[loop.counter.number])}")
    for column in loop.written:
        if column.whole:
            body.declared.add("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1 immarg)")
            start = body.element("%waiting", crossing[column])
            body.line(
                f"call void @llvm.memset.p0.i64(ptr {start}, i8 0, i64 {column.length * backend.bytes}, i1 false)"
            )


def _move_row(body: Body, source: str, target: str, memory: str = "") -> None:
    align = f"align {body.backend.bytes}"
    x = body.value(f"load {body.backend.float}, ptr{memory} {source}, {align}")
    body.line(f"store {body.backend.float} {x}, ptr {target}, {align}")


def _place_of_row(body: Body, start: str, index: str, stride: int, memory: str = "") -> str:
    """Append the address of the number of a row behind that of the first row."""
    at = index if stride == 1 else body.value(f"mul i64 {index}, {stride}")
    return body.value(f"getelementptr {body.backend.float}, ptr{memory} {start}, i64 {at}")


def _read_rows(body: Body, loop: GraphLoop, crossing: Mapping, rows: KernelRows) -> None:
    """Append the reading of the row that belongs to a round."""
    if loop.counter is None:
        return
    backend = body.backend
    index = _index(body, body.element("%waiting", crossing[loop.counter.number]))
    for read in loop.reads:
        memory = ""
        if read.column is None:
            stride, first = read.stride, rows.inputs[read.operand]
            if first < 0:
                start, memory = body.array_of_call(str(8 * read.operand)), backend.memory_of_arrays
                start = body.value(f"getelementptr {backend.float}, ptr{memory} {start}, i64 {read.place}")
            else:
                start = body.element("%in", first + read.place)
        else:
            start, stride = body.element("%waiting", crossing[read.column]), 1
        target = body.element("%waiting", crossing[read.node.number])
        _move_row(body, _place_of_row(body, start, index, stride, memory), target, memory)


def _write_rows(body: Body, loop: GraphLoop, crossing: Mapping) -> None:
    """Append the writing of the row that belongs to a round, and the counting of the round."""
    if loop.counter is None:
        return
    backend = body.backend
    counter = body.element("%waiting", crossing[loop.counter.number])
    index = _index(body, counter)
    for column in loop.written:
        start = body.element("%waiting", crossing[column])
        source = body.element("%waiting", crossing[column.slot.number])
        _move_row(body, source, _place_of_row(body, start, index, 1))
    following = body.value(f"add i64 {index}, 1")
    if backend.index != "i64":
        following = body.value(f"trunc i64 {following} to {backend.index}")
    body.line(f"store {backend.index} {following}, ptr {counter}")


def _index(body: Body, counter: str) -> str:
    """Append the reading of the number of a round."""
    index = body.value(f"load {body.backend.index}, ptr {counter}")
    return index if body.backend.index == "i64" else body.value(f"zext {body.backend.index} {index} to i64")


class Transfers:
    """The moves of a block between users' arrays and rows."""

    def __init__(self, body: Body, program: Program, rows: KernelRows):
        self.body, self.program, self.rows = body, program, rows
        self.used = {x.args[0] for x in program.nodes if x.op == "input"} | set(program.carried)
        self.width = 1 if program.one else body.backend.lanes
        """The number of elements of the batch in a block."""

    def reserve(self, counts: Mapping[str, int]) -> None:
        """Append memory for so many rows under each name."""
        backend = self.body.backend
        for name, count in counts.items():
            self.body.line(f"%{name} = alloca {backend.float}, i64 {max(count, 1)}, align {backend.bytes}")

    def begin_blocks(self) -> None:
        """Append the beginning of the loop over the blocks of a stretch of the batch, with the moves of operands."""
        body, last = self.body, "further" if self.program.summed else "last"
        body.line("br label %loop")
        body.lines.append("loop:")
        body.line(f"%at = phi i64 [ %begin, %entry ], [ %next, %{last} ]")
        body.line("%left = sub i64 %end, %at")
        body.line(f"%whole = icmp uge i64 %left, {self.width}")
        body.line(f"%valid = select i1 %whole, i64 {self.width}, i64 %left")
        self.gather(k for k in range(len(self.program.inputs)) if not self.program.is_row(k))

    def end_blocks(self, add_up: Callable[[], None] = lambda: None) -> str:
        """Append the end of the loop, and return the text of the function."""
        body, backend = self.body, self.body.backend
        body.lines.append("last:")
        body.line(f"%next = add i64 %at, {self.width}")
        body.line(f"%again = {backend.more_elements('%next', '%end')}")
        add_up()
        body.line("br i1 %again, label %loop, label %done")
        header = f"define internal void @blocks(ptr %call, ptr %common, i64 %begin, i64 %end) {backend.inlining} #0 {{"
        return "\n".join([header, "entry:", *body.lines, "done:", "  ret void", "}"])

    def gather(self, operands: Iterable[int], number: str = "0") -> None:
        """Append the moves of operands into the kernel, for operands with rows of the row of that number."""
        for k in operands:
            width = math.prod(self.program.inputs[k])
            if self.rows.inputs[k] >= 0 and k in self.used and width:
                stride = self.entry(len(self.program.inputs) + len(self.program.outputs) + k, "i64")
                source = self._place(k, stride, width, number)
                target = self.body.element("%in", self.rows.inputs[k])
                self.body.line(f"call void @gather{width}(ptr {source}, i64 {stride}, i64 %valid, ptr {target})")
                if self.program.summed and k in self.program.linear:
                    # Lanes beyond the end of the batch add nothing to sums over it.
                    self.body.line(f"call void @keep_lanes(ptr {target}, i64 {width}, i64 %valid)")

    def scatter(self, k: int, source: str, number: str = "0") -> None:
        """Append the move of a result out of the kernel, to its row of that number; sums over the batch stay."""
        if (width := len(self.program.outputs[k])) and not self.program.is_sum(k):
            stride = str(width * self.program.result_rows(k))
            target = self._place(len(self.program.inputs) + k, stride, width, number)
            self.body.line(f"call void @scatter{width}(ptr {source}, ptr {target}, i64 {stride}, i64 %valid)")

    def scatter_all(self, results: Iterable[int], number: str = "0") -> None:
        """Append the moves of results from where the kernel computes them."""
        for k in results:
            self.scatter(k, self.body.element("%out", self.rows.outputs[k]), number)

    def entry(self, place: int, loaded: str) -> str:
        """Append the loading of an entry of the call's list, an address or a number, and return its name."""
        slot = self.body.value(f"getelementptr {'ptr' if loaded == 'ptr' else 'i64'}, ptr %call, i64 {place}")
        return self.body.value(f"load {loaded}, ptr {slot}")

    def _place(self, array: int, stride: str, width: int, number: str) -> str:
        offset = self.body.value(f"mul i64 %at, {stride}")
        if number != "0":
            row = self.body.value(f"mul i64 {number}, {width}")
            offset = self.body.value(f"add i64 {offset}, {row}")
        one = self.body.backend.one()
        return self.body.value(f"getelementptr {one.float}, ptr {self.entry(array, 'ptr')}, i64 {offset}")


def _blocks(
    program: Program,
    rows: KernelRows,
    steps: Sequence[KernelPart | Rounds],
    calls: dict[KernelPart, str],
    crossing: dict,
    waiting: int,
    backend: Backend,
    piece: int,
    declared: set[str],
) -> str:
    """The function that goes over a stretch of the batch, as many elements at a time as a vector has lanes, and for
    each of them over the calls of a repetition."""
    body = backend.body(declared)
    transfers = Transfers(body, program, rows)
    counts = {"in": rows.input_count, "small": rows.input_count, "out": rows.output_count}
    transfers.reserve(counts | {"sums": rows.sum_count, "waiting": waiting})
    if program.summed:
        body.line(f"call void @keep_lanes(ptr %sums, i64 {rows.sum_count}, i64 0)")
    transfers.begin_blocks()

    def run() -> None:
        body.line("%angles = call ptr @angles(ptr %in, ptr %small)")
        calls_of_steps(body, steps, calls, crossing, rows)

    if program.repetition is None:
        run()
        if not rows.in_place:
            transfers.scatter_all(range(len(rows.outputs)))
        body.line("br label %last")
    else:
        _repeat(transfers, program.repetition, run)
    return transfers.end_blocks(lambda: _add_up(transfers, piece) if program.summed else None)


def _add_up(transfers: Transfers, piece: int) -> None:
    """Append the writing of sums over the batch, at the end of each piece."""
    body, program, rows = transfers.body, transfers.program, transfers.rows
    inside = body.value(f"icmp ne i64 {body.value(f'urem i64 %next, {piece}')}, 0")
    inside = body.value(f"and i1 %again, {inside}")
    body.line(f"br i1 {inside}, label %further, label %add_up")
    body.lines.append("add_up:")
    number = body.value(f"udiv i64 %at, {piece}")
    place = body.value(f"mul i64 {number}, {piece_row(rows.sum_count, body.backend.lanes)}")
    place = body.value(
        f"getelementptr {body.backend.scalar}, ptr {transfers.entry(_sums_entry(program), 'ptr')}, i64 {place}"
    )
    body.line(f"call void @add_up(ptr %sums, i64 {rows.sum_count}, ptr {place})")
    body.line("br label %further")
    body.lines.append("further:")


def _sums_entry(program: Program) -> int:
    """Return the place in the record of a call of the address of the pieces' rows of sums."""
    return 2 * len(program.inputs) + len(program.outputs)


def _totals(program: Program, rows: KernelRows, backend: Backend, piece: int) -> str:
    """The end of a handler of a program with sums over the batch, when the rows of all pieces are there."""
    body = backend.one().body(set())
    transfers = Transfers(body, program, rows)
    pieces = body.value(f"udiv i64 {body.value(f'add i64 %batch, {piece - 1}')}, {piece}")
    start = transfers.entry(_sums_entry(program), "ptr")
    for k, (output, row) in enumerate(zip(program.outputs, rows.outputs, strict=True)):
        if output and program.is_sum(k):
            array = transfers.entry(len(program.inputs) + k, "ptr")
            columns = body.element(start, row)
            body.line(f"call void @total(ptr {columns}, i64 {pieces}, i64 {len(output)}, ptr {array})")
    return "\n".join(body.lines)


def _repeat(transfers: Transfers, repetition: Repetition, run: Callable[[], None]) -> None:
    """Append the loop over the calls of a repetition. Its results become operands, and some of them are kept."""
    body, program, rows = transfers.body, transfers.program, transfers.rows
    backend, align, every = body.backend, f"align {body.backend.bytes}", repetition.every
    carried, results = program.carried, range(len(program.outputs))

    def scatter_carried() -> None:
        for k, operand in enumerate(carried):
            transfers.scatter(k, body.element("%in", rows.inputs[operand]))

    if every is not None:
        scatter_carried()
    body.line("br label %steps")
    body.lines.append("steps:")
    body.line(f"%step = phi i64 [ 0, %loop ], [ %next_step, %{'carry' if every is None else 'go_on'} ]")
    at = body.value(f"sub i64 {repetition.length - 1}, %step") if repetition.reverse else "%step"
    row = body.value(f"udiv i64 {at}, {repetition.held}")
    transfers.gather((k for k in range(len(program.inputs)) if program.is_row(k)), row)
    run()
    body.line("%next_step = add i64 %step, 1")
    if every is None:
        transfers.scatter_all(results[len(carried) :], at)
        body.line("br label %carry")
        body.lines.append("carry:")
    else:
        body.line(f"%since = urem i64 %next_step, {every}")
        body.line("%kept = icmp eq i64 %since, 0")
        body.line("br i1 %kept, label %keep, label %go_on")
        body.lines.append("keep:")
        transfers.scatter_all(results, body.value(f"udiv i64 %next_step, {every}"))
        body.line("br label %go_on")
        body.lines.append("go_on:")
    for k, row in zip(carried, rows.outputs, strict=False):
        for i in range(math.prod(program.inputs[k])):
            x = body.value(f"load {backend.float}, ptr {body.element('%out', row + i)}, {align}")
            body.line(f"store {backend.float} {x}, ptr {body.element('%in', rows.inputs[k] + i)}, {align}")
    body.line(f"%more = icmp ult i64 %next_step, {repetition.length}")
    if every is not None:
        body.line("br i1 %more, label %steps, label %last")
        return
    body.line("br i1 %more, label %steps, label %end_of_steps")
    body.lines.append("end_of_steps:")
    scatter_carried()
    body.line("br label %last")


def transposes(program: Program, backend: Backend, declared: set[str]) -> list[str]:
    """The functions between users' arrays, batch first, and rows: one for each number of columns."""
    widths = {math.prod(s) for s, same in zip(program.inputs, program.uniform, strict=True) if not same} - {0}
    out = [transpose_text(backend, n, declared, gather=True) for n in sorted(widths)]
    widths = {len(output) for k, output in enumerate(program.outputs) if not program.is_sum(k)} - {0}
    return out + [transpose_text(backend, n, declared, gather=False) for n in sorted(widths)]
