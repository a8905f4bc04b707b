"""Transmissions: the matrix between motors and the joints that they drive together."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxdyn._errors import DataError
from jaxdyn.sysid.recordings._array_checks import real_numbers

# A matrix with a larger condition number is taken for one that has no inverse.
_SINGULAR = 1e8


def transmission_matrix(value: Any, arrays: dict[str, np.ndarray], joints, recording: str) -> np.ndarray:
    """Return the matrix `[n, n]` of a recording. **Raises** `DataError` where it does not fit the columns."""
    T = real_numbers(value, f"{recording}: transmission")
    columns = {name: x.shape[1] for name, x in arrays.items() if name in ("q", "v", "a", "tau", "clipped")}
    n = columns["q"]
    if joints is not None:
        raise DataError(f"{recording}: a transmission does not go with joints, the driven ones of closed loops")
    if T.shape != (n, n) or any(x != n for x in columns.values()):
        raise DataError(
            f"{recording}: transmission has shape {T.shape}, and the columns are {columns}; [n, n] is needed, for n "
            "motors and joints with one coordinate each"
        )
    if not np.isfinite(T).all() or np.linalg.cond(T) > _SINGULAR:
        raise DataError(f"{recording}: transmission has no inverse, so the motors do not determine the joints")
    T.setflags(write=False)
    return T


def alone(T: np.ndarray) -> np.ndarray:
    """Return which motors `[n]` of bool drive one joint, the one in their place and no faster, that no other drives."""
    same = np.eye(len(T)) == T
    return same.all(axis=0) & same.all(axis=1)


def motor_motion(T: np.ndarray | None, x: np.ndarray) -> np.ndarray:
    """Return positions, velocities or accelerations `[n, nv]` of joints as those of the motors."""
    return x if T is None else np.linalg.solve(T, x.T).T


def joint_columns(T: np.ndarray, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the columns of joints for those of motors."""
    out = {name: arrays[name] @ T.T for name in ("q", "v", "a") if name in arrays}
    if "tau" in arrays:
        out["tau"] = np.linalg.solve(T.T, arrays["tau"].T).T
    if "clipped" in arrays:
        # A joint's torque is that of all motors that have a part in it.
        out["clipped"] = np.minimum(np.abs(arrays["clipped"]) @ (np.linalg.inv(T) != 0), 1.0)
    return out
