"""Counting kernels in the text of a compiled program."""

from __future__ import annotations

import re
from typing import NamedTuple

# Instructions that launch no kernel: bookkeeping, and control flow, whose bodies are counted separately.
_NO_KERNEL = frozenset(
    (
        *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "bitcast-convert", "after-all"),
        *("partition-id", "replica-id", "opt-barrier", "while", "conditional", "call", "add-dependency"),
        *("async-start", "async-update", "async-done", "copy-start", "copy-done"),
    )
)
_COMPUTATION = re.compile(r"^(ENTRY\s+)?%?([\w.\-]+)\s*(?:\(.*\))?\s*(?:->.*)?\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT\s+)?%?[\w.\-]+\s*=\s*(.*)$")
_OPCODE = re.compile(r"(?:^|[\s)\]}])([a-z][a-z0-9\-]*)\(")
_TRIPS = re.compile(r'known_trip_count"?\s*:\s*\{\s*"?n"?\s*:\s*"?(\d+)')


class Kernels(NamedTuple):
    instructions: int
    """Instructions that launch a kernel, each counted once."""
    launches: int
    """The same with loops counted as often as they run, where the compiler knows that."""
    unknown_loops: int
    """Loops whose number of runs the compiler does not know; they count once."""


def count_kernels(text: str) -> Kernels:
    """Count the kernels in a compiled program's HLO text, in its entry, its loops and its calls; not inside fusions."""
    computations, entry = _computations(text)
    if entry is None:
        return Kernels(0, 0, 0)
    seen: set[str] = set()
    unknown = 0
    instructions = 0

    def launches(name: str) -> int:
        nonlocal unknown, instructions
        first, total = name not in seen, 0
        seen.add(name)
        for opcode, line in computations.get(name, ()):
            if opcode == "while":
                trips = _TRIPS.search(line)
                unknown += first and trips is None
                total += (int(trips[1]) if trips else 1) * sum(launches(x) for x in _callees(line, "body", "condition"))
            elif opcode == "call":
                total += sum(launches(x) for x in _callees(line, "to_apply", "called_computations"))
            elif opcode == "conditional":
                names = ("branch_computations", "true_computation", "false_computation")
                total += max((launches(x) for x in _callees(line, *names)), default=0)
            elif opcode not in _NO_KERNEL:
                total += 1
                instructions += first
        return total

    total = launches(entry)
    return Kernels(instructions, total, unknown)


def _computations(text: str) -> tuple[dict[str, list[tuple[str, str]]], str | None]:
    out: dict[str, list[tuple[str, str]]] = {}
    entry, inside = None, None
    for line in text.splitlines():
        header = _COMPUTATION.match(line)
        if header and not line.startswith("HloModule"):
            inside = header[2]
            out[inside] = []
            entry = inside if header[1] else entry
            continue
        match = _INSTRUCTION.match(line)
        if inside is None or match is None:
            continue
        # The type comes first; it may be a tuple with layouts, so the opcode is the first word before a bracket.
        opcode = _OPCODE.search(match[1])
        if opcode is not None:
            out[inside].append((opcode[1], line))
    return out, entry


def _callees(line: str, *attributes: str) -> list[str]:
    names = []
    for attribute in attributes:
        for group in re.findall(rf"\b{attribute}=(\{{[^}}]*\}}|%?[\w.\-]+)", line):
            names += re.findall(r"%?([\w.\-]+)", group)
    return names
