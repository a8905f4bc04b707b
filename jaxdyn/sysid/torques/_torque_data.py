"""Recordings of torques, compressed to triangular factors of the equations of a linear torque model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class TorqueData(NamedTuple):
    """Recordings as least squares needs them: triangular factors in place of samples."""

    factors: np.ndarray
    """`[nv, k, P + 2]`: triangular `R_j` with `R_j^T R_j = B_j^T B_j`, `B_j = [Y_j, known torque, measured torque]`,
    for each degree of freedom `j`."""
    samples: np.ndarray
    """`[nv]`: the number of samples, or the sum of their weights."""

    def stacked(self, sigma: np.ndarray) -> np.ndarray:
        """The rows of all joints, `[nv k, P + 2]`, each weighted with `1 / sigma`."""
        return (self.factors / sigma[:, None, None]).reshape(-1, self.factors.shape[-1])

    def weighted(self, sigma: np.ndarray) -> np.ndarray:
        """One triangular factor for all joints, `[k, P + 1]`, with the known torque subtracted."""
        rows = self.stacked(sigma)
        rows = np.concatenate([rows[:, :-2], rows[:, -1:] - rows[:, -2:-1]], axis=-1)
        return np.linalg.qr(rows, mode="r")

    def residual_rms(self, parameters: np.ndarray, gain: np.ndarray | float = 1.0) -> np.ndarray:
        """The root mean square `[nv]` of `(Y p + known) / g - tau` over the samples, in the unit of the recording."""
        gain = np.broadcast_to(np.asarray(gain, np.float64), self.samples.shape)[:, None]
        residual = self.factors[..., :-1] @ np.append(parameters, 1.0) / gain - self.factors[..., -1]
        return np.sqrt(np.sum(residual**2, axis=-1) / self.samples)

    @staticmethod
    def join(parts: Sequence[TorqueData]) -> TorqueData:
        rows = np.concatenate([x.factors for x in parts], axis=1)
        return TorqueData(triangular_factors(rows), np.sum([x.samples for x in parts], axis=0))


def triangular_factors(rows: np.ndarray) -> np.ndarray:
    """The factors `R_j` `[nv, k, m]` with `R_j^T R_j = B_j^T B_j` of `rows` `B` `[nv, n, m]`. Columns of zeros are left
    out first: links before a joint, and the friction of other joints, have no torque there."""
    found = [(seen := B.any(axis=0), np.linalg.qr(B[:, seen], mode="r")) for B in rows]
    out = np.zeros((len(rows), max(len(R) for _, R in found), rows.shape[-1]))
    for factor, (seen, R) in zip(out, found, strict=True):
        factor[: len(R), seen] = R
    return out
