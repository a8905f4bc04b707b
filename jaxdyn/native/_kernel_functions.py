"""The functions of a kernel: one for each part of a program, or for several that are alike.

The function of alike parts takes what they differ in from a table of each part: numbers, and the places of rows.
"""

from __future__ import annotations

import bisect
import math
import struct
from collections.abc import Callable, Container, Mapping, Sequence
from typing import NamedTuple

from jaxdyn.native._emit import Backend, Body
from jaxdyn.native._graph import GraphLoop, Node, RowColumn, Scalar, is_condition
from jaxdyn.native._order import KernelPart, Rounds, each_part
from jaxdyn.native._packed_values import PackedValues
from jaxdyn.native._specialize import Program
from jaxdyn.native._values import Values, angle_of_input

ARGUMENTS = ("%in", "%out", "%sums", "%common", "%waiting", "%angles")
"""The arguments of the functions of a kernel: rows of numbers."""


BLOCK = 200
"""The operations in a basic block, within which the compiler orders instructions."""


class KernelRows(NamedTuple):
    """The rows of a kernel's operands, of its results, and of those that are sums over the batch."""

    inputs: list[int]
    """The first row of each operand, or -1 for operands that are the same for the whole batch, or read in place."""
    input_count: int
    outputs: list[int]
    output_count: int
    sum_count: int
    in_place: bool = False
    """Whether results are written to users' arrays where they are computed."""

    def of_input(self, node: Node) -> int:
        """Return the row of an element of an operand."""
        return self.inputs[node.args[0]] + node.args[1]


class MemoryPlaces(NamedTuple):
    """The places in memory of a program's values."""

    rows: KernelRows
    shared: Mapping[int, int]
    """The places of values that are the same for the whole batch, by the numbers of nodes."""
    crossing: Mapping[int | GraphLoop | RowColumn, int]
    """The rows in which values wait for later parts."""
    vacant: int
    """A row that nothing reads, for values that wait in some of several alike parts only."""


def rows_of(program: Program, read_in_place: Container[int] = (), *, written_in_place: bool = False) -> KernelRows:
    """Return the rows of a program's operands and results."""
    inputs, count = [], 0
    for k, (shape, uniform) in enumerate(zip(program.inputs, program.uniform, strict=True)):
        without = uniform or k in read_in_place
        inputs.append(-1 if without else count)
        count += 0 if without else math.prod(shape)
    outputs, totals = [], [0, 0]
    for k, output in enumerate(program.outputs):
        outputs.append(totals[program.is_sum(k)])
        totals[program.is_sum(k)] += len(output)
    return KernelRows(inputs, count, outputs, totals[0], totals[1], written_in_place)


def results(program: Program, rows: KernelRows) -> list[tuple[Scalar, int, bool]]:
    """Return all results of a program with their rows, and whether they are sums over the batch."""
    pairs = enumerate(zip(rows.outputs, program.outputs, strict=True))
    return [(x, start + i, program.is_sum(k)) for k, (start, output) in pairs for i, x in enumerate(output)]


def paired_angles(program: Program) -> set[int]:
    """Return the numbers of the nodes of which the cosine is needed, and so perhaps sine and cosine."""
    return {n.args[0].number for n in program.nodes if n.op == "cos" and type(n.args[0]) is Node}


