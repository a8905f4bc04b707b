"""Newton's method for the accelerations under soft constraints, on rows with the batch last.

The accelerations `a0 + y`, with `a0` those without constraints, minimize

    1/2 y^T M y + s(J y - b),    b = aref - J a0

with the potential `s` of the rows (`_law`). Each step solves `(M + J^T C J) step = J^T f - M y`, and is followed by the
exact minimum along its line. Source: MuJoCo's manual, chapter Computation, Primal problem and Newton's method.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import solve_triangular

from jaxdyn import native
from jaxdyn._compile import once
from jaxdyn._errors import require_positive, require_positive_integer
from jaxdyn._roots import following_point
from jaxdyn.tree import take_rows
from jaxdyn.worlds._law import Curvature, RowKinds, RowNumbers, curvature, force


@dataclasses.dataclass(frozen=True)
class SolverOptions:
    """How the constraints of a world are solved.

    **Raises** `ModelError` for a number of iterations below one, and a tolerance that is not positive.
    """

    iterations: int = 50
    """The most steps of Newton's method."""
    searches: int = 40
    """The most steps of the search along the line of each."""
    tolerance: float | None = None
    """Newton's method ends where the relative error was at most this before its last step, after which it is far
    smaller; None for 1e-9 in double and 1e-4 in single precision."""

    def __post_init__(self) -> None:
        require_positive_integer(self.iterations, "SolverOptions: iterations")
        require_positive_integer(self.searches, "SolverOptions: searches")
        if self.tolerance is not None:
            require_positive(self.tolerance, "SolverOptions: tolerance")

    def tolerance_of(self, dtype) -> float:
        """Return the tolerance in a precision."""
        if self.tolerance is not None:
            return self.tolerance
        return 1e-9 if dtype == jnp.float64 else 1e-4


@dataclasses.dataclass(frozen=True)
class Pattern:
    """The structure of a problem: its rows, and which entries of its matrices may be other than zero."""

    kinds: RowKinds
    nv: int
    """The number of degrees of freedom."""
    moves: bytes
    """`[n, nv]`, a truth value each: whether a degree of freedom moves a row."""
    couples: bytes
    """`[nv, nv]`, a truth value each: whether the mass matrix has an entry."""

    @classmethod
    def of(cls, kinds: RowKinds, moves: np.ndarray, couples: np.ndarray) -> Pattern:
        """Return the structure from arrays of truth values."""
        return cls(kinds, couples.shape[0], moves.astype(bool).tobytes(), couples.astype(bool).tobytes())

    @functools.cached_property
    def J_table(self) -> np.ndarray:
        """`[n, nv]`: the places of the entries of `J` in the packed array, -1 where there is none."""
        return _numbered(np.frombuffer(self.moves, bool).reshape(self.kinds.count, self.nv))

    @functools.cached_property
    def M_table(self) -> np.ndarray:
        """`[nv, nv]`: the places of the entries of `M` in the packed array, -1 where there is none."""
        table = _numbered(np.tril(np.frombuffer(self.couples, bool).reshape(self.nv, self.nv)))
        return np.maximum(table, table.T)

    def pack_J(self, J):
        """Return the entries of `J` `[n, nv, *batch]` that may be other than zero, `[k, *batch]`."""
        return _packed(J, self.J_table)

    def pack_M(self, M):
        """Return those of the lower triangle of `M` `[nv, nv, *batch]`."""
        return _packed(M, np.where(np.tri(self.nv, dtype=bool), self.M_table, -1))

    def J(self, packed):
        """Return `J` `[n, nv, *batch]`."""
        return _unpacked(packed, self.J_table)

    def M(self, packed):
        """Return `M` `[nv, nv, *batch]`."""
        return _unpacked(packed, self.M_table)


def _numbered(mask: np.ndarray) -> np.ndarray:
    table = np.full(mask.shape, -1)
    table[mask] = np.arange(mask.sum())
    return table


def _packed(x, table: np.ndarray):
    flat = x.reshape(-1, *x.shape[2:])
    return take_rows(flat, np.flatnonzero(table.ravel() >= 0))


def _unpacked(x, table: np.ndarray):
    return take_rows(x, table.ravel()).reshape(*table.shape, *x.shape[1:])


class Problem(NamedTuple):
    """The convex problem of a state."""

    M: Any
    """The packed mass matrix."""
    J: Any
    """The packed Jacobian."""
    b: Any
    """`[n, *batch]`"""
    a0: Any
    """`[nv, *batch]`: the accelerations without constraints."""
    numbers: RowNumbers


