"""Recorded motions and torques as a fit takes them: which joints, which samples, and the low pass between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxdyn._errors import DataError
from jaxdyn.model import Model
from jaxdyn.sysid.recordings import Recording, signals
from jaxdyn.sysid.torques._layout import require_one_robot

# The number of pieces, consecutive in time, for each block of alike motions.
_PIECES = 8


def driven_joints(model: Model, recordings: tuple[Recording, ...]) -> tuple[str, ...] | None:
    """The joints that drive a robot with closed loops and were recorded; None for a tree. **Raises** `DataError`."""
    if not model.topology.has_loops:
        return None
    first = recordings[0].joints
    if any(x.joints != first for x in recordings):
        raise DataError("the recordings are of different joints; fit those with the same joints together")
    if first is None:
        raise DataError(
            "the model has closed loops, whose passive joints have no torque: give the columns of the driven joints "
            "only, and name them by Recording(..., joints=('joint', ...), assembly=q); the others follow from the loops"
        )
    return first


def motion_arrays(model: Model, recording: Recording, *, torques: bool = True) -> tuple[np.ndarray, ...]:
    """Return `q, v, a` and, with `torques`, `tau` of all joints along a recording. **Raises** `DataError` where it does
    not fit the model, `ModelError` for a model with batch axes."""
    require_one_robot(model)
    recording.require_columns(model)
    names = ("q", "v", "a", *(("tau",) if torques else ()))
    recording.require(*names)
    return recording.completed(model).require(*names)


def transmission_of(model: Model, recordings: tuple[Recording, ...]) -> np.ndarray | None:
    """The transmission from the recorded motors to the joints; None where joints were recorded. **Raises**
    `DataError` where recordings differ, and for a model with closed loops or other coordinates than numbers."""
    first = recordings[0].transmission
    if first is None and all(x.transmission is None for x in recordings):
        return None
    if any(x.transmission is None or first is None or not np.array_equal(x.transmission, first) for x in recordings):
        raise DataError("the recordings have different transmissions; fit those with the same one together")
    if model.topology.has_loops or model.nq != model.nv:
        raise DataError(
            "a transmission is for trees of joints with one coordinate each, and this model has closed loops or "
            "joints with several coordinates; close loops by Recording.joints"
        )
    return first


def drive_torques(model: Model, recording: Recording) -> np.ndarray:
    """Return the recorded torques `[n, nv]` of the motors, or of all joints."""
    if recording.transmission is not None:
        return recording.require("tau")[0]
    return motion_arrays(model, recording)[-1]


def free_dofs(model: Model) -> np.ndarray:
    """Return which degrees of freedom are those of free joints, which no motor drives, `[nv]` of bool."""
    out = np.zeros(model.nv, bool)
    for name, kind in zip(model.joint_names, model.topology.joint_types, strict=True):
        if kind == "free":
            out[model.v_index(name)] = True
    return out


def clipped_torques(model: Model, recording: Recording) -> np.ndarray:
    """Return the part `[n, nv]` of each torque of a recording that comes from samples that a limit has clipped, or that
    were not measured."""
    clipped = recording.clipped
    clipped = 1.0 * recording.clipped_torques(model) if clipped is None else np.abs(clipped)
    if recording.contacts is not None:
        # No motor drives a free joint: its torque is zero, and known.
        clipped[:, free_dofs(model)] = 0.0
    if recording.measured is not None:
        clipped = np.maximum(clipped, np.abs(1 - recording.measured))
    if recording.joints is None:
        return clipped
    # Torques of drives that do the same work as others are known only together.
    return np.tile(clipped.max(axis=1, keepdims=True), model.nv)


def low_pass_of(recording: Recording) -> signals.Decimation:
    """The filter that a recording wants between its samples and a fit. **Raises** `DataError` if it is too short."""
    if recording.cutoff is None:
        return signals.Decimation()
    rate = recording.rate
    if rate is None:
        raise DataError(f"{recording.name}: a cutoff needs uniform samples; call prepared() on the measured recording")
    out = signals.Decimation.below(recording.cutoff, rate)
    if out.count(len(recording)) < 2:
        raise DataError(
            f"{recording.name}: {recording.duration:.3g} s are too short for a low pass at {recording.cutoff:g} Hz, "
            f"which loses {out.half / rate:.3g} s at each end; use a longer part, or a higher cutoff"
        )
    return out


def is_unclipped(clipped: np.ndarray, low_pass: signals.Decimation) -> np.ndarray:
    """Return which equations `[m, nv]` of a low pass have hardly any clipped torque, whose parts in the samples are
    `clipped` `[n, nv]`."""
    return signals.Decimation(np.abs(low_pass.taps), low_pass.step).apply(clipped) <= signals.MIXED


def consecutive_blocks(lengths: np.ndarray, count: int) -> np.ndarray:
    """The block number of each row of recordings with `lengths` rows: about `count` blocks of about equal length."""
    out, first = [], 0
    for n in lengths:
        blocks = max(1, round(count * n / lengths.sum()))
        out.append(first + np.arange(n) * blocks // n)
        first = out[-1][-1] + 1
    return np.concatenate(out)


def alike_blocks(lengths: np.ndarray, q: np.ndarray, v: np.ndarray, count: int) -> np.ndarray:
    """Return the block number of each row of recordings with `lengths` rows: `count` blocks whose motions are alike.

    Short pieces belong to one block if they have similar positions, directions and speeds, whose means along the rows
    `q` `[n, nq]` and `v` `[n, nv]` are halved along the direction in which they scatter most, and again. So each block
    has motions that the others do not have: parts of a periodic motion that are consecutive in time would all be alike,
    and could not show whether a fit predicts other motions. As many recordings as blocks are a block each.
    """
    if len(lengths) >= count:
        return np.repeat(np.arange(len(lengths)), lengths)
    pieces = consecutive_blocks(lengths, _PIECES * count)
    rows = np.concatenate([q, v, np.abs(v)], axis=1)
    rows = (rows - rows.mean(axis=0)) / np.maximum(rows.std(axis=0), 1e-300)
    number = int(pieces[-1]) + 1
    means = np.stack([np.bincount(pieces, x, number) for x in rows.T], axis=-1) / np.bincount(pieces)[:, None]
    block, left = np.zeros(number, int), [(np.arange(number), 0, min(count, number))]
    while left:
        chosen, first, blocks = left.pop()
        block[chosen] = first
        if blocks > 1:
            x = means[chosen] - means[chosen].mean(axis=0)
            ordered = chosen[np.argsort(x @ np.linalg.svd(x, full_matrices=False)[2][0], kind="stable")]
            half = blocks // 2
            middle = max(1, round(len(ordered) * half / blocks))
            left += [(ordered[:middle], first, half), (ordered[middle:], first + half, blocks - half)]
    return block[pieces]


class TorqueData(NamedTuple):
    """Recordings as least squares needs them: triangular factors in place of samples."""

    factors: np.ndarray
    """`[nv, k, P + 2]`: triangular `R_j` with `R_j^T R_j = B_j^T B_j`, `B_j = [Y_j, known torque, measured torque]`,
    for each degree of freedom `j`."""
    samples: np.ndarray
    """`[nv]`: the number of samples, or the sum of their weights."""

    def stacked(self, sigma: np.ndarray) -> np.ndarray:
        """The rows of all joints, `[nv k, P + 2]`, each weighted with `1 / sigma`."""
        return (self.factors / sigma[:, None, None]).reshape(-1, self.factors.shape[-1])

    def weighted(self, sigma: np.ndarray) -> np.ndarray:
        """One triangular factor for all joints, `[k, P + 1]`, with the known torque subtracted."""
        rows = self.stacked(sigma)
        rows = np.concatenate([rows[:, :-2], rows[:, -1:] - rows[:, -2:-1]], axis=-1)
        return np.linalg.qr(rows, mode="r")

    def residual_rms(self, parameters: np.ndarray, gain: np.ndarray | float = 1.0) -> np.ndarray:
        """The root mean square `[nv]` of `(Y p + known) / g - tau` over the samples, in the unit of the recording."""
        gain = np.broadcast_to(np.asarray(gain, np.float64), self.samples.shape)[:, None]
        residual = self.factors[..., :-1] @ np.append(parameters, 1.0) / gain - self.factors[..., -1]
        return np.sqrt(np.sum(residual**2, axis=-1) / self.samples)

    @staticmethod
    def join(parts: Sequence[TorqueData]) -> TorqueData:
        rows = np.concatenate([x.factors for x in parts], axis=1)
        return TorqueData(triangular_factors(rows), np.sum([x.samples for x in parts], axis=0))


def triangular_factors(rows: np.ndarray) -> np.ndarray:
    """The factors `R_j` `[nv, k, m]` with `R_j^T R_j = B_j^T B_j` of `rows` `B` `[nv, n, m]`. Columns of zeros are left
    out first: links before a joint, and the friction of other joints, have no torque there."""
    found = [(seen := B.any(axis=0), np.linalg.qr(B[:, seen], mode="r")) for B in rows]
    out = np.zeros((len(rows), max(len(R) for _, R in found), rows.shape[-1]))
    for factor, (seen, R) in zip(out, found, strict=True):
        factor[: len(R), seen] = R
    return out
