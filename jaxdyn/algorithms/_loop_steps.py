"""The two halves of a symplectic step of a robot with closed loops: its displacement, and the momenta at its end."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jaxdyn._types import Array, Configuration, Float, Torque, Velocity
from jaxdyn.algorithms.recursions import (
    HeldFactors,
    Robot,
    algorithm,
    constant_elimination,
    constraint_errors,
    constraint_rows,
    equations_at_rest,
    kinematics,
    mass_matrix_product,
    momenta_and_rates,
    solve_held,
)
from jaxdyn.constraints import ACCELERATIONS
from jaxdyn.joints import integrate

ITERATIONS = 5
"""The most simplified Newton steps, each of which multiplies the error of a displacement by about its size (rad) or
less."""
NEGLIGIBLE = 1e-13
"""The error of a displacement at which the steps end in double precision, relative to its size. In single precision it
is the precision itself. Where a step multiplies the error by 1e-3, four steps leave 1e-15."""


@algorithm(motion_axes=((-1,),))
def loop_displacement(robot: Robot, q: Configuration, free: Velocity, impulse: Torque) -> Float[Array, "*batch nv"]:
    """The displacement `d` `[*batch, nv]` with which the loops are closed at its end, `phi(q (+) d) = 0`, by impulses
    of the loops at `q`: `p - k / 2 = M free + impulse - J^T l`, with the momenta `p = M d` and their rates `k` in the
    middle of the displacement. The unit of time is the step.

    All Newton steps have the mass matrix and the rows at `q`, so that they share one factorization.
    """
    at = kinematics(robot, q)
    rows, equations = constraint_rows(robot, q, at), equations_at_rest(robot, at)
    if rows is None:
        raise AssertionError("loop_displacement is for models with loops")
    factors = constant_elimination(robot, equations).factors
    held = HeldFactors.of(robot.tree, at.S, factors, rows, ACCELERATIONS)
    q, free, mimics = robot.broadcast(q), robot.broadcast(free), len(rows.J) - robot.topology.nc
    target = mass_matrix_product(robot.tree, equations, free) + impulse

    def newton_step(d):
        errors = robot.broadcast(constraint_errors(robot, integrate(robot.topology, q, d)))
        # Joints that mimic others do so from the start.
        rates = jnp.concatenate([-errors, -(rows.J[len(errors) :] * d[None]).sum(axis=1)]) if mimics else -errors
        momenta, turning = momenta_within(robot, q, d)
        lacking = target - momenta + 0.5 * turning
        return solve_held(robot.tree, equations, factors, rows, lacking, rates, held=held)[0]

    return _root(newton_step, free)


def _root(newton_step: Callable, start):
    """Return the displacement, rows `[nv]`, from which the step is zero. Its derivatives are those of the root: they
    take the same number of steps, all linearized at the root."""
    newton_step, constants = jax.closure_convert(newton_step, start)

    @jax.custom_jvp
    def root(start, *constants):
        negligible = NEGLIGIBLE if start.dtype == jnp.float64 else jnp.finfo(start.dtype).eps

        def size(x):
            return jnp.sqrt((x * x).sum(axis=0))

        # Loops of native programs carry floats alone.
        def further(carry):
            d, before, goes_on, count = carry
            x = newton_step(d, *constants)
            d, length = jnp.where(goes_on > 0, d + x, d), size(x)
            # The next step would be shorter by the same factor.
            return d, length, goes_on * (length * length > negligible * before * size(d)), count + 1

        def unfinished(carry):
            return (carry[2] > 0).any() & (carry[3] < ITERATIONS)

        first = jnp.ones_like(start[0])
        return lax.while_loop(unfinished, further, (start, size(start), first, jnp.zeros((), start.dtype)))[0]

    @root.defjvp
    def _(primals, tangents):
        d, (start_dot, *constants_dot) = root(*primals), tangents
        along = jax.linearize(newton_step, d, *primals[1:])[1]

        def further(x, _):
            return x + along(x, *constants_dot), None

        return d, lax.scan(further, start_dot, length=ITERATIONS)[0]

    return root(start, *constants)


def momenta_within(robot: Robot, q, d):
    """Return the generalized momenta in the middle of a displacement, and their rates, rows `[nv]`."""
    at = kinematics(robot, integrate(robot.topology, q, 0.5 * d))
    return momenta_and_rates(robot, at, d)


@algorithm()
def momentum_ahead(robot: Robot, q: Configuration, d: Velocity) -> Float[Array, "*batch nv"]:
    """The generalized momenta `[*batch, nv]` at the end of the displacement `d` from `q`, `p + k / 2`, in the terms of
    `loop_displacement`."""
    momenta, turning = momenta_within(robot, robot.broadcast(q), robot.broadcast(d))
    return momenta + 0.5 * turning