class Line(NamedTuple):
    """A line through the space of accelerations, from the present ones along a step."""

    step: Any
    residual: Any
    """`[n, *batch]`: at its start."""
    shift: Any
    """`[n, *batch]`: the residual's change along the step."""
    start: Any
    """`[1, *batch]`: the slope of the quadratic part at its start."""
    curvature: Any
    """`[1, *batch]`: the curvature of the quadratic part."""
    error: Any
    """`[1, *batch]`: the length of the step, which is the distance to the solution to first order, over that of the
    larger of the accelerations with and without constraints, in the metric of the mass matrix."""
    exact: Any
    """`[1, *batch]`: one where the forces are linear along the whole step, so that its end is the solution."""


def product(A, x):
    """Return `A x` for `A` `[m, n, *batch]` and `x` `[n, *batch]`."""
    return (A * x[None]).sum(axis=1)


def transposed_product(A, x):
    """Return `A^T x`."""
    return (A * x[:, None]).sum(axis=0)


def residual(pattern: Pattern, problem: Problem, y):
    """Return the residuals of all rows, `[n, *batch]`."""
    return product(pattern.J(problem.J), y) - problem.b


def lower_triangle(A):
    """Return the lower triangle of a matrix `[nv, nv, *batch]` for `factor`: its lines `[i + 1, *batch]`, or the matrix
    itself where XLA compiles the function."""
    return [A[i, : i + 1] for i in range(A.shape[0])] if native.specializing() else A


def hessian(pattern: Pattern, problem: Problem, C: Curvature):
    """Return `M + J^T C J`, as `lower_triangle` does."""
    J, M = pattern.J(problem.J), pattern.M(problem.M)
    if not pattern.kinds.count:
        return lower_triangle(M)
    stiff = once(C.times(pattern.kinds, J))
    if not native.specializing():
        return M + jnp.einsum("ni...,nj...->ij...", stiff, J, precision=lax.Precision.HIGHEST)
    moves = pattern.J_table >= 0
    out = []
    for i in range(pattern.nv):
        own = np.flatnonzero(_blockwise(pattern.kinds, moves)[:, i])
        line = M[i, : i + 1]
        if len(own):
            line = line + (take_rows(stiff[:, i], own)[:, None] * take_rows(J[:, : i + 1], own)).sum(axis=0)
        out.append(line)
    return out


def _blockwise(kinds: RowKinds, moves: np.ndarray) -> np.ndarray:
    """Return which degrees of freedom move any direction of a contact, for each of its rows."""
    moves = moves.copy()
    for (dim, n), start in zip(kinds.cones, kinds.cone_starts, strict=True):
        block = moves[start : start + dim * n].reshape(dim, n, -1)
        block[:] = block.any(axis=0)
    return moves


def factor(lower):
    """Return the Cholesky factor `[*batch, nv, nv]` of a symmetric matrix, of which `lower_triangle` is given, in the
    reversed order of the degrees of freedom, in which a tree has no fill-in."""
    nv = len(lower)
    if not isinstance(lower, list):
        return jnp.linalg.cholesky(jnp.moveaxis(lower[::-1, ::-1], (0, 1), (-1, -2)), symmetrize_input=False)
    zero = jnp.zeros_like(lower[-1][0])
    full = jnp.stack([jnp.stack([lower[max(i, j)][min(i, j)] + zero for j in range(nv)]) for i in range(nv)])
    matrix = jnp.moveaxis(full[::-1, ::-1], (0, 1), (-2, -1))
    return jnp.linalg.cholesky(matrix, symmetrize_input=False)


def substitute(L, x):
    """Return the solution for the right-hand side `x` `[nv, *batch]`, from `factor`."""
    y = jnp.moveaxis(x[::-1], 0, -1)[..., None]
    y = solve_triangular(L, y, lower=True)
    y = solve_triangular(L, y, lower=True, trans=1)
    return jnp.moveaxis(y[..., 0], -1, 0)[::-1]


def newton_line(pattern: Pattern, problem: Problem, y) -> Line:
    """Return the line of Newton's step from `y`."""
    J, M, kinds, numbers = pattern.J(problem.J), pattern.M(problem.M), pattern.kinds, problem.numbers
    r = product(J, y) - problem.b
    push, C, My = force(kinds, numbers, r), curvature(kinds, numbers, r), product(M, y)
    gradient = My - transposed_product(J, push)
    step = once(-substitute(factor(hessian(pattern, problem, C)), gradient))
    square = _sum(step * product(M, step))
    shift = product(J, step)
    change, end = C.times(kinds, shift), force(kinds, numbers, r + shift)
    rounding = 16 * jnp.finfo(r.dtype).eps * (jnp.abs(push) + jnp.abs(end) + jnp.abs(change))
    curved = (jnp.abs(end - push + change) > rounding).any(axis=0, keepdims=True)
    a0 = problem.a0
    size = jnp.maximum(_squared_length(M, a0), _squared_length(M, a0 + y))
    error = jnp.sqrt(jnp.maximum(square, 0.0) / jnp.maximum(size, jnp.finfo(size.dtype).tiny))
    exact = jnp.where(curved, jnp.zeros((), r.dtype), jnp.ones((), r.dtype))
    return Line(step, r, shift, _sum(step * My), square, error, exact)


