"""States of a tossed cube from all samples of its flight, instead of the first one alone.

In flight the center of mass moves along a parabola, and a body with equal moments of inertia turns at a constant
velocity, whatever the law of contact is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.spatial.transform import Rotation

from jaxdyn import DataError, State
from jaxdyn.spatial import Vec3, quaternion_to_rotation, so3_left_jacobian

LEAST = 4
"""Samples of a flight that its estimate needs; tosses with fewer keep the recorded state."""
_ITERATIONS = 4


class Flight(NamedTuple):
    """States at the first sample of tosses. The numbers on which they depend are the place of the center of mass in the
    cube's axes (m) and the acceleration of free fall (m/s^2)."""

    quaternion: Any
    """`[n, 4]`"""
    angular: Any
    """`[n, 3]`: angular velocity, axes of the cube, rad/s."""
    path: Any
    """`[n, 2, 3, 5]`: position and velocity of the center of mass, world axes: those for a center in the middle and no
    free fall, and their derivatives by the four numbers."""
    normal: Any
    """`[n, 4, 5]`: the normal equations of the four numbers, with their right-hand side, m^2."""


def flights(rate: float, position, quaternion, used, recorded: np.ndarray) -> Flight:
    """Return the states by least squares over the samples that are `used`, of arrays `[n, samples, ...]`. `recorded` is
    the velocity in world axes and the angular velocity in those of the cube at the first sample, `[n, 2, 3]`."""
    most = max(LEAST, used.sum(axis=1).max())
    position, quaternion, used = (x[:, :most] for x in (position, quaternion, used))
    known = used.sum(axis=1) >= LEAST
    used = np.where(known[:, None], used, 1.0)
    t = np.arange(most) / rate
    rotation, velocity, angular = np.asarray(quaternion_to_rotation(quaternion)), recorded[:, 0], recorded[:, 1]
    # A sample is a row `p_k + R_k c + g t^2 / 2 z = a + b t` of the path a + b t of the center of mass.
    falls = np.zeros((*position.shape, 1))
    falls[..., 2, 0] = t**2 / 2
    rows = np.concatenate([position[..., None], rotation, falls], axis=-1)
    line = np.stack([np.ones_like(t), t])
    solve = np.linalg.solve(np.einsum("nk,ik,jk->nij", used, line, line), used[:, None] * line)
    path = np.einsum("nik,nkxc->nixc", solve, rows)
    left = used[..., None, None] * (rows - np.einsum("ik,nixc->nkxc", line, path))
    normal = np.einsum("nkxi,nkxj->nij", left, left)
    q, w = _turning(quaternion[:, 0], angular, quaternion, used, t)
    turned = rotation[:, 0]
    spin = turned @ np.cross(angular[:, None], np.eye(3)).swapaxes(-1, -2)
    as_recorded = np.zeros_like(path)
    as_recorded[..., 0] = np.stack([position[:, 0], velocity], axis=1)
    as_recorded[..., 1:4] = np.stack([turned, spin], axis=1)
    column = known[:, None]
    return Flight(
        np.where(column, q, quaternion[:, 0]),
        np.where(column, w, angular),
        np.where(column[..., None, None], path, as_recorded),
        np.where(column[..., None], np.concatenate([normal[:, 1:, 1:], -normal[:, 1:, :1]], axis=-1), 0.0),
    )


def _turning(q, w, quaternion, used, t) -> tuple[np.ndarray, np.ndarray]:
    """Return the first orientation `[n, 4]` and the angular velocity `[n, 3]` of turning at a constant velocity, by
    Gauss-Newton steps from `q, w`."""
    n, samples, _ = quaternion.shape
    measured = Rotation.from_quat(quaternion.reshape(-1, 4), scalar_first=True)
    jacobian = jax.jit(lambda w: so3_left_jacobian(Vec3.from_array(w)).to_array())
    for _ in range(_ITERATIONS):
        turned = w[:, None] * t[:, None]
        ahead = Rotation.from_rotvec(turned.reshape(-1, 3))
        start = Rotation.from_quat(np.repeat(q, samples, axis=0), scalar_first=True)
        # In the axes of the start.
        error = (start.inv() * measured * ahead.inv()).as_rotvec().reshape(n, samples, 3)
        faster = t[:, None, None] * np.asarray(jacobian(turned), np.float64)
        rows = np.concatenate([np.broadcast_to(np.eye(3), faster.shape), faster], axis=-1)
        weighted = used[..., None, None] * rows
        right = np.einsum("nkxi,nkx->ni", weighted, error)[..., None]
        step = np.linalg.solve(np.einsum("nkxi,nkxj->nij", weighted, rows), right)[..., 0]
        q = (Rotation.from_quat(q, scalar_first=True) * Rotation.from_rotvec(step[:, :3])).as_quat(scalar_first=True)
        w = w + step[:, 3:]
    return q, w


def free_fall(flight: Flight) -> tuple[np.ndarray, np.ndarray]:
    """Return the center of mass and the acceleration of free fall by which flights are closest to the samples, `[4]`,
    and their covariance `[4, 4]`: the jackknife over tosses, which are taken as independent of each other.

    **Raises** `DataError` for fewer than 5 tosses with a flight."""
    normal = flight.normal[flight.normal.any(axis=(1, 2))]
    if len(normal) < 5:
        raise DataError(f"{len(normal)} tosses begin with {LEAST} samples in flight, and 5 are needed; give gravity")
    A, b = normal[..., :4], normal[..., 4:]
    without = np.linalg.solve(A.sum(axis=0) - A, b.sum(axis=0) - b)[..., 0]
    scatter = without - without.mean(axis=0)
    return np.linalg.solve(A.sum(axis=0), b.sum(axis=0))[:, 0], (1 - 1 / len(A)) * scatter.T @ scatter


def state(flight: Flight, center: Any, gravity: Any) -> State:
    """Return the states at the first sample for a center of mass `[3]` and an acceleration of free fall."""
    numbers = jnp.concatenate([jnp.ones(1), jnp.asarray(center), jnp.reshape(gravity, (1,))])
    path, rotation = flight.path @ numbers, quaternion_to_rotation(flight.quaternion)
    position, velocity = path[:, 0] - rotation @ center, jnp.einsum("nij,ni->nj", rotation, path[:, 1])
    linear = velocity - jnp.cross(flight.angular, center)
    q = jnp.concatenate([position, flight.quaternion], axis=-1)
    return State(q, jnp.concatenate([linear, flight.angular], axis=-1))
