"""LLVM text of sums over the batch: a result that belongs to an operand without the batch, such as the derivative by a
model's array.

A kernel adds such a result to a row of sums, one for each lane. At the end of each piece of the batch, which does not
depend on threads, the lanes are added up and become a row of the result.
"""

from __future__ import annotations

from jaxdyn.native._emit import Kind


def sum_functions(kind: Kind) -> str:
    """Return `@keep_lanes`, which sets the lanes of rows from a number on to zero, and `@add_up`, which writes the sums
    of the lanes of rows and sets the rows to zero."""
    vector, scalar, lanes = kind.float, kind.scalar, kind.lanes
    order = ", ".join(f"i64 {k}" for k in range(lanes))
    loop = """entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]"""
    end = """  %next = add i64 %i, 1
  %again = icmp ult i64 %next, %count
  br i1 %again, label %loop, label %done
done:
  ret void
}"""
    return f"""declare {scalar} @llvm.vector.reduce.fadd.{kind.suffix}({scalar}, {vector})

define internal void @keep_lanes(ptr %rows, i64 %count, i64 %valid) noinline #0 {{
{loop}
  %first = insertelement <{lanes} x i64> poison, i64 %valid, i64 0
  %all = shufflevector <{lanes} x i64> %first, <{lanes} x i64> poison, <{lanes} x i32> zeroinitializer
  %kept = icmp ult <{lanes} x i64> <{order}>, %all
  %at = getelementptr {vector}, ptr %rows, i64 %i
  %x = load {vector}, ptr %at, align {kind.bytes}
  %y = select <{lanes} x i1> %kept, {vector} %x, {vector} zeroinitializer
  store {vector} %y, ptr %at, align {kind.bytes}
{end}

define internal void @add_up(ptr %rows, i64 %count, ptr %array) noinline #0 {{
{loop}
  %at = getelementptr {vector}, ptr %rows, i64 %i
  %x = load {vector}, ptr %at, align {kind.bytes}
  %sum = call reassoc {scalar} @llvm.vector.reduce.fadd.{kind.suffix}({scalar} 0.0, {vector} %x)
  %to = getelementptr {scalar}, ptr %array, i64 %i
  store {scalar} %sum, ptr %to
  store {vector} zeroinitializer, ptr %at, align {kind.bytes}
{end}"""
