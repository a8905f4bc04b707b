"""The delay of recorded torques against the motion."""

from __future__ import annotations

import numpy as np

from jaxdyn.model import Model
from jaxdyn.sysid.recordings._findings import Finding
from jaxdyn.sysid.recordings._recording import Recording
from jaxdyn.sysid.recordings._torque_columns import basis_of, inertial_columns, joint_columns

# A delay is reported if it leaves less than this part of the power that is unexplained without it and at the ends of
# the search, and if the motion explains all but this part of most joints' torques.
_LESS_RESIDUAL, _EXPLAINED = 0.75, 0.1


def delay_findings(part: Recording, model: Model, max_delay: float) -> list[Finding]:
    """Return a finding if the motion explains the torques of a prepared part far better when they are shifted."""
    rate = 1 / float(np.median(np.diff(part.t)))
    if part.duration < 8 * max_delay or rate * max_delay < 2:
        return []
    reach = int(max_delay * rate)
    lags = np.arange(-reach, reach + 1)
    kept = slice(reach + 1, len(part) - reach - 1)
    count = kept.stop - kept.start
    (tau,) = part.require("tau")
    curves = []
    Y, (own, shared) = inertial_columns(part, model), joint_columns(part, model)
    for j in range(model.nv):
        basis = basis_of(np.concatenate([Y[:, j], own[j], shared], axis=-1)[kept])
        shifted = np.stack([tau[kept.start + k : kept.stop + k, j] for k in lags], axis=-1)
        shifted -= shifted.mean(axis=0)
        power = np.sum(shifted**2, axis=0)
        if basis.shape[1] > count // 4 or power.min() == 0:
            continue
        left = np.maximum(1 - np.sum((basis.T @ shifted) ** 2, axis=0) / power, 1e-12)
        if left.min() < _EXPLAINED:
            curves.append(left / left.min())
    if 2 * len(curves) <= model.nv:
        return []
    # One clock is late for all joints alike; friction and elastic gears bend the curve of one or the other.
    left = np.median(curves, axis=0)
    best = int(np.argmin(left))
    if left[reach] * _LESS_RESIDUAL < left[best] or min(left[0], left[-1]) < left[best] / _LESS_RESIDUAL:
        return []
    below, lowest, above = left[best - 1 : best + 2]
    delay = float(lags[best] + 0.5 * (below - above) / (below - 2 * lowest + above)) / rate
    if abs(delay) < 0.5 / rate:
        return []
    message = (
        f"the torques are about {abs(delay):.4f} s {'late' if delay > 0 else 'early'} against the motion: shifted by "
        f"it, the motion leaves {left[best] / left[reach]:.2f} times as much of them unexplained, in power; call "
        f"aligned({delay:.4f})"
    )
    return [Finding("delay", message, value=delay)]
