"""LLVM text that shares a large batch between XLA's threads.

The batch is divided into pieces, which the threads take one after the other, the calling thread too. So it never waits
for a thread that has not begun, and a late one finds nothing left to do; the last to leave frees the record.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

JOB = ("next", "finished", "users", "pieces", "batch", "call", "common")
"""The numbers and pointers in the record of a batch that several threads work on: the next piece to take, how many are
finished, how many threads use the record, the number of pieces, the batch, and the arguments of the kernel."""
PIECE_OPERATIONS = 1_500_000
"""The least operations in a piece, counted once an element of the batch: some 20 us, so that handing it over to another
thread costs little."""
YIELD = "SwitchToThread" if sys.platform == "win32" else "sched_yield"


def piece_length(operations: int, lanes: int) -> int:
    """Return the number of elements of the batch in a piece, for a program of so many operations."""
    return -(-PIECE_OPERATIONS // max(1, operations) // lanes) * lanes


def shared_work(piece: int, offset: Callable[[str], int], api: int, context: int) -> str:
    """Return the part of a handler that goes over the batch: alone, or with other threads where that pays.

    `offset` gives the place of a function in the record of functions that XLA offers; `api` and `context` are the
    places of that record and of the call's context in the call frame.
    """
    return "\n".join([_ask(piece, offset, api, context), _job(piece), _hire(offset)])


def _ask(piece: int, offset: Callable[[str], int], api: int, context: int) -> str:
    """Ask XLA for the number of its threads."""
    return f"""  %many = icmp uge i64 %batch, {2 * piece}
  br i1 %many, label %ask, label %alone
alone:
  call void @blocks(ptr %call, ptr %common, i64 0, i64 %batch)
  br label %done
ask:
  %api_at = getelementptr i8, ptr %frame, i64 {api}
  %api = load ptr, ptr %api_at
  %context_at = getelementptr i8, ptr %frame, i64 {context}
  %context = load ptr, ptr %context_at
  %threads_at = alloca i64
  store i64 1, ptr %threads_at
  %question = alloca {{ i64, ptr, ptr, ptr }}
  store {{ i64, ptr, ptr, ptr }} {{ i64 32, ptr null, ptr null, ptr null }}, ptr %question
  %question_context = getelementptr i8, ptr %question, i64 16
  store ptr %context, ptr %question_context
  %question_threads = getelementptr i8, ptr %question, i64 24
  store ptr %threads_at, ptr %question_threads
  %ask_at = getelementptr i8, ptr %api, i64 {offset("XLA_FFI_ThreadPool_NumThreads")}
  %ask_threads = load ptr, ptr %ask_at
  %refused = call ptr %ask_threads(ptr %question)
  call void @forget(ptr %api, ptr %refused)
  %threads = load i64, ptr %threads_at
  %several = icmp ugt i64 %threads, 1
  br i1 %several, label %share, label %alone"""


def _job(piece: int) -> str:
    """Make the record of the job."""
    text = f"""share:
  %smallest = add i64 %batch, {piece - 1}
  %pieces = udiv i64 %smallest, {piece}
  %few = icmp ult i64 %pieces, %threads
  %workers = select i1 %few, i64 %pieces, i64 %threads
  %job = call ptr @malloc(i64 {8 * len(JOB)})
  store i64 0, ptr %job"""
    values = {"finished": "i64 0", "users": "i64 %workers", "pieces": "i64 %pieces", "batch": "i64 %batch"}
    values |= {"call": "ptr %call", "common": "ptr %common"}
    for name, value in values.items():
        text += f"\n  %job_{name} = getelementptr i64, ptr %job, i64 {JOB.index(name)}"
        text += f"\n  store {value}, ptr %job_{name}"
    return text


def _hire(offset: Callable[[str], int]) -> str:
    """Hand the job to other threads, work on it, and wait for the pieces that others have taken."""
    return f"""  %order = alloca {{ i64, ptr, ptr, ptr, ptr }}
  %schedule_at = getelementptr i8, ptr %api, i64 {offset("XLA_FFI_ThreadPool_Schedule")}
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


def thread_functions(piece: int, offset: Callable[[str], int]) -> str:
    """Return the functions that threads run on the record of a job."""
    at = {name: f"getelementptr i64, ptr %job, i64 {k}" for k, name in enumerate(JOB)}
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
  %destroy_at = getelementptr i8, ptr %api, i64 {offset("XLA_FFI_Error_Destroy")}
  %destroy_error = load ptr, ptr %destroy_at
  call void %destroy_error(ptr %order)
  br label %done
done:
  ret void
}}"""
