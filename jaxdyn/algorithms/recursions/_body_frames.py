"""Quantities of bodies in the axes of their own frames, as arrays with linear parts first."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from jaxdyn.algorithms.recursions._algorithm import full
from jaxdyn.model import Model
from jaxdyn.spatial import Force, Motion, Pose, Sym3, Vec3
from jaxdyn.tree._rows import columns_of, matrix_to_leading, packed_rows


def centers(model: Model, rank: int):
    """`[nb, *batch]`: masses, centers of mass in the bodies' frames, and rotational inertias about them in their axes.

    Where there is no mass, the center is the origin of the frame.
    """
    m, x, y, z, *moments = columns_of(packed_rows(model.inertial_parameters, rank))
    h = Vec3(x, y, z)
    massive = m != 0
    c = h * jnp.where(massive, 1 / jnp.where(massive, m, 1), 0)
    # I_C = I + [h x][c x], the parallel-axis theorem.
    return m, c, Sym3(*moments) - Sym3.isotropic(h.dot(c)) + Sym3.outer(h, c)


def motion_in(poses: Pose, x: Motion) -> Motion:
    """A motion about the point of reference in world axes, in the axes and at the origin of frames."""
    x, R = x.at(poses.translation), poses.rotation
    return Motion(R.apply_transpose(x.angular), R.apply_transpose(x.linear))


def motion_from(poses: Pose, x: Motion) -> Motion:
    """The inverse of `motion_in`."""
    R = poses.rotation
    return Motion(R.apply(x.angular), R.apply(x.linear)).at(-poses.translation)


def force_in(poses: Pose, x: Force) -> Force:
    """A force about the point of reference in world axes, in the axes and about the origin of frames."""
    x, R = x.moved_from(-poses.translation), poses.rotation
    return Force(R.apply_transpose(x.moment), R.apply_transpose(x.force))


def force_from(poses: Pose, x: Force) -> Force:
    """The inverse of `force_in`."""
    R = poses.rotation
    return Force(R.apply(x.moment), R.apply(x.force)).moved_from(poses.translation)


def components(x: Motion | Force | Vec3) -> list:
    """The numbers of a spatial vector, linear part first, or of a vector."""
    if isinstance(x, Vec3):
        return [x.x, x.y, x.z]
    first, second = (x.linear, x.angular) if isinstance(x, Motion) else (x.force, x.moment)
    return components(first) + components(second)


def vectors(x: Motion | Force | Vec3, batch: tuple[int, ...]):
    """Rows `[n, *batch]` as `[*batch, n, 6]`, or `[*batch, n, 3]`."""
    return matrix_to_leading(jnp.stack([full(c, batch) for c in components(x)], axis=1))


def product(subscripts: str, *operands):
    return jnp.einsum(subscripts, *operands, precision=lax.Precision.HIGHEST)
