"""The order of a program's operations, and its division into functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from jaxdyn.native._graph import GraphLoop, Node, RowColumn, Scalar

COMMON_PART = 5000
"""The most operations in one function of those that are the same for the whole batch. They are on single numbers, on
which the compiler makes branches of choices, in a time that grows faster still."""


@dataclasses.dataclass(eq=False)
class KernelPart:
    """The operations of one function of a kernel."""

    nodes: list[Node]
    stored: list[tuple[Scalar, Node | GraphLoop]]
    """The values that it leaves at its end for a carried value, or as the condition of a loop."""
    like: KernelPart | None = None
    """An earlier part that computes the same with other numbers, whose function it shares."""


@dataclasses.dataclass(eq=False)
class Rounds:
    """A loop's functions."""

    loop: GraphLoop
    condition: list[KernelPart | Rounds]
    body: list[KernelPart | Rounds]


def divided(results: Sequence[Scalar], longest: int) -> list[KernelPart | Rounds]:
    """Return the parts and loops of a program with some results, in their order; the last one is a part. Parts have at
    most the `longest` number of operations."""
    return _steps(results, (), set(), {}, longest)


def _steps(
    results: Sequence[Scalar], stored: Iterable, done: set[int], needed: dict[GraphLoop, list[Node]], longest: int
) -> list:
    """Return the steps that compute and store values; those of nodes that are done come before."""
    steps: list[KernelPart | Rounds] = []
    nodes: list[Node] = []
    rounds: list[Rounds] = []

    def before(node: Node) -> list[Node]:
        if node.op == "result":
            loop = node.args[0]
            if loop not in needed:
                needed[loop] = _needed(loop)
            return needed[loop]
        return [a for a in operands(node) if not a.uniform]

    met: set[GraphLoop] = set()
    for node in by_results((x for x in results if type(x) is not Node or not x.uniform), done, before):
        if node.op != "result":
            nodes += [node] if node.op not in ("input", "carried", "row") else []
        elif node.args[0] not in met:
            loop = node.args[0]
            met.add(loop)
            rounds.append(Rounds(loop, [], []))
            steps += [*_parts(nodes, loop.before(), longest), rounds[-1]]
            nodes = []
    # What a loop needs of the nodes around it is known now, and comes before it.
    for step in rounds:
        loop = step.loop
        step.condition += _steps([loop.again], [(loop.again, loop)], done, needed, longest)
        ends = loop.after_round()
        step.body += _steps([x for x, _ in ends], ends, done, needed, longest)
    return [*steps, *_parts(nodes, stored, longest)]


def _needed(loop: GraphLoop) -> list[Node]:
    """Return what a loop needs from outside."""
    first = loop.carried[0].number
    stored = (*loop.before(), *loop.after_round())
    ends = [x for x in (loop.again, *(x for x, _ in stored)) if type(x) is Node]
    reached: dict[int, Node] = {}
    stack = list(ends)
    while stack:
        node = stack.pop()
        if node.number not in reached:
            reached[node.number] = node
            # Nodes that are older than the loop are outside.
            stack.extend(operands(node) if node.number > first else ())
    inside: set[int] = set()
    needed = {x.number: x for x in ends}
    for number in sorted(reached):
        node = reached[number]
        if node.op in ("carried", "row", "result"):
            within = _is_within(node.args[0], loop)
        else:
            within = any(a.number in inside for a in operands(node))
        if within:
            inside.add(number)
            needed |= {a.number: a for a in operands(node)}
    return [x for number, x in needed.items() if number not in inside and not x.uniform]


def _is_within(inner: GraphLoop | None, loop: GraphLoop) -> bool:
    while inner is not None and inner is not loop:
        inner = inner.outer
    return inner is loop


