"""Recorded motions: samples of a robot's state and joint torques, checked, and prepared for identification."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.signal import butter, sosfiltfilt

from jaxdyn._errors import DataError


@dataclasses.dataclass(frozen=True)
class Recording:
    """Samples in rows: time, positions, velocities, accelerations and joint torques. NumPy, float64.

    - `t` `[n]`: s, strictly increasing;
    - `q` `[n, nq]`: rad or m; `v` `[n, nv]`, rad/s or m/s; `a` `[n, nv]`, rad/s^2 or m/s^2 (`v` and `a` may be None);
    - `tau` `[n, nv]`: N m or N.

    Preparation treats every coordinate as a plain number: not for quaternions. To judge a fit on data that it has not
    seen, **split first** with `between` and prepare each part by itself: a zero-phase filter and central differences
    look ahead, so that preparing first would mix the samples on both sides of the boundary.

    **Raises** `DataError` for fewer than two samples, times that do not increase, lengths that differ, NaN or infinity.
    """

    t: np.ndarray
    q: np.ndarray
    v: np.ndarray | None
    a: np.ndarray | None
    tau: np.ndarray

    def __post_init__(self):
        for name in ("t", "q", "v", "a", "tau"):
            value = getattr(self, name)
            if value is None and name in ("v", "a"):
                continue
            try:
                array = np.array(value, dtype=np.float64)
            except (TypeError, ValueError):
                raise DataError(f"recording: {name} is no array of real numbers but {type(value).__name__}") from None
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        if self.t.ndim != 1 or len(self.t) < 2:
            raise DataError(f"recording: t has shape {self.t.shape}; at least two times [n] in s are needed")
        for name, x in self._arrays().items():
            if x.ndim != 2 or len(x) != len(self.t) or x.shape[1] == 0:
                raise DataError(
                    f"recording: {name} has shape {x.shape}, but [{len(self.t)}, joints] is needed: one row for each "
                    "time in t"
                )
        for name, x in self._arrays().items():
            if name != "q" and x.shape[1] != self.tau.shape[1]:
                raise DataError(
                    f"recording: {name} has {x.shape[1]} columns, but tau has {self.tau.shape[1]}; both are [n, nv]"
                )
        for name, x in {"t": self.t, **self._arrays()}.items():
            bad = np.argwhere(~np.isfinite(x))
            if bad.size:
                raise DataError(
                    f"recording: {name} is not finite in {len(bad)} places, the first at row {bad[0][0]}"
                    f"{f', column {bad[0][1]}' if x.ndim == 2 else ''} (t = {self.t[bad[0][0]]:g} s); "
                    "drop those rows or fill them in"
                )
        step = np.diff(self.t)
        if (step <= 0).any():
            k = int(np.argmax(step <= 0))
            raise DataError(
                f"recording: time does not increase from row {k} (t = {self.t[k]!r}) to row {k + 1} "
                f"(t = {self.t[k + 1]!r}), and in {int((step <= 0).sum())} places in all; "
                "drop repeated samples, or split where the clock was reset"
            )

    def __len__(self) -> int:
        return len(self.t)

    @property
    def duration(self) -> float:
        """From the first sample to the last, s."""
        return float(self.t[-1] - self.t[0])

    @property
    def rate(self) -> float | None:
        """Samples per second, or None where the spacing varies by more than one part in 10^6."""
        step = np.diff(self.t)
        mean = self.duration / (len(self) - 1)
        # Times carry rounding themselves: a late start costs digits of the step.
        slack = 1e-6 * mean + 4 * np.spacing(np.abs(self.t).max())
        return 1.0 / mean if np.abs(step - mean).max() <= slack else None

    def between(self, start: float, stop: float) -> Recording:
        """The samples with `start <= t < stop` (s): neighbouring intervals share none.

        **Raises** `DataError` if fewer than two are left.
        """
        keep = (self.t >= start) & (self.t < stop)
        if keep.sum() < 2:
            raise DataError(
                f"recording: {int(keep.sum())} samples between {start:g} and {stop:g} s; "
                f"the recording spans {self.t[0]:g} to {self.t[-1]:g} s"
            )
        return self._map(lambda x: x[keep])

    def resampled(self, rate: float, kind: Literal["cubic", "linear"] = "cubic", max_gap: float = 0.1) -> Recording:
        """Interpolated onto uniform times, `rate` samples per second from the first sample on.

        No anti-aliasing: where samples are dropped, filter first at the recording's own rate, or accept that noise
        above half the new rate folds down. **Raises** `DataError` for a gap of more than `max_gap` s.
        """
        if not np.isfinite(rate) or rate <= 0:
            raise DataError(f"recording: cannot resample at {rate} samples per second; give a positive rate")
        gap = np.diff(self.t)
        if gap.max() > max_gap:
            k = int(np.argmax(gap))
            raise DataError(
                f"recording: {gap[k]:.4g} s without samples after t = {self.t[k]:g} s; do not interpolate them. "
                f"Use between() on each side, or allow it with max_gap (now {max_gap:g} s)"
            )
        # The last grid time may exceed the last sample by rounding only.
        count = int(np.floor(self.duration * rate * (1 + 1e-12))) + 1
        if count < 2:
            raise DataError(f"recording: {self.duration:g} s hold fewer than two samples at {rate:g} per second")
        t = np.minimum(self.t[0] + np.arange(count) / rate, self.t[-1])
        if kind == "cubic":
            return self._map(lambda x: CubicSpline(self.t, x)(t), t)
        if kind == "linear":
            return self._map(lambda x: np.stack([np.interp(t, self.t, c) for c in x.T], axis=-1), t)
        raise DataError(f"recording: unknown interpolation {kind!r}; known: 'cubic', 'linear'")

    def filtered(self, cutoff: float, order: int = 4, trim: float | None = None) -> Recording:
        """Low-passed without delay: a Butterworth filter of the given order, run forwards and backwards.

        All of `q`, `v`, `a` and `tau` pass the same filter, so that the torque stays in step with the motion. The two
        passes leave one quarter of the power at `cutoff` (Hz). At both ends, where the filter had to make up samples,
        `trim` s are cut off; the default `2 / cutoff` is five time constants of the slowest pole at order 4.

        **Raises** `DataError` where the samples are not uniform (see `resampled`), for a cutoff of half the rate or
        more, or where too little would be left.
        """
        rate = self.rate
        if rate is None:
            step = np.diff(self.t)
            raise DataError(
                f"recording: the spacing of the samples varies from {step.min():.4g} to {step.max():.4g} s, and a "
                "filter needs a uniform one; call resampled(rate) first"
            )
        if not 0 < cutoff < 0.5 * rate:
            raise DataError(f"recording: a cutoff of {cutoff:g} Hz is not between 0 and half the rate, {rate / 2:g} Hz")
        trim = 2.0 / cutoff if trim is None else trim
        if trim < 0:
            raise DataError(f"recording: cannot trim {trim:g} s; give zero or more")
        cut = int(np.ceil(trim * rate - 1e-9))
        pad = 3 * (order + 1)
        if len(self) < 2 * cut + 2 or len(self) <= pad:
            raise DataError(
                f"recording: {len(self)} samples ({self.duration:.3g} s) are too few to filter at {cutoff:g} Hz: {cut} "
                f"are cut off at each end, and more than {pad} are needed; use a longer part, or a higher cutoff"
            )
        sos = butter(order, cutoff, fs=rate, output="sos")
        keep = slice(cut, len(self) - cut)
        return self._map(lambda x: sosfiltfilt(sos, x, axis=0, padlen=pad)[keep], self.t[keep])

    def differentiated(self) -> Recording:
        """With accelerations from the velocities by central differences; velocities from the positions if missing.

        Each difference costs the first and the last sample, where no central one exists. An `a` that was there is
        replaced.
        """
        if len(self) < (5 if self.v is None else 3):
            raise DataError(f"recording: {len(self)} samples are too few for central differences")
        out = self
        if out.v is None:
            if out.q.shape[1] != out.tau.shape[1]:
                raise DataError(
                    f"recording: there is no v, and q [n, {out.q.shape[1]}] with tau [n, {out.tau.shape[1]}] has "
                    "coordinates that are no plain numbers; give v"
                )
            v = np.gradient(out.q, out.t, axis=0)
            out = dataclasses.replace(out, v=v)._map(lambda x: x[1:-1])
        assert out.v is not None
        a = np.gradient(out.v, out.t, axis=0)
        return dataclasses.replace(out, a=a)._map(lambda x: x[1:-1])

    def _arrays(self) -> dict[str, np.ndarray]:
        named = {"q": self.q, "v": self.v, "a": self.a, "tau": self.tau}
        return {name: x for name, x in named.items() if x is not None}

    def _map(self, function: Callable[[np.ndarray], np.ndarray], t: np.ndarray | None = None) -> Recording:
        new = {name: function(x) for name, x in self._arrays().items()}
        return Recording(
            t=function(self.t) if t is None else t, q=new["q"], v=new.get("v"), a=new.get("a"), tau=new["tau"]
        )


def load_npz(
    path: str | Path,
    *,
    t: str = "t",
    q: str = "q",
    v: str | None = None,
    a: str | None = None,
    tau: str = "tau",
) -> Recording:
    """A `Recording` from a NumPy archive; the arguments name its arrays.

    With `v` or `a` as None, arrays called `"v"` and `"a"` are taken if they are there; a name that is given must be.
    **Raises** `DataError` for a file that is missing or no archive, for a missing array (it lists those there), and
    for data that is no recording.
    """
    path = Path(path)
    if not path.is_file():
        where = (
            f"; {path.parent} has {_shown(x.name for x in path.parent.glob('*.npz'))}" if path.parent.is_dir() else ""
        )
        raise DataError(f"{path}: no such file{where}")
    try:
        with np.load(path, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("one array, not an archive")
            arrays = {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{path}: no NumPy archive (.npz) of plain arrays: {error}") from None
    except Exception as error:  # zipfile.BadZipFile and zlib.error are not subclasses of anything above
        raise DataError(f"{path}: damaged archive: {error}") from None

    def pick(name: str, meaning: str) -> np.ndarray:
        if name not in arrays:
            raise DataError(f"{path}: no array {name!r} ({meaning}); it has {_shown(arrays)}. Name it in load_npz()")
        return arrays[name]

    values: dict[str, Any] = {"t": pick(t, "time, s"), "q": pick(q, "positions"), "tau": pick(tau, "torques")}
    for key, name, meaning in (("v", v, "velocities"), ("a", a, "accelerations")):
        values[key] = arrays.get(key) if name is None else pick(name, meaning)
    try:
        return Recording(**values)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _shown(names) -> str:
    return ", ".join(sorted(names)) or "nothing"
