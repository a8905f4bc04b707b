"""The derivatives of a world's smooth forces by its velocities, as MuJoCo's integrators take them.

MuJoCo's documentation, chapter Computation, section "Numerical integration"; `engine_derivative.c` of MuJoCo 4.0
(`mjd_smooth_vel`).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.algorithms.recursions import (
    EquationsOfMotion,
    Robot,
    equations_and_velocities,
    inverse,
    turning_accelerations,
)
from jaxdyn.laws import SoftEquality
from jaxdyn.rows import AbstractRows, DofRows, MatrixRows
from jaxdyn.solve import Term
from jaxdyn.spatial import Mat3, Vec3
from jaxdyn.tree import take_rows
from jaxdyn.worlds._actuators import Actuated
from jaxdyn.worlds._fluid import fluid_slopes
from jaxdyn.worlds._parts import FreeJoints, Instant, PartRows, sums
from jaxdyn.worlds._passive import PassiveForces
from jaxdyn.worlds._tendons import TendonRows


def damper_slopes(robot: Robot, at: Instant, passive: PassiveForces):
    """Return the derivatives of the dampers of joints by the velocities, `[nv, nv, *batch]`: what MuJoCo's integrator
    `Euler` takes. Diagonal, but for free joints whose damping differs between axes of the world."""
    first = FreeJoints.of(robot).rows
    if not len(first):
        return _diagonal(robot, passive.slope)
    linear = np.isin(np.arange(robot.nv), first[:, None] + np.arange(3))
    total = _diagonal(robot, passive.slope * robot.constant(np.where(linear, 0.0, 1.0)))
    R = take_rows(at.world.rotation, first + 5)
    a, b, c = (take_rows(passive.slope, first + k) for k in range(3))
    turned = Mat3(*(Vec3(x.x * a, x.y * b, x.z * c) for x in (R.x, R.y, R.z)))
    block = R.T.compose(turned)
    columns = [(v.x, v.y, v.z) for v in (block.x, block.y, block.z)]
    for number, start in enumerate(first):
        for i in range(3):
            for j in range(3):
                where = np.zeros((robot.nv, robot.nv))
                where[start + i, start + j] = 1
                total = total + columns[j][i][number] * robot.constant(where)
    return total


def smooth_slopes(
    robot: Robot,
    at: Instant,
    passive_part: PartRows,
    passive: PassiveForces,
    actuators: PartRows,
    acting: Actuated,
    tendons: TendonRows | None,
    *,
    symmetric: bool,
):
    """Return the derivatives of the forces of actuators, springs, dampers and the fluid by the velocities, `[nv, nv,
    *batch]`; with `symmetric` those of the fluid as MuJoCo's integrator `implicitfast` has them."""
    total = damper_slopes(robot, at, passive)
    coupled: list = []
    if tendons is not None and passive.tendon_slope is not None:
        coupled.append((tendons.jacobian, passive.tendon_slope))
    if actuators.axes_of_joints:
        numbers, _, dofs = np.array(actuators.axes_of_joints).T
        gear = take_rows(actuators.gear[:, 0], numbers)
        own = sums(gear * gear * take_rows(acting.slope, numbers), dofs, robot.nv)
        total = total + _diagonal(robot, robot.broadcast(own))
    if acting.transmission.moment is not None:
        coupled.append((acting.transmission.moment, take_rows(acting.slope, np.array(actuators.coupled))))
    related = robot.topology.dof_ancestors | robot.topology.dof_ancestors.T
    for J, slope in coupled:
        product = (J[:, :, None] * (slope[:, None] * J)[:, None]).sum(axis=0)
        # MuJoCo's matrix has entries only where one degree of freedom moves the other.
        total = total + product * robot.constant(related.astype(float))
    if passive_part.fluid is not None:
        total = total + fluid_slopes(robot, passive_part.fluid, at, symmetric)
    return total


