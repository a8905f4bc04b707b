"""The least motions that satisfy constraints."""

from __future__ import annotations

import jax.numpy as jnp

from jaxdyn.algorithms.recursions._articulated_elimination import constant_elimination
from jaxdyn.algorithms.recursions._constraint_rows import ConstraintRows
from jaxdyn.algorithms.recursions._equations_of_motion import Kinematics, equations_at_rest
from jaxdyn.algorithms.recursions._forward_dynamics import solve_held
from jaxdyn.algorithms.recursions._robot import Robot
from jaxdyn.constraints import ACCELERATIONS


def correction(robot: Robot, at: Kinematics, rows: ConstraintRows | None, errors, single: float = ACCELERATIONS):
    """Return the least change `x` of motion, rows `[nv]`, in the metric of the mass matrix, with `J x = -errors` for
    the first rows of the constraints and zero for those of joints that mimic others; zero without rows. `single` as for
    `ProximalFactors`."""
    if rows is None:
        return robot.broadcast(robot.zeros())
    equations = equations_at_rest(robot, at)
    factors = constant_elimination(robot, equations).factors
    others = jnp.zeros((len(rows.J) - len(errors), *errors.shape[1:]), errors.dtype)
    rates = -jnp.concatenate([errors, others]) if len(errors) < len(rows.J) else -errors
    return solve_held(robot.tree, equations, factors, rows, robot.broadcast(robot.zeros()), rates, single=single)[0]