def _parts(order: list[Node], stored: Iterable, longest: int) -> list[KernelPart]:
    count = max(1, -(-len(order) // longest))
    length = -(-len(order) // count)
    parts = [KernelPart(order[i * length : (i + 1) * length], []) for i in range(count)]
    parts[-1].stored += stored
    return parts


def cut_common(common: list[Node], shared: dict[int, int]) -> tuple[list[list[Node]], dict[int, int]]:
    """Return the operations that are the same for the whole batch, cut into functions, and the places in memory of
    those that have one: what the kernel uses has the given places, and what one function leaves to the next has further
    ones."""
    count = -(-len(common) // COMMON_PART)
    if count <= 1:
        return [common], shared
    common = by_results((n for n in common if n.number in shared), set(), operands)
    length = -(-len(common) // count)
    parts = [common[i : i + length] for i in range(0, len(common), length)]
    part_of = {n.number: k for k, part in enumerate(parts) for n in part}
    kept = dict(shared)
    for k, part in enumerate(parts):
        for a in (a for n in part for a in operands(n)):
            if part_of[a.number] < k and a.op != "input":
                kept.setdefault(a.number, len(kept))
    return parts, kept


def each_part(steps: Iterable[KernelPart | Rounds]) -> Iterator[KernelPart]:
    """Return all parts in their order."""
    for step in steps:
        yield from (step,) if isinstance(step, KernelPart) else each_part([*step.condition, *step.body])


def rows_of_crossing(steps: Sequence[KernelPart | Rounds]) -> tuple[dict[int | GraphLoop | RowColumn, int], int]:
    """Return the rows in which values wait that another part computes than uses, by the numbers of nodes, those of the
    conditions of loops, and the number of rows."""
    parts = list(each_part(steps))
    part_of = {n.number: k for k, part in enumerate(parts) for n in part.nodes}
    spans = [_span(step, parts) for step in _loops(steps)]
    last: dict[int, int] = {}
    for k, part in enumerate(parts):
        stored = [x for x, _ in part.stored if type(x) is Node]
        for a in (*(a for n in part.nodes for a in operands(n)), *stored):
            made = part_of.get(a.number, k)
            if made != k and not a.uniform:
                # What a loop uses in one round, it uses in the next.
                ends = [end for begin, end in spans if made < begin <= k <= end]
                last[a.number] = max(last.get(a.number, 0), k, *ends)
    rows: dict[int | GraphLoop | RowColumn, int] = {}
    vacant: list[int] = []
    leaving: dict[int, list[int]] = {}
    count = 0
    for k, part in enumerate(parts):
        vacant += leaving.pop(k, [])
        for n in part.nodes:
            if n.number in last:
                if not vacant:
                    vacant.append(count)
                    count += 1
                row = vacant.pop()
                rows[n.number] = row
                # Another value may take the row after the last part that reads it.
                leaving.setdefault(last[n.number] + 1, []).append(row)
    for step in _loops(steps):
        rows[step.loop] = count
        for k, (carried, result) in enumerate(zip(step.loop.carried, step.loop.results, strict=True), count + 1):
            rows[carried.number] = rows[result.number] = k
        count = _place_rows(step.loop, rows, count + 1 + len(step.loop.carried))
    return rows, count


def _place_rows(loop: GraphLoop, rows: dict, count: int) -> int:
    """Add the places of what a loop over rows reads and writes, from a place on, and return the next one."""
    if loop.counter is None:
        return count
    given = [r.column for r in loop.reads if r.column is not None and r.column.given]
    for node in (loop.counter, *(read.node for read in loop.reads), *(column.slot for column in loop.written)):
        rows[node.number] = count
        count += 1
    for column in (*loop.written, *given):
        rows[column] = count
        for k, element in enumerate(column.elements):
            rows[element.number] = count + k
        # Columns whose distance is a power of two would share places of a cache.
        count += column.length + (column.length + 2) % 4
    return count


def _loops(steps: Iterable[KernelPart | Rounds]) -> Iterator[Rounds]:
    for step in steps:
        if isinstance(step, Rounds):
            yield step
            yield from _loops([*step.condition, *step.body])


def _span(step: Rounds, parts: list[KernelPart]) -> tuple[int, int]:
    """Return the first and the last of a loop's parts."""
    own = [parts.index(x) for x in each_part([step])]
    return own[0], own[-1]


def by_results(results: Iterable[Scalar], done: set[int], before) -> list[Node]:
    """Return the nodes that some results depend on and that are not done, one result after the other, each operand
    where it is first needed; `before` returns the operands of a node.

    Fewer values are alive at once than in the order in which the function computes, so fewer wait in memory.
    """
    order: list[Node] = []
    for result in results:
        stack = []
        if type(result) is Node and result.number not in done:
            stack.append((result, iter(before(result))))
        while stack:
            node, operands_left = stack[-1]
            waiting = next((a for a in operands_left if a.number not in done), None)
            if waiting is not None:
                stack.append((waiting, iter(before(waiting))))
                continue
            stack.pop()
            done.add(node.number)
            order.append(node)
    return order


def operands(node: Node) -> list[Node]:
    """Return the operands of a node that are nodes."""
    return [] if node.op == "input" else [a for a in node.args if type(a) is Node]


def joined(steps: Iterable[KernelPart | Rounds], longest: int) -> list[KernelPart | Rounds]:
    """Return steps of which parts that follow each other are one, of at most the `longest` number of operations."""
    out: list[KernelPart | Rounds] = []
    for step in steps:
        last = out[-1] if out else None
        if (
            isinstance(step, KernelPart)
            and isinstance(last, KernelPart)
            and len(last.nodes) + len(step.nodes) <= longest
        ):
            out[-1] = KernelPart([*last.nodes, *step.nodes], [*last.stored, *step.stored])
        else:
            out.append(step)
    return out
