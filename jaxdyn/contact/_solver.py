"""The accelerations of a step with contact, with their derivatives of all orders."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

from jaxdyn.algorithms.recursions import RobotAndParts, substitute_forces
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

    # The accelerations start at zero: at rest, and where little changes, that is nearly the solution.
    at = -problem.b, jnp.full(batch, jnp.inf, problem.b.dtype), jnp.zeros(batch, jnp.int32)
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
    return Solved(problem.b + x, error, count), problem


@functools.partial(_solve.defjvp, symbolic_zeros=True)
def _solve_jvp(step: _Step, shared: int, primals, tangents):
    solved, problem = _solve(step, shared, *primals)
    bound, a = step.bound, solved.a
    perturbed = [i for i, dot in enumerate(tangents) if not isinstance(dot, SymbolicZero)]

    def with_changed(*values) -> tuple[tuple, dict[str, Any]]:
        changed = list(primals)
        for i, value in zip(perturbed, values, strict=True):
            changed[i] = value
        return tuple(changed[:shared]), dict(zip(step.names, changed[shared:], strict=True))

    def residual(*values):
        operands, arguments = with_changed(*values)
        return bound.call(rows.residual, operands, a, **arguments)

    dots = [tangents[i] for i in perturbed]
    rhs = -jax.jvp(residual, [primals[i] for i in perturbed], dots)[1]
    operands, arguments = with_changed(*(primals[i] for i in perturbed))
    fixed, held, at, dt = lax.stop_gradient((operands, problem, a - problem.b, arguments["dt"]))
    factors = bound.call(rows.factors, fixed, held, at, dt)

    def product(y):
        return bound.call(rows.hessian_product, operands, y, a, **arguments)

    def substitute(_, y):
        return bound.call(_substitute, fixed, held.S, factors, y)

    a_dot = lax.custom_linear_solve(product, rhs, substitute, symmetric=True)
    zero = jax.tree.map(jnp.zeros_like, (solved, problem))
    count = jax.tree.map(lambda x: _zero_tangent(x), solved.iterations)
    return (solved, problem), (zero[0]._replace(a=a_dot, iterations=count), zero[1])


def _zero_tangent(x):
    return jnp.zeros(x.shape, jax.dtypes.float0) if not jnp.issubdtype(x.dtype, jnp.floating) else jnp.zeros_like(x)


def _substitute(robot, contacts, S, factors, y):
    """Return `H^-1 y` from the factors of `H`."""
    return substitute_forces(robot.tree, S, factors, y)
