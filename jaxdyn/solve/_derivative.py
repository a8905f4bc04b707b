"""Solutions with their derivatives of all orders, which are those of the equations that they solve."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

from jaxdyn._compile import tracing
from jaxdyn.algorithms.recursions import Robot, RobotAndParts
from jaxdyn.solve._convex_problem import Problem
from jaxdyn.solve._newton import factors_at, minimize
from jaxdyn.solve._options import SolverOptions


class Unknown(NamedTuple):
    """The unknowns of a problem, or the rows of its equations."""

    a: Any
    """The accelerations in the axes at the start, rows `[nv]`."""
    multipliers: Any = None
    """With equations that hold exactly, their multipliers, `[m]`."""


class Equations(NamedTuple):
    """The equations of a robot with parts, as functions of rows; static and hashable.

    `arguments` are those of a state by their names, and `now` is what `at` returns.
    """

    at: Callable
    """`at(robot, parts, **arguments)` returns all that does not depend on the accelerations."""
    problem: Callable[..., Problem]
    """`problem(robot, parts, now)`"""
    residual: Callable[..., Unknown]
    """`residual(robot, parts, now, unknown)` returns what is out of balance, zero at the solution."""
    results: Callable | None = None
    """`results(robot, parts, now, a, **further)` returns more that is made of the solution, as rows."""


class Solution(NamedTuple):
    """The solution of a problem."""

    a: Any
    """`[*batch, nv]`"""
    multipliers: Any
    """`[*batch, m]` with equations that hold exactly, else None."""
    error: Any
    """`[*batch]`: the relative error before the last step of Newton's method, or zero where that was exact."""
    iterations: Any
    """`[*batch]`: the steps of Newton's method that were taken."""
    results: Any
    """The results of `Equations.results`."""
    factors: Any = None
    """The factors of the Hessian there, where they are asked for."""


class _SolvePlan(NamedTuple):
    """The static part of a problem."""

    equations: Equations
    bound: RobotAndParts
    names: tuple[str, ...]
    further: tuple[str, ...]
    """The names of arguments of the results alone, which come last."""
    options: SolverOptions
    factored: bool = False


def solve(
    equations: Equations,
    bound: RobotAndParts,
    operands: list[Any],
    arguments: dict[str, Any],
    options: SolverOptions,
    further: dict[str, Any] | None = None,
) -> Solution:
    """Return the solution at a state, of arguments `[*batch, n]`; `further` are those of the results alone."""
    further = {} if further is None else further
    plan = _SolvePlan(equations, bound, tuple(arguments), tuple(further), options)
    solved = _traced_once if tracing() else _solve
    return solved(plan, len(operands), *operands, *arguments.values(), *further.values())


