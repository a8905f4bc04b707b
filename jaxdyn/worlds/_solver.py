"""The accelerations of a world, with their derivatives of all orders."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

from jaxdyn.algorithms.recursions import RobotAndParts
from jaxdyn.worlds import _equations as rows
from jaxdyn.worlds._newton import SolverOptions, minimum


class Solved(NamedTuple):
    """The solution of a state."""

    a: Any
    """`[*batch, nv]`"""
    error: Any
    """`[*batch]`: the relative error before the last step of Newton's method, or zero where that was exact."""
    iterations: Any
    """`[*batch]`: the steps of Newton's method that were taken."""
    factors: Any = None
    """`[*batch, nv * nv]`: the factor of the Hessian there, where it is asked for."""
    pushes: Any = None
    """`[*batch, n]`: the forces of all rows, where they are not those of the law at these accelerations."""

    def given_pushes(self) -> dict[str, Any]:
        """Return them as an argument of functions of rows, where there are any."""
        return {} if self.pushes is None else {"pushes": self.pushes}


class _Static(NamedTuple):
    """The static part of a problem."""

    bound: RobotAndParts
    names: tuple[str, ...]
    options: SolverOptions
    factored: bool = False


def solve(bound: RobotAndParts, operands: list[Any], arguments: dict[str, Any], options: SolverOptions) -> Solved:
    """Return the accelerations at a state; `arguments` are those of `rows.setup`."""
    static = _Static(bound, tuple(arguments), options)
    return _solve(static, len(operands), *operands, *arguments.values())


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _solve(static: _Static, shared: int, *inputs) -> Solved:
    # With native code each few elements of a batch, as many as a vector has, end their loops on their own.
    ways = {"cpu": _solve_in_one, "default": _solve_in_pieces}
    return lax.platform_dependent(*inputs, **{k: functools.partial(way, static, shared) for k, way in ways.items()})


def _solve_in_one(static: _Static, shared: int, *inputs) -> Solved:
    """Return the solution from one function of rows."""
    operands, arguments = inputs[:shared], dict(zip(static.names, inputs[shared:], strict=True))
    function = rows.Solution(static.options, static.factored)
    a, error, count, *factors = static.bound.call(function, operands, **arguments)
    return Solved(a, error[..., 0], count[..., 0], *factors)


def _solve_in_pieces(static: _Static, shared: int, *inputs) -> Solved:
    """Return the same from one function for each part of an iteration: GPUs have no native loops."""
    operands, arguments = inputs[:shared], dict(zip(static.names, inputs[shared:], strict=True))
    bound = static.bound
    problem = bound.call(rows.setup, operands, **arguments)
    y = jnp.zeros_like(problem.a0)

    def finished(a, error, count):
        return Solved(a, error, count, bound.call(rows.factors, operands, a, **arguments) if static.factored else None)

    if not problem.b.shape[-1]:
        return finished(problem.a0, y[..., 0], y[..., 0])

    def line_of(y):
        return bound.call(rows.line_of, operands, problem, y)

    def searched(line, at):
        return bound.call(rows.searched, operands, problem, line, at)

    found = minimum(static.options, line_of, searched, y, y[..., :1])
    return finished(problem.a0 + found.y, found.error[..., 0], found.count[..., 0])


@functools.partial(_solve.defjvp, symbolic_zeros=True)
def _solve_jvp(static: _Static, shared: int, primals, tangents):
    # The factor comes from the same program as the solution, which has all that it is made of.
    solved = _solve(static._replace(factored=True), shared, *primals)
    bound, a = static.bound, solved.a
    # Arrays without elements, such as no activations, would be further functions to differentiate.
    perturbed = [i for i, dot in enumerate(tangents) if not isinstance(dot, SymbolicZero) and primals[i].size]

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
    fixed, L = lax.stop_gradient((operands, solved.factors))

    def product(y):
        return bound.call(rows.hessian_product, operands, y, a, **arguments)

    def substitute(_, y):
        return bound.call(rows.solved, fixed, L, y)

    a_dot = lax.custom_linear_solve(product, rhs, substitute, symmetric=True)
    if not static.factored:
        solved = solved._replace(factors=None)
    return solved, jax.tree.map(jnp.zeros_like, solved)._replace(a=a_dot)
