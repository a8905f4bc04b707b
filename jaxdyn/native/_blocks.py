"""The text of functions of many operations."""

from __future__ import annotations

from collections.abc import Sequence

from jaxdyn.native._emit import Backend, Body

BLOCK = 200
"""The operations in a basic block, within which the compiler orders instructions."""


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


def element(body: Body, backend: Backend, start: str, place: int) -> str:
    """Append the address of an element behind another one, and return its name."""
    return body.value(f"getelementptr {backend.float}, ptr {start}, i64 {place}") if place else start
