"""A graph of scalar operations, in which equal values stand once and constants are folded, and of loops over them."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, final

from jaxdyn.native._operations import CONDITIONS, OPERATIONS, SPOILED

type Scalar = Node | float | bool
"""A value of a program: the result of an operation, or a constant."""


@final
class Node:
    """An operation on scalars."""

    __slots__ = ("args", "number", "op", "uniform")

    def __init__(self, number: int, op: str, args: tuple, uniform: bool):
        self.number = number
        """The place in `Graph.nodes`; operands have smaller numbers."""
        self.op = op
        """The name of the operation, or `"input"`; `"carried"` for a value that a loop carries from one round to the
        next, `"result"` for one at its end, and `"row"` for a number of the row that belongs to a round."""
        self.args = args
        """The operands, nodes or constants; for an input its array and the place in it; for values of loops the loop
        and the place, and for results all that they depend on; for a `"row"` the loop and the column."""
        self.uniform = uniform
        """Whether the value is the same for the whole batch."""

    def __repr__(self):
        return f"%{self.number}"


@dataclasses.dataclass(eq=False)
class RowColumn:
    """A column in a program's memory, of which each round of a loop over rows writes a number."""

    length: int
    slot: Node
    """Where the number waits until the end of the round."""
    value: Scalar = 0.0
    """The number, zero for an element of the batch that has ended."""
    end: Node | None = None
    """Stands for the column after the loop."""
    elements: list[Node] = dataclasses.field(default_factory=list)
    """All numbers, for operations that need one of them."""
    whole: bool = True
    """Whether operations need them, so that rows that no round writes are zero."""
    given: list[Scalar] = dataclasses.field(default_factory=list)
    """All numbers of a column that is not written by a loop, but before the one that reads it."""


class RowRead(NamedTuple):
    """A column of which each round of a loop over rows reads a number."""

    node: Node
    """The number."""
    column: RowColumn | None
    """Its column, if it stands in memory, else in an operand:"""
    operand: int = 0
    place: int = 0
    """The place of the first number in the operand."""
    stride: int = 0
    """The distance between two numbers."""


@dataclasses.dataclass(eq=False)
class GraphLoop:
    """A loop of a program. Each element of the batch goes on as long as its condition holds."""

    outer: GraphLoop | None
    """The loop around it."""
    starts: list[Scalar]
    """The values that it carries at its start."""
    carried: list[Node] = dataclasses.field(default_factory=list)
    """The same at the beginning of each round."""
    again: Scalar = False
    """The condition at the beginning of a round."""
    ends: list[Scalar] = dataclasses.field(default_factory=list)
    """The values at the end of a round, those at its beginning where the condition does not hold."""
    results: list[Node] = dataclasses.field(default_factory=list)
    counter: Node | None = None
    """In a loop over rows, where the number of the round stands."""
    reads: list[RowRead] = dataclasses.field(default_factory=list)
    written: list[RowColumn] = dataclasses.field(default_factory=list)

    def before(self) -> list[tuple[Scalar, Node]]:
        """Return the values that are stored before the first round, and where."""
        given = [zip(r.column.given, r.column.elements, strict=True) for r in self.reads if r.column and r.column.given]
        return [*zip(self.starts, self.carried, strict=True), *itertools.chain(*given)]

    def after_round(self) -> list[tuple[Scalar, Node]]:
        """Return the values that are stored at the end of a round, and where."""
        return [*zip(self.ends, self.carried, strict=True), *((column.value, column.slot) for column in self.written)]

    def prune(self, needed: Callable[[Node], bool]) -> None:
        """Leave out what nothing needs of a loop over rows."""
        if self.counter is None:
            return
        kept = [k for k, result in enumerate(self.results) if k == 0 or needed(result)]
        for name in ("starts", "carried", "ends", "results"):
            setattr(self, name, [getattr(self, name)[k] for k in kept])
        self.reads = [read for read in self.reads if needed(read.node)]
        self.written = [column for column in self.written if column.end is not None and needed(column.end)]
        for column in self.written:
            column.whole = any(map(needed, column.elements))


