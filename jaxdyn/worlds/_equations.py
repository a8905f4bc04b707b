"""The equations of a world at a state, on rows: what acts without constraints, and the convex problem of the rest.

Accelerations here are MuJoCo's but for the axes: those of free joints are the rates of world velocities, turned into
body axes, so that `turning_accelerations` is what they have more than this library's.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.algorithms.recursions import (
    EquationsOfMotion,
    Robot,
    constant_elimination,
    equations_and_velocities,
    solve,
    turning_accelerations,
)
from jaxdyn.tree import sum_up
from jaxdyn.worlds._actuators import Actuated, actuated, next_activation
from jaxdyn.worlds._constraints import ConstraintRows, constraint_rows
from jaxdyn.worlds._free_bodies import with_gyroscopic
from jaxdyn.worlds._law import curvature, force
from jaxdyn.worlds._newton import (
    Line,
    Minimum,
    Pattern,
    Problem,
    Search,
    SolverOptions,
    factor,
    hessian,
    lower_triangle,
    minimum,
    newton_line,
    product,
    search_step,
    substitute,
)
from jaxdyn.worlds._newton import residual as row_residual
from jaxdyn.worlds._parts import Instant, PartRows, instant
from jaxdyn.worlds._passive import PassiveForces, passive_forces
from jaxdyn.worlds._slopes import bias_force, bias_slopes, damper_slopes, eliminated, smooth_slopes
from jaxdyn.worlds._tendons import TendonRows, tendon_rows


class Acting(NamedTuple):
    """All that acts at a state but constraints."""

    at: Instant
    equations: EquationsOfMotion
    tendons: TendonRows | None
    passive: PassiveForces
    actuators: Actuated
    torque: Any
    """On the degrees of freedom, without constraints, rows `[nv]`."""


def acting(robot: Robot, world: PartRows, q, v, control, activation, applied) -> Acting:
    """Return what acts at a state, without constraints."""
    at = instant(robot, q, robot.broadcast(v))
    tendons = tendon_rows(robot, world.tendons, at) if world.tendons.names else None
    passive = passive_forces(robot, world.passive, at, tendons)
    dt = world.timestep
    actuators = actuated(robot, world.actuators, at, tendons, control, activation, dt, passive.compensation)
    equations, _ = equations_and_velocities(robot, *at.at, at.v)
    torque = robot.broadcast(passive.torque + actuators.torque + applied)
    return Acting(at, equations, tendons, passive, actuators, torque)


def rows_at(robot: Robot, world: PartRows, now: Acting) -> ConstraintRows:
    """Return the rows of the constraints at a state."""
    return constraint_rows(robot, world.constraints, now.at, now.tendons, world.timestep)


def push_of(robot: Robot, at: Instant, rows: ConstraintRows, a):
    """Return the forces of rows on the degrees of freedom at the accelerations `a`, rows `[nv]`."""
    pushes = force(rows.kinds, rows.numbers, rows.rates(robot, at, a) - rows.aref)
    return rows.torque(robot, at, pushes)


def mass_matrix(robot: Robot, equations: EquationsOfMotion):
    """Return the mass matrix `[nv, nv, *batch]`; only its lower triangle is right."""
    force = sum_up(robot.tree, equations.inertia).apply(equations.S)
    S, force = (jax.tree.map(robot.broadcast, x) for x in (equations.S, force))
    M = jax.tree.map(lambda x: x[None], S).dot(jax.tree.map(lambda x: x[:, None], force))
    return M + robot.constant(np.eye(robot.nv)) * robot.broadcast(equations.armature)[:, None]


def setup(robot: Robot, world: PartRows, q, v, control, activation, applied) -> Problem:
    """Return the convex problem of a state."""
    now = acting(robot, world, q, v, control, activation, applied)
    equations, pattern = now.equations, world.pattern
    rest = now.torque - bias_force(robot, equations, now.at.v)
    a0 = solve(robot, equations, constant_elimination(robot, equations).factors, rest)
    rows = rows_at(robot, world, now)
    b = rows.aref - rows.rates(robot, now.at, a0)
    M = pattern.pack_M(mass_matrix(robot, equations))
    return Problem(M, pattern.pack_J(rows.jacobian(robot, now.at)), b, a0, rows.numbers)


@dataclasses.dataclass(frozen=True)
class Solution:
    """The solution of a state's problem, as a function of rows."""

    options: SolverOptions
    factored: bool = False
    """Whether the factor of the Hessian at the solution is returned as well, packed."""

    def __call__(self, robot: Robot, world: PartRows, **state: Any):
        """Return the accelerations, the error and the steps of Newton's method; the arguments are those of `setup`."""
        pattern, problem = world.pattern, setup(robot, world, **state)
        found = self._minimum(pattern, problem)
        out = robot.broadcast(problem.a0 + found.y), found.error, found.count
        return (*out, _factors(robot, pattern, problem, found.y)) if self.factored else out

    def _minimum(self, pattern: Pattern, problem: Problem) -> Minimum:
        numbers, a0 = problem.numbers, problem.a0
        if not pattern.kinds.count:
            return Minimum(jnp.zeros_like(a0), jnp.zeros_like(a0[:1]), jnp.zeros_like(a0[:1]))
        return minimum(
            self.options,
            functools.partial(newton_line, pattern, problem),
            functools.partial(search_step, pattern.kinds, numbers),
            jnp.zeros_like(a0),
            jnp.zeros_like(a0[:1]),
        )


