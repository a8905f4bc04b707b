"""Sampled signals, times in rows: interpolation, zero-phase filters, derivatives."""

from __future__ import annotations

import warnings
from typing import Literal

import numpy as np
from scipy.interpolate import CubicSpline, UnivariateSpline
from scipy.signal import butter, savgol_filter, sosfiltfilt

from jaxdyn._errors import DataError, require_choice


def interpolate(t: np.ndarray, x: np.ndarray, times: np.ndarray, kind: Literal["cubic", "linear"]) -> np.ndarray:
    """Return `x` `[n, c]` at `times`. **Raises** `DataError`."""
    require_choice(kind, ("cubic", "linear"), "recording: interpolation", error=DataError)
    return CubicSpline(t, x)(times) if kind == "cubic" else np.stack([np.interp(times, t, c) for c in x.T], axis=-1)


def low_pass(x: np.ndarray, rate: float, cutoff: float, order: int) -> np.ndarray:
    """Apply a Butterworth filter forwards and backwards: one quarter of the power is left at `cutoff` (Hz)."""
    return sosfiltfilt(butter(order, cutoff, fs=rate, output="sos"), x, axis=0, padlen=padding(order))


def padding(order: int) -> int:
    """The number of samples by which `low_pass` extends each end; it needs more than these."""
    return 3 * (order + 1)


def savitzky_golay(x: np.ndarray, rate: float, samples: int, degree: int) -> tuple[np.ndarray, np.ndarray]:
    """Return first and second derivatives of the polynomial fitted to the `samples` (odd) around each sample (Savitzky
    & Golay 1964). The first and last `samples // 2` rows are extrapolated."""
    first, second = (np.asarray(savgol_filter(x, samples, degree, k, 1 / rate, axis=0)) for k in (1, 2))
    return first, second


def smoothing_spline(t: np.ndarray, x: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return first and second derivatives of the quintic spline with few knots (Dierckx, Curve and surface fitting with
    splines, 1993, chapter 5) whose root mean square distance from the samples is their `noise` `[c]`."""
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
    """The standard deviation of white noise on smooth signals, `[c]`, from the distance of each sample from the cubic
    through its four neighbors, but at least the size of rounding."""
    # Lagrange's weights of the two neighbors on either side, at each sample's time.
    near = np.stack([t[k : len(t) - 4 + k] for k in (0, 1, 3, 4)], axis=-1)
    times = t[2:-2]
    weights = np.ones_like(near)
    for i in range(4):
        for j in range(4):
            if i != j:
                weights[:, i] *= (times - near[:, j]) / (near[:, i] - near[:, j])
    neighbors = np.stack([x[k : len(t) - 4 + k] for k in (0, 1, 3, 4)], axis=1)
    residual = x[2:-2] - np.einsum("nk,nkc->nc", weights, neighbors)
    scaled = residual / np.sqrt(1 + np.sum(weights**2, axis=1))[:, None]
    return np.maximum(np.sqrt(np.mean(scaled**2, axis=0)), 1e-12 * np.maximum(np.abs(x).max(axis=0), 1e-300))