class Graph:
    """Builds the nodes of a program. Its methods take nodes or constants and return a node or a constant."""

    def __init__(self):
        self.nodes: list[Node] = []
        self._existing: dict[tuple, Node] = {}
        self.dropped: list[Node] = []
        """Values whose products with zero were folded: without them, a NaN would not reach the results."""

    def input(self, array: int, place: int, uniform: bool) -> Node:
        """Return a new input, the element `place` of an array."""
        node = Node(len(self.nodes), "input", (array, place), uniform)
        self.nodes.append(node)
        return node

    def loop(self, outer: GraphLoop | None, starts: list[Scalar]) -> GraphLoop:
        """Return a new loop, without its rounds."""
        loop = GraphLoop(outer, starts)
        loop.carried = [self._of_loop("carried", (loop, k)) for k in range(len(starts))]
        return loop

    def close(self, loop: GraphLoop, again: Scalar, ends: list[Scalar]) -> list[Node]:
        """Return the results of a loop, given its condition and what it carries after a round."""
        loop.again = again
        loop.ends = [self.select(again, *x) for x in zip(loop.carried, ends, strict=True)]
        needed = (*loop.starts, again, *loop.ends)
        loop.results = [self._of_loop("result", (loop, k, *needed)) for k in range(len(ends))]
        return loop.results

    def row_loop(self, outer: GraphLoop | None, count: Scalar) -> GraphLoop:
        """Return a new loop over `count` rows, without its rounds."""
        loop = self.loop(outer, [0.0])
        loop.counter = self._of_loop("carried", (loop, -1))
        loop.again = self.apply("lt", loop.carried[0], count)
        return loop

    def read_row(self, loop: GraphLoop | None, column: Sequence[Scalar]) -> Scalar:
        """Return the number of a column, from all of its numbers, that belongs to a round of a loop over rows."""
        first = column[0]
        if all(x is first or (type(first) is type(x) is float and x == first) for x in column):
            return first
        assert loop is not None
        read = _of_operand(column) or _of_column(column)
        if read is None:
            places = [self._of_loop("carried", (loop, -1)) for _ in column]
            read = RowRead(places[0], RowColumn(len(column), places[0], elements=places, given=list(column)))
        end = None if read.column is None else read.column.end
        node = self._of_loop("row", (loop, *(column if end is None else (end,))))
        loop.reads.append(read._replace(node=node))
        return node

    def close_rows(self, loop: GraphLoop, length: int, totals: list[Scalar], row: list[Scalar]) -> tuple[list, list]:
        """Return the sums over rows, and for each number of a row its column, given those of a round."""
        for x in totals:
            k = len(loop.carried)
            loop.starts.append(0.0)
            loop.carried.append(self._of_loop("carried", (loop, k)))
            loop.ends.append(self.select(loop.again, loop.carried[k], self.add(loop.carried[k], x)))
        loop.ends.insert(0, self.select(loop.again, loop.carried[0], self.add(loop.carried[0], 1.0)))
        loop.results = [self._of_loop("result", (loop, k, loop.again, end)) for k, end in enumerate(loop.ends)]
        columns = []
        for x in row:
            column = RowColumn(length, self._of_loop("carried", (loop, -1)), self.select(loop.again, 0.0, x))
            column.end = self._of_loop("result", (loop, column, loop.again, column.value))
            columns.append([self._of_loop("result", (loop, (column, k), column.end)) for k in range(length)])
            column.elements = columns[-1]
            loop.written.append(column)
        return loop.results[1:], columns

    def _of_loop(self, op: str, args: tuple) -> Node:
        node = Node(len(self.nodes), op, args, False)
        self.nodes.append(node)
        return node

    def node(self, op: str, *args: Scalar) -> Node:
        """Return the node of an operation without simplifying it."""
        key = (op, *args)
        existing = self._existing.get(key)
        if existing is not None:
            return existing
        uniform = True
        for a in args:
            if type(a) is Node and not a.uniform:
                uniform = False
        node = Node(len(self.nodes), op, args, uniform)
        self._existing[key] = node
        self.nodes.append(node)
        return node

    def add(self, a: Scalar, b: Scalar) -> Scalar:
        if type(a) is not Node:
            if type(b) is not Node:
                return a + b
            a, b = b, a
        if type(b) is not Node:
            return a if b == 0 else self.node("add", a, b)
        if b.op == "neg":
            return self.sub(a, b.args[0])
        if a.op == "neg":
            return self.sub(b, a.args[0])
        return self.node("add", a, b) if a.number < b.number else self.node("add", b, a)

    def sub(self, a: Scalar, b: Scalar) -> Scalar:
        if type(b) is not Node:
            return self.add(a, -b)
        if type(a) is not Node:
            return self.neg(b) if a == 0 else self.node("sub", a, b)
        if b.op == "neg":
            return self.add(a, b.args[0])
        if a.op == "neg":
            return self.neg(self.add(a.args[0], b))
        if a is b:
            self.dropped.append(a)
            return 0.0
        return self.node("sub", a, b)

    def mul(self, a: Scalar, b: Scalar) -> Scalar:
        if type(a) is not Node:
            if type(b) is not Node:
                return a * b
            a, b = b, a
        if type(b) is not Node:
            if b == 0:
                self.dropped.append(a)
                return 0.0
            if b == 1:
                return a
            if b == -1:
                return self.neg(a)
            return self.node("mul", a.args[0], -b) if a.op == "neg" else self.node("mul", a, b)
        if a.op == "neg":
            return self.mul(a.args[0], b.args[0]) if b.op == "neg" else self.neg(self.mul(a.args[0], b))
        if b.op == "neg":
            return self.neg(self.mul(a, b.args[0]))
        return self.node("mul", a, b) if a.number < b.number else self.node("mul", b, a)

    def div(self, a: Scalar, b: Scalar) -> Scalar:
        if type(b) is not Node:
            if type(a) is not Node:
                return _quotient(a, b)
            return self.mul(a, _quotient(1.0, b))
        if type(a) is not Node and a == 0:
            self.dropped.append(self.node("div", 1.0, b))
            return 0.0
        if b.uniform and type(a) is Node and not a.uniform:
            # One division a call instead of one for each element of the batch.
            return self.mul(a, self.node("div", 1.0, b))
        return self.node("div", a, b)

    def neg(self, a: Scalar) -> Scalar:
        if type(a) is not Node:
            return -a
        if a.op == "neg":
            return a.args[0]
        if a.op == "sub":
            return self.sub(a.args[1], a.args[0])
        return self.node("neg", a)

    def select(self, condition: Scalar, otherwise: Scalar, then: Scalar) -> Scalar:
        """Return `then` where the condition holds."""
        if type(condition) is not Node:
            return then if condition else otherwise
        if then is otherwise or (type(then) is not Node and type(otherwise) is not Node and then == otherwise):
            return then
        if type(then) is bool or type(otherwise) is bool or is_condition(then) or is_condition(otherwise):
            # A choice between conditions.
            return self.logical_or(
                self.logical_and(condition, then), self.logical_and(self.logical_not(condition), otherwise)
            )
        if condition.op == "not":
            return self.select(condition.args[0], then, otherwise)
        return self.node("select", condition, otherwise, then)

    def logical_and(self, a: Scalar, b: Scalar) -> Scalar:
        if type(a) is not Node:
            return b if a else False
        if type(b) is not Node:
            return a if b else False
        return a if a is b else self.node("and", a, b)

    def logical_or(self, a: Scalar, b: Scalar) -> Scalar:
        if type(a) is not Node:
            return True if a else b
        if type(b) is not Node:
            return True if b else a
        return a if a is b else self.node("or", a, b)

    def logical_xor(self, a: Scalar, b: Scalar) -> Scalar:
        return self.logical_and(self.logical_or(a, b), self.logical_not(self.logical_and(a, b)))

    def logical_not(self, a: Scalar) -> Scalar:
        if type(a) is not Node:
            return not a
        return a.args[0] if a.op == "not" else self.node("not", a)

    def apply(self, op: str, *args: Scalar) -> Scalar:
        """Return the result of another operation, folded where all operands are constants."""
        if any(type(a) is Node for a in args):
            return self.node(op, *args)
        try:
            return OPERATIONS[op].number(*args)  # pyright: ignore[reportOptionalCall]
        except (ValueError, OverflowError):
            return math.nan