@dataclasses.dataclass(frozen=True)
class _PartOfSolution:
    """A function of rows that is made of equations: its name, and what it needs."""

    name: str
    equations: Equations
    options: SolverOptions
    factored: bool = False

    def __call__(self, robot: Robot, parts: Any, *arguments: Any, **named: Any) -> Any:
        return getattr(self, self.name)(robot, parts, *arguments, **named)

    def _now(self, robot: Robot, parts: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return what does not depend on the accelerations, and the arguments of the results alone."""
        further = named.pop("further", {})
        return self.equations.at(robot, parts, **named), further

    def whole(self, robot: Robot, parts: Any, **named: Any) -> tuple:
        """Return everything from one function."""
        now, further = self._now(robot, parts, named)
        problem = self.equations.problem(robot, parts, now)
        found = minimize(robot, problem, self.options)
        a, multipliers = robot.broadcast(problem.free + found.x), None
        factors: Any = None
        held = getattr(problem.form, "held", None)
        if self.factored or held is not None:
            factors = factors_at(robot, problem, found.x)
        if held is not None:
            # J^T l is what is left of the equations without it.
            left = self.equations.residual(robot, parts, now, Unknown(a, jnp.zeros_like(held.gamma)))
            multipliers = factors.solve(robot, -left.a, -left.multipliers)[1]
        results = None
        if self.equations.results is not None:
            results = self.equations.results(robot, parts, now, a, **further)
        out = a, multipliers, found.error, found.count, results, factors if self.factored else None
        return jax.tree.map(robot.broadcast, out)

    def residual(self, robot: Robot, parts: Any, unknown: Unknown, **named: Any) -> Unknown:
        """Return what is out of balance."""
        now, _ = self._now(robot, parts, named)
        return self.equations.residual(robot, parts, now, unknown)

    def product(self, robot: Robot, parts: Any, y: Unknown, unknown: Unknown, **named: Any) -> Unknown:
        """Return the product of `y` with the derivative of `residual` by the unknown, which is symmetric."""
        now, _ = self._now(robot, parts, named)
        unknown, y = (jax.tree.map(robot.broadcast, z) for z in (unknown, y))
        return jax.jvp(lambda z: self.equations.residual(robot, parts, now, z), (unknown,), (y,))[1]

    def solved(self, robot: Robot, parts: Any, factors: Any, y: Unknown) -> Unknown:
        """Return the unknown whose `product` is `y`."""
        return Unknown(*factors.solve(robot, y.a, y.multipliers))

    def results(self, robot: Robot, parts: Any, a, **named: Any) -> Any:
        """Return what is made of the solution."""
        assert self.equations.results is not None
        now, further = self._now(robot, parts, named)
        return self.equations.results(robot, parts, now, robot.broadcast(a), **further)


def _named(plan: _SolvePlan, values) -> dict[str, Any]:
    """Return arguments by their names."""
    count = len(plan.names)
    named = dict(zip(plan.names, values, strict=False))
    if plan.further:
        named["further"] = dict(zip(plan.further, values[count:], strict=True))
    return named


def _function(plan: _SolvePlan, name: str) -> _PartOfSolution:
    return _PartOfSolution(name, plan.equations, plan.options, plan.factored)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _solve(plan: _SolvePlan, shared: int, *inputs) -> Solution:
    operands, named = inputs[:shared], _named(plan, inputs[shared:])
    a, multipliers, error, count, results, factors = plan.bound.call(_function(plan, "whole"), operands, **named)
    return Solution(a, multipliers, error[..., 0], count[..., 0], results, factors)


# The stages of a step share the operations of all ways and their derivatives, which `jax.jit` makes once.
_traced_once = jax.jit(_solve, static_argnums=(0, 1))


@functools.partial(_solve.defjvp, symbolic_zeros=True)
def _solve_jvp(plan: _SolvePlan, shared: int, primals, tangents):
    # The factors come from the same program as the solution, which has all that they are made of.
    solution = _solve(plan._replace(factored=True), shared, *primals)
    call, found = plan.bound.call, Unknown(solution.a, solution.multipliers)
    end = shared + len(plan.names)
    # Arrays without elements, such as no activations, would be further functions to differentiate.
    perturbed = [i for i, dot in enumerate(tangents) if not isinstance(dot, SymbolicZero) and primals[i].size]
    moving = [i for i in perturbed if i < end]

    def with_changed(which, values) -> tuple[tuple, dict[str, Any]]:
        changed = list(primals)
        for i, value in zip(which, values, strict=True):
            changed[i] = value
        return tuple(changed[:shared]), _named(plan, changed[shared:])

    def of_state(which, values) -> tuple[tuple, dict[str, Any]]:
        operands, named = with_changed(which, values)
        return operands, {k: named[k] for k in plan.names}

    def residual(*values):
        operands, named = of_state(moving, values)
        return call(_function(plan, "residual"), operands, found, **named)

    rhs = jax.tree.map(jnp.zeros_like, found)
    if moving:
        rhs = jax.jvp(residual, [primals[i] for i in moving], [tangents[i] for i in moving])[1]
    operands, named = of_state(perturbed, [primals[i] for i in perturbed])
    fixed, factors = lax.stop_gradient((operands, solution.factors))

    def product(y):
        return call(_function(plan, "product"), operands, y, found, **named)

    def substitute(_, y):
        return call(_function(plan, "solved"), fixed, factors, y)

    dot = lax.custom_linear_solve(product, jax.tree.map(jnp.negative, rhs), substitute, symmetric=True)
    if not plan.factored:
        solution = solution._replace(factors=None)
    zero = jax.tree.map(jnp.zeros_like, solution)
    if plan.equations.results is not None:

        def results(a, *values):
            operands, named = with_changed(perturbed, values)
            return call(_function(plan, "results"), operands, a, **named)

        values = [solution.a, *(primals[i] for i in perturbed)], [dot.a, *(tangents[i] for i in perturbed)]
        zero = zero._replace(results=jax.jvp(results, *values)[1])
    return solution, zero._replace(a=dot.a, multipliers=dot.multipliers)
