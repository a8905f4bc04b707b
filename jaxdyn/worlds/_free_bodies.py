"""Free bodies that carry no joints, in steps of `implicitfast`: MuJoCo 4 takes the gyroscopic part of their bias forces
implicitly, which it leaves out for all others. Bodies that are fixed to one another are one.

Source: `engine_derivative.c` of MuJoCo 4.0 (`mjd_freeMhat`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from jaxdyn.algorithms.recursions import Robot
from jaxdyn.io.mjcf import enum_name
from jaxdyn.spatial import Mat3, Sym3, Vec3
from jaxdyn.tree import columns_of, take_rows
from jaxdyn.worlds._parts import Instant


def free_bodies(m) -> tuple[int, ...]:
    """Return the first degrees of freedom of free joints of an `mjModel` that are the only joints of their trees."""
    free = [int(m.jnt_dofadr[j]) for j in range(m.njnt) if enum_name("mjtJoint", m.jnt_type[j]) == "free"]
    return tuple(start for start in free if m.tree_dofnum[m.dof_treeid[start]] == 6)


def with_gyroscopic(robot: Robot, at: Instant, bodies: tuple[int, ...], matrix, force, x, dt):
    """Return the solution `x` of `matrix x = force`, rows `[nv]`, with that of `(matrix + dt B) x = force` for free
    bodies, with the derivative `B` of their bias forces by their velocities."""
    first, nv = np.array(bodies), robot.nv
    flat = matrix.reshape(-1, *matrix.shape[2:])

    def block(row: int, column: int) -> Mat3:
        entries = [[take_rows(flat, (first + row + i) * nv + first + column + k) for i in range(3)] for k in range(3)]
        return Mat3(*(Vec3(*entry) for entry in entries))

    def vector(values, row: int) -> Vec3:
        return Vec3(*(take_rows(values, first + row + i) for i in range(3)))

    _, x_moment, y_moment, z_moment, *inertia = columns_of(
        take_rows(robot.inertial_parameters, robot.topology.body_of_dof[first + 5])
    )
    w, h, turned = vector(at.v, 3), Vec3(x_moment, y_moment, z_moment), Sym3(*inertia)
    # In body axes: w x (w x h) on the translation, w x I w on the rotation; by the angular velocity alone.
    by_linear = _matrix(lambda e: e.cross(w.cross(h)) + w.cross(e.cross(h)))
    by_angular = _matrix(lambda e: e.cross(turned.apply(w)) + w.cross(turned.apply(e)))
    P, Q, Y, Z = block(0, 0), block(0, 3) + by_linear * dt, block(3, 0), block(3, 3) + by_angular * dt
    f, n = vector(force, 0), vector(force, 3)
    solved = Mat3(*(_solve(P, c) for c in (Q.x, Q.y, Q.z)))
    angular = _solve(Z - Y.compose(solved), n - Y.apply(_solve(P, f)))
    linear = _solve(P, f - Q.apply(angular))
    own = (linear.x, linear.y, linear.z, angular.x, angular.y, angular.z)
    where = np.full((6, nv), -1)
    for k in range(6):
        where[k, first + k] = np.arange(len(first))
    others = robot.constant((where < 0).all(axis=0).astype(float))
    return sum((take_rows(c, rows) for c, rows in zip(own, where, strict=True)), x * others)


def _matrix(function: Callable[[Vec3], Vec3]) -> Mat3:
    """Return the matrix of a linear function."""
    return Mat3(*(function(Vec3(*e)) for e in ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))))


def _solve(A: Mat3, b: Vec3) -> Vec3:
    """Return `A^-1 b`."""
    first, second, third = A.y.cross(A.z), A.z.cross(A.x), A.x.cross(A.y)
    return Vec3(first.dot(b), second.dot(b), third.dot(b)) * (1 / A.x.dot(first))
