"""The nodes of a program as LLVM text, with one lane of a vector for each element of the batch."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

from jaxdyn.native._emit import LARGEST_ANGLE, Body
from jaxdyn.native._graph import Node, Scalar
from jaxdyn.native._operations import OPERATIONS


class Values:
    """Emits the nodes of a part of a program and keeps the names of their values."""

    def __init__(self, body: Body, load: Callable[[Node], str], angle: Callable[[Node], str] | None = None):
        self.body = body
        self.load = load
        """Loads an input, or a value that another part has computed."""
        self.angle = angle
        """Loads an input reduced to small angles."""
        self.names: dict[int, str] = {}
        self._trigonometry: dict[tuple[int, ...], dict[str, str]] = {}

    def name(self, x: Scalar) -> str:
        backend = self.body.backend
        if type(x) is not Node:
            return backend.truth(x) if type(x) is bool else backend.constant(x)
        name = self.names.get(x.number)
        if name is None:
            name = self.names[x.number] = self.load(x)
        return name

    def items(self, nodes: Sequence[Node]) -> Sequence[Any]:
        """Return what is emitted at once, in its order."""
        return nodes

    def emit(self, node: Node, paired: Container[int] = ()) -> Sequence[Node]:
        """Append the instructions of an item, and return the nodes whose values are there now. `paired` has the numbers
        of the nodes of which both sine and cosine are needed."""
        trigonometric = node.op in ("sin", "cos") and not self.body.backend.by_library
        self.names[node.number] = (
            self._sine_or_cosine(node, paired)
            if trigonometric
            else self.operation(node.op, [self.argument(node, k) for k in range(len(node.args))])
        )
        return [node]

    def argument(self, node: Node, place: int) -> str:
        """Return the name of an operand."""
        return self.name(node.args[place])

    def operation(self, op: str, args: Sequence[str]) -> str:
        """Append the instructions of an operation, other than sine and cosine of vectors, and return the result."""
        if op == "select":
            condition, otherwise, then = args
            return self.body.select(condition, then, otherwise)
        emit = OPERATIONS[op].emit
        return self.body.library(op, *args) if emit is None else emit(self.body, *args)

    def _sine_or_cosine(self, node: Node, paired: Container[int]) -> str:
        x = node.args[0]
        return self.trigonometry(node.op, (x.number,), lambda: self._small_angle(x), x.number in paired)

    def trigonometry(self, op: str, of: tuple[int, ...], angle: Callable[[], str], both: bool) -> str:
        """Return the sine or the cosine of a small angle, computed once for the nodes `of`; `both` says whether both
        are needed."""
        known = self._trigonometry.setdefault(of, {})
        if op not in known:
            if both or op == "cos":
                known["sin"], known["cos"] = self.body.sine_and_cosine(angle())
            else:
                known["sin"] = self.body.sine(angle())
        return known[op]

    def _small_angle(self, x: Node) -> str:
        factor, root = self.root_of_angle(x)
        if root is None or self.angle is None:
            return self.limited_angle(self.name(x))
        small = self.angle(root)
        return small if factor == 1 else self.body.exact("fmul", small, self.body.backend.constant(factor))

    def root_of_angle(self, x: Node) -> tuple[float, Node | None]:
        """Return the input that is, times 1 or 1/2, an angle, and whose own reduction is loaded, or None."""
        factor, root = angle_of_input(x)
        return (factor, root) if root is not None and not root.uniform and self.angle is not None else (0.0, None)

    def limited_angle(self, name: str) -> str:
        """Return an angle, or where it is very large, a smaller one with the same sine and cosine."""
        # The reduction by multiples of pi loses its digits at very large angles: the C library then reduces them.
        body = self.body
        backend = body.backend
        size = body.intrinsic("fabs", name)
        large = any_lane(body, body.compare("ogt", size, backend.constant(LARGEST_ANGLE[backend.bits])))
        here, slow, after = body.block(), body.block(), body.block()
        body.line(f"br label %{here}")
        body.lines.append(f"{here}:")
        body.line(f"br i1 {large}, label %{slow}, label %{after}, !prof !0")
        body.lines.append(f"{slow}:")
        reduced = body.small_angle(name)
        body.line(f"br label %{after}")
        body.lines.append(f"{after}:")
        return body.value(f"phi {backend.float} [ {name}, %{here} ], [ {reduced}, %{slow} ]")


def any_lane(body: Body, condition: str) -> str:
    """Return whether a condition holds in any lane."""
    lanes = body.backend.lanes
    if lanes == 1:
        return condition
    mask = body.value(f"bitcast {body.backend.bool} {condition} to i{lanes}")
    return body.value(f"icmp ne i{lanes} {mask}, 0")


def angle_of_input(x: Scalar) -> tuple[float, Node | None]:
    """Return the input that is, times 1 or 1/2, the angle `x`, or None."""
    if type(x) is Node and x.op == "input":
        return 1.0, x
    if type(x) is Node and x.op == "mul" and type(x.args[1]) is float and x.args[1] == 0.5:
        factor, root = angle_of_input(x.args[0])
        return (0.5, root) if root is not None and factor == 1.0 else (0.0, None)
    return 0.0, None
