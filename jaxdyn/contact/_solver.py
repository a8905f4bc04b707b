"""The accelerations of a step with contact, with their derivatives of all orders."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

from jaxdyn.algorithms.recursions import RobotAndParts
from jaxdyn.contact import _rows as rows
from jaxdyn.contact._options import ContactOptions


class Solved(NamedTuple):
    """The solution of a step."""

    a: Any
    """`[*batch, nv]`"""
    error: Any
    """`[*batch]`: the relative error before the last step of Newton's method, see `newton_step`."""
    iterations: Any
    """`[*batch]`: the steps of Newton's method that were taken."""
    multipliers: Any
    """`[*batch, m]` with loops or joints that mimic others, else None."""


class _Step(NamedTuple):
    """The static part of a step."""

    bound: RobotAndParts
    names: tuple[str, ...]
    options: ContactOptions


def solve(bound: RobotAndParts, operands: list[Any], arguments: dict[str, Any], options: ContactOptions) -> Solved:
    """Return the accelerations of a step; `arguments` are those of `rows.setup`."""
    step = _Step(bound, tuple(arguments), options)
    return _solve(step, len(operands), *operands, *arguments.values())[0]


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _solve(step: _Step, shared: int, *inputs) -> tuple[Solved, rows.StepProblem]:
    operands, arguments = inputs[:shared], dict(zip(step.names, inputs[shared:], strict=True))
    bound, options, dt = step.bound, step.options, arguments["dt"]
    problem = bound.call(rows.setup, operands, **arguments)
    tolerance = options.tolerance_of(problem.b.dtype)
    batch = problem.b.shape[:-1]

    def newton(at: tuple[Any, Any, Any]):
        x, error, count = at
        after, found = bound.call(rows.newton_step, operands, problem, x, dt)
        # What has converged stays as it is, so that no element of a batch depends on the others.
        running = error > tolerance
        return (
            jnp.where(running[..., None], after, x),
            jnp.where(running, found, error),
            count + running.astype(count.dtype),
        )

    # The accelerations start at zero, or as near as loops allow: at rest, and where little changes, that is nearly the
    # solution.
    start = -problem.b if problem.least is None else problem.least - problem.b
    at = start, jnp.full(batch, jnp.inf, problem.b.dtype), jnp.zeros(batch, jnp.int32)
    if tolerance > 0:
        count = jnp.asarray(0, jnp.int32)
        _, at = lax.while_loop(
            lambda loop: (loop[0] < options.iterations) & (loop[1][1] > tolerance).any(),
            lambda loop: (loop[0] + 1, newton(loop[1])),
            (count, at),
        )
    else:
        at = lax.scan(lambda at, _: (newton(at), None), at, length=options.iterations)[0]
    x, error, count = at
    a, multipliers = problem.b + x, None
    if problem.system.held is not None:
        # J^T l is what is left of the equations without it.
        without = rows.Unknown(a, jnp.zeros_like(problem.system.held.gamma))
        left = bound.call(rows.residual, operands, without, **arguments)
        left = rows.Unknown(-left.a, jnp.zeros_like(left.multipliers))
        factors = bound.call(rows.factors, operands, problem, x, dt)
        multipliers = bound.call(rows.solve_residual, operands, problem.system, factors, left).multipliers
    return Solved(a, error, count, multipliers), problem


@functools.partial(_solve.defjvp, symbolic_zeros=True)
def _solve_jvp(step: _Step, shared: int, primals, tangents):
    solved, problem = _solve(step, shared, *primals)
    bound, found = step.bound, rows.Unknown(solved.a, solved.multipliers)
    perturbed = [i for i, dot in enumerate(tangents) if not isinstance(dot, SymbolicZero)]

    def with_changed(*values) -> tuple[tuple, dict[str, Any]]:
        changed = list(primals)
        for i, value in zip(perturbed, values, strict=True):
            changed[i] = value
        return tuple(changed[:shared]), dict(zip(step.names, changed[shared:], strict=True))

    def residual(*values):
        operands, arguments = with_changed(*values)
        return bound.call(rows.residual, operands, found, **arguments)

    dots = [tangents[i] for i in perturbed]
    rhs = jax.tree.map(jnp.negative, jax.jvp(residual, [primals[i] for i in perturbed], dots)[1])
    operands, arguments = with_changed(*(primals[i] for i in perturbed))
    fixed, held, at, dt = lax.stop_gradient((operands, problem, found.a - problem.b, arguments["dt"]))
    factors = bound.call(rows.factors, fixed, held, at, dt)

    def product(y):
        return bound.call(rows.residual_product, operands, y, found, **arguments)

    def substitute(_, y):
        return bound.call(rows.solve_residual, fixed, held.system, factors, y)

    dot = lax.custom_linear_solve(product, rhs, substitute, symmetric=True)
    zero = jax.tree.map(jnp.zeros_like, (solved, problem))
    count = jax.tree.map(lambda x: _zero_tangent(x), solved.iterations)
    return (solved, problem), (zero[0]._replace(a=dot.a, iterations=count, multipliers=dot.multipliers), zero[1])


def _zero_tangent(x):
    return jnp.zeros(x.shape, jax.dtypes.float0) if not jnp.issubdtype(x.dtype, jnp.floating) else jnp.zeros_like(x)
