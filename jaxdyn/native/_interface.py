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

import jax

from jaxdyn.native._emit import Kind
from jaxdyn.native._specialize import Program

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

    def handler(self, program: Program, common: int, kind: Kind) -> str:
        """Return the text of the handler: it fills the record of a call, computes what is the same for the whole
        batch, and goes over the batch."""
        lines = [
            "define ptr @handler(ptr %frame) #0 {",
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
        ]
        n, m = len(program.inputs), len(program.outputs)
        lines.append(f"  %call = alloca ptr, i64 {2 * n + m}")
        for name, offset, count in (("operand", ARGUMENTS, n), ("result", RESULTS, m)):
            lines += [
                f"  %{name}s_at = getelementptr i8, ptr %frame, i64 {offset}",
                f"  %{name}s = load ptr, ptr %{name}s_at",
            ]
            for k in range(count):
                place = k if name == "operand" else n + k
                lines += [
                    f"  %{name}{k}_at = getelementptr ptr, ptr %{name}s, i64 {k}",
                    f"  %{name}{k} = load ptr, ptr %{name}{k}_at",
                    f"  %{name}{k}_data_at = getelementptr i8, ptr %{name}{k}, i64 {DATA}",
                    f"  %{name}{k}_data = load ptr, ptr %{name}{k}_data_at",
                    f"  %{name}{k}_slot = getelementptr ptr, ptr %call, i64 {place}",
                    f"  store ptr %{name}{k}_data, ptr %{name}{k}_slot",
                ]
        lines += _length("result0", "%batch")
        for k, (shape, same) in enumerate(zip(program.inputs, program.uniform, strict=True)):
            if not same:
                # An operand without the batch has one element, which all read.
                lines += _length(f"operand{k}", f"%length{k}")
                lines += [
                    f"  %single{k} = icmp eq i64 %length{k}, 1",
                    f"  %stride{k} = select i1 %single{k}, i64 0, i64 {math.prod(shape)}",
                    f"  %stride{k}_slot = getelementptr i64, ptr %call, i64 {n + m + k}",
                    f"  store i64 %stride{k}, ptr %stride{k}_slot",
                ]
        lines += [
            "  %empty = icmp eq i64 %batch, 0",
            "  br i1 %empty, label %done, label %work",
            "work:",
            f"  %common = alloca {Kind(kind.bits, 1).float}, i64 {max(common, 1)}",
            "  call void @prepare(ptr %call, ptr %common)",
            "  call void @blocks(ptr %call, ptr %common, i64 0, i64 %batch)",
            "  br label %done",
            "done:",
            "  ret ptr null",
            "}",
        ]
        return "\n".join(lines)


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
