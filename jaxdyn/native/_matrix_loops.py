"""LLVM text of loops over small dense matrices.

Matrices are stored by rows, and vectors go along rows. In the program's own memory rows have whole vectors, so that
products need no remainders; lanes beyond a row's end hold numbers that nothing reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jaxdyn.native._emit import Body, Kind

SUMS = 12
"""The most vectors of a product that are summed up side by side: with them, a row's vector and a factor, sixteen
registers are full."""
ROWS = 4
"""The most rows of a product that are summed up side by side."""
UNROLLED = 8
"""The most vectors of a row that are written out one after the other, instead of in a loop."""

type Number = int | str
"""An integer: a number, or the name of a value."""


class Matrix(NamedTuple):
    """A matrix in memory."""

    start: str
    """The address of its first element."""
    stride: Number
    """The distance between the first elements of two rows."""


class MatrixLoops(Body):
    """The text of a function's body with loops over matrices."""

    def __init__(self, bits: int, lanes: int, declared: set[str]):
        super().__init__(Kind(bits, lanes), declared)
        self.one = Kind(bits, 1)
        self._current = "entry"

    def padded(self, columns: int) -> int:
        """Return the length of a row of whole vectors."""
        return -(-columns // self.kind.lanes) * self.kind.lanes

    def loop(
        self,
        count: Number,
        inside: Callable[..., Sequence[str] | None],
        carried: Sequence[str] = (),
        type: str = "",
    ) -> list[str]:
        """Append a loop over the indices below `count`. `inside` gets an index and values, at first `carried`, and
        returns those for the next index. Returns the last ones. The values are vectors, or of another `type`."""
        top, within, end = (self.block() for _ in range(3))
        before = self._current
        self.line(f"br label %{top}")
        self._label(top)
        place = len(self.lines)
        index, *names = (self.name() for _ in range(1 + len(carried)))
        more = self.value(f"icmp ult i64 {index}, {count}")
        self.line(f"br i1 {more}, label %{within}, label %{end}")
        self._label(within)
        results = inside(index, *names) or ()
        after, last = self.value(f"add i64 {index}, 1"), self._current
        self.line(f"br label %{top}")
        phis = [f"  {index} = phi i64 [ 0, %{before} ], [ {after}, %{last} ]"]
        for name, first, following in zip(names, carried, results, strict=True):
            phis.append(f"  {name} = phi {type or self.kind.float} [ {first}, %{before} ], [ {following}, %{last} ]")
        self.lines[place:place] = phis
        self._label(end)
        return names

    def _label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self._current = name

    def plus(self, a: Number, b: Number) -> Number:
        """Return a sum of integers."""
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        return b if a == 0 else a if b == 0 else self.value(f"add i64 {a}, {b}")

    def times(self, a: Number, b: Number) -> Number:
        """Return a product of integers."""
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        return 0 if 0 in (a, b) else b if a == 1 else a if b == 1 else self.value(f"mul i64 {a}, {b}")

    def minus(self, a: Number, b: Number) -> Number:
        """Return a difference of integers."""
        return a - b if isinstance(a, int) and isinstance(b, int) else self.value(f"sub i64 {a}, {b}")

    def address(self, start: str, offset: Number) -> str:
        """Return the address of a number, so many numbers behind `start`."""
        return start if offset == 0 else self.value(f"getelementptr {self.one.float}, ptr {start}, i64 {offset}")

    def at(self, matrix: Matrix, row: Number, column: Number = 0) -> str:
        """Return the address of an element."""
        return self.address(matrix.start, self.plus(self.times(row, matrix.stride), column))

    def number(self, address: str) -> str:
        """Return the number at an address."""
        return self.value(f"load {self.one.float}, ptr {address}")

    def put(self, x: str, address: str) -> None:
        """Append the storing of a number."""
        self.line(f"store {self.one.float} {x}, ptr {address}")

    def arithmetic(self, op: str, a: str, b: str) -> str:
        """Return the result of an operation on two numbers."""
        return self.value(f"{op} {self.one.float} {a}, {b}")

    def root(self, x: str) -> str:
        """Return the square root of a number."""
        self.declared.add(f"declare {self.one.float} @llvm.sqrt.{self.one.suffix}({self.one.float})")
        return self.value(f"call {self.one.float} @llvm.sqrt.{self.one.suffix}({self.one.float} {x})")

    def multiply_add(self, a: str, b: str, c: str) -> str:
        """Return `a b + c` of numbers."""
        kind = self.one
        self.declared.add(f"declare {kind.float} @llvm.fma.{kind.suffix}({', '.join([kind.float] * 3)})")
        arguments = ", ".join(f"{kind.float} {x}" for x in (a, b, c))
        return self.value(f"call {kind.float} @llvm.fma.{kind.suffix}({arguments})")

    def in_all_lanes(self, x: str) -> str:
        """Return a vector that has a number in all lanes."""
        kind = self.kind
        first = self.value(f"insertelement {kind.float} poison, {kind.scalar} {x}, i64 0")
        return self.value(
            f"shufflevector {kind.float} {first}, {kind.float} poison, <{kind.lanes} x i32> zeroinitializer"
        )

    def vector(self, address: str, count: int | None = None) -> str:
        """Return the vector at an address; with a `count`, of its first numbers, with zeros behind them."""
        kind, align = self.kind, self.kind.bits // 8
        if count is None:
            return self.value(f"load {kind.float}, ptr {address}, align {align}")
        name = f"@llvm.masked.load.{kind.suffix}.p0"
        self.declared.add(f"declare {kind.float} {name}(ptr, i32, {kind.bool}, {kind.float})")
        return self.value(
            f"call {kind.float} {name}(ptr {address}, i32 {align}, {kind.bool} {self._mask(count)}, "
            f"{kind.float} zeroinitializer)"
        )

    def put_vector(self, x: str, address: str, count: int | None = None) -> None:
        """Append the storing of a vector; with a `count`, of its first numbers."""
        kind, align = self.kind, self.kind.bits // 8
        if count is None:
            self.line(f"store {kind.float} {x}, ptr {address}, align {align}")
            return
        name = f"@llvm.masked.store.{kind.suffix}.p0"
        self.declared.add(f"declare void {name}({kind.float}, ptr, i32, {kind.bool})")
        self.line(f"call void {name}({kind.float} {x}, ptr {address}, i32 {align}, {kind.bool} {self._mask(count)})")

    def _mask(self, count: int) -> str:
        return f"<{', '.join('i1 true' if k < count else 'i1 false' for k in range(self.kind.lanes))}>"

    def each_vector(self, count: int, inside: Callable[[Number], Any]) -> None:
        """Append what `inside` appends for the place of each of `count` vectors of a row."""
        lanes = self.kind.lanes
        if count > UNROLLED:
            self.loop(count, lambda k: inside(self.times(k, lanes)))
            return
        for k in range(count):
            inside(k * lanes)

    def copy_row(self, source: str, target: str, columns: int, change: Callable[[str], str] = lambda x: x) -> None:
        """Append the copying of numbers from one address to another, changed as vectors."""
        whole, rest = divmod(columns, self.kind.lanes)

        def copy(offset: Number, count: int | None = None) -> None:
            x = self.vector(self.address(source, offset), count)
            self.put_vector(change(x), self.address(target, offset), count)

        self.each_vector(whole, copy)
        if rest:
            copy(whole * self.kind.lanes, rest)

    def add_product(
        self, target: Matrix, rows: int, columns: int, left: Matrix, inner: int, right: Matrix, *, minus: bool = False
    ) -> None:
        """Append `target += left^T right`, or `-=`, for `left` with `inner` rows. The rows of `target` and `right` have
        room for whole vectors."""

        def factor(row: Number, k: Number) -> str:
            return self.at(left, k, row)

        self._product(target, rows, columns, factor, inner, right, minus=minus)

    def set_product(self, target: Matrix, rows: int, columns: int, left: Matrix, inner: int, right: Matrix) -> None:
        """Append `target = left right`. The rows of `target` and `right` have room for whole vectors."""
        self._product(target, rows, columns, lambda row, k: self.at(left, row, k), inner, right, new=True)

    def _product(
        self,
        target: Matrix,
        rows: int,
        columns: int,
        factor: Callable[[Number, Number], str],
        inner: int,
        right: Matrix,
        *,
        new: bool = False,
        minus: bool = False,
    ) -> None:
        lanes = self.kind.lanes
        vectors = self.padded(columns) // lanes
        width = SUMS // 2
        for first in range(0, vectors, width):
            places = [(first + c) * lanes for c in range(min(width, vectors - first))]
            height = max(1, min(ROWS, rows, SUMS // len(places)))

            def block(row: Number, height: int, places=places) -> None:
                own = [self.plus(row, r) for r in range(height)]
                cells = [(r, c) for r in range(height) for c in range(len(places))]
                if new:
                    sums = [self.kind.constant(0.0)] * len(cells)
                else:
                    sums = [self.vector(self.at(target, own[r], places[c])) for r, c in cells]

                def step(k: Number, *sums: str) -> list[str]:
                    vectors = [self.vector(self.at(right, k, place)) for place in places]
                    factors = [self.in_all_lanes(self.number(factor(r, k))) for r in own]
                    factors = [self.negate(x) for x in factors] if minus else factors
                    pairs = zip(cells, sums, strict=True)
                    return [self.fma(factors[r], vectors[c], total) for (r, c), total in pairs]

                for (r, c), x in zip(cells, self.loop(inner, step, sums), strict=True):
                    self.put_vector(x, self.at(target, own[r], places[c]))

            self.loop(rows // height, lambda i, height=height, block=block: block(self.times(i, height), height))
            if rows % height:
                block(rows - rows % height, rows % height)

    def reduce(self, matrix: Matrix, rows: int, columns: int, pivots: int) -> None:
        """Append the elimination that makes `[L^T, L^-1 right]` of `[H, right]` with `H = L L^T`, in place.

        `H` is in the columns from `pivots` on. Below the diagonal of `L^T` are numbers without a meaning. Where `H` is
        not positive definite, numbers become NaN or infinite."""
        vectors = self.padded(columns) // self.kind.lanes

        def eliminate(j: Number) -> None:
            root = self.root(self.number(self.at(matrix, j, self.plus(j, pivots))))
            inverse = self.in_all_lanes(self.arithmetic("fdiv", self.one.constant(1.0), root))

            def scale(place: Number) -> None:
                address = self.at(matrix, j, place)
                self.put_vector(self.exact("fmul", self.vector(address), inverse), address)

            self.each_vector(vectors, scale)
            below = self.plus(j, 1)

            def subtract(i: Number) -> None:
                row = self.plus(below, i)
                factor = self.negate(self.in_all_lanes(self.number(self.at(matrix, j, self.plus(row, pivots)))))

                def change(place: Number) -> None:
                    address = self.at(matrix, row, place)
                    pivot = self.vector(self.at(matrix, j, place))
                    self.put_vector(self.fma(factor, pivot, self.vector(address)), address)

                self.each_vector(vectors, change)

            self.loop(self.minus(rows, below), subtract)

        self.loop(rows, eliminate)

    def substitute(self, matrix: Matrix, rows: int, columns: int, pivots: int) -> None:
        """Append the solution of `L^T X = right`, in place of the first `columns` columns of what `reduce` leaves."""
        vectors = self.padded(columns) // self.kind.lanes

        def solve(back: Number) -> None:
            j = self.minus(rows - 1, back)
            own = self.at(matrix, j, self.plus(j, pivots))
            inverse = self.in_all_lanes(self.arithmetic("fdiv", self.one.constant(1.0), self.number(own)))
            factors = self.at(matrix, j, pivots)

            def subtract(place: Number, x: str) -> str:
                def step(i: Number, x: str) -> list[str]:
                    row = self.plus(self.plus(i, j), 1)
                    factor = self.negate(self.in_all_lanes(self.number(self.address(factors, row))))
                    return [self.fma(factor, self.vector(self.at(matrix, row, place)), x)]

                return self.loop(back, step, [x])[0]

            # The last vector may hold factors of its own row, which nothing reads after it.
            def change(place: Number) -> None:
                address = self.at(matrix, j, place)
                self.put_vector(self.exact("fmul", subtract(place, self.vector(address)), inverse), address)

            self.each_vector(vectors, change)

        self.loop(rows, solve)

    def make_symmetric(self, matrix: Matrix, rows: int, column: int, target: Matrix) -> None:
        """Append `target = (S + S^T) / 2` for the square block `S` of `matrix` from a column on; `target` may be the
        block itself."""
        half = self.one.constant(0.5)

        def each_row(i: Number) -> None:
            def each(j: Number) -> None:
                a = self.number(self.at(matrix, i, self.plus(j, column)))
                b = self.number(self.at(matrix, j, self.plus(i, column)))
                mean = self.arithmetic("fmul", self.arithmetic("fadd", a, b), half)
                self.put(mean, self.at(target, i, j))
                self.put(mean, self.at(target, j, i))

            self.loop(i, each)
            self.put(self.number(self.at(matrix, i, self.plus(i, column))), self.at(target, i, i))

        self.loop(rows, each_row)
