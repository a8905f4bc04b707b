"""The order of a program's operations."""

from __future__ import annotations

from collections.abc import Iterable

from jaxdyn.native._graph import Node, Scalar
from jaxdyn.native._loops import turn_of


def by_results(results: Iterable[Scalar]) -> list[Node]:
    """Return the nodes that some results depend on, one result after the other, each operand where it is first needed.

    Fewer values are alive at once than in the order in which the function computes, so fewer wait in memory.
    """
    order: list[Node] = []
    done: set[int] = set()
    for result in results:
        stack = [result] if type(result) is Node else []
        while stack:
            top = stack[-1]
            waiting = [] if top.number in done else [a for a in operands(top) if a.number not in done]
            if waiting:
                stack.extend(reversed(waiting))
                continue
            stack.pop()
            if top.number not in done:
                done.add(top.number)
                order.append(top)
                if top.op == "loop":
                    # Both are in one part of a program.
                    order.extend(turn_of(top).ends)
                    done.update(n.number for n in turn_of(top).ends)
    return order


def operands(node: Node) -> list[Node]:
    """Return the operands of a node that are nodes."""
    return [] if node.op == "input" else [a for a in node.args if type(a) is Node]
