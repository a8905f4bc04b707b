"""The functions that compute what is the same for the whole batch."""

from __future__ import annotations

from collections.abc import Sequence

from jaxdyn.native._blocks import Blocks, element
from jaxdyn.native._emit import Backend, Body
from jaxdyn.native._graph import Node, is_condition
from jaxdyn.native._values import Values


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
        return body.value(f"load {one.float}, ptr {element(body, one, start, place)}")

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
            body.line(f"store {one.float} {value}, ptr {element(body, one, '%common', kept[node.number])}")
    return blocks.function(name, ("%call", "%common"), f"blocks_of_{name}")


def _loaded_common(body: Body, node: Node, place: int) -> str:
    """Load a value that is the same for the whole batch."""
    one = body.backend
    x = body.value(f"load {one.float}, ptr {element(body, one, '%common', place)}")
    return body.compare("une", x, one.constant(0.0)) if is_condition(node) else x