def part_functions(
    program: Program,
    steps: Sequence[KernelPart | Rounds],
    places: MemoryPlaces,
    backend: Backend,
    declared: set[str],
    prefix: str = "",
) -> tuple[list[str], dict[KernelPart, str]]:
    """Return the text of the functions of all parts, and for each part the call of its function; names of several
    programs of a module differ in the `prefix` of their numbers."""
    parts = list(each_part(steps))
    alike: dict[KernelPart, list[KernelPart]] = {part: [] for part in parts if part.like is None}
    for part in parts:
        alike[part.like or part].append(part)
    text = _PartText(program, places, backend, declared)
    texts, calls = [], {}
    arguments = ", ".join(f"ptr {name}" for name in ARGUMENTS)
    for place, (first, members) in enumerate(alike.items()):
        number = f"{prefix}{place}"
        inlining = backend.inlining if len(parts) == 1 else "noinline"
        function, tables = text.of(number, members, inlining, first=first is parts[0], last=first is parts[-1])
        texts += [function, *tables]
        for k, member in enumerate(members):
            more = f", ptr %waiting, ptr @table{number}.{k}" if tables else ""
            calls[member] = f"call void @part{number}({arguments}{more})"
    return texts, calls


class Blocks:
    """The basic blocks of a function of many operations."""

    def __init__(self, body: Body):
        self.body = body
        self._operations = 0
        self._labels: list[str] = []

    def count(self) -> None:
        """Count an operation that comes next, and begin a new block where there are enough in the last one."""
        self._operations += 1
        if self.body.backend.ordered and self._operations % BLOCK == 0:
            self._labels.append(self.body.block())
            self.body.line(f"br label %{self._labels[-1]}")
            self.body.lines.append(f"{self._labels[-1]}:")

    def function(self, name: str, arguments: Sequence[str], constant: str, inlining: str = "noinline") -> str:
        """Return the text of the function, and of a constant with the addresses of its blocks: the compiler joins
        blocks whose addresses nobody has."""
        pointers, begin = self.body.backend.received(arguments)
        header = f"define internal void @{name}({pointers}) {inlining} #0 {{"
        text = [header, *begin, *self.body.lines, "  ret void", "}"]
        if self._labels:
            addresses = ", ".join(f"ptr blockaddress(@{name}, %{label})" for label in self._labels)
            text.append(f"@{constant} = internal constant [{len(self._labels)} x ptr] [{addresses}]")
        return "\n".join(text)


class _PartTable:
    """The numbers and places in which alike parts differ, a column for each."""

    def __init__(self, backend: Backend, members: int):
        self.backend, self.members = backend, members
        self.columns: dict[tuple, int] = {}

    def slot(self, body: Body, column: Sequence[float | int], loaded: str) -> str:
        """Append the loading of an entry of the table."""
        bits = [self._bits(x) for x in column] if loaded == self.backend.scalar else column
        at = self.columns.setdefault(tuple(bits), len(self.columns))
        place = body.value(f"getelementptr i{self.backend.bits}, ptr %table, i64 {at}")
        return body.value(f"load {loaded}, ptr {place}, !invariant.load !1")

    def _bits(self, x: float) -> int:
        code = ("<i", "<f") if self.backend.bits == 32 else ("<q", "<d")
        return struct.unpack(code[0], struct.pack(code[1], self.backend.rounded(x)))[0]

    def texts(self, number: str) -> list[str]:
        """Return the tables of all parts."""
        entry = f"i{self.backend.bits}"
        out = []
        for k, row in enumerate(zip(*self.columns, strict=True)):
            entries = ", ".join(f"{entry} {x}" for x in row)
            out.append(f"@table{number}.{k} = internal constant [{len(row)} x {entry}] [{entries}]")
        return out


