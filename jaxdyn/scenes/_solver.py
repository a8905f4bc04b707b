"""The accelerations of a scene, with their derivatives of all orders."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

from jaxdyn._errors import require_positive, require_positive_integer
from jaxdyn.algorithms.recursions import RobotAndParts
from jaxdyn.scenes import _equations as rows
from jaxdyn.scenes._newton import Problem, first_guess


@dataclasses.dataclass(frozen=True)
class SceneOptions:
    """How the constraints of a scene are solved.

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
        require_positive_integer(self.iterations, "SceneOptions: iterations")
        require_positive_integer(self.searches, "SceneOptions: searches")
        if self.tolerance is not None:
            require_positive(self.tolerance, "SceneOptions: tolerance")

    def tolerance_of(self, dtype) -> float:
        """Return the tolerance in a precision."""
        if self.tolerance is not None:
            return self.tolerance
        return 1e-9 if dtype == jnp.float64 else 1e-4


class Solved(NamedTuple):
    """The solution of a state."""

    a: Any
    """`[*batch, nv]`"""
    error: Any
    """`[*batch]`: the relative error before the last step of Newton's method, or zero where that was exact."""
    iterations: Any
    """`[*batch]`: the steps of Newton's method that were taken."""


class _Static(NamedTuple):
    """The static part of a problem."""

    bound: RobotAndParts
    names: tuple[str, ...]
    options: SceneOptions


def solve(bound: RobotAndParts, operands: list[Any], arguments: dict[str, Any], options: SceneOptions) -> Solved:
    """Return the accelerations at a state; `arguments` are those of `rows.setup`."""
    static = _Static(bound, tuple(arguments), options)
    return _solve(static, len(operands), *operands, *arguments.values())[0]


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _solve(static: _Static, shared: int, *inputs) -> tuple[Solved, Problem]:
    operands, arguments = inputs[:shared], dict(zip(static.names, inputs[shared:], strict=True))
    bound, options = static.bound, static.options
    problem = bound.call(rows.setup, operands, **arguments)
    tolerance = options.tolerance_of(problem.a0.dtype)
    batch = problem.a0.shape[:-1]

    def newton(at):
        y, error, count = at
        line = bound.call(rows.line_of, operands, problem, y)
        length = _searched(static, operands, problem, line)
        # What has converged stays as it is, so that no element of a batch depends on the others.
        running = error > tolerance
        return (
            jnp.where(running[..., None], y + length * line.step, y),
            jnp.where(running, jnp.where(line.exact[..., 0] > 0, 0.0, line.error[..., 0]), error),
            count + running.astype(count.dtype),
        )

    at = jnp.zeros_like(problem.a0), jnp.full(batch, jnp.inf, problem.a0.dtype), jnp.zeros(batch, jnp.int32)
    if problem.b.shape[-1]:
        _, at = lax.while_loop(
            lambda loop: (loop[0] < options.iterations) & (loop[1][1] > tolerance).any(),
            lambda loop: (loop[0] + 1, newton(loop[1])),
            (jnp.asarray(0, jnp.int32), at),
        )
    else:
        at = at[0], jnp.zeros_like(at[1]), at[2]
    y, error, count = at
    return Solved(problem.a0 + y, error, count), problem


def _searched(static: _Static, operands, problem: Problem, line):
    """Return the length of the step at which the line has its minimum."""
    bound = static.bound

    def further(loop):
        count, search = loop
        return count + 1, bound.call(rows.searched, operands, problem, line, search)

    start = jnp.asarray(0, jnp.int32), first_guess(line)
    end = lax.while_loop(lambda x: (x[0] < static.options.searches) & (x[1].done < 1).any(), further, start)
    return end[1].length


@functools.partial(_solve.defjvp, symbolic_zeros=True)
def _solve_jvp(static: _Static, shared: int, primals, tangents):
    solved, problem = _solve(static, shared, *primals)
    bound, a = static.bound, solved.a
    perturbed = [i for i, dot in enumerate(tangents) if not isinstance(dot, SymbolicZero)]

    def with_changed(*values) -> tuple[tuple, dict[str, Any]]:
        changed = list(primals)
        for i, value in zip(perturbed, values, strict=True):
            changed[i] = value
        return tuple(changed[:shared]), dict(zip(static.names, changed[shared:], strict=True))

    def residual(*values):
        operands, arguments = with_changed(*values)
        return bound.call(rows.residual, operands, a, **arguments)

    dots = [tangents[i] for i in perturbed]
    rhs = -jax.jvp(residual, [primals[i] for i in perturbed], dots)[1]
    operands, arguments = with_changed(*(primals[i] for i in perturbed))
    fixed, held, at = lax.stop_gradient((operands, problem, a - problem.a0))
    L = bound.call(rows.factors, fixed, held, at)

    def product(y):
        return bound.call(rows.hessian_product, operands, y, a, **arguments)

    def substitute(_, y):
        return bound.call(rows.solved, fixed, L, y)

    a_dot = lax.custom_linear_solve(product, rhs, substitute, symmetric=True)
    zero = jax.tree.map(jnp.zeros_like, (solved, problem))
    still = jnp.zeros(solved.iterations.shape, jax.dtypes.float0)
    return (solved, problem), (zero[0]._replace(a=a_dot, iterations=still), zero[1])