def resistance_terms(
    robot: Robot,
    at: Instant,
    passive_part: PartRows,
    passive: PassiveForces,
    actuators: PartRows,
    acting: Actuated,
    tendons: TendonRows | None,
    dt,
) -> list[Term]:
    """Return the rows of what dampers and actuators resist more at the end of a step of the length `dt` than at its
    start: forces `slope dt J a`, where their slope by the velocity takes energy. Those of a fluid stay as they are at
    the start. Slopes of free joints, which are along axes of the world, count as along those of the body: this is the
    same for dampers that are alike along all axes, as files have them, and else of the order of the step."""
    found: list[tuple[AbstractRows, Any]] = []
    numbers, _, dofs = np.array(actuators.axes_of_joints, int).reshape(-1, 3).T
    # Only what depends on the velocity has a slope.
    kinds = zip(actuators.gains, actuators.biases, strict=True)
    feel = np.array([gain != "fixed" or bias != "none" for gain, bias in kinds], bool)[numbers]
    if passive_part.damped or feel.any():
        slope = passive.slope
        if feel.any():
            gear = take_rows(actuators.gear[:, 0], numbers)
            slope = slope + sums(gear * gear * take_rows(acting.slope, numbers), dofs, robot.nv)
        found.append((DofRows.of_all(robot), slope))
    if tendons is not None and passive.tendon_slope is not None:
        found.append((tendons.rows(np.arange(len(passive.tendon_slope))), passive.tendon_slope))
    if (J := acting.transmission.moment) is not None:
        found.append((MatrixRows.of(J, np.ones(J.shape[:2])), take_rows(acting.slope, np.array(actuators.coupled))))
    out = []
    for rows, slope in found:
        # What gives energy would not be a minimum of a convex problem at the end of the step.
        D = robot.broadcast(jnp.maximum(-slope, 0.0))
        out.append(Term(rows, SoftEquality(D), jnp.zeros_like(D), dt[None]))
    return out


def bias_force(robot: Robot, equations: EquationsOfMotion, v, a: Any = 0.0):
    """Return the forces, rows `[nv]`, for accelerations `a` as MuJoCo has them but for the axes: `qfrc_bias` if these
    are zero. Armature belongs to them, also that of translations along the axes of the world."""
    turning = turning_accelerations(robot, v)
    return inverse(robot.tree, equations, a - turning) + robot.broadcast(equations.armature * turning)


def bias_slopes(robot: Robot, at: Instant):
    """Return the derivatives of the bias forces by the velocities, `[nv, nv, *batch]`."""

    def bias(v):
        equations, _ = equations_and_velocities(robot, *at.at, v)
        return robot.broadcast(bias_force(robot, equations, v))

    v = robot.broadcast(at.v)
    eye = jnp.eye(robot.nv, dtype=v.dtype).reshape((robot.nv, robot.nv) + (1,) * robot.rank)
    return jax.vmap(lambda unit: jax.jvp(bias, (v,), (robot.broadcast(unit),))[1], out_axes=1)(eye)


def eliminated(A, x):
    """Return `A^-1 x` for rows `[nv]` and a matrix `[nv, nv, *batch]`, which need not be symmetric, by elimination from
    the leaves to the roots, in which the matrix of a tree has no fill-in (`mju_factorLUSparse`)."""
    nv = A.shape[0]
    lines, rest = [], []
    for k in reversed(range(nv)):
        line, pivot = A[k, :k], A[k, k]
        factors = A[:k, k] / pivot
        lines.append(line / pivot)
        rest.append(x[k] / pivot)
        A, x = A[:k, :k] - factors[:, None] * line, x[:k] - factors * x[k]
    found: list = []
    for line, own in zip(reversed(lines), reversed(rest), strict=True):
        found.append(own - sum((line[i] * y for i, y in enumerate(found)), 0.0))
    return jnp.stack(found)


def _diagonal(robot: Robot, x):
    """Return the diagonal matrix of rows `[nv, *batch]`."""
    return x[:, None] * robot.constant(np.eye(robot.nv))
