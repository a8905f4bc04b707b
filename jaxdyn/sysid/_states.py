"""Checks of the saved states of unfinished fits."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jaxdyn._errors import DataError


def array_of_state(
    arrays: Mapping[str, np.ndarray],
    name: str,
    shape: tuple[int | None, ...] = (),
    *,
    positive: bool = False,
    whole: bool = False,
    infinite: bool = False,
) -> np.ndarray:
    """Return an array of a saved state. **Raises** `DataError` unless it is there and has real numbers, this shape
    (None for any length), and finite elements, with the exceptions and additions given: `positive` elements, `whole`
    numbers from zero, or `infinite` ones, such as the cost before the first step."""
    if name not in arrays:
        raise DataError(f"these arrays are not the state of a fit: {name} is missing")
    x = np.asarray(arrays[name])
    where = f"these arrays are not the state of a fit: {name} is {x.dtype}{list(x.shape)}"
    if x.dtype.kind not in ("iu" if whole else "fiu"):
        raise DataError(f"{where}; {'integers' if whole else 'real numbers'} are needed")
    if x.ndim != len(shape) or any(n is not None and n != have for n, have in zip(shape, x.shape, strict=True)):
        raise DataError(f"{where}; [{', '.join('n' if n is None else str(n) for n in shape)}] is needed")
    if np.isnan(x).any() or not (infinite or np.isfinite(x).all()):
        raise DataError(f"{where} with elements that are not finite")
    if (positive and not (x > 0).all()) or (whole and not (x >= 0).all()):
        raise DataError(f"{where} with elements that are not positive")
    return x