def line_of(robot: Robot, world: PartRows, problem: Problem, y) -> Line:
    """Return the line of Newton's step."""
    return jax.tree.map(robot.broadcast, newton_line(world.pattern, problem, y))


def searched(robot: Robot, world: PartRows, problem: Problem, line: Line, at: Search) -> Search:
    """Return a search along a line after one more step."""
    return search_step(world.pattern.kinds, problem.numbers, line, at)


def residual(robot: Robot, world: PartRows, a, q, v, control, activation, applied):
    """Return what is out of balance at the accelerations `a`; zero at the solution."""
    now = acting(robot, world, q, v, control, activation, applied)
    push = push_of(robot, now.at, rows_at(robot, world, now), robot.broadcast(a))
    own = bias_force(robot, now.equations, now.at.v, a)
    return own - now.torque - push


def hessian_product(robot: Robot, world: PartRows, y, a, q, v, control, activation, applied):
    """Return `H y` with the derivative `H` of `residual` by the accelerations."""

    def at(a):
        return residual(robot, world, a, q, v, control, activation, applied)

    return jax.jvp(at, (robot.broadcast(a),), (robot.broadcast(y),))[1]


def factors(robot: Robot, world: PartRows, a, **state: Any):
    """Return the factor of `H` at the accelerations `a`, packed."""
    problem = setup(robot, world, **state)
    return _factors(robot, world.pattern, problem, a - problem.a0)


def _factors(robot: Robot, pattern: Pattern, problem: Problem, y):
    C = curvature(pattern.kinds, problem.numbers, row_residual(pattern, problem, y))
    L = jnp.moveaxis(factor(hessian(pattern, problem, C)), (-2, -1), (0, 1))
    return robot.broadcast(L.reshape(-1, *L.shape[2:]))


def solved(robot: Robot, world: PartRows, packed, rhs):
    """Return `H^-1 rhs`."""
    L = jnp.moveaxis(packed.reshape(robot.nv, robot.nv, *packed.shape[1:]), (0, 1), (-2, -1))
    return substitute(L, robot.broadcast(rhs))


def constraint_torque(robot: Robot, world: PartRows, a, q, v, control, activation, applied, pushes=None):
    """Return the forces of all constraints on the degrees of freedom at the accelerations `a`; `pushes` are those of
    the rows, if they are not those of the law."""
    now = acting(robot, world, q, v, control, activation, applied)
    found = rows_at(robot, world, now)
    if pushes is None:
        return push_of(robot, now.at, found, robot.broadcast(a))
    return found.torque(robot, now.at, pushes)


def natural(robot: Robot, world: PartRows, a, v):
    """Return accelerations as this library has them."""
    return a - turning_accelerations(robot, robot.broadcast(v))


def step_accelerations(robot: Robot, world: PartRows, a, q, v, control, activation, applied):
    """Return the accelerations with which a step of MuJoCo's integrator goes on, and the activations at its end."""
    now = acting(robot, world, q, v, control, activation, applied)
    after = next_activation(robot, world.actuators, activation, now.actuators.rate, world.timestep)
    slope = _slope(robot, world, now)
    if slope is None:
        return robot.broadcast(a), robot.broadcast(after)
    # (M - dt slope) x = M a: the forces are those of the accelerations a.
    M = _whole(robot, mass_matrix(robot, now.equations))
    damped = M - world.timestep * slope
    acting_force = product(M, a)
    if world.integrator == "implicit":
        return robot.broadcast(eliminated(damped, acting_force)), robot.broadcast(after)
    x = substitute(factor(lower_triangle(damped)), acting_force)
    if world.integrator == "implicitfast" and world.free_bodies:
        x = with_gyroscopic(robot, now.at, world.free_bodies, damped, acting_force, x, world.timestep)
    return x, robot.broadcast(after)


def _whole(robot: Robot, M):
    """Return the symmetric matrix whose lower triangle is given, with the zeros of a tree's mass matrix."""
    lower = jnp.where(robot.constant(np.tril(robot.topology.dof_ancestors)) > 0, M, jnp.zeros((), M.dtype))
    strict = robot.constant(np.tri(robot.nv, k=-1))
    return lower + jnp.swapaxes(lower * strict, 0, 1)


def rates(robot: Robot, world: PartRows, q, v, control, activation, applied):
    """Return the rates of the activations."""
    return robot.broadcast(acting(robot, world, q, v, control, activation, applied).actuators.rate)


def _slope(robot: Robot, world: PartRows, now: Acting):
    """Return the derivative of forces by velocities that the integrator takes implicitly, `[nv, nv]`, or None."""
    if world.integrator == "euler":
        return damper_slopes(robot, now.at, now.passive) if world.damped else None
    parts = now.at, world.passive, now.passive, world.actuators, now.actuators, now.tendons
    if world.integrator == "implicitfast":
        return smooth_slopes(robot, *parts, symmetric=True)
    return smooth_slopes(robot, *parts, symmetric=False) - bias_slopes(robot, now.at)


def activations(robot: Robot, world: PartRows, activation, rate):
    """Return the activations after a time step with these rates."""
    return robot.broadcast(next_activation(robot, world.actuators, activation, rate, world.timestep))
