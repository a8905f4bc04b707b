"""Real numbers and times from what a user gives: arrays of NumPy, of pandas, and lists."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from jaxdyn._errors import DataError

_NEEDED = "an array of real numbers is needed"


def times(value: Any, what: str) -> np.ndarray:
    """Return times in s, float64: numbers are s; durations (`timedelta64`) are converted from their unit; dates
    (`datetime64`) are counted from the first of them. **Raises** `DataError`, as `real_numbers` does, and for durations
    that have no unit."""
    array = np.asarray(value) if hasattr(value, "dtype") else value
    kind = getattr(getattr(array, "dtype", None), "kind", "")
    if kind not in "mM" or not kind:
        return real_numbers(array if kind else value, what)
    if kind == "m" and np.datetime_data(array.dtype)[0] == "generic":
        raise DataError(f"{what} is {array.dtype} without a unit; give numbers in s, or timedelta64 with a unit")
    # The difference of integers is exact; the number of nanoseconds since 1970 has more digits than a float64.
    elapsed = array if kind == "m" or not array.size else array - array.ravel()[0]
    return elapsed / np.timedelta64(1, "s")


def real_numbers(value: Any, what: str) -> np.ndarray:
    """Return a new array of float64. What is masked or None becomes NaN. **Raises** `DataError` for complex numbers,
    booleans, texts, dates, durations, and whatever is not an array of numbers."""
    if isinstance(value, np.ma.MaskedArray) and value.dtype.kind in "fiu":
        return np.ma.filled(value.astype(np.float64), np.nan)
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise DataError(f"{what} is {type(value).__name__}; {_NEEDED} ({error})") from None
    if array.dtype.kind in "fiu":
        return np.array(array, np.float64)
    if array.dtype.kind == "c":
        raise DataError(f"{what} is complex ({array.dtype}); {_NEEDED}: give its real part if that is what is meant")
    if array.dtype.kind != "O":
        # Types that NumPy does not know, such as bfloat16, have the kind of structures but convert.
        try:
            if array.dtype.kind == "V" and array.dtype.names is None:
                return array.astype(np.float64)
        except (TypeError, ValueError):
            pass
        kind = f"has the type {array.dtype}" if hasattr(value, "dtype") else f"is {_kind(value)}"
        raise DataError(f"{what} {kind}; {_NEEDED}")
    other = bool | np.bool_ | np.timedelta64
    wrong = (x for x in array.ravel() if x is not None and (not isinstance(x, numbers.Real) or isinstance(x, other)))
    wrong = next(wrong, None)
    if wrong is not None:
        raise DataError(f"{what} has an element of type {type(wrong).__name__} ({wrong!s:.40}); {_NEEDED}")
    return array.astype(np.float64)


def _kind(value: Any) -> str:
    """Return the type of a value, or that of the elements of a list."""
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return type(value).__name__


def require_rows(t: np.ndarray, arrays: dict[str, np.ndarray], recording: str) -> None:
    """Raise `DataError` for fewer than two times, and for arrays that do not have a row for each of them."""
    if t.ndim != 1 or len(t) < 2:
        raise DataError(f"{recording}: t has shape {t.shape}; at least two times [n] in s are needed")
    for name, x in arrays.items():
        if x.ndim != 2 or len(x) != len(t) or x.shape[1] == 0:
            needed = f"[{len(t)}, joints] is needed: one row for each time in t"
            raise DataError(f"{recording}: {name} has shape {x.shape}, but {needed}")


def require_samples(t: np.ndarray, arrays: dict[str, np.ndarray], recording: str) -> None:
    """Raise `DataError` for NaN or infinity in the times `t` `[n]` or in arrays `[n, k]`, and for times that do not
    increase."""
    for name, x in {"t": t, **arrays}.items():
        bad = np.argwhere(~np.isfinite(x))
        if bad.size:
            raise DataError(
                f"{recording}: {name} is not finite in {len(bad)} places, the first at row {bad[0][0]}"
                f"{f', column {bad[0][1]}' if x.ndim == 2 else ''} (t = {t[bad[0][0]]:g} s); "
                "drop those rows or fill them in"
            )
    back = np.flatnonzero(np.diff(t) <= 0)
    if back.size:
        k = int(back[0])
        raise DataError(
            f"{recording}: time does not increase from row {k} (t = {t[k]!r}) to row {k + 1} (t = {t[k + 1]!r}), and "
            f"in {back.size} places in all; drop repeated samples, or split where the clock was reset"
        )
