"""What a viewer moves through: ranges of coordinates, trajectories, and where to look from. NumPy."""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxdyn._errors import DataError, require_shape
from jaxdyn._types import ArrayLike
from jaxdyn.model import Model
from jaxdyn.viz._drawing import body_poses

FIELD_OF_VIEW = float(np.radians(45.0))


@dataclasses.dataclass(frozen=True, eq=False)
class Motion:
    """A trajectory: times `[n]`, configurations `[n, nq]` and poses of the bodies `[n, nb, 7]`; of a second robot, too,
    where there is one."""

    t: np.ndarray
    q: np.ndarray
    poses: np.ndarray
    compared: np.ndarray | None


def motion_of(model: Model, t: ArrayLike, qs: ArrayLike, compare: ArrayLike | None) -> Motion:
    """**Raises** `ShapeError`, `DataError`."""
    t, q = np.asarray(t, np.float64), np.asarray(qs, np.float64)
    require_shape(q, (len(q) if q.ndim else 0, model.nq), "qs", f"a row of nq = {model.nq} coordinates for each time")
    require_shape(t, (len(q),), "t", "a time in s for each row of qs")
    if len(t) < 2 or not np.all(np.diff(t) > 0):
        raise DataError("t must have at least two times, in s, that increase; sort them and drop repeated ones")
    compared = None
    if compare is not None:
        second = np.asarray(compare, np.float64)
        require_shape(second, q.shape, "compare", "configurations at the same times as qs")
        compared = body_poses(model, second)
    return Motion(t, q, body_poses(model, q), compared)


def first_configuration(model: Model) -> np.ndarray:
    """`[nq]`: that of zeros and identity rotations, put within the limits."""
    low, high = slider_ranges(model)
    return np.clip(np.asarray(model.neutral(), np.float64), low, high)


def slider_ranges(model: Model) -> tuple[np.ndarray, np.ndarray]:
    """`[nq]`, `[nq]`: the limits, and where there are none half a turn to both sides, or one meter. A limit on one side
    alone begins, or ends, a range of the same length."""
    kinds, starts, _ = model.topology.blocks
    reach = np.ones(model.nq)
    reach[starts[np.isin(kinds, ["R", "H"])]] = np.pi
    low, high = (np.asarray(x, np.float64) for x in (model.position_lower, model.position_upper))
    below, above = np.isfinite(low), np.isfinite(high)
    return (
        np.where(below, low, np.where(above, high - 2 * reach, -reach)),
        np.where(above, high, np.where(below, low + 2 * reach, reach)),
    )


def frames(t: np.ndarray, per_second: float) -> list[tuple[float, int]]:
    """Which samples to keep of times `[n]`: for each the seconds since the one before, and its number."""
    out, last = [], 0
    for k in range(1, len(t)):
        if t[k] - t[last] >= (1 - 1e-6) / per_second or k == len(t) - 1:
            out.append((float(t[k] - t[last]), k))
            last = k
    return out


def camera(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where to look from, and at what, to see a box."""
    center = (low + high) / 2
    away = np.array([1.0, -0.85, 0.45])
    return center + 1.3 * float(np.linalg.norm(high - low)) * away / np.linalg.norm(away), center


def unit(quaternion: np.ndarray) -> np.ndarray:
    """A quaternion stands for its direction."""
    return quaternion / np.linalg.norm(quaternion)
