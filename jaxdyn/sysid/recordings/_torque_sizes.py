"""Checks of the size of recorded torques, where friction or a rough model hides what follows the links, and sentences
about what the checks could not compare with a model."""

from __future__ import annotations

import numpy as np

from jaxdyn.model import Model
from jaxdyn.sysid.recordings._findings import Finding, of_joints
from jaxdyn.sysid.recordings._recording import Recording, Recordings, as_recordings
from jaxdyn.sysid.recordings._torque_columns import FACTOR, GOOD, SHARE, SUSPICIOUS, ComparedTorques, prepared

# A torque is far too small if this many times its power is left unexplained, or if it is this many times smaller than
# the model's and follows the motion: the model's torque, friction and an offset explain this part of its power.
_FAR_TOO_SMALL, _TIMES_SMALLER, _FOLLOWING = 3.0, 10.0, 0.3
# A joint's torque contradicts the model if at least `GOOD` of its power is left unexplained, and if what is left is
# larger than the torque of any link, and than this part of the joint's limit, or of the robot's largest torque.
_LARGE = 0.05
# Torques above the limit by this factor are unusual, above it by `FACTOR` they are impossible.
_ABOVE_LIMIT = 1.5
# The part of the largest torque of a link that may be an error of the motion.
_CANCELLED = 0.1
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


def size_findings(x: ComparedTorques, named: set[str]) -> list[Finding]:
    """Return findings of torques whose size is wrong, at joints where friction or noise hides what follows the model:
    far larger than those of the joints that follow it and beyond the joint's limit, or far smaller than the lightest
    links could have."""
    names, units, peak, limit = x.names, x.units, x.peak, x.limit
    size, limited = np.sqrt(np.mean(x.tau**2, axis=0)), np.isfinite(limit)
    follows = (x.unexplained <= SUSPICIOUS) & (x.share >= SHARE)
    by_model = np.array([np.sqrt(np.mean(columns[:, 0] ** 2)) for columns in x.given.free])
    out = []
    for j in np.flatnonzero(~follows).tolist():
        like, others = np.flatnonzero(follows & (units == units[j])), np.delete(limited & (peak <= limit), j)
        if names[j] in named or (limited[j] and peak[j] <= limit[j]):
            continue
        if like.size and size[j] > FACTOR * max(size[like].max(), by_model[units == units[j]].max()):
            k = like[np.argmax(size[like])]
            reason = f"is {size[j] / size[k]:.3g} times as large as that of {names[k]}, which follows the model"
            if limited[j]:
                reason += f", and reaches {peak[j] / limit[j]:.3g} times the joint's limit"
        elif peak[j] > _ABOVE_LIMIT * limit[j] and len(others) > 1 and others.all():
            reason = f"reaches {peak[j] / limit[j]:.3g} times its limit, while all other joints stay within theirs"
        else:
            continue
        message = f"the torque of {names[j]} {reason}: is it in another unit? N m and N are needed at the joints"
        out.append(Finding("scale", message, (names[j],), grave=bool(peak[j] > FACTOR * limit[j])))
    # Where the torques of links cancel, as at a joint without a drive, errors of the motion are larger than the torque.
    left = np.sqrt(x.unexplained) * x.tau.std(axis=0) > _CANCELLED * x.given.largest_of_links()
    small = [names[j] for j in np.flatnonzero((x.unexplained > _FAR_TOO_SMALL) & left) if names[j] not in named]
    message = (
        "the torques of {} are far smaller than the model's, even if its links had a fifth of their inertias: are they "
        "in another unit, or without gravity?"
    )
    out += of_joints("scale", small, message)
    times = by_model / np.maximum(size, 1e-300)
    smaller = (times > _TIMES_SMALLER) & (x.given.similarity(x.tau).diagonal() > _FOLLOWING)
    ratios = {names[j]: times[j] for j in np.flatnonzero(smaller) if names[j] not in named and names[j] not in small}
    if ratios:
        shown = ", ".join(f"{name} ({ratio:.2g} times)" for name, ratio in ratios.items())
        message = (
            f"the torques of {shown} are far smaller than the model's: are they in another unit, or without gravity?"
        )
        out.append(Finding("scale", message, tuple(ratios)))
    return out


def contradictions(x: ComparedTorques, named: set[str]) -> list[Finding]:
    """Return a finding of torques of which the model cannot have large parts."""
    left = np.sqrt(x.unexplained) * x.tau.std(axis=0)
    largest = np.array([x.peak[x.units == unit].max() for unit in x.units])
    size = np.where(np.isfinite(x.limit) & (x.limit >= x.peak), x.limit, largest)
    wrong = (x.unexplained > GOOD) & (left > _LARGE * size) & (left > x.given.largest_of_links())
    # Where nothing moves, noise is all that changes.
    wrong &= bool((np.ptp(x.part.q, axis=0) > 1e-3).any()) & ~np.isin(x.names, list(named))
    message = (
        f"the model cannot have the torques of {x.listed(wrong, x.unexplained)}: these parts of their power about the "
        f"mean are left even if each link had up to {FACTOR:g} times more or less inertia, with a payload, friction "
        "and an offset. Are columns exchanged, or the model's axes, zeros or springs wrong?"
    )
    return [Finding("misfit", message, tuple(np.array(x.names)[wrong].tolist()))] if wrong.any() else []


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
    part = None if recording.joints is not None else prepared(recording, model)
    if part is None:
        return {_NOT_COMPARED: f"{recording.duration:.3g} s"}
    x = ComparedTorques(part, model)
    changing = np.ptp(x.tau, axis=0) > 0
    rough = changing & (x.unexplained > SUSPICIOUS)
    hidden = changing & ~rough & (x.share < SHARE)
    unsigned = (rough | hidden) & (x.negated < np.maximum(_SURE * x.unexplained, SUSPICIOUS))
    # Noise may turn a slow motion around for a moment.
    one_way = np.prod(np.quantile(x.v, [0.01, 0.99], axis=0), axis=0) > 0
    clipped = recording.clipped_torques(model).sum(axis=0)
    unsigned, one_way, clips = (np.flatnonzero(chosen).tolist() for chosen in (unsigned, one_way, clipped))
    out = {
        _ROUGH: x.listed(rough, x.unexplained),
        _HIDDEN: x.listed(hidden, x.share),
        _UNSIGNED: ", ".join(x.names[j] for j in unsigned),
        _ALIKE: _alike(x),
        _ONE_WAY: ", ".join(x.names[j] for j in one_way),
        _CLIPPED: ", ".join(f"{x.names[j]} ({clipped[j]} of {len(recording)} samples)" for j in clips),
    }
    return {sentence: what for sentence, what in out.items() if what}


def _alike(x: ComparedTorques) -> str:
    """Return the joints that move in proportion to each other, in groups."""
    coordinates, dofs = x.model.topology.scalar_coordinates
    q = x.part.q[:, coordinates]
    moving = np.ptp(q, axis=0) > 1e-3
    q, names = q[:, moving] - q[:, moving].mean(axis=0), np.array(x.names)[dofs][moving]
    q = q / np.linalg.norm(q, axis=0)
    alike, left, groups = np.abs(q.T @ q) > _PROPORTIONAL, list(range(len(names))), []
    while left:
        group = [k for k in left if k == left[0] or alike[left[0], k]]
        left = [k for k in left if k not in group]
        if len(group) > 1:
            groups.append(", ".join(names[group]))
    return "; ".join(groups)
