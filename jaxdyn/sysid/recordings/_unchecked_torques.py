"""Sentences about what the checks of recordings could not compare with a model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxdyn._printing import percent
from jaxdyn.model import Model
from jaxdyn.sysid.recordings._plausibility import part_without_gaps
from jaxdyn.sysid.recordings._recording import Recording, Recordings, as_recordings
from jaxdyn.sysid.recordings._torque_checks import thinned
from jaxdyn.sysid.recordings._torque_columns import FACTOR, SHARE, SUSPICIOUS, Explanation, prepared

# Positions whose correlation is larger than this say as much in the place of each other, as far as a rough model tells.
_PROPORTIONAL = 0.99
# With the other sign, a torque whose sign is sure leaves this many times more of its power unexplained.
_SURE = 3.0
# The sentences; joints and numbers stand for `{}`.
_NOT_COMPARED = (
    "Torques were not compared with the model's before the fit, because the recording is too short, too slow or of "
    "some joints only ({}): only the error of the fit may show a wrong sign, unit or order of columns."
)
_ROUGH = (
    "A rough model does not explain these torques: {}. So much of their power is left even if each link had up to "
    f"{FACTOR:g} times more or less inertia, with a payload, friction and an offset, so a wrong unit there, or columns "
    "of another joint, may not show."
)
_HIDDEN = (
    "Friction, or other effects of the joints, hide the torques of the links here: {}. The model explains only so much "
    "of the power beside friction and an offset, so a wrong factor there, or an exchange of such joints, may not show."
)
_UNSIGNED = "Nothing confirms the sign of these torques: {}."
_CLIPPED = (
    "These torques stay at their largest values or limits: {}. They count as clipped, and fits leave out these samples "
    "and those that filters mix with them: the motions there say nothing about these joints."
)
_ONE_WAY = (
    "These joints turn in one direction only: {}. Their Coulomb friction and offset are known only together, so a "
    "torque in the other direction may be predicted wrong by twice the friction."
)
_ALIKE = (
    "These joints move in proportion to each other: {}. Exchanged positions of such joints may not show, and what "
    "their motions cause is hard to tell apart."
)


def unchecked_torques(recordings: Recordings, model: Model) -> list[str]:
    """Return sentences about the joints whose torques `check_recording` cannot compare with the model's.

    Mistakes may pass where a rough model does not explain a torque, where friction hides the torque of the links, and
    where joints move in proportion to each other. The list is empty where the model confirms the torques of all joints.
    """
    if model.topology.has_loops:
        return [
            "Torques of robots with closed loops are not compared with the model's before a fit: only the error of the "
            "fit may show a wrong sign, unit or order of columns."
        ]
    found: dict[str, list[str]] = {}
    recordings = as_recordings(recordings)
    for recording in recordings:
        for sentence, what in _unchecked(recording, model).items():
            found.setdefault(sentence, []).append(f"{recording.name}: {what}" if len(recordings) > 1 else what)
    return [sentence.format("; ".join(dict.fromkeys(what))) for sentence, what in found.items()]


def _unchecked(recording: Recording, model: Model) -> dict[str, str]:
    """Return sentences, each with the text that stands for `{}` in it."""
    part = None if recording.joints is not None else prepared(part_without_gaps(recording), model)
    if part is None:
        return {_NOT_COMPARED: f"{recording.duration:.3g} s"}
    part = thinned(part)
    (tau, v), names = part.require("tau", "v"), model.topology.dof_names
    changing = np.ptp(tau, axis=0) > 0
    given = Explanation.along(part, model)
    unexplained = given.unexplained_parts(tau)
    share = np.array([given.factor(j, tau[:, j])[1] for j in range(model.nv)])
    rough = changing & (unexplained > SUSPICIOUS)
    hidden = changing & ~rough & (share < SHARE)
    negated = given.unexplained_parts(-tau)
    unsigned = (rough | hidden) & (negated < np.maximum(_SURE * unexplained, SUSPICIOUS))
    out = {_ROUGH: _listed(names, rough, unexplained), _HIDDEN: _listed(names, hidden, share)}
    out |= {_UNSIGNED: ", ".join(names[j] for j in np.flatnonzero(unsigned).tolist()), _ALIKE: _alike(part, model)}
    # Noise may turn a slow motion around for a moment.
    least, most = np.quantile(v, [0.01, 0.99], axis=0)
    one_way = least * most > 0
    out[_ONE_WAY] = ", ".join(names[j] for j in np.flatnonzero(one_way).tolist())
    clipped = recording.clipped_torques(model)
    out[_CLIPPED] = ", ".join(
        f"{names[j]} ({clipped[:, j].sum()} of {len(clipped)} samples)" for j in np.flatnonzero(clipped.any(axis=0))
    )
    return {sentence: what for sentence, what in out.items() if what}


def _alike(part: Recording, model: Model) -> str:
    """Return the joints that move in proportion to each other, in groups."""
    coordinates, dofs = model.topology.scalar_coordinates
    q = part.q[:, coordinates]
    moving = np.ptp(q, axis=0) > 1e-3
    q, dofs = q[:, moving] - q[:, moving].mean(axis=0), np.asarray(dofs)[moving]
    q = q / np.linalg.norm(q, axis=0)
    alike, left, groups = np.abs(q.T @ q) > _PROPORTIONAL, list(range(len(dofs))), []
    while left:
        first, *others = left
        group = [first, *(k for k in others if alike[first, k])]
        left = [k for k in others if k not in group]
        if len(group) > 1:
            groups.append(", ".join(model.topology.dof_names[dofs[k]] for k in group))
    return "; ".join(groups)


def _listed(names: Sequence[str], chosen: np.ndarray, parts: np.ndarray) -> str:
    return ", ".join(f"{names[j]} ({percent(parts[j])})" for j in np.flatnonzero(chosen).tolist())
