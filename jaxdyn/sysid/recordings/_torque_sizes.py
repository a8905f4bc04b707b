"""Checks of the size of recorded torques, where friction or a rough model hides what follows the links."""

from __future__ import annotations

import numpy as np

from jaxdyn._printing import percent
from jaxdyn.model import Model
from jaxdyn.sysid.recordings._findings import Finding, of_joints
from jaxdyn.sysid.recordings._recording import Recording
from jaxdyn.sysid.recordings._torque_columns import FACTOR, GOOD, SHARE, SUSPICIOUS, Explanation

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


def size_findings(
    part: Recording, model: Model, given: Explanation, unexplained: np.ndarray, share: np.ndarray, named: set[str]
) -> list[Finding]:
    """Return findings of torques whose size is wrong, at joints where friction or noise hides what follows the model:
    far larger than those of the joints that follow it and beyond the joint's limit, or far smaller than the lightest
    links could have."""
    (tau,), names, units = part.require("tau"), model.topology.dof_names, model.topology.dof_units
    size, peak = np.sqrt(np.mean(tau**2, axis=0)), np.abs(tau).max(axis=0)
    follows = (unexplained <= SUSPICIOUS) & (share >= SHARE)
    by_model = np.array([np.sqrt(np.mean(x[:, 0] ** 2)) for x in given.free])
    limit = np.asarray(model.effort_limit, np.float64)
    limited = np.isfinite(limit) & (limit > 0)
    out = []
    for j in np.flatnonzero(~follows).tolist():
        like, others = np.flatnonzero(follows & (units == units[j])), np.delete(limited & (peak <= limit), j)
        above = bool(limited[j] and peak[j] > _ABOVE_LIMIT * limit[j])
        if names[j] in named or (limited[j] and peak[j] <= limit[j]):
            continue
        beyond = bool(limited[j] and peak[j] > FACTOR * limit[j])
        if like.size and size[j] > FACTOR * max(size[like].max(), by_model[units == units[j]].max()):
            k = like[np.argmax(size[like])]
            reason = f"is {size[j] / size[k]:.3g} times as large as that of {names[k]}, which follows the model"
            if limited[j]:
                reason += f", and reaches {peak[j] / limit[j]:.3g} times the joint's limit"
        elif above and len(others) > 1 and others.all():
            reason = f"reaches {peak[j] / limit[j]:.3g} times its limit, while all other joints stay within theirs"
        else:
            continue
        message = f"the torque of {names[j]} {reason}: is it in another unit? N m and N are needed at the joints"
        out.append(Finding("scale", message, (names[j],), grave=beyond))
    return out + _too_small(part, model, given, unexplained, by_model / np.maximum(size, 1e-300), named)


def _too_small(
    part: Recording, model: Model, given: Explanation, unexplained: np.ndarray, times: np.ndarray, named: set[str]
) -> list[Finding]:
    """Return findings of torques that are far smaller than the links can have, or than those of the model, which are
    `times` as large."""
    (tau,), names = part.require("tau"), model.topology.dof_names
    # Where the torques of links cancel, as at a joint without a drive, errors of the motion are larger than the torque.
    left = np.sqrt(unexplained) * tau.std(axis=0) > _CANCELLED * given.largest_of_links()
    small = [names[j] for j in np.flatnonzero((unexplained > _FAR_TOO_SMALL) & left) if names[j] not in named]
    message = (
        "the torques of {} are far smaller than the model's, even if its links had a fifth of their inertias: are they "
        "in another unit, or without gravity?"
    )
    out = of_joints("scale", small, message)
    smaller = (times > _TIMES_SMALLER) & (given.similarity(tau).diagonal() > _FOLLOWING)
    ratios = {names[j]: times[j] for j in np.flatnonzero(smaller) if names[j] not in named and names[j] not in small}
    if not ratios:
        return out
    shown = ", ".join(f"{name} ({x:.2g} times)" for name, x in ratios.items())
    message = f"the torques of {shown} are far smaller than the model's: are they in another unit, or without gravity?"
    return [*out, Finding("scale", message, tuple(ratios))]


def contradictions(
    part: Recording, model: Model, given: Explanation, unexplained: np.ndarray, named: set[str]
) -> list[Finding]:
    """Return a finding of torques of which the model cannot have large parts."""
    (tau,), names, units = part.require("tau"), model.topology.dof_names, model.topology.dof_units
    peak, left = np.abs(tau).max(axis=0), np.sqrt(unexplained) * tau.std(axis=0)
    limit = np.asarray(model.effort_limit, np.float64)
    largest = np.array([peak[units == unit].max() for unit in units])
    size = np.where(np.isfinite(limit) & (limit >= peak), limit, largest)
    wrong = (unexplained > GOOD) & (left > _LARGE * size) & (left > given.largest_of_links())
    # Where nothing moves, noise is all that changes.
    wrong &= bool((np.ptp(part.q, axis=0) > 1e-3).any())
    shown = {
        names[j]: f"{names[j]} ({percent(unexplained[j])})" for j in np.flatnonzero(wrong) if names[j] not in named
    }
    message = (
        f"the model cannot have the torques of {', '.join(shown.values())}: these parts of their power about the mean "
        f"are left even if each link had up to {FACTOR:g} times more or less inertia, with a payload, friction and an "
        "offset. Are columns exchanged, or the model's axes, zeros or springs wrong?"
    )
    return [Finding("misfit", message, tuple(shown))] if shown else []
