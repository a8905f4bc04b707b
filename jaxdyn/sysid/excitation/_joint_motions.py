"""Smooth joint motions that are linear in their coefficients: Fourier series and splines, from rest."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
from scipy.interpolate import BSpline
from scipy.linalg import null_space

from jaxdyn._errors import DataError
from jaxdyn.sysid.recordings import Recording

type Kind = Literal["fourier", "spline"]

_DEGREE = 5


@dataclasses.dataclass(frozen=True)
class JointTrajectory:
    """`q(t) = B(t) coefficients`, with velocity and acceleration zero at its start.

    - `"fourier"`: a constant and `size` harmonics of `1 / duration` (Swevers et al., Optimal robot excitation and
      identification, IEEE T-RA 1997), periodic, so that it may be repeated to average measurements;
    - `"spline"`: a quintic spline of `size` equal pieces, which also ends at rest.
    """

    kind: Kind
    duration: float
    """s."""
    size: int
    """The number of harmonics or pieces."""
    coefficients: np.ndarray
    """`[K, nv]`, rad or m."""

    def __call__(self, t) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`q, v, a`, each `[n, nv]`, at the times `t` `[n]`, s. **Raises** `DataError` for a spline beyond its ends."""
        q, v, a = (B @ self.coefficients for B in basis(self.kind, self.duration, self.size, np.atleast_1d(t)))
        return q, v, a

    def sampled(self, rate: float, periods: int = 1) -> Recording:
        """A recording without torques, with `rate` samples per second, of one period or, for a Fourier series, several.
        **Raises** `DataError` for several periods of a spline."""
        if periods < 1 or (periods > 1 and self.kind != "fourier"):
            raise DataError(f"{periods} periods of a {self.kind} trajectory; only a Fourier series can be repeated")
        t = np.arange(round(self.duration * rate) * periods + 1) / rate
        return Recording(t, *self(np.minimum(t, self.duration * periods)), name="excitation")


def basis(kind: Kind, duration: float, size: int, t: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The matrices `[n, K]` that take coefficients to positions, velocities and accelerations at times `t` `[n]`."""
    t = np.asarray(t, np.float64)
    if kind == "fourier":
        # The scale makes equal coefficients equal velocities.
        k = np.arange(1, size + 1)
        w = 2 * np.pi / duration * k
        s, c = np.sin(np.outer(t, w)), np.cos(np.outer(t, w))
        parts = ((s / k, c / k), (w * c / k, -w * s / k), (-(w**2) * s / k, -(w**2) * c / k))
        # The motion starts at rest: the sines' velocities and the cosines' accelerations vanish at t = 0.
        sines, cosines = null_space(np.ones((1, size))), null_space(1.0 * k[None])
        moving = [np.concatenate([x @ sines, y @ cosines], axis=-1) for x, y in parts]
        constant = np.zeros((len(t), 1))
        out = [np.concatenate([constant + (order == 0), x], axis=-1) for order, x in enumerate(moving)]
        return out[0], out[1], out[2]
    if t.size and (t.min() < -1e-12 or t.max() > duration * (1 + 1e-12)):
        raise DataError(f"the spline trajectory lasts from 0 to {duration:g} s; asked for {t.min():g} to {t.max():g} s")
    knots = np.concatenate([np.zeros(_DEGREE), np.linspace(0, duration, size + 1), np.full(_DEGREE, duration)])
    spline = BSpline(knots, np.eye(size + _DEGREE), _DEGREE)
    out = []
    for order in range(3):
        B = spline(np.clip(t, 0.0, duration), order)
        # The motion is at rest where three control points coincide.
        out.append(np.concatenate([B[:, :3].sum(axis=1)[:, None], B[:, 3:-3], B[:, -3:].sum(axis=1)[:, None]], axis=-1))
    return out[0], out[1], out[2]


def least_size(kind: Kind) -> int:
    """The smallest `size` for which motions differ."""
    return 2 if kind == "fourier" else 3


def stationary(kind: Kind, coefficients: np.ndarray) -> np.ndarray:
    """The coefficients `[..., K, nv]` of the posture in the middle of a trajectory."""
    if kind == "spline":
        return np.broadcast_to(coefficients.mean(axis=-2, keepdims=True), coefficients.shape).copy()
    out = np.zeros_like(coefficients)
    out[..., 0, :] = coefficients[..., 0, :]
    return out
