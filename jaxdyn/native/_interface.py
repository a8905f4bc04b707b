"""XLA's foreign function interface, as far as a handler written in LLVM text needs it.

A handler gets a pointer to a call frame. Its layout, and those of what it points to, are in the header `c_api.h` that
comes with JAX; the interface's version is read from there.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import pathlib
import re
from collections.abc import Iterable

import jax

from jaxdyn.native._specialize import Program
from jaxdyn.native._threads import shared_work, thread_functions

TESTED = ((0, 3), (0, 5))
"""The first and the last version of the interface whose layouts are known to be as below."""

# Offsets in bytes: `XLA_FFI_CallFrame`, `XLA_FFI_Args` and `XLA_FFI_Rets` in it, `XLA_FFI_Buffer`.
EXTENSION, API, CONTEXT, ARGUMENTS, RESULTS = 8, 16, 24, 72, 112
DATA, DIMENSIONS = 24, 40


@dataclasses.dataclass(frozen=True)
class Interface:
    """A version of the interface."""

    major: int
    minor: int
    functions: tuple[str, ...]
    """The functions that XLA offers to handlers, in order."""

    @property
    def known(self) -> bool:
        return TESTED[0] <= (self.major, self.minor) <= TESTED[1]

    def handlers(self, program: Program, common: int, piece: int, totals: str) -> str:
        """Return the text of the handlers: `prepare_handler` computes what is the same for the whole batch, `handler`
        takes that first, then the other operands, and goes over the batch in pieces of so many elements. With `totals`,
        the text that adds up what the pieces have left, it has one more result, in which they leave it."""
        n, m = len(program.inputs), len(program.outputs)
        same = [k for k in range(n) if program.uniform[k]]
        other = [k for k in range(n) if not program.uniform[k]]
        prepare = [*self._begin("prepare_handler", 2 * n + m), *_pointers("operand", same)]
        prepare += _pointers("result", [None])
        prepare += ["  call void @prepare(ptr %call, ptr %result0_data)", "  ret ptr null", "}"]
        first = [] if common == 0 else [None]
        sums = [2 * n + m] if totals else []
        lines = [*self._begin("handler", 2 * n + m + len(sums)), *_pointers("operand", [*first, *other])]
        lines += _pointers("result", [*range(n, n + m), *sums])
        lines += [f"  %common = getelementptr i8, ptr {'%operand0_data' if first else '%frame'}, i64 0"]
        batch = "1"
        for place, k in enumerate(other, len(first)):
            # An operand without the batch has one element, which all read.
            lines += _length(f"operand{place}", f"%length{k}")
            size = math.prod(program.inputs[k]) * program.row_count(k)
            lines += [
                f"  %single{k} = icmp eq i64 %length{k}, 1",
                f"  %stride{k} = select i1 %single{k}, i64 0, i64 {size}",
                f"  %stride{k}_slot = getelementptr i64, ptr %call, i64 {n + m + k}",
                f"  store i64 %stride{k}, ptr %stride{k}_slot",
                f"  %batch{k} = select i1 %single{k}, i64 {batch}, i64 %length{k}",
            ]
            batch = f"%batch{k}"
        lines += [
            f"  %batch = add i64 {batch}, 0",
            "  %empty = icmp eq i64 %batch, 0",
            "  br i1 %empty, label %done, label %work",
            "work:",
            shared_work(piece, self.offset, API, CONTEXT),
            "done:",
            *([totals] if totals else []),
            "  ret ptr null",
            "}",
        ]
        return "\n".join([thread_functions(piece, self.offset), *(prepare if common else []), *lines])

    def plain_handler(self, function: str, operands: int, results: int, arguments: Iterable[str]) -> str:
        """Return the text of the handler that calls a function with the addresses of operands and results, which are
        `%operand0_data` and so on."""
        lines = [*self._begin("handler", 1), *_pointers("operand", [None] * operands)]
        lines += _pointers("result", [None] * results)
        lines.append(f"  call void @{function}({', '.join(f'ptr {x}' for x in arguments)})")
        return "\n".join([*lines, "  ret ptr null", "}"])

    def _begin(self, name: str, slots: int) -> list[str]:
        """The head of a handler, which says what it is when asked, and the record of a call."""
        return [
            f"define ptr @{name}(ptr %frame) #0 {{",
            f"  %extension_at = getelementptr i8, ptr %frame, i64 {EXTENSION}",
            "  %extension = load ptr, ptr %extension_at",
            "  %called = icmp eq ptr %extension, null",
            "  br i1 %called, label %run, label %describe",
            "describe:",
            # XLA_FFI_Metadata_Extension, XLA_FFI_Metadata: the version, and no traits.
            "  %metadata_at = getelementptr i8, ptr %extension, i64 24",
            "  %metadata = load ptr, ptr %metadata_at",
            *_stored("%metadata", 24, self.major),
            *_stored("%metadata", 28, self.minor),
            *_stored("%metadata", 32, 0),
            "  ret ptr null",
            "run:",
            f"  %call = alloca ptr, i64 {slots}",
        ]

    def offset(self, function: str) -> int:
        """The place, in bytes, of the address of a function in the record of functions that XLA offers."""
        # Before them are its size, its extensions, the version (three words) and the internal functions.
        return 8 * (1 + 1 + 3 + 1 + self.functions.index(function))


def _pointers(name: str, slots: Iterable[int | None]) -> list[str]:
    """Put the addresses of the arguments, or of the results, into their slots of the record of a call."""
    lines = [
        f"  %{name}s_at = getelementptr i8, ptr %frame, i64 {ARGUMENTS if name == 'operand' else RESULTS}",
        f"  %{name}s = load ptr, ptr %{name}s_at",
    ]
    for k, slot in enumerate(slots):
        lines += [
            f"  %{name}{k}_at = getelementptr ptr, ptr %{name}s, i64 {k}",
            f"  %{name}{k} = load ptr, ptr %{name}{k}_at",
            f"  %{name}{k}_data_at = getelementptr i8, ptr %{name}{k}, i64 {DATA}",
            f"  %{name}{k}_data = load ptr, ptr %{name}{k}_data_at",
        ]
        if slot is not None:
            lines += [
                f"  %{name}{k}_slot = getelementptr ptr, ptr %call, i64 {slot}",
                f"  store ptr %{name}{k}_data, ptr %{name}{k}_slot",
            ]
    return lines


def _stored(start: str, offset: int, value: int) -> list[str]:
    name = f"%at{offset}"
    return [f"  {name} = getelementptr i8, ptr {start}, i64 {offset}", f"  store i32 {value}, ptr {name}"]


def _length(buffer: str, out: str) -> list[str]:
    """The length of the first axis of a buffer."""
    return [
        f"  %{buffer}_dimensions_at = getelementptr i8, ptr %{buffer}, i64 {DIMENSIONS}",
        f"  %{buffer}_dimensions = load ptr, ptr %{buffer}_dimensions_at",
        f"  {out} = load i64, ptr %{buffer}_dimensions",
    ]


@functools.cache
def interface() -> Interface:
    """Return the version of the interface that comes with JAX."""
    text = (pathlib.Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h").read_text()
    version = {name: int(n) for name, n in re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", text)}
    functions = re.findall(r"^\s*_XLA_FFI_API_STRUCT_FIELD\((\w+)\);", text, re.MULTILINE)
    return Interface(version["MAJOR"], version["MINOR"], tuple(functions))
