"""Trajectories to play, ranges of coordinates, and views of the camera. NumPy."""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxdyn._errors import DataError, require_shape
from jaxdyn._types import ArrayLike
from jaxdyn.joints import coordinate_range
from jaxdyn.model import Model
from jaxdyn.viz._drawing import body_poses

FIELD_OF_VIEW = float(np.radians(45.0))


@dataclasses.dataclass(frozen=True, eq=False)
class Clip:
    """A trajectory to play: times `[n]`, configurations `[n, nq]` and poses of bodies `[n, nb, 7]`; and the poses of a
    second robot, if there is one."""

    t: np.ndarray
    q: np.ndarray
    poses: np.ndarray
    compared: np.ndarray | None


def clip_of(model: Model, t: ArrayLike, qs: ArrayLike, compare: ArrayLike | None) -> Clip:
    """Return a clip, for the arguments of `Viewer.play`. **Raises** `ShapeError`, `DataError`."""
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
    return Clip(t, q, body_poses(model, q), compared)


def first_configuration(model: Model) -> np.ndarray:
    """Return the configuration `[nq]` of zeros and identity rotations, put within the limits."""
    low, high = slider_ranges(model)
    return np.clip(np.asarray(model.neutral(), np.float64), low, high)


def slider_ranges(model: Model) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest and highest values `[nq]` of sliders: the limits, or half a turn or a meter to both sides."""
    low, high = (np.asarray(x, np.float64) for x in (model.position_lower, model.position_upper))
    return coordinate_range(model.topology, low, high)


def frame_samples(t: np.ndarray, per_second: float) -> list[tuple[float, int]]:
    """Return the samples to keep of times `[n]`: for each the seconds since the one before, and its number."""
    out, last = [], 0
    for k in range(1, len(t)):
        if t[k] - t[last] >= (1 - 1e-6) / per_second or k == len(t) - 1:
            out.append((float(t[k] - t[last]), k))
            last = k
    return out


def camera_pose(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the position of a camera that sees a box, and the point at which it looks."""
    center = (low + high) / 2
    away = np.array([1.0, -0.85, 0.45])
    return center + 1.3 * float(np.linalg.norm(high - low)) * away / np.linalg.norm(away), center


def unit(quaternion: np.ndarray) -> np.ndarray:
    """Return the unit quaternion of the same direction."""
    return quaternion / np.linalg.norm(quaternion)
