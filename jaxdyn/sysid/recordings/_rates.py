"""Velocities and accelerations from the derivatives of coordinates, also where these are quaternions. In NumPy."""

from __future__ import annotations

import numpy as np

from jaxdyn.model import Model
from jaxdyn.model._configuration import quaternion_starts


def rates_on_manifold(
    model: Model | None, q: np.ndarray, first: np.ndarray, second: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """`v, a` `[n, nv]` from `q` `[n, nq]` and its derivatives by time; the same numbers without quaternions.

    With `u = q^-1 q'` the angular velocity in body axes is `w = 2 Im u`, and `w' = 2 Im (q^-1 q'' - u u)`; quaternions
    need not be unit. A free joint has `v = R^T p'` and `v' = R^T p'' - w x v`.
    """
    if model is None or not len(quaternion_starts(model.topology)):
        return first, second
    kinds, q_starts, v_starts = model.topology.blocks
    v, a = (np.zeros((len(q), model.nv)) for _ in range(2))
    for kind, i, j in zip(kinds, q_starts, v_starts, strict=True):
        if kind not in "BF":
            v[:, j], a[:, j] = first[:, i], second[:, i]
            continue
        i_turn, j_turn = (i + 3, j + 3) if kind == "F" else (i, j)
        quaternion, rate, rate2 = (x[:, i_turn : i_turn + 4] for x in (q, first, second))
        inverse = _conjugate(quaternion) / np.sum(quaternion**2, axis=-1, keepdims=True)
        u = _product(inverse, rate)
        w = 2 * u[:, 1:]
        v[:, j_turn : j_turn + 3] = w
        a[:, j_turn : j_turn + 3] = 2 * (_product(inverse, rate2) - _product(u, u))[:, 1:]
        if kind == "F":
            linear = _turned_back(quaternion, inverse, first[:, i : i + 3])
            v[:, j : j + 3] = linear
            a[:, j : j + 3] = _turned_back(quaternion, inverse, second[:, i : i + 3]) - np.cross(w, linear)
    return v, a


def _product(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Hamilton's, of `w x y z` in the last axis."""
    real = x[:, :1] * y[:, :1] - np.sum(x[:, 1:] * y[:, 1:], axis=-1, keepdims=True)
    imaginary = x[:, :1] * y[:, 1:] + y[:, :1] * x[:, 1:] + np.cross(x[:, 1:], y[:, 1:])
    return np.concatenate([real, imaginary], axis=-1)


def _conjugate(x: np.ndarray) -> np.ndarray:
    return x * np.array([1.0, -1.0, -1.0, -1.0])


def _turned_back(quaternion: np.ndarray, inverse: np.ndarray, x: np.ndarray) -> np.ndarray:
    """`R^T x`."""
    return _product(_product(inverse, np.pad(x, ((0, 0), (1, 0)))), quaternion)[:, 1:]