def _of_operand(column: Sequence[Scalar]) -> RowRead | None:
    """Return where a column of an operand stands, None for other numbers."""
    if any(type(x) is not Node or x.op != "input" or x.uniform for x in column):
        return None
    places = [x.args for x in column if type(x) is Node]
    array, place = places[0]
    stride = places[1][1] - place if len(places) > 1 else 0
    assert type(column[0]) is Node
    regular = all(at == (array, place + k * stride) for k, at in enumerate(places))
    return RowRead(column[0], None, array, place, stride) if regular else None


def _of_column(column: Sequence[Scalar]) -> RowRead | None:
    """Return the column in memory that some numbers are, None for others."""
    first = column[0]
    if type(first) is not Node or first.op != "result" or type(first.args[1]) is not tuple:
        return None
    memory, _ = first.args[1]
    same = len(column) == memory.length and all(x is y for x, y in zip(column, memory.elements, strict=True))
    return RowRead(first, memory) if same else None


def _quotient(a: float, b: float) -> float:
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1, b)
    return a / b


def is_condition(a: Scalar) -> bool:
    """Return whether a value is a truth value that depends on data."""
    return type(a) is Node and a.op in CONDITIONS


def live(
    outputs: Iterable[Scalar], nodes: Sequence[Node], operands: Callable[[Node], Sequence] = lambda node: node.args
) -> list[Node]:
    """Return those nodes of a graph that some outputs depend on, by given operands of each node (by default all)."""
    found = bytearray(len(nodes))
    for x in outputs:
        if type(x) is Node:
            found[x.number] = True
    for node in reversed(nodes):
        if found[node.number] and node.op != "input":
            for a in operands(node):
                if type(a) is Node:
                    found[a.number] = True
    return [node for node in nodes if found[node.number]]


def spoiling_operands(node: Node) -> Sequence:
    """Return the operands of an operation that make its result infinite or NaN wherever they are."""
    return node.args[:1] if node.op == "div" else node.args if node.op in SPOILED else ()


def nan_operands(node: Node) -> Sequence:
    """Return the operands of an operation that make its result NaN wherever they are."""
    return () if node.op == "select" or node.op in CONDITIONS else node.args
