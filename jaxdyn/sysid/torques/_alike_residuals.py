"""Residuals that are alike, from sample to sample and from period to period of a motion that repeats."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np


class Correlation(NamedTuple):
    """How many residuals of each joint are alike; the arrays are `[nv]`, and at least 1."""

    length: np.ndarray
    """Integrated autocorrelation, `1 + 2 sum rho_k` over the lags that count."""
    span: np.ndarray
    """The same sum with ones in place of `rho_k`."""
    recurrence: np.ndarray
    """`length`, divided by that of the first lags: how often the same residuals recur later."""

    @classmethod
    def of(cls, residual: np.ndarray) -> Self:
        """The correlation of residuals `[n, nv]`. The first lags count until `rho_k` falls below 0.05, and so do later
        lags about a `rho_k` of more than three standard errors: the errors of a model recur with a periodic motion."""
        n = len(residual)
        spectrum = np.abs(np.fft.rfft(residual, 2 * n, axis=0)) ** 2
        sums = []
        for rho in np.fft.irfft(spectrum, axis=0)[:n].T:
            rho = rho / max(rho[0], 1e-300)
            above = rho > 0.05
            run = np.cumsum(np.diff(above, prepend=above[0]))
            top = np.zeros(run[-1] + 1)
            np.maximum.at(top, run, rho)
            # Bartlett's formula for lags at which nothing recurs; the squares of both signs of the lag count.
            error = np.sqrt(max(2 * np.sum(rho**2) - 1, 0.0) / n)
            first = run == 0
            counted = above & ((top > 3 * error)[run] | first)
            sums.append((np.sum(rho[counted]), np.sum(counted), np.sum(rho[first])))
        length, span, short = np.maximum(1.0, 2 * np.transpose(sums) - 1)
        return cls(length, span, length / short)

    @classmethod
    def largest(cls, parts: list[np.ndarray]) -> Self:
        """The largest of each number over the residuals of several recordings."""
        return cls(*np.maximum.reduce([cls.of(x) for x in parts]))
