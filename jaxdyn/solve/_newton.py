"""Newton's method for the convex problem of a state, on rows with the batch last.

Each step solves `(M + J^T C J) step = J^T f - M x`, and is followed by the exact minimum along its line."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxdyn._roots import following_point
from jaxdyn.algorithms.recursions import Robot
from jaxdyn.solve._convex_problem import Problem
from jaxdyn.solve._listed import ListedTerm, is_curved
from jaxdyn.solve._options import SolverOptions
from jaxdyn.solve._terms import scaled


class Line(NamedTuple):
    """A line through the space of accelerations, from the present ones along a step."""

    step: Any
    residuals: tuple[Any, ...]
    """The residuals of all terms at its start, `[n, *batch]` each."""
    shifts: tuple[Any, ...]
    """Their changes along the step."""
    of_lists: tuple[tuple[Any, Any], ...]
    """Both for each list of contacts."""
    start: Any
    """`[1, *batch]`: the slope of the quadratic part at its start."""
    curvature: Any
    """`[1, *batch]`: the curvature of the quadratic part."""
    error: Any
    """`[1, *batch]`: the length of the step, which is the distance to the solution to first order, over that of the
    larger of the accelerations with and without constraints, in the metric of the mass matrix."""
    exact: Any
    """`[1, *batch]`: one where the forces are linear along the whole step, so that its end is the solution."""


def newton_line(robot: Robot, problem: Problem, x) -> Line:
    """Return the line of Newton's step from `x`."""
    form, laws = problem.form, problem.laws
    at, free = form.moved(robot, x), form.moved(robot, problem.free)
    residuals = problem.residuals_at(form.rates(robot, at))
    pushes = [law.force(r) for law, r in zip(laws, residuals, strict=True)]
    curvatures = [law.curvature(r) for law, r in zip(laws, residuals, strict=True)]
    lists = [own.balance(robot, x) for own in problem.lists]
    descent, more = form.descent(robot, at, pushes), [gram for _, gram, _ in lists]
    descent = sum((torque for torque, _, _ in lists), descent)
    step, _ = form.step(robot, _of_accelerations(problem, curvatures), descent, *more)
    shifts = [scaled(rate, g) for rate, g in zip(form.rates(robot, step), problem.gains, strict=True)]
    of_lists, curved = [], jnp.zeros_like(x[:1])
    for law, r, shift, push, G in zip(laws, residuals, shifts, pushes, curvatures, strict=True):
        curved = curved + is_curved(law, r, shift, push, G)
    for own, (_, _, r) in zip(problem.lists, lists, strict=True):
        shift, own_curved = own.shifts(robot, r, step.x)
        of_lists.append((r, shift))
        curved = curved + own_curved
    linear = jnp.where(curved > 0, 0.0, 1.0).astype(x.dtype)
    square, together = form.inner(step, step), form.moved(robot, problem.free + x)
    size = jnp.maximum(form.inner(free, free), form.inner(together, together))
    error = jnp.sqrt(jnp.maximum(square, 0.0) / jnp.maximum(size, jnp.finfo(size.dtype).tiny))
    line = Line(step.x, tuple(residuals), tuple(shifts), tuple(of_lists), form.inner(step, at), square, error, linear)
    return jax.tree.map(robot.broadcast, line)


def _of_accelerations(problem: Problem, curvatures: list) -> list:
    """Return the curvatures by the rates `J x`."""
    return [
        G if g is None else [[None if c is None else c * g for c in line] for line in G]
        for G, g in zip(curvatures, problem.gains, strict=True)
    ]


def factors_at(robot: Robot, problem: Problem, x) -> Any:
    """Return the factors of the Hessian at `x`."""
    form = problem.form
    residuals = problem.residuals_at(form.rates(robot, form.moved(robot, x)))
    curvatures = [law.curvature(r) for law, r in zip(problem.laws, residuals, strict=True)]
    more = [own.balance(robot, x)[1] for own in problem.lists]
    factors = form.step(robot, _of_accelerations(problem, curvatures), jnp.zeros_like(x), *more)[1]
    return jax.tree.map(robot.broadcast, factors)


class LineSearch(NamedTuple):
    """The state of a search along a line, `[1, *batch]` each."""

    length: Any
    low: Any
    high: Any
    last: Any
    """The length of the last step; infinite before `high` is known."""
    done: Any
    """One where it is at the minimum up to rounding, else zero."""


def first_guess(line: Line) -> LineSearch:
    """Return the start of a search: Newton's step."""
    one, zero = jnp.ones_like(line.curvature), jnp.zeros_like(line.curvature)
    infinite = jnp.full_like(one, jnp.inf)
    return LineSearch(one, zero, infinite, infinite, line.exact)