def _squared_length(M, x):
    return _sum(x * product(M, x))


def _sum(x):
    """Return the sum over rows, `[1, *batch]`."""
    return x.sum(axis=0, keepdims=True)


class Search(NamedTuple):
    """The state of a search along a line, `[1, *batch]` each."""

    length: Any
    low: Any
    high: Any
    last: Any
    """The length of the last step; infinite before `high` is known."""
    done: Any
    """One where it is at the minimum up to rounding, else zero."""


def first_guess(line: Line) -> Search:
    """Return the start of a search: Newton's step."""
    one, zero = jnp.ones_like(line.curvature), jnp.zeros_like(line.curvature)
    infinite = jnp.full_like(one, jnp.inf)
    return Search(one, zero, infinite, infinite, line.exact)


def search_step(kinds: RowKinds, numbers: RowNumbers, line: Line, at: Search) -> Search:
    """Return the search after a step towards the zero of the slope, which increases along the line: of Newton's method
    or, where that is no progress, a bisection of the interval that has the zero. Before this has an end, the length
    doubles where Newton's method goes back."""
    r = line.residual + at.length * line.shift
    power = force(kinds, numbers, r) * line.shift
    change = curvature(kinds, numbers, r).times(kinds, line.shift)
    rate = line.curvature + _sum(change * line.shift)
    value = line.start + at.length * line.curvature - _sum(power)
    # Residuals near zero have the rounding errors of their terms.
    lost = jnp.abs(change) * (jnp.abs(line.residual) + at.length * jnp.abs(line.shift))
    terms = jnp.abs(line.start) + at.length * line.curvature + _sum(jnp.abs(power) + lost)
    rounding = 4 * jnp.finfo(terms.dtype).eps * terms
    low, high = jnp.where(value < 0, at.length, at.low), jnp.where(value < 0, at.high, at.length)
    newton = jnp.where(rate > 0, at.length - value / jnp.where(rate > 0, rate, 1.0), -1.0)
    ends = high < jnp.inf
    within = following_point(at.length, newton, low, jnp.where(ends, high, low), at.last)
    following = jnp.where(ends, within, jnp.where(newton >= low, newton, 2 * at.length))
    finished = (at.done > 0) | ~(jnp.abs(value) > rounding) | (following == at.length)
    return Search(
        jnp.where(finished, at.length, following),
        low,
        high,
        jnp.where(ends, jnp.abs(following - at.length), jnp.inf),
        jnp.where(finished, 1.0, 0.0).astype(terms.dtype),
    )


class Minimum(NamedTuple):
    """The result of Newton's method; the numbers of an element of the batch besides `y` have an axis of length 1."""

    y: Any
    error: Any
    """The error of the last line, or zero where it was exact."""
    count: Any
    """The steps that were taken."""


def minimum(options: SolverOptions, line_of: Callable, searched: Callable, y, zero) -> Minimum:
    """Return the minimum from `y` on.

    `line_of(y)` is `newton_line` and `searched(line, at)` is `search_step`, and `zero` is a zero for each element of
    the batch. All arrays may as well have the batch first.
    """
    tolerance = options.tolerance_of(y.dtype)

    def unfinished(at: Minimum):
        return (at.error > tolerance) & (at.count < options.iterations)

    def newton(at: Minimum) -> Minimum:
        line = line_of(at.y)
        length = _searched(options, functools.partial(searched, line), first_guess(line))
        # What has converged stays as it is, so that no element of a batch depends on the others.
        following = Minimum(at.y + length * line.step, jnp.where(line.exact > 0, zero, line.error), at.count + 1)
        return jax.tree.map(lambda new, old: jnp.where(unfinished(at), new, old), following, at)

    start = Minimum(y, zero + jnp.inf, zero)
    return lax.while_loop(lambda at: unfinished(at).any(), newton, start)


def _searched(options: SolverOptions, searched: Callable, start: Search):
    """Return the length of the step at which a line has its minimum."""

    def further(at):
        return searched(at[0]), at[1] + 1

    def unfinished(at):
        return ((at[0].done < 1) & (at[1] < options.searches)).any()

    return lax.while_loop(unfinished, further, (start, jnp.zeros_like(start.length)))[0].length
