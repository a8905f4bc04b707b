"""Loops of a program that end depending on data: those of the graph, and as LLVM text.

A loop turns for all lanes of a vector while any of them goes on, as it does for all elements of a batch as an operation
of JAX: what is done for an element that has ended must not change it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from jaxdyn.native._graph import Graph, Node, Scalar, live

if TYPE_CHECKING:
    from jaxdyn.native._emit import Values


@dataclasses.dataclass(frozen=True, eq=False)
class Turn:
    """One turn of a loop. Its nodes are used nowhere else."""

    carried: Sequence[Node]
    """The values at the start of the turn."""
    check: Sequence[Node]
    """The nodes that `going` needs."""
    going: Scalar
    """Whether the loop goes on."""
    body: Sequence[Node]
    """All other nodes."""
    following: Sequence[Scalar]
    """The values at the start of the next turn."""
    ends: list[Node] = dataclasses.field(default_factory=list)
    """The nodes of the values at the end of the loop."""

    @property
    def nodes(self) -> list[Node]:
        return [*self.carried, *self.check, *self.body]


def turn_of(node: Node) -> Turn:
    """Return the turn of a loop, which is the last operand of its node."""
    return node.args[-1]


def add_loop(
    graph: Graph, starts: Sequence[Scalar], carried: Sequence[Node], going: Scalar, following: Sequence[Scalar]
) -> list[Node]:
    """Return the nodes of what a loop carries at its end. What is computed from `carried` is its body."""
    inside = {n.number for n in carried}
    hidden: set[int] = set()
    for node in graph.nodes[carried[0].number :]:
        if any(type(a) is Node and a.number in inside for a in node.args):
            inside.add(node.number)
        if node.op == "loop":
            hidden |= {n.number for n in turn_of(node).nodes}
    own = inside - hidden - {n.number for n in carried}
    needed, checked = live([going, *following]) & own, live([going])
    nodes = [n for n in graph.nodes[carried[0].number :] if n.number in needed]
    check, body = ([n for n in nodes if (n.number in checked) == wanted] for wanted in (True, False))
    turn = Turn(carried, check, going, body, following)
    used = [going, *following, *(a for n in nodes for a in n.args)]
    # What a turn needs from outside is computed before the loop.
    outside = {a.number: a for a in used if type(a) is Node and a.number not in inside}
    loop = graph.node("loop", *starts, *outside.values(), turn)
    turn.ends.extend(graph.node("at_end", loop, k) for k in range(len(starts)))
    return turn.ends


def write_loop(values: Values, node: Node, any_lane: Callable[..., str]) -> list[str]:
    """Append the instructions of a loop; return the names of what it carries at its end."""
    body, turn = values.body, turn_of(node)
    kind = body.kind
    names = [values.name(a) for a in node.args[:-1]]
    before, head, inside, last, after = (body.block() for _ in range(5))
    body.line(f"br label %{before}")
    body.lines.append(f"{before}:")
    body.line(f"br label %{head}")
    body.lines.append(f"{head}:")
    at, carried = len(body.lines), [body.value("phi") for _ in turn.carried]
    values.names |= {n.number: name for n, name in zip(turn.carried, carried, strict=True)}
    for part in turn.check:
        values.emit(part)
    body.line(f"br i1 {any_lane(body, values.name(turn.going))}, label %{inside}, label %{after}")
    body.lines.append(f"{inside}:")
    for part in turn.body:
        values.emit(part)
    following = [values.name(x) for x in turn.following]
    body.line(f"br label %{last}")
    body.lines.append(f"{last}:")
    body.line(f"br label %{head}")
    for k, (name, first, then) in enumerate(zip(carried, names, following, strict=False)):
        body.lines[at + k] = f"  {name} = phi {kind.float} [ {first}, %{before} ], [ {then}, %{last} ]"
    body.lines.append(f"{after}:")
    return carried