class _Function:
    """The text of the function of a part, or of alike parts."""

    def __init__(
        self, members: Sequence[KernelPart], places: MemoryPlaces, backend: Backend, declared: set[str], *, packed: bool
    ):
        self.body, self.backend, self.one = backend.body(declared), backend, backend.one()
        self.align = f"align {backend.bytes}"
        self.places, self.alike = places, len(members) > 1
        self.twins = _Twins(members)
        self.table = _PartTable(backend, len(members))
        self.starts: dict[int, str] = {}
        """The addresses of users' arrays that are read or written in place."""
        if packed:
            self.values = PackedValues(self.body, self._load, self._angle)
        elif self.alike:
            self.values = _AlikeValues(self.body, self._load, self._angle, self._number)
        else:
            self.values = Values(self.body, self._load, self._angle)

    def _at(self, start: str, rows: Sequence[int], size: Backend) -> str:
        """Append the address of a row, or of one of several by the table."""
        body = self.body
        if len(set(rows)) == 1:
            return body.element(start, rows[0], size)
        offset = self._offset(rows, size.bytes)
        return body.value(f"getelementptr i8, ptr {start}, i64 {offset}")

    def _offset(self, places: Sequence[int], size: int) -> str:
        """Append the loading of the distance in bytes of one of several places."""
        body, bits = self.body, self.backend.bits
        offset = self.table.slot(body, [place * size for place in places], f"i{bits}")
        return offset if bits == 64 else body.value(f"zext i{bits} {offset} to i64")

    def _splat(self, x: str) -> str:
        backend, body = self.backend, self.body
        if backend.lanes == 1:
            return x
        lane = body.value(f"insertelement {backend.float} poison, {backend.scalar} {x}, i64 0")
        return body.value(
            f"shufflevector {backend.float} {lane}, {backend.float} poison, <{backend.lanes} x i32> zeroinitializer"
        )

    def _number(self, node: Node, place: int) -> str | None:
        """Append the loading of a number that is not the same in all parts."""
        column = self.twins.numbers(node, place)
        return None if len(set(column)) == 1 else self._splat(self.table.slot(self.body, column, self.backend.scalar))

    def _load(self, node: Node) -> str:
        column, places = self.twins.of(node), self.places
        if node.uniform:
            start = self._at("%common", [places.shared[n.number] for n in column], self.one)
            x = self._splat(self.body.value(f"load {self.backend.scalar}, ptr {start}, !invariant.load !1"))
        elif node.op == "input":
            arrays = {n.args[0] for n in column}
            if any(places.rows.inputs[k] < 0 for k in arrays):
                return self._read_in_place(column, arrays)
            return self._loaded("%in", [places.rows.of_input(n) for n in column])
        else:
            x = self._loaded("%waiting", [places.crossing[n.number] for n in column])
        return self.body.compare("une", x, self.backend.constant(0.0)) if is_condition(node) else x

    def _read_in_place(self, column: Sequence[Node], arrays: set[int]) -> str:
        """Append the reading of an element of a user's array."""
        body = self.body
        if len(arrays) > 1:
            start = body.array_of_call(self._offset([n.args[0] for n in column], 8))
        else:
            (array,) = arrays
            start = self.starts.get(array)
            if start is None:
                start = self.starts[array] = body.array_of_call(str(8 * array))
        memory = body.backend.memory_of_arrays
        places = [n.args[1] for n in column]
        if len(set(places)) == 1:
            at = body.value(f"getelementptr {self.backend.float}, ptr{memory} {start}, i64 {places[0]}")
        else:
            offset = self._offset(places, self.backend.bytes)
            at = body.value(f"getelementptr i8, ptr{memory} {start}, i64 {offset}")
        return body.value(f"load {self.backend.float}, ptr{memory} {at}, {self.align}, !invariant.load !1")

    def _write_in_place(self, name: str, row: int) -> None:
        """Append the writing of an element of a user's array."""
        body, outputs = self.body, self.places.rows.outputs
        k = bisect.bisect_right(outputs, row) - 1
        array = len(self.places.rows.inputs) + k
        start = self.starts.get(array)
        if start is None:
            start = self.starts[array] = body.array_of_call(str(8 * array))
        memory = body.backend.memory_of_arrays
        at = body.value(f"getelementptr {self.backend.float}, ptr{memory} {start}, i64 {row - outputs[k]}")
        body.line(f"store {self.backend.float} {name}, ptr{memory} {at}, {self.align}")

    def _angle(self, node: Node) -> str:
        return self._loaded("%angles", [self.places.rows.of_input(n) for n in self.twins.of(node)])

    def _loaded(self, start: str, rows: Sequence[int]) -> str:
        return self.body.value(f"load {self.backend.float}, ptr {self._at(start, rows, self.backend)}, {self.align}")

    def wait(self, x: Scalar, rows: Sequence[int]) -> Callable[[], None]:
        """Append the reading of a value, and return what appends its storing in a row for later parts."""
        name, backend = self.values.name(x), self.backend
        if is_condition(x):
            name = self.body.select(name, backend.constant(1.0), backend.constant(0.0))
        place = self._at("%leaving" if self.alike else "%waiting", rows, backend)
        return lambda: self.body.line(f"store {backend.float} {name}, ptr {place}, {self.align}")

    def keep(self, x: Scalar, rows: Sequence[int], summed: bool) -> None:
        """Append the storing of a result."""
        body, vector = self.body, self.backend.float
        if self.places.rows.in_place:
            self._write_in_place(self.values.name(x), rows[0])
            return
        name, place = self.values.name(x), self._at("%sums" if summed else "%out", rows, self.backend)
        if summed:
            name = body.binary("fadd", body.value(f"load {vector}, ptr {place}, {self.align}"), name)
        body.line(f"store {vector} {name}, ptr {place}, {self.align}")


