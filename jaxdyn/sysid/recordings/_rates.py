"""Velocities and accelerations from the derivatives of coordinates, which may be quaternions. In NumPy."""

from __future__ import annotations

import numpy as np

from jaxdyn.model import Model
from jaxdyn.spatial import multiply_quaternions


def rates_on_manifold(
    model: Model | None, q: np.ndarray, first: np.ndarray, second: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return `v, a` `[n, nv]` from `q` `[n, nq]` and its first and second time derivatives.

    With `u = q^-1 q'` the angular velocity in body axes is `w = 2 Im u`, and `w' = 2 Im (q^-1 q'' - u u)`; quaternions
    need not be unit. A free joint has `v = R^T p'` and `v' = R^T p'' - w x v`.
    """
    if model is None or not len(model.topology.quaternion_starts):
        return first, second
    v, a = (np.zeros((len(q), model.nv)) for _ in range(2))
    for joint, i, j in model.topology.blocks:
        if joint.quaternion is None:
            v[:, j], a[:, j] = first[:, i], second[:, i]
            continue
        quaternion, rate, rate2 = (x[:, i + joint.quaternion :][:, :4] for x in (q, first, second))
        inverse = quaternion * [1, -1, -1, -1] / np.sum(quaternion**2, axis=-1, keepdims=True)
        u = multiply_quaternions(inverse, rate)
        w = 2 * u[:, 1:]
        turn = slice(j + joint.nv - 3, j + joint.nv)
        v[:, turn] = w
        a[:, turn] = 2 * (multiply_quaternions(inverse, rate2) - multiply_quaternions(u, u))[:, 1:]
        if joint.position is not None:
            linear, linear2 = (
                _in_body_axes(quaternion, inverse, x[:, i + joint.position :][:, :3]) for x in (first, second)
            )
            v[:, j : j + 3], a[:, j : j + 3] = linear, linear2 - np.cross(w, linear)
    return v, a


def _in_body_axes(quaternion: np.ndarray, inverse: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return `R^T x`."""
    return multiply_quaternions(multiply_quaternions(inverse, np.pad(x, ((0, 0), (1, 0)))), quaternion)[:, 1:]
