"""Torques that a limit has clipped."""

from __future__ import annotations

import numpy as np

from jaxdyn.sysid.recordings import _signals as signals

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
_NOISE, _NEAR, _ROUNDING = 3.0, 0.01, 1e-6
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
    noise, moving = signals.noise_level(t, tau), (np.diff(q, axis=0) != 0).any(axis=1)
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
            near = min(_NOISE * noise[j], _NEAR * limit[j]) + _ROUNDING * limit[j]
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
