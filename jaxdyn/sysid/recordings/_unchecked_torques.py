"""What the checks of recordings could not compare with a model, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxdyn.model import Model
from jaxdyn.sysid.recordings._plausibility import part_without_gaps
from jaxdyn.sysid.recordings._recording import Recording, Recordings, as_recordings
from jaxdyn.sysid.recordings._torque_checks import thinned
from jaxdyn.sysid.recordings._torque_columns import FACTOR, SHARE, SUSPICIOUS, Explanation, prepared

# Positions whose correlation is larger than this say as much in the place of each other, as far as a rough model tells.
_ALIKE = 0.99
# With the other sign, a torque whose sign is sure leaves this many times more of its power unexplained.
_SURE = 3.0


def unchecked_torques(recordings: Recordings, model: Model) -> list[str]:
    """Return sentences about the joints whose torques `check_recording` cannot compare with the model's.

    Mistakes at these joints would pass: torques that do not follow the model, torques that are mostly friction, and
    joints that move in proportion to each other. The list is empty where the model confirms the torques of all joints.
    """
    out, recordings = [], as_recordings(recordings)
    for recording in recordings:
        name = f"{recording.name}: " if len(recordings) > 1 else ""
        out += [name + x for x in _sentences(recording, model)]
    return out


def _sentences(recording: Recording, model: Model) -> list[str]:
    if recording.joints is not None or model.topology.has_loops:
        return [
            "Torques of robots with closed loops are not compared with the model's before a fit: nothing but the "
            "error of the fit shows a wrong sign, unit or order of columns."
        ]
    part = prepared(part_without_gaps(recording), model)
    if part is None:
        return [
            "The torques were not compared with the model's before the fit, because the recording is too short: "
            "nothing but the error of the fit shows a wrong sign, unit or order of columns."
        ]
    part = thinned(part)
    (tau,), names = part.require("tau"), model.topology.dof_names
    changing = np.ptp(tau, axis=0) > 0
    given = Explanation.along(part, model)
    unexplained = given.unexplained_parts(tau)
    share = np.array([given.factor(j, tau[:, j])[1] for j in range(model.nv)])
    rough = changing & (unexplained > SUSPICIOUS)
    hidden = changing & ~rough & (share < SHARE)
    out = []
    if rough.any():
        out.append(
            f"The torques of {_listed(names, rough, unexplained)} do not follow the model: these parts of their power "
            f"are left even if each link had up to {FACTOR:g} times more or less inertia, with a payload, friction and "
            "an offset. So nothing confirms their sign, unit and column."
        )
    if hidden.any():
        sure = given.unexplained_parts(-tau) > np.maximum(_SURE * unexplained, SUSPICIOUS)
        mistakes = "a wrong factor" if sure[hidden].all() else "a wrong sign, a wrong factor"
        out.append(
            "Beside friction and an offset, the model explains only these parts of the power of the torques of "
            f"{_listed(names, hidden, share)}, so {mistakes} or an exchange of such joints may not show."
        )
    return out + _alike(part, model)


def _alike(part: Recording, model: Model) -> list[str]:
    """Return a sentence about joints that move in proportion to each other."""
    coordinates, dofs = model.topology.scalar_coordinates
    q = part.q[:, coordinates]
    moving = np.ptp(q, axis=0) > 1e-3
    q, dofs = q[:, moving] - q[:, moving].mean(axis=0), np.asarray(dofs)[moving]
    q = q / np.linalg.norm(q, axis=0)
    alike, left, groups = np.abs(q.T @ q) > _ALIKE, list(range(len(dofs))), []
    while left:
        first, *others = left
        group = [first, *(k for k in others if alike[first, k])]
        left = [k for k in others if k not in group]
        if len(group) > 1:
            groups.append(", ".join(model.topology.dof_names[dofs[k]] for k in group))
    if not groups:
        return []
    return [
        f"These joints move in proportion to each other: {'; '.join(groups)}. Exchanged positions of joints of a "
        "group may not show, and what their motions cause is hard to tell apart."
    ]


def _listed(names: Sequence[str], chosen: np.ndarray, parts: np.ndarray) -> str:
    return ", ".join(f"{names[j]} ({100 * parts[j]:.2g} %)" for j in np.flatnonzero(chosen).tolist())