def searcher(
    robot: Robot, laws: tuple, gains: tuple, lists: tuple[ListedTerm, ...], line: Line
) -> Callable[[LineSearch], LineSearch]:
    """Return the function that takes a search one step further towards the zero of the slope, which increases along the
    line: of Newton's method or, where that is no progress, a bisection of the interval that has the zero. Before this
    has an end, the length doubles where Newton's method goes back."""
    paths = [law.along(r, shift) for law, r, shift in zip(laws, line.residuals, line.shifts, strict=True)]
    # The potential of a term is one of accelerations over its gain.
    shares = [None if g is None else 1 / g for g in gains]
    listed = [own.along(robot, *of_list) for own, of_list in zip(lists, line.of_lists, strict=True)]

    def further(at: LineSearch) -> LineSearch:
        value, rate = line.start + at.length * line.curvature, line.curvature
        terms = jnp.abs(line.start) + at.length * line.curvature
        for path, share in zip(paths, shares, strict=True):
            power, change, lost = (scaled(_sum(x), share) for x in path(at.length))
            value, rate, terms = value - power, rate + change, terms + lost
        for path in listed:
            power, change, lost = path(at.length)
            value, rate, terms = value - power, rate + change, terms + lost
        rounding = 4 * jnp.finfo(terms.dtype).eps * terms
        low, high = jnp.where(value < 0, at.length, at.low), jnp.where(value < 0, at.high, at.length)
        newton = jnp.where(rate > 0, at.length - value / jnp.where(rate > 0, rate, 1.0), -1.0)
        ends = high < jnp.inf
        within = following_point(at.length, newton, low, jnp.where(ends, high, low), at.last)
        following = jnp.where(ends, within, jnp.where(newton >= low, newton, 2 * at.length))
        finished = (at.done > 0) | ~(jnp.abs(value) > rounding) | (following == at.length)
        return LineSearch(
            jnp.where(finished, at.length, following),
            low,
            high,
            jnp.where(ends, jnp.abs(following - at.length), jnp.inf),
            jnp.where(finished, 1.0, 0.0).astype(terms.dtype),
        )

    return further


def _sum(x):
    """Return the sum over rows, `[1, *batch]`."""
    return x.sum(axis=0, keepdims=True)


class NewtonMinimum(NamedTuple):
    """The result of Newton's method; the numbers of an element of the batch besides `x` have an axis of length 1."""

    x: Any
    error: Any
    """The error of the last line, or zero where it was exact."""
    count: Any
    """The steps that were taken."""


def minimum(options: SolverOptions, line_of: Callable, searcher_of: Callable, x, zero) -> NewtonMinimum:
    """Return the minimum from `x` on.

    `line_of(x)` is `newton_line` and `searcher_of(line)` is `searcher`, and `zero` is a zero for each element of the
    batch. All arrays may as well have the batch first.
    """
    tolerance = options.tolerance_of(x.dtype)

    def unfinished(at: NewtonMinimum):
        return (at.error > tolerance) & (at.count < options.iterations)

    def newton(at: NewtonMinimum) -> NewtonMinimum:
        line = line_of(at.x)
        length = _searched(options, searcher_of(line), first_guess(line))
        # What has converged stays as it is, so that no element of a batch depends on the others.
        following = NewtonMinimum(at.x + length * line.step, jnp.where(line.exact > 0, zero, line.error), at.count + 1)
        return jax.tree.map(lambda new, old: jnp.where(unfinished(at), new, old), following, at)

    return lax.while_loop(lambda at: unfinished(at).any(), newton, NewtonMinimum(x, zero + jnp.inf, zero))


def _searched(options: SolverOptions, further: Callable, start: LineSearch):
    """Return the length of the step at which a line has its minimum."""

    def unfinished(at):
        return ((at[0].done < 1) & (at[1] < options.searches)).any()

    begin = start, jnp.zeros_like(start.length)
    return lax.while_loop(unfinished, lambda at: (further(at[0]), at[1] + 1), begin)[0].length


def minimize(robot: Robot, problem: Problem, options: SolverOptions) -> NewtonMinimum:
    """Return the minimum of a problem."""
    zero = jnp.zeros_like(problem.free[:1])
    if problem.is_free:
        return NewtonMinimum(jnp.zeros_like(problem.free), zero, zero)
    search = functools.partial(searcher, robot, problem.laws, problem.gains, problem.lists)
    return minimum(options, functools.partial(newton_line, robot, problem), search, problem.start, zero)
