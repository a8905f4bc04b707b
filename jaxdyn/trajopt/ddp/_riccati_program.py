"""The native program of the Riccati recursion: loops over matrices, one stage after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from jaxdyn.native import Matrix, MatrixLoops, Number


@dataclasses.dataclass(frozen=True)
class RiccatiProgram:
    """The recursion of `backward` without its sums over stages.

    Operands are the arrays of an expansion `A`, `B`, `gaps`, `xx`, `ux`, `uu`, `x`, `u`, those of its end `x` and `xx`,
    and where controls are `held`, `free` and `step`. Results are `k`, `K`, `Vx`, `Vxx`, `Qu`,
    `Qux` and `Quu`, where `Vx` is about the point to which the step before leads."""

    horizon: int
    n: int
    """The length of displacements."""
    m: int
    """The number of controls."""
    held: bool

    @property
    def columns(self) -> int:
        """The columns `[A, gap, B]` of a stage."""
        return self.n + 1 + self.m

    def memory(self, text: MatrixLoops) -> int:
        return (3 * self.n + self.m) * text.padded(self.columns)

    def operations(self) -> int:
        return self.horizon * (self.n + self.m) * self.columns * 2 * self.n

    def write(self, text: MatrixLoops, memory: str, operands: Sequence[str], results: Sequence[str]) -> None:
        n = self.n
        stride = text.padded(self.columns)
        end_x, end_xx = operands[8:10]
        Vx, Vxx = results[2:4]
        text.copy_row(end_x, text.address(Vx, self.horizon * n), n)
        text.copy_row(end_xx, text.address(Vxx, self.horizon * n * n), n * n)
        starts = [text.address(memory, rows * stride) for rows in (0, n, 2 * n, 3 * n)]
        matrices = [Matrix(start, stride) for start in starts]

        def stage(back: Number) -> None:
            _Stage(self, text, text.minus(self.horizon - 1, back), operands, results).write(*matrices)

        text.loop(self.horizon, stage)


class _Stage:
    """The text of one stage."""

    def __init__(self, program: RiccatiProgram, text: MatrixLoops, t: Number, operands, results):
        self.program, self.text, self.t = program, text, t
        self.operands, self.results = operands, results

    def row(self, array: str, size: int, after: int = 0) -> str:
        """Return the address of an array's row of so many numbers, at this stage or the one after."""
        return self.text.address(array, self.text.times(self.text.plus(self.t, after), size))

    def write(self, M: Matrix, W: Matrix, Qx: Matrix, Qu: Matrix) -> None:
        """Append the stage, with memory for `M = [A, gap, B]`, for `W`, and for the rows `Qx` and `Qu` of `Q`."""
        text, (n, m, columns) = self.text, (self.program.n, self.program.m, self.program.columns)
        self.gather(M, Qx, Qu)
        # W = Vxx M, with Vx added to the column of the gap; Q = Z + [A, B]^T W.
        text.set_product(W, n, columns, Matrix(self.row(self.results[3], n * n, 1), n), n, M)
        self.add_to_column(W, self.row(self.results[2], n, 1), n)
        text.add_product(Qx, n, n + 1, M, n, W)
        text.add_product(Qu, m, columns, Matrix(text.address(M.start, n + 1), M.stride), n, W)
        Quu = Matrix(text.address(Qu.start, n + 1), Qu.stride)
        text.make_symmetric(Qu, m, n + 1, Quu)
        self.scatter(Qu, self.results[4:7])
        if self.program.held:
            self.hold(Qx, Qu, Quu)
        # Y = L^-1 [Qux, Qu], with which the value function is [Qxx, Qx] - Y^T Y.
        text.reduce(Qu, m, columns, n + 1)
        text.add_product(Qx, n, n + 1, Qu, m, Qu, minus=True)
        Vx, Vxx = (self.row(a, size) for a, size in zip(self.results[2:4], (n, n * n), strict=True))
        text.loop(n, lambda i: text.put(text.number(text.at(Qx, i, n)), text.address(Vx, i)))
        text.make_symmetric(Qx, n, 0, Matrix(Vxx, n))
        text.substitute(Qu, m, n + 1, n + 1)
        self.scatter_policy(Qu)

    def gather(self, M: Matrix, Qx: Matrix, Qu: Matrix) -> None:
        """Append the copying of the stage's arrays."""
        text, (n, m) = self.text, (self.program.n, self.program.m)
        A, B, gaps, xx, ux, uu, x, u = self.operands[:8]
        gap = self.row(gaps, n, 1)
        A, B, xx, ux, uu = (
            Matrix(self.row(a, rows * size), size)
            for a, rows, size in ((A, n, n), (B, n, m), (xx, n, n), (ux, m, n), (uu, m, m))
        )
        x, u = self.row(x, n), self.row(u, m)

        def of_state(i: Number) -> None:
            text.copy_row(text.at(A, i), text.at(M, i), n)
            text.put(text.number(text.address(gap, i)), text.at(M, i, n))
            text.copy_row(text.at(B, i), text.at(M, i, n + 1), m)
            text.copy_row(text.at(xx, i), text.at(Qx, i), n)
            text.put(text.number(text.address(x, i)), text.at(Qx, i, n))

        def of_control(i: Number) -> None:
            text.copy_row(text.at(ux, i), text.at(Qu, i), n)
            text.put(text.number(text.address(u, i)), text.at(Qu, i, n))
            text.copy_row(text.at(uu, i), text.at(Qu, i, n + 1), m)

        text.loop(n, of_state)
        text.loop(m, of_control)

    def add_to_column(self, matrix: Matrix, vector: str, rows: int) -> None:
        """Append the addition of a vector to the column of the gap."""
        text, column = self.text, self.program.n

        def add(i: Number) -> None:
            place = text.at(matrix, i, column)
            text.put(text.arithmetic("fadd", text.number(place), text.number(text.address(vector, i))), place)

        text.loop(rows, add)

    def scatter(self, Qu: Matrix, results: Sequence[str]) -> None:
        """Append the copying of the rows `[Qux, Qu, Quu]` to the results."""
        text, (n, m) = self.text, (self.program.n, self.program.m)
        slope = self.row(results[0], m)
        ux, uu = (Matrix(self.row(a, m * size), size) for a, size in zip(results[1:], (n, m), strict=True))

        def copy(i: Number) -> None:
            text.copy_row(text.at(Qu, i), text.at(ux, i), n)
            text.put(text.number(text.at(Qu, i, n)), text.address(slope, i))
            text.copy_row(text.at(Qu, i, n + 1), text.at(uu, i), m)

        text.loop(m, copy)

    def hold(self, Qx: Matrix, Qu: Matrix, Quu: Matrix) -> None:
        """Append what held controls change: they move by their step, the others see it, and their own rows become those
        of the identity."""
        text, (n, m) = self.text, (self.program.n, self.program.m)
        free, step = (self.row(a, m) for a in self.operands[10:12])
        # Columns of steps: Qx += Qux^T step, and Qu += Quu step.
        column = Matrix(step, 1)
        one = text.one.constant(1.0)

        def product(factor: Callable[[Number], str], length: int, place: str) -> None:
            def add(i: Number, total: str) -> list[str]:
                return [text.multiply_add(factor(i), text.number(text.at(column, i)), total)]

            text.put(text.loop(length, add, [text.number(place)], text.one.float)[0], place)

        text.loop(n, lambda r: product(lambda i: text.number(text.at(Qu, i, r)), m, text.at(Qx, r, n)))
        text.loop(m, lambda j: product(lambda i: text.number(text.at(Quu, j, i)), m, text.at(Qu, j, n)))

        def mask(i: Number) -> None:
            own = text.number(text.address(free, i))
            all_lanes = text.in_all_lanes(own)
            text.copy_row(text.at(Qu, i), text.at(Qu, i), n + 1, lambda x: text.exact("fmul", x, all_lanes))

            def entry(j: Number) -> None:
                place = text.at(Quu, i, j)
                both = text.arithmetic("fmul", own, text.number(text.address(free, j)))
                text.put(text.arithmetic("fmul", text.number(place), both), place)

            text.loop(m, entry)
            place = text.at(Quu, i, i)
            held = text.arithmetic("fsub", one, own)
            text.put(text.arithmetic("fadd", text.number(place), held), place)

        text.loop(m, mask)

    def scatter_policy(self, X: Matrix) -> None:
        """Append the copying of the policy, minus the solution `X`, to the results."""
        text, (n, m) = self.text, (self.program.n, self.program.m)
        k, K = self.row(self.results[0], m), Matrix(self.row(self.results[1], m * n), n)

        def copy(i: Number) -> None:
            text.copy_row(text.at(X, i), text.at(K, i), n, text.negate)
            x = text.value(f"fneg {text.one.float} {text.number(text.at(X, i, n))}")
            if self.program.held:
                step = text.number(text.address(self.row(self.operands[11], m), i))
                x = text.arithmetic("fadd", x, step)
            text.put(x, text.address(k, i))

        text.loop(m, copy)
