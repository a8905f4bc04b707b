"""Torques that a recording lacks: those that were not measured, and those of contact forces that are unknown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxdyn._errors import DataError
from jaxdyn.sysid.recordings._array_checks import real_numbers


def unmeasured_fields(
    measured: Any, tau: Any, contacts: Any, frames: tuple[str, ...], samples: int, recording: str
) -> dict[str, Any]:
    """Return `measured`, `tau`, `contacts` and `contact_frames` as a `Recording` has them: arrays of numbers with a row
    for each sample, zeros as torques that were not measured. **Raises** `DataError`."""
    out: dict[str, Any] = {}
    if isinstance(contacts, Mapping):
        frames, contacts = tuple(map(str, contacts)), np.stack([np.asarray(x) for x in contacts.values()], axis=-1)
    if contacts is not None:
        out["contacts"] = _numbers(contacts, f"{recording}: contacts")
        out["contact_frames"] = frames = tuple(map(str, frames))
        if out["contacts"].ndim != 2 or out["contacts"].shape[1] != len(frames) or len(set(frames)) < len(frames):
            raise DataError(
                f"{recording}: contacts has shape {out['contacts'].shape} for the frames {list(frames)}; give a "
                "mapping from different names of frames to [n] of bool, which says when each may touch something"
            )
    elif frames:
        raise DataError(f"{recording}: contact_frames is given without contacts")
    if measured is not None:
        x = _numbers(measured, f"{recording}: measured")
        if x.ndim == 1 and tau is not None and x.shape == np.shape(tau)[1:]:
            x = np.tile(x, (samples, 1))
        if tau is None or x.shape != np.shape(tau):
            needed = "there are no torques" if tau is None else f"tau has shape {np.shape(tau)}"
            raise DataError(f"{recording}: measured has shape {x.shape}, but {needed}; give [nv] or [n, nv] of bool")
        out["measured"] = x
        # No number stands where a sensor has none.
        out["tau"] = np.where((x == 0) & ~np.isfinite(np.asarray(tau, np.float64)), 0.0, np.asarray(tau, np.float64))
    return out


def _numbers(x: Any, what: str) -> np.ndarray:
    array = np.asarray(x)
    return array.astype(np.float64) if array.dtype == bool else real_numbers(x, what)
