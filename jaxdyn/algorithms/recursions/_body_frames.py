"""Quantities of bodies in the axes of their own frames, and spatial vectors as arrays with linear parts first."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxdyn.algorithms.recursions._robot import Robot
from jaxdyn.spatial import Force, Motion, Pose, Sym3, Vec3
from jaxdyn.tree import columns_of


def centers(robot: Robot):
    """Return the masses of the bodies, their centers of mass in their frames, and their rotational inertias about the
    centers in the frames' axes, rows `[nb]`. A body without mass has its center at the origin of its frame."""
    m, x, y, z, *moments = columns_of(robot.inertial_parameters)
    h = Vec3(x, y, z)
    massive = m != 0
    c = h * jnp.where(massive, 1 / jnp.where(massive, m, 1), 0)
    # I_C = I + [h x][c x], the parallel-axis theorem.
    return m, c, Sym3(*moments) - Sym3.isotropic(h.dot(c)) + Sym3.outer(h, c)


def motion_in(poses: Pose, x: Motion) -> Motion:
    """Return a motion about the point of reference in world axes in the axes and at the origin of frames."""
    x, R = x.at(poses.translation), poses.rotation
    return Motion(R.apply_transpose(x.angular), R.apply_transpose(x.linear))


def motion_from(poses: Pose, x: Motion) -> Motion:
    """Return the inverse of `motion_in`."""
    R = poses.rotation
    return Motion(R.apply(x.angular), R.apply(x.linear)).at(-poses.translation)


def force_in(poses: Pose, x: Force) -> Force:
    """Return a force about the point of reference in world axes in the axes and about the origin of frames."""
    x, R = x.moved_from(-poses.translation), poses.rotation
    return Force(R.apply_transpose(x.moment), R.apply_transpose(x.force))


def force_from(poses: Pose, x: Force) -> Force:
    """Return the inverse of `force_in`."""
    R = poses.rotation
    return Force(R.apply(x.moment), R.apply(x.force)).moved_from(poses.translation)


def components(x: Motion | Force | Vec3) -> list:
    """Return the numbers of a spatial vector, linear part first, or of a vector."""
    if isinstance(x, Vec3):
        return [x.x, x.y, x.z]
    first, second = (x.linear, x.angular) if isinstance(x, Motion) else (x.force, x.moment)
    return components(first) + components(second)


def row_vectors(robot: Robot, x: Motion | Force | Vec3):
    """Return vectors, rows `[n]`, as `[n, 6, *batch]` or `[n, 3, *batch]`."""
    return jnp.stack([robot.broadcast(c) for c in components(x)], axis=1)


def column_vectors(robot: Robot, x: Motion | Force | Vec3):
    """Return vectors, rows `[n]`, as `[6, n, *batch]` or `[3, n, *batch]`."""
    return jnp.stack([robot.broadcast(c) for c in components(x)])


def single_vector(robot: Robot, x: Motion | Force | Vec3):
    """Return one vector, rows `[1]`, as `[6, *batch]` or `[3, *batch]`."""
    return jnp.stack([robot.broadcast(c)[0] for c in components(x)])


def pose_arrays(robot: Robot, pose: Pose) -> Any:
    """Return the two arrays of an `SE3`, `[n, 3, 3, *batch]` and `[n, 3, *batch]`, from poses, rows `[n]`."""
    columns = [column_vectors(robot, c) for c in (pose.rotation.x, pose.rotation.y, pose.rotation.z)]
    return jnp.moveaxis(jnp.stack(columns), (0, 1, 2), (2, 1, 0)), row_vectors(robot, pose.translation)


def product(subscripts: str, *operands):
    return jnp.einsum(subscripts, *operands, precision=lax.Precision.HIGHEST)