class _PartText:
    """Writes the functions of the parts of a program."""

    def __init__(self, program: Program, places: MemoryPlaces, backend: Backend, declared: set[str]):
        self.program, self.places, self.backend, self.declared = program, places, backend, declared
        self.results = results(program, places.rows)
        self.paired = paired_angles(program)
        self.stores: dict[int, list[tuple[int, bool]]] = {}
        """The rows of a result, and whether they are of sums over the batch."""
        for x, row, summed in self.results:
            if type(x) is Node:
                self.stores.setdefault(x.number, []).append((row, summed))

    def of(
        self, number: str, members: Sequence[KernelPart], inlining: str, *, first: bool, last: bool
    ) -> tuple[str, list[str]]:
        """Return the text of the function of alike parts, or of one part, and their tables."""
        function = _Function(members, self.places, self.backend, self.declared, packed=self.program.one)
        crossing = self.places.crossing
        for x, row, summed in self.results if first or last else ():
            # These need no operation of a part.
            ready = type(x) is not Node or x.uniform or x.op == "input"
            is_end = type(x) is Node and x.op == "result"
            if (last and is_end) or (first and ready and not (summed and x == 0)):
                function.keep(x, [row], summed)
        blocks = Blocks(function.body)
        nodes = members[0].nodes
        # The assembler for GPUs reorders anyway, and moves half as many values of forward dynamics to memory from the
        # order in which the function computes as from the order by results.
        nodes = nodes if self.backend.ordered else sorted(nodes, key=lambda n: n.number)
        for item in function.values.items(nodes):
            blocks.count()
            for node in function.values.emit(item, self.paired):
                column = function.twins.of(node)
                for rows in zip(*[self.stores.get(n.number, ()) for n in column], strict=True):
                    function.keep(node, [row for row, _ in rows], rows[0][1])
                if any(n.number in crossing for n in column):
                    function.wait(node, [crossing.get(n.number, self.places.vacant) for n in column])()
        # What a loop carries is read before any of it is stored.
        carried = [(x, crossing[to if isinstance(to, GraphLoop) else to.number]) for x, to in members[0].stored]
        for store in [function.wait(x, [row]) for x, row in carried]:
            store()
        more = ("%leaving", "%table") if function.alike else ()
        text = blocks.function(f"part{number}", (*ARGUMENTS, *more), f"blocks{number}", inlining)
        return text, function.table.texts(number) if function.alike else []


