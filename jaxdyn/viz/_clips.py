"""Trajectories to play, and their samples."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from jaxdyn._errors import DataError, ModelError, require_shape
from jaxdyn.contact import ContactForces
from jaxdyn.simulate import State, Trajectory
from jaxdyn.viz._contact_scene import Forces
from jaxdyn.viz._drawing import FORCES, Drawing, Surface


class Clip(NamedTuple):
    """A trajectory to play: times `[n]`, configurations `[n, nq]` and poses of bodies `[n, nb, 7]`; and the poses of a
    second robot, and contact forces, if there are any."""

    t: np.ndarray
    q: np.ndarray
    poses: np.ndarray
    compared: np.ndarray | None
    forces: Forces | None = None
    mocap: np.ndarray | None = None
    """The poses `[n, nmocap, 7]` of a world's mocap bodies; None: as the file has them."""

    def sample_at(self, seconds: float) -> int:
        """Return the number of the sample that is shown at a time after the start."""
        k = np.searchsorted(self.t - self.t[0], seconds + 1e-9, side="right") - 1
        return int(np.clip(k, 0, len(self.t) - 1))

    def poses_at(self, k: int) -> list[np.ndarray]:
        """Return the poses `[nb, 7]` of one or two robots at a sample."""
        return [x[k] for x in (self.poses, self.compared) if x is not None]


def clip_moment(clip: Clip | None, time: float | None, sample: int | None) -> tuple[Clip, int]:
    """Return the clip and the number of its sample at a time in s after the start, or of a given one. **Raises**
    `DataError`."""
    if clip is None:
        raise DataError("there is no trajectory that has a moment; call play(t, qs) first")
    last, end = len(clip.t) - 1, float(clip.t[-1] - clip.t[0])
    if (time is None) == (sample is None):
        raise DataError("a moment is a time (s) or the number of a sample: give one of the two")
    if time is not None and not 0 <= time <= end:
        raise DataError(f"time is {time:g} s after the start, but the trajectory has 0 to {end:g} s")
    if sample is not None and not -last - 1 <= sample <= last:
        raise DataError(f"sample is {sample}, but the trajectory has samples 0 to {last}")
    return clip, clip.sample_at(time) if time is not None else int(sample or 0) % (last + 1)


def configuration_of(shown: Any) -> tuple[Any, Any]:
    """Return `q` and the poses of mocap bodies, or None, of a state or of several, of a trajectory, or of `q` alone."""
    if isinstance(shown, Trajectory):
        return shown.q, None if shown.end is None else shown.end.mocap
    return (shown.q, shown.mocap) if isinstance(shown, State) else (shown, None)


def clip_of(
    drawing: Drawing,
    t: Any,
    qs: Any,
    compare: Any,
    forces: ContactForces | None = None,
    newtons_per_meter: float | None = None,
) -> Clip:
    """Return a clip, for the arguments of `Viewer.play`. **Raises** `ShapeError`, `DataError`, `ModelError`."""
    model = drawing.model
    if qs is None and isinstance(t, Trajectory | State):
        t, qs = t.t if isinstance(t, Trajectory) else t.time, t
    if t is None or qs is None:
        raise DataError("a trajectory needs both t and qs, or a Trajectory, or states with times")
    qs, mocap = configuration_of(qs)
    t, q = np.asarray(t, np.float64), np.asarray(qs, np.float64)
    if mocap is not None:
        mocap = np.broadcast_to(np.asarray(mocap, np.float64), (*q.shape[:-1], len(drawing.mocap), 7))
    require_shape(q, (len(q) if q.ndim else 0, model.nq), "qs", f"a row of nq = {model.nq} coordinates for each time")
    require_shape(t, (len(q),), "t", "a time in s for each row of qs")
    if len(t) < 2 or not np.all(np.diff(t) > 0):
        raise DataError("t must have at least two times, in s, that increase; sort them and drop repeated ones")
    compared = None
    if compare is not None:
        compare, moved = configuration_of(compare)
        second = np.asarray(compare, np.float64)
        require_shape(second, q.shape, "compare", "configurations at the same times as qs")
        compared = drawing.poses(second, moved)
    drawn = None if forces is None else forces_of(drawing, forces, len(t), newtons_per_meter)
    return Clip(t, q, drawing.poses(q, mocap), compared, drawn, mocap)


def forces_of(drawing: Drawing, forces: ContactForces, count: int, newtons_per_meter: float | None) -> Forces:
    """Return the contact forces to draw at `count` samples. **Raises** `ModelError` without contacts, `ShapeError`."""
    if drawing.contacts is None:
        raise ModelError("forces are those of contacts, which only a World with a ContactLaw has; show this world")
    return Forces.of(forces, count, newtons_per_meter, drawing.unit)


def force_surfaces(drawing: Drawing, forces: Forces | None, k: int | None) -> list[Surface]:
    """Return the contact forces at a sample as surfaces in the world, where they are shown."""
    if forces is None or k is None or FORCES not in drawing.shown:
        return []
    return [] if (mesh := forces.mesh(k)) is None else [drawing.force_surface(mesh)]


def frame_samples(t: np.ndarray, per_second: float) -> list[tuple[float, int]]:
    """Return the samples to keep of times `[n]`: for each the seconds since the one before, and its number."""
    out, last = [], 0
    for k in range(1, len(t)):
        if t[k] - t[last] >= (1 - 1e-6) / per_second or k == len(t) - 1:
            out.append((float(t[k] - t[last]), k))
            last = k
    return out
