"""The two halves of a symplectic step of a robot with closed loops: its displacement, and the momenta at its end."""

from __future__ import annotations

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
    momentum_rates,
    solve_held,
)
from jaxdyn.constraints import ACCELERATIONS
from jaxdyn.joints import integrate

ITERATIONS = 5
"""The number of simplified Newton steps, each of which multiplies the error of a displacement by about its size (rad)
or less."""


@algorithm(motion_axes=((-1,),))
def loop_displacement(robot: Robot, q: Configuration, free: Velocity, impulse: Torque) -> Float[Array, "*batch nv"]:
    """The displacement `d` `[*batch, nv]` with which the loops are closed at its end, `phi(q (+) d) = 0`, by impulses
    of the loops at `q`: `M d = M free + impulse + k(d) - J^T l`, with `k` the change of the momenta by the motion
    itself, the derivative of the kinetic energy by `q`. The unit of time is the step.

    Everything but `k` and `phi` is that of `q`, so that all iterations share one factorization.
    """
    at = kinematics(robot, q)
    rows, equations = constraint_rows(robot, q, at), equations_at_rest(robot, at)
    if rows is None:
        raise AssertionError("loop_displacement is for models with loops")
    factors = constant_elimination(robot, equations).factors
    held = HeldFactors.of(robot.tree, at.S, factors, rows, ACCELERATIONS)
    q, free, mimics = robot.broadcast(q), robot.broadcast(free), len(rows.J) - robot.topology.nc

    def improve(d, _):
        errors = robot.broadcast(constraint_errors(robot, integrate(robot.topology, q, d)))
        errors = jnp.concatenate([errors, jnp.zeros((mimics, *errors.shape[1:]), errors.dtype)])
        rates = (rows.J * (d - free)[None]).sum(axis=1) - errors
        turning, _ = momentum_rates(robot, at, d)
        return free + solve_held(robot.tree, equations, factors, rows, impulse + turning, rates, held=held)[0], None

    return lax.scan(improve, free, length=ITERATIONS)[0]


@algorithm()
def momentum_ahead(robot: Robot, q: Configuration, d: Velocity) -> Float[Array, "*batch nv"]:
    """The generalized momentum `[*batch, nv]` at `q (+) d` of a robot that moves there from `q` with `d` a unit of
    time, before impulses at the end."""
    at = kinematics(robot, q)
    d = robot.broadcast(d)
    return mass_matrix_product(robot.tree, equations_at_rest(robot, at), d) + momentum_rates(robot, at, d)[1]
