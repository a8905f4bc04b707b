"""LLVM text of sums over the batch: a result that belongs to an operand without the batch, such as the derivative by a
model's array.

A kernel adds such a result to a row of sums, one for each lane. At the end of each piece of the batch, which does not
depend on threads, the lanes are added up and become a row of numbers for that piece. When all pieces are done, their
rows are added up in order.
"""

from __future__ import annotations

from jaxdyn.native._emit import Backend


def piece_row(count: int, lanes: int) -> int:
    """Return the distance between the rows of two pieces that have so many sums each. Vectors are read up to the last
    sum, so there is room behind it."""
    return count + lanes


def sum_functions(backend: Backend, row: int) -> str:
    """Return three functions: `@keep_lanes` sets the lanes of rows from a number on to zero; `@add_up` writes the sums
    of the lanes of rows and sets the rows to zero; `@total` writes the sums of some columns over the rows of all
    pieces, which are `row` numbers apart."""
    vector, scalar, lanes, size = backend.float, backend.scalar, backend.lanes, backend.bits // 8
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
    return f"""declare {scalar} @llvm.vector.reduce.fadd.{backend.suffix}({scalar}, {vector})

define internal void @keep_lanes(ptr %rows, i64 %count, i64 %valid) noinline #0 {{
{loop}
  %first = insertelement <{lanes} x i64> poison, i64 %valid, i64 0
  %all = shufflevector <{lanes} x i64> %first, <{lanes} x i64> poison, <{lanes} x i32> zeroinitializer
  %kept = icmp ult <{lanes} x i64> <{order}>, %all
  %at = getelementptr {vector}, ptr %rows, i64 %i
  %x = load {vector}, ptr %at, align {backend.bytes}
  %y = select <{lanes} x i1> %kept, {vector} %x, {vector} zeroinitializer
  store {vector} %y, ptr %at, align {backend.bytes}
{end}

define internal void @add_up(ptr %rows, i64 %count, ptr %array) noinline #0 {{
{loop}
  %at = getelementptr {vector}, ptr %rows, i64 %i
  %x = load {vector}, ptr %at, align {backend.bytes}
  %sum = call reassoc {scalar} @llvm.vector.reduce.fadd.{backend.suffix}({scalar} 0.0, {vector} %x)
  %to = getelementptr {scalar}, ptr %array, i64 %i
  store {scalar} %sum, ptr %to
  store {vector} zeroinitializer, ptr %at, align {backend.bytes}
{end}

define internal void @total(ptr %rows, i64 %pieces, i64 %count, ptr %array) noinline #0 {{
entry:
  br label %columns
columns:
  %column = phi i64 [ 0, %entry ], [ %next, %save ]
  br label %check
check:
  %piece = phi i64 [ 0, %columns ], [ %later, %add ]
  %sum = phi {vector} [ zeroinitializer, %columns ], [ %more, %add ]
  %left = icmp ult i64 %piece, %pieces
  br i1 %left, label %add, label %save
add:
  %start = mul i64 %piece, {row}
  %place = add i64 %start, %column
  %at = getelementptr {scalar}, ptr %rows, i64 %place
  %x = load {vector}, ptr %at, align {size}
  %more = fadd {vector} %sum, %x
  %later = add i64 %piece, 1
  br label %check
save:
  %valid = sub i64 %count, %column
  %first = insertelement <{lanes} x i64> poison, i64 %valid, i64 0
  %all = shufflevector <{lanes} x i64> %first, <{lanes} x i64> poison, <{lanes} x i32> zeroinitializer
  %kept = icmp ult <{lanes} x i64> <{order}>, %all
  %to = getelementptr {scalar}, ptr %array, i64 %column
  call void @llvm.masked.store.{backend.suffix}.p0({vector} %sum, ptr %to, i32 {size}, <{lanes} x i1> %kept)
  %next = add i64 %column, {lanes}
  %again = icmp ult i64 %next, %count
  br i1 %again, label %columns, label %done
done:
  ret void
}}"""
