"""The noise, weights and transmitted torques that are estimated between the rounds of a fit."""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy.linalg import solve_triangular

from jaxdyn._errors import DataError, require_choice
from jaxdyn.sysid.torques._base_parameters import BaseParameters, base_parameters_of
from jaxdyn.sysid.torques._recorded_motions import TorqueData
from jaxdyn.sysid.torques._torque_model import Samples, with_parameters

type Loss = Literal["squared", "huber", "cauchy"]

# No sensor is better than this part of the torque's size; without the floor, weights of exact data would overflow.
_SIGMA_FLOOR = 1e-6
# Rounds of re-weighting end when the noise of every joint changes by less than this part.
_SIGMA_TOLERANCE = 1e-3
# Tuning constants of 95 % efficiency for normal noise (Holland & Welsch 1977), and the ratio of a normal distribution's
# standard deviation to its median absolute value.
_HUBER, _CAUCHY, _MEDIAN = 1.345, 2.385, 1.4826


class Reweighting:
    """The weights of joints and samples, estimated from the residuals after each round."""

    def __init__(self, samples: Samples, loss: Loss, before: Reweighting | None = None):
        """`before`: the weights to begin with, of other samples of the same recordings."""
        require_choice(loss, ("squared", "huber", "cauchy"), "loss", error=DataError)
        self.samples, self.loss, self.settled = samples, loss, False
        self.noise: np.ndarray = samples.torque_scale if before is None else before.sigma
        """`[nv]`: the noise of each joint as estimated."""
        self.sigma = self.noise
        """`[nv]`: the same with a floor, by which the next round weights the joints."""
        self.weights = None if before is None else before.weights
        """`[n, nv]`: the weights of the samples' squares for a robust loss, from the second round on."""
        self._at: np.ndarray | None = None
        self._data: TorqueData | None = None

    @property
    def data(self) -> TorqueData:
        """The samples with their present weights."""
        if self._data is None:
            (self._data,) = self.samples.compressed(self.weights)
        return self._data

    def update(self, parameters: np.ndarray, gain: np.ndarray | float = 1.0) -> None:
        """Estimate all weights from the residuals at the parameters `[P]` and the drive gains `[nv]`."""
        samples = self.samples
        floor = _SIGMA_FLOOR * samples.torque_scale
        if samples.layout.nonlinear:
            self.linearize(parameters)
        if self.loss == "squared":
            self.noise = self.data.residual_rms(parameters, gain)
        else:
            residual = np.abs(samples.residuals(parameters, gain))
            self.noise = _MEDIAN * np.nanmedian(np.where(samples.valid, residual, np.nan), axis=0)
            x = residual / np.maximum(self.noise, floor)
            self.weights = 1 / np.maximum(1, x / _HUBER) if self.loss == "huber" else 1 / (1 + (x / _CAUCHY) ** 2)
        sigma = np.maximum(self.noise, floor)
        self.settled = bool(np.all(np.abs(sigma / self.sigma - 1) < _SIGMA_TOLERANCE))
        self.sigma = sigma
        if samples.layout.by_load and not samples.layout.nonlinear:
            self.linearize(parameters)
        if self.weights is not None:
            self._data = None

    def linearize(self, parameters: np.ndarray) -> None:
        """Take the columns that depend on parameters at these."""
        if self.samples.layout.changes_with_the_fit and (self._at is None or not np.array_equal(parameters, self._at)):
            self.samples.linearize(*with_parameters(self.samples, parameters, np.ones(self.samples.layout.nv)))
            self._at, self._data = parameters, None


def first_noise(samples: Samples) -> np.ndarray:
    """A first estimate of the joints' noise `[nv]`, by linear least squares, for weights that no fit has found yet."""
    (data,) = samples.compressed()
    sigma = samples.torque_scale
    for _ in range(3):
        parameters, _ = least_norm_solution(samples, data.weighted(sigma))
        sigma = np.maximum(data.residual_rms(parameters), _SIGMA_FLOOR * samples.torque_scale)
    return sigma


def least_norm_solution(
    samples: Samples, rows: np.ndarray, threshold: float | None = None
) -> tuple[np.ndarray, BaseParameters]:
    """Solve weighted rows `[k, P + 1]`: of all parameters `[P]` with the best base parameters, return those of least
    norm in columns of unit length, and the base parameters."""
    A, b = rows[:, :-1], rows[:, -1]
    base = base_parameters_of(A, samples.layout.names(samples.model), threshold)
    Q, T = np.linalg.qr(A[:, base.independent])
    best = solve_triangular(T, Q.T @ b)
    length = np.linalg.norm(A, axis=0)
    length = np.where(length > 0, length, 1.0)
    # matrix @ (x / length) = best, with rows scaled to the length of their own column.
    M = base.matrix / length * length[base.independent][:, None]
    return np.linalg.lstsq(M, best * length[base.independent], rcond=None)[0] / length, base
