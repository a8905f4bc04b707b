"""Sampled signals, times in rows: interpolation, zero-phase filters, derivatives, also of quaternions, and torques that
a limit has clipped."""

from __future__ import annotations

import itertools
import warnings
from typing import Literal, NamedTuple

import numpy as np
from scipy.interpolate import CubicSpline, UnivariateSpline
from scipy.signal import butter, firwin, savgol_filter, sosfiltfilt, upfirdn

from jaxdyn._errors import DataError, require_choice
from jaxdyn.model import Model
from jaxdyn.spatial import multiply_quaternions

# A step is a jump by a turn if it is this close to one, rad, or as close as its neighbors are large, and if it is this
# many times as large as they are: a fast motion in degrees has large steps side by side.
_NEAR, _LARGER = 0.1 * np.pi, 3.0


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


class Decimation(NamedTuple):
    """A low pass without delay (a symmetric filter of finite length) that keeps every `step`-th sample."""

    taps: np.ndarray = np.ones(1)
    """`[2 half + 1]`."""
    step: int = 1

    @classmethod
    def below(cls, cutoff: float, rate: float) -> Decimation:
        """The filter that leaves half of the amplitude at `cutoff` (Hz) of signals with `rate` samples per second.

        A Hamming window of `2 / cutoff` s falls by 53 dB within 0.83 `cutoff` above the cutoff, and the kept samples,
        at least four for each period at the cutoff, resolve all that is left.
        """
        step = max(1, int(rate / (4 * cutoff)))
        # The first kept sample is the first with a whole window, so half the window holds a whole number of steps.
        half = step * int(np.ceil(rate / cutoff / step))
        return cls(np.asarray(firwin(2 * half + 1, cutoff, fs=rate)), step)

    @property
    def half(self) -> int:
        """The number of samples that each end loses."""
        return len(self.taps) // 2

    def count(self, length: int) -> int:
        """The number of samples that are kept of `length`; negative or zero if it is shorter than the filter."""
        return (length - 1 - 2 * self.half) // self.step + 1

    def ends(self, x: np.ndarray) -> np.ndarray:
        """Return the last of the rows of `x` `[n, ...]` that each kept row depends on."""
        return x[2 * self.half :: self.step]

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Return the filtered and kept rows of `x` `[n, ...]`: those of the rows `half, half + step, ...`."""
        first, count = 2 * self.half // self.step, max(self.count(len(x)), 0)
        if not first:
            return x
        # Regressors have many columns of zeros.
        columns = x.reshape(len(x), -1)
        moving = columns.any(axis=0)
        out = np.zeros((count, columns.shape[1]))
        # In rows, so that a signal's samples lie side by side.
        out[:, moving] = upfirdn(self.taps, columns.T[moving], down=self.step)[:, first : first + count].T
        return out.reshape(len(out), *x.shape[1:])


def savitzky_golay(
    x: np.ndarray, rate: float, window: float | None, degree: int, recording: str
) -> tuple[int, tuple[np.ndarray, np.ndarray]]:
    """Return the number of rows at each end that lack a whole window of `window` s, and first and second derivatives of
    the polynomials of `degree` through the samples of each window (Savitzky & Golay 1964). **Raises** `DataError`."""
    if window is None or not window > 0:
        raise DataError(f"{recording}: give the window of the Savitzky-Golay filter in s, such as 0.1")
    cut = round(0.5 * window * rate)
    if not 1 < degree < 2 * cut + 1 or len(x) < 4 * cut + 2:
        raise DataError(
            f"{recording}: a window of {window:g} s is {2 * cut + 1} samples: a polynomial of degree {degree} needs at "
            f"least {degree + 1} and a degree of 2, and the recording ({len(x)} samples) must have twice as many as a "
            "window"
        )
    first, second = (np.asarray(savgol_filter(x, 2 * cut + 1, degree, k, 1 / rate, axis=0)) for k in (1, 2))
    return cut, (first, second)


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
    rows = np.arange(len(t) - 4)[:, None] + np.array([0, 1, 3, 4])
    near, times = t[rows], t[2:-2]
    weights = np.ones_like(near)
    for i, j in itertools.permutations(range(4), 2):
        weights[:, i] *= (times - near[:, j]) / (near[:, i] - near[:, j])
    residual = x[2:-2] - np.einsum("nk,nkc->nc", weights, x[rows])
    scaled = residual / np.sqrt(1 + np.sum(weights**2, axis=1))[:, None]
    return np.maximum(np.sqrt(np.mean(scaled**2, axis=0)), 1e-12 * np.maximum(np.abs(x).max(axis=0), 1e-300))


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
            # R^T x is the vector in q^-1 x q.
            parts = (np.pad(x[:, i + joint.position :][:, :3], ((0, 0), (1, 0))) for x in (first, second))
            linear, linear2 = (multiply_quaternions(multiply_quaternions(inverse, x), quaternion)[:, 1:] for x in parts)
            v[:, j : j + 3], a[:, j : j + 3] = linear, linear2 - np.cross(w, linear)
    return v, a


def continuous_coordinates(
    t: np.ndarray, q: np.ndarray, model: Model | None, joints: tuple[str, ...] | None, name: str
) -> np.ndarray:
    """Return coordinates `[n, nq]` with quaternions that do not change their signs, and with the angles of joints
    without limits without jumps by a turn. `joints`: those of the columns, where these are not all.

    **Raises** `DataError` for another column that jumps by a turn.
    """
    q, starts = q.copy(), () if model is None or joints is not None else model.topology.quaternion_starts
    for k in starts:
        inner = np.sum(q[1:, k : k + 4] * q[:-1, k : k + 4], axis=-1)
        q[1:, k : k + 4] *= np.cumprod(np.where(inner < 0, -1.0, 1.0))[:, None]
    for k in range(q.shape[1]):
        jumps = jumps_by_a_turn(q[:, k])
        i = k if model is None or joints is None else model.q_index(joints[k]).start
        if not jumps.size or (model is not None and model.topology.coordinate_units[i] != "rad"):
            continue
        if model is None or np.isfinite([model.position_lower[..., i], model.position_upper[..., i]]).any():
            why = "no model says that its joint has no limits" if model is None else "its joint has limits"
            raise DataError(
                f"{name}: column {k} of q jumps by a turn after t = {t[jumps[0]]:g} s, and in {jumps.size} places in "
                f"all, and {why}; call unwrapped([{k}]) first"
            )
        q[:, k] = np.unwrap(q[:, k])
    return q


def jumps_by_a_turn(x: np.ndarray) -> np.ndarray:
    """Return the samples of an angle `[n]` after which it jumps by a turn."""
    step = np.pad(np.abs(np.diff(x)), 1)
    beside = np.maximum(step[:-2], step[2:])
    here = step[1:-1]
    return np.flatnonzero((np.abs(here - 2 * np.pi) < np.maximum(_NEAR, beside)) & (here > _LARGER * beside))


MIXED = 0.01
"""A torque is left out if clipped samples have more than this weight in it: those at the edge of a clipped part, which
filters mix most with their neighbors, were hardly above the limit."""
# A torque is clipped if it stays at its largest value this many times or more, or once for so many samples and this
# many times as long as at any other value, and for more than this part of the samples.
_STAYS, _LONG, _LONGER, _CLIPPED = 3, 10, 5, 0.005
# A coarse sensor repeats more than this part of all values, not only the largest ones.
_COARSE = 0.1
# A torque is at its limit within this many standard deviations of its noise, but within this part of the limit: samples
# of a motion that are far apart look like noise.
_NOISE, _AT_LIMIT, _ROUNDING = 3.0, 0.01, 1e-6
# Torques that a limit clips are so many times as often there as they are in the twice as wide band below; the top of a
# parabola that just reaches the limit is there 1.4 times as often.
_PILED = 3
# The noise of fewer samples is hardly known.
_FEW = 8


def clipped_samples(t: np.ndarray, q: np.ndarray, tau: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """Return which samples of torques `[n, k]` a limit has clipped, `[n, k]` of bool.

    They stay at the largest or the least value of their column while the robot moves and other values change from
    sample to sample, or they are at the known `limit` `[k]` of a torque that never exceeds it. `q` `[n, nq]` are the
    positions at the times `t` `[n]`.
    """
    out = np.zeros(tau.shape, bool)
    if len(tau) < _FEW:
        return out
    noise, moving = noise_level(t, tau), (np.diff(q, axis=0) != 0).any(axis=1)
    for j, x in enumerate(tau.T):
        same, between = (np.diff(x) == 0) & moving, (x[1:] > x.min()) & (x[1:] < x.max())
        elsewhere = _run_lengths(same & between)
        coarse = elsewhere.sum() >= _COARSE * between.sum()
        for end in (x.min(), x.max()):
            stays = same & (x[1:] == end)
            lengths = _run_lengths(stays)
            long = lengths.max(initial=0) > max(_LONG, _LONGER * elsewhere.max(initial=0))
            if (len(lengths) >= _STAYS or long) and stays.mean() > _CLIPPED and not coarse:
                out[:, j] |= x == end
        if np.isfinite(limit[j]) and limit[j] > 0:
            near = min(_NOISE * noise[j], _AT_LIMIT * limit[j]) + _ROUNDING * limit[j]
            below = limit[j] - np.abs(x)
            at_limit, beside = below <= near, (below > near) & (below <= 3 * near)
            # Limits in files of robots may be nominal: torques that exceed one are not clipped there.
            exceeded = below.min() < -2 * near
            if at_limit.sum() >= max(_STAYS, _PILED * beside.sum()) and not exceeded:
                out[:, j] |= at_limit
    return out


def _run_lengths(x: np.ndarray) -> np.ndarray:
    """Return the lengths of the runs of True in `x` `[n]`."""
    change = np.diff(np.concatenate([[0], x.astype(int), [0]]))
    return np.flatnonzero(change == -1) - np.flatnonzero(change == 1)
