"""Sampled signals: interpolation, zero-phase filters, derivatives. On plain arrays, times in rows."""

from __future__ import annotations

import warnings
from typing import Literal

import numpy as np
from scipy.interpolate import CubicSpline, UnivariateSpline
from scipy.signal import butter, savgol_filter, sosfiltfilt

from jaxdyn._errors import DataError


def interpolated(t: np.ndarray, x: np.ndarray, at: np.ndarray, kind: Literal["cubic", "linear"]) -> np.ndarray:
    """`x` `[n, c]` at the times `at`."""
    if kind == "cubic":
        return CubicSpline(t, x)(at)
    if kind == "linear":
        return np.stack([np.interp(at, t, c) for c in x.T], axis=-1)
    raise DataError(f"recording: unknown interpolation {kind!r}; known: 'cubic', 'linear'")


def low_passed(x: np.ndarray, rate: float, cutoff: float, order: int) -> np.ndarray:
    """Butterworth, forwards and backwards: one quarter of the power is left at `cutoff` (Hz)."""
    return sosfiltfilt(butter(order, cutoff, fs=rate, output="sos"), x, axis=0, padlen=padding(order))


def padding(order: int) -> int:
    """How many samples `low_passed` makes up at each end; it needs more than these."""
    return 3 * (order + 1)


def savitzky_golay(x: np.ndarray, rate: float, samples: int, degree: int) -> tuple[np.ndarray, np.ndarray]:
    """First and second derivatives, those of the polynomial fitted to the `samples` (odd) around each (Savitzky & Golay
    1964). The first and last `samples // 2` rows are extrapolated."""
    first, second = (np.asarray(savgol_filter(x, samples, degree, k, 1 / rate, axis=0)) for k in (1, 2))
    return first, second


def smoothing_spline(t: np.ndarray, x: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First and second derivatives of the quintic spline with few knots (Dierckx, Curve and surface fitting with
    splines, 1993, chapter 5) whose root mean square distance from the samples is `noise` `[c]`, that of their noise."""
    first, second = np.zeros_like(x), np.zeros_like(x)
    for i, sigma in enumerate(noise):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                spline = UnivariateSpline(t, x[:, i], k=5, s=len(t) * sigma**2)
            except UserWarning as problem:
                raise DataError(
                    f"recording: no smoothing spline through column {i} at a noise of {sigma:.3g}: "
                    f"{str(problem).strip().splitlines()[0]} Give a larger noise, or use another method"
                ) from None
        first[:, i], second[:, i] = spline(t, 1), spline(t, 2)
    return first, second


def noise_level(t: np.ndarray, x: np.ndarray) -> np.ndarray:
    """`[c]`: the standard deviation of white noise on smooth signals, from how far each sample lies off the cubic
    through its four neighbors. Never below what rounding does."""
    # Lagrange's weights of the two neighbors on either side, at each sample's time.
    near = np.stack([t[k : len(t) - 4 + k] for k in (0, 1, 3, 4)], axis=-1)
    at = t[2:-2]
    weights = np.ones_like(near)
    for i in range(4):
        for j in range(4):
            if i != j:
                weights[:, i] *= (at - near[:, j]) / (near[:, i] - near[:, j])
    neighbors = np.stack([x[k : len(t) - 4 + k] for k in (0, 1, 3, 4)], axis=1)
    residual = x[2:-2] - np.einsum("nk,nkc->nc", weights, neighbors)
    scaled = residual / np.sqrt(1 + np.sum(weights**2, axis=1))[:, None]
    return np.maximum(np.sqrt(np.mean(scaled**2, axis=0)), 1e-12 * np.maximum(np.abs(x).max(axis=0), 1e-300))
