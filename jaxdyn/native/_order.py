"""The order of a program's operations, and its division into parts."""

from __future__ import annotations

from collections.abc import Sequence

from jaxdyn.native._graph import Node


def late(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes in an order in which an operation whose operands are used later, too, waits for its first use.

    Fewer values are alive at once, so fewer are moved between registers and memory.
    """
    at = {node.number: i for i, node in enumerate(nodes)}
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for i, node in enumerate(nodes):
        for a in operands(node):
            first.setdefault(a.number, i)
            last[a.number] = i
    order: list[Node] = []
    done: set[int] = set()

    def place(node: Node) -> None:
        stack = [node]
        while stack:
            top = stack[-1]
            if top.number in done:
                stack.pop()
                continue
            waiting = [a for a in operands(top) if a.number not in done]
            if waiting:
                stack.extend(reversed(waiting))
                continue
            stack.pop()
            done.add(top.number)
            order.append(top)

    for node in nodes:
        use = first.get(node.number)
        if use is None or any(last[a.number] < use for a in operands(node)):
            place(node)
    for node in nodes:
        place(node)
    assert len(order) == len(at)
    return order


def operands(node: Node) -> list[Node]:
    """Return the operands of a node that are nodes."""
    return [] if node.op == "input" else [a for a in node.args if type(a) is Node]
