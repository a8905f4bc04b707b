"""The LLVM module of a function that is written as loops over matrices, instead of traced."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from jaxdyn.native._interface import Interface
from jaxdyn.native._matrix_loops import MatrixLoops
from jaxdyn.native._module import Module, function_attributes
from jaxdyn.native._specialize import Program
from jaxdyn.native._threads import piece_length

ALIGNMENT = 64
"""The alignment of the memory, in bytes: that of the longest vectors."""


class MatrixProgram(Protocol):
    """A function of arrays with a text of its own. Must be hashable."""

    def memory(self, text: MatrixLoops) -> int:
        """Return how many numbers of memory it needs."""
        ...

    def operations(self) -> int:
        """Return about how many operations it takes."""
        ...

    def write(self, text: MatrixLoops, memory: str, operands: Sequence[str], results: Sequence[str]) -> None:
        """Append what it does for one element of the batch, with the addresses of the memory, which is zero at first,
        of the operands and of the results."""
        ...


def matrix_module(
    program: MatrixProgram,
    operands: Sequence[tuple[int, ...]],
    results: Sequence[tuple[int, ...]],
    bits: int,
    lanes: int,
    interface: Interface,
) -> Module:
    """Return the module of a program, for operands and results of these shapes without batch axes."""
    declared: set[str] = set()
    text = MatrixLoops(bits, lanes, declared)
    size = bits // 8
    text.line(f"%memory = call ptr @calloc(i64 1, i64 {program.memory(text) * size + ALIGNMENT})")
    place = text.value("ptrtoint ptr %memory to i64")
    place = text.value(f"and i64 {text.value(f'add i64 {place}, {ALIGNMENT - 1}')}, {-ALIGNMENT}")
    memory = text.value(f"inttoptr i64 {place} to ptr")
    n, m = len(operands), len(results)

    def entry(k: int, kind: str) -> str:
        return text.value(f"load {kind}, ptr {text.value(f'getelementptr i64, ptr %call, i64 {k}')}")

    arrays = [entry(k, "ptr") for k in range(n + m)]
    strides = [*(entry(n + m + k, "i64") for k in range(n)), *map(math.prod, results)]

    def one(index) -> None:
        element = text.plus("%begin", index)
        places = [text.address(a, text.times(element, s)) for a, s in zip(arrays, strides, strict=True)]
        program.write(text, memory, places[:n], places[n:])

    text.loop(text.minus("%end", "%begin"), one)
    text.line("call void @free(ptr %memory)")
    header = "define internal void @blocks(ptr %call, ptr %common, i64 %begin, i64 %end) noinline #0 {"
    blocks = "\n".join([header, "entry:", *text.lines, "  ret void", "}"])
    piece = piece_length(program.operations(), 1)
    record = Program([], tuple(operands), (False,) * n, ([],) * m)
    parts = [
        "declare ptr @calloc(i64, i64)",
        *sorted(declared),
        blocks,
        interface.handlers(record, 0, piece, ""),
        function_attributes(text.kind),
    ]
    return Module("\n\n".join(parts) + "\n", 0, piece, 0)