class _Twins:
    """The nodes of alike parts that correspond to those of the first of them; of one part, its own nodes."""

    def __init__(self, members: Sequence[KernelPart]):
        self.members = members
        self.place: dict[int, int] = {n.number: k for k, n in enumerate(members[0].nodes)}
        self.used_at: dict[int, tuple[int, int]] = {}
        self.angles: dict[int, int] = {}
        for k, n in enumerate(members[0].nodes if len(members) > 1 else ()):
            for j, a in enumerate(n.args):
                if type(a) is Node and a.number not in self.place:
                    self.used_at.setdefault(a.number, (k, j))
            if n.op in ("sin", "cos"):
                root = angle_of_input(n.args[0])[1]
                if root is not None:
                    self.angles.setdefault(root.number, k)

    def of(self, node: Node) -> list[Node]:
        """Return the nodes of all parts for one of the first."""
        if len(self.members) == 1:
            return [node]
        k = self.place.get(node.number)
        if k is not None:
            return [part.nodes[k] for part in self.members]
        if node.number in self.used_at:
            k, j = self.used_at[node.number]
            return [part.nodes[k].args[j] for part in self.members]
        k = self.angles[node.number]
        roots = [angle_of_input(part.nodes[k].args[0])[1] for part in self.members]
        return [root for root in roots if root is not None]

    def numbers(self, node: Node, place: int) -> list[float]:
        """Return the operands of all parts for one of the first that is a number."""
        k = self.place[node.number]
        return [part.nodes[k].args[place] for part in self.members]


class _AlikeValues(Values):
    """Emits the nodes of alike parts, in which numbers come from the table."""

    def __init__(self, body: Body, load, angle, number_of: Callable[[Node, int], str | None]):
        super().__init__(body, load, angle)
        self.number_of = number_of

    def argument(self, node: Node, place: int) -> str:
        x = node.args[place]
        if type(x) is float:
            name = self.number_of(node, place)
            if name is not None:
                return name
        return self.name(x)


def prepare_functions(
    prepared: Sequence[Sequence[Node]], kept: dict[int, int], one: Backend, declared: set[str]
) -> list[str]:
    """The functions that compute what is the same for the whole batch, and `prepare`, which calls them where they are
    several."""
    if len(prepared) == 1:
        return [_prepare_part("prepare", prepared[0], kept, one, declared)]
    names = [f"prepare{k}" for k in range(len(prepared))]
    texts = [_prepare_part(name, nodes, kept, one, declared) for name, nodes in zip(names, prepared, strict=True)]
    calls = [f"  call void @{name}(ptr %call, ptr %common)" for name in names]
    header = "define internal void @prepare(ptr noalias %call, ptr noalias %common) noinline #0 {"
    return [*texts, "\n".join([header, *calls, "  ret void", "}"])]


def _prepare_part(name: str, nodes: Sequence[Node], kept: dict[int, int], one: Backend, declared: set[str]) -> str:
    body = one.body(declared)

    def load(node: Node) -> str:
        if node.op != "input":
            return _loaded_common(body, node, kept[node.number])
        array, place = node.args
        slot = body.value(f"getelementptr ptr, ptr %call, i64 {array}")
        start = body.value(f"load ptr, ptr {slot}")
        return body.value(f"load {one.float}, ptr {body.element(start, place)}")

    values = Values(body, load)
    blocks = Blocks(body)
    for node in nodes:
        blocks.count()
        if node.op != "input":
            values.emit(node)
        if node.number in kept:
            value = values.name(node)
            if is_condition(node):
                value = body.select(value, one.constant(1.0), one.constant(0.0))
            body.line(f"store {one.float} {value}, ptr {body.element('%common', kept[node.number])}")
    return blocks.function(name, ("%call", "%common"), f"blocks_of_{name}")


def _loaded_common(body: Body, node: Node, place: int) -> str:
    """Load a value that is the same for the whole batch."""
    one = body.backend
    x = body.value(f"load {one.float}, ptr {body.element('%common', place)}")
    return body.compare("une", x, one.constant(0.0)) if is_condition(node) else x
