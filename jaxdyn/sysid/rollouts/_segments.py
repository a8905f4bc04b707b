"""Recordings cut into segments of equal length."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import DataError
from jaxdyn._types import Array, Float
from jaxdyn.model import Model
from jaxdyn.sysid.recordings import Recording
from jaxdyn.sysid.rollouts._actuated_robot import held_torques, uniform_rate


class Segments(NamedTuple):
    """Recordings in pieces of equal length, one after the other."""

    tau: Float[Array, "segments steps nv"]
    """Torques that act from each sample to the next."""
    q: Float[Array, "segments samples nq"]
    """Measured, `samples = steps + 1`: the last of a segment is the first of the next."""
    v: Float[Array, "segments samples nv"] | None
    weight: Float[Array, "segments samples"]
    """1 where a sample counts: each of a recording does once."""
    linked: Float[Array, "segments"]
    """1 where the next segment continues the same recording."""
    recording: np.ndarray
    """`[segments]` of int: number of the recording."""
    start: np.ndarray
    """`[segments]`: time of the first sample, s."""


def cut_recordings(
    model: Model, recordings: tuple[Recording, ...], duration: float, hold: str, *, link: bool = True
) -> tuple[Segments, float]:
    """Return the segments of `duration` (s), independent unless `link`, and the time from a sample to the next (s).
    **Raises** `DataError`."""
    rates = [uniform_rate(model, recording) for recording in recordings]
    if max(rates) > min(rates) * (1 + 1e-6):
        raise DataError(f"the recordings have {rates} samples per second; resample them to the same rate")
    steps = round(duration * rates[0])
    if steps < 1:
        raise DataError(f"a segment of {duration:g} s is shorter than a sample at {rates[0]:g} Hz")
    with_v = [recording.v is not None for recording in recordings]
    if any(with_v) and not all(with_v):
        raise DataError("some recordings have velocities and others have none; give them all, or none")
    parts = []
    for number, recording in enumerate(recordings):
        count = (len(recording) - 1) // steps
        if count < 1:
            raise DataError(
                f"recording {number} lasts {recording.duration:g} s, less than a segment of {duration:g} s; take "
                "shorter segments"
            )
        rows = steps * np.arange(count)[:, None] + np.arange(steps + 1)
        weight, linked = np.ones((count, steps + 1)), np.full(count, float(link))
        weight[:-1, -1] = linked[-1] = 0
        v = None if recording.v is None else recording.v[rows]
        (tau,) = recording.require("tau")
        tau = held_torques(tau, hold)[rows[:, :-1]]
        parts.append((tau, recording.q[rows], v, weight, linked, np.full(count, number), recording.t[rows[:, 0]]))
    *arrays, number, start = (None if x[0] is None else np.concatenate(x) for x in zip(*parts, strict=True))
    arrays = [None if x is None else jnp.asarray(x, model.dtype) for x in arrays]
    return Segments(*arrays, number, start), 1 / rates[0]  # pyright: ignore[reportArgumentType]  (only `v` may be None)
