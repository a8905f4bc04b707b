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
import sys

import jax

from jaxdyn.native._emit import Kind
from jaxdyn.native._specialize import Program

TESTED = ((0, 3), (0, 5))
"""The first and the last version of the interface whose layouts are known to be as below."""

# Offsets in bytes: `XLA_FFI_CallFrame`, `XLA_FFI_Args` and `XLA_FFI_Rets` in it, `XLA_FFI_Buffer`.
EXTENSION, API, CONTEXT, ARGUMENTS, RESULTS = 8, 16, 24, 72, 112
DATA, DIMENSIONS = 24, 40

JOB = ("next", "finished", "users", "pieces", "batch", "call", "common")
"""The numbers and pointers in the record of a batch that several threads work on: the next piece to take, how many are
finished, how many threads use the record, the number of pieces, the batch, and the arguments of the kernel."""
PIECE_OPERATIONS = 1_500_000
"""The least operations in a piece, counted once an element of the batch: some 20 us, so that handing it over to another
thread costs little."""
YIELD = "SwitchToThread" if sys.platform == "win32" else "sched_yield"


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
            *self._shared_work(kind, max(1, sum(not n.uniform for n in program.nodes))),
            "done:",
            "  ret ptr null",
            "}",
        ]
        return "\n".join(lines)


    def _shared_work(self, kind: Kind, operations: int) -> list[str]:
        """The part of the handler that goes over the batch, in XLA's threads where that pays.

        The batch is divided into pieces, which the threads take one after the other, this one too. So it never waits
        for a thread that has not begun, and a late one finds nothing left to do; the last to leave frees the record.
        """
        piece = -(-PIECE_OPERATIONS // operations // kind.lanes) * kind.lanes
        api = {name: 16 + 32 - 8 + 8 * (1 + k) for k, name in enumerate(self.functions)}
        text = f"""
  %many = icmp uge i64 %batch, {2 * piece}
  br i1 %many, label %ask, label %alone
alone:
  call void @blocks(ptr %call, ptr %common, i64 0, i64 %batch)
  br label %done
ask:
  %api_at = getelementptr i8, ptr %frame, i64 {API}
  %api = load ptr, ptr %api_at
  %context_at = getelementptr i8, ptr %frame, i64 {CONTEXT}
  %context = load ptr, ptr %context_at
  %threads_at = alloca i64
  store i64 1, ptr %threads_at
  %question = alloca {{ i64, ptr, ptr, ptr }}
  store {{ i64, ptr, ptr, ptr }} {{ i64 32, ptr null, ptr null, ptr null }}, ptr %question
  %question_context = getelementptr i8, ptr %question, i64 16
  store ptr %context, ptr %question_context
  %question_threads = getelementptr i8, ptr %question, i64 24
  store ptr %threads_at, ptr %question_threads
  %ask_at = getelementptr i8, ptr %api, i64 {api["XLA_FFI_ThreadPool_NumThreads"]}
  %ask_threads = load ptr, ptr %ask_at
  %refused = call ptr %ask_threads(ptr %question)
  call void @forget(ptr %api, ptr %refused)
  %threads = load i64, ptr %threads_at
  %several = icmp ugt i64 %threads, 1
  br i1 %several, label %share, label %alone
share:
  %smallest = add i64 %batch, {piece - 1}
  %pieces = udiv i64 %smallest, {piece}
  %few = icmp ult i64 %pieces, %threads
  %workers = select i1 %few, i64 %pieces, i64 %threads
  %job = call ptr @malloc(i64 {8 * len(JOB)})
  store i64 0, ptr %job
"""
        fields = {"finished": "0", "users": "%workers", "pieces": "%pieces", "batch": "%batch"}
        for name, value in fields.items():
            text += f"  %job_{name} = getelementptr i64, ptr %job, i64 {JOB.index(name)}\n"
            text += f"  store i64 {value}, ptr %job_{name}\n"
        for name in ("call", "common"):
            text += f"  %job_{name} = getelementptr i64, ptr %job, i64 {JOB.index(name)}\n"
            text += f"  store ptr %{name}, ptr %job_{name}\n"
        text += f"""  %order = alloca {{ i64, ptr, ptr, ptr, ptr }}
  %schedule_at = getelementptr i8, ptr %api, i64 {api["XLA_FFI_ThreadPool_Schedule"]}
  %schedule = load ptr, ptr %schedule_at
  br label %hire
hire:
  %hired = phi i64 [ 1, %share ], [ %hired_next, %hired_one ]
  %enough = icmp uge i64 %hired, %workers
  br i1 %enough, label %join, label %hire_one
hire_one:
  store {{ i64, ptr, ptr, ptr, ptr }} {{ i64 40, ptr null, ptr null, ptr @task, ptr null }}, ptr %order
  %order_context = getelementptr i8, ptr %order, i64 16
  store ptr %context, ptr %order_context
  %order_data = getelementptr i8, ptr %order, i64 32
  store ptr %job, ptr %order_data
  %declined = call ptr %schedule(ptr %order)
  %hired_next = add i64 %hired, 1
  %is_declined = icmp ne ptr %declined, null
  br i1 %is_declined, label %without, label %hired_one
without:
  call void @forget(ptr %api, ptr %declined)
  call void @leave(ptr %job)
  br label %hired_one
hired_one:
  br label %hire
join:
  call void @work(ptr %job)
  br label %wait
wait:
  %finished = load atomic i64, ptr %job_finished acquire, align 8
  %all = icmp uge i64 %finished, %pieces
  br i1 %all, label %end, label %yield
yield:
  %yielded = call i32 @{YIELD}()
  br label %wait
end:
  call void @leave(ptr %job)
  br label %done"""
        return text.strip("\n").split("\n")

    def worker(self, program: Program, kind: Kind) -> str:
        """Return the text of the functions that the threads run on the record of a job."""
        operations = max(1, sum(not n.uniform for n in program.nodes))
        piece = -(-PIECE_OPERATIONS // operations // kind.lanes) * kind.lanes
        at = {name: f"getelementptr i64, ptr %job, i64 {k}" for k, name in enumerate(JOB)}
        destroy = 16 + 32 - 8 + 8 * (1 + self.functions.index("XLA_FFI_Error_Destroy"))
        return f"""declare ptr @malloc(i64)
declare void @free(ptr)
declare i32 @{YIELD}()

define internal void @work(ptr %job) #0 {{
entry:
  %finished_at = {at["finished"]}
  %pieces_at = {at["pieces"]}
  %batch_at = {at["batch"]}
  %call_at = {at["call"]}
  %common_at = {at["common"]}
  %pieces = load i64, ptr %pieces_at
  br label %take
take:
  %number = atomicrmw add ptr %job, i64 1 monotonic
  %mine = icmp ult i64 %number, %pieces
  br i1 %mine, label %run, label %done
run:
  %batch = load i64, ptr %batch_at
  %call = load ptr, ptr %call_at
  %common = load ptr, ptr %common_at
  %begin = mul i64 %number, {piece}
  %whole = add i64 %begin, {piece}
  %over = icmp ugt i64 %whole, %batch
  %end = select i1 %over, i64 %batch, i64 %whole
  call void @blocks(ptr %call, ptr %common, i64 %begin, i64 %end)
  %before = atomicrmw add ptr %finished_at, i64 1 release
  br label %take
done:
  ret void
}}

define internal void @leave(ptr %job) #0 {{
  %users_at = {at["users"]}
  %users = atomicrmw sub ptr %users_at, i64 1 acq_rel
  %last = icmp eq i64 %users, 1
  br i1 %last, label %release, label %done
release:
  call void @free(ptr %job)
  ret void
done:
  ret void
}}

define internal void @task(ptr %job) #0 {{
  call void @work(ptr %job)
  call void @leave(ptr %job)
  ret void
}}

define internal void @forget(ptr %api, ptr %error) #0 {{
  %none = icmp eq ptr %error, null
  br i1 %none, label %done, label %destroy
destroy:
  %order = alloca {{ i64, ptr, ptr }}
  store {{ i64, ptr, ptr }} {{ i64 24, ptr null, ptr null }}, ptr %order
  %order_error = getelementptr i8, ptr %order, i64 16
  store ptr %error, ptr %order_error
  %destroy_at = getelementptr i8, ptr %api, i64 {destroy}
  %destroy_error = load ptr, ptr %destroy_at
  call void %destroy_error(ptr %order)
  br label %done
done:
  ret void
}}"""


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
