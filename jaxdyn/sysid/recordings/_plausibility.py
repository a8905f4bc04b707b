"""Checks for likely mistakes in a recording."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy.integrate import cumulative_trapezoid

from jaxdyn.algorithms import torque_regressor
from jaxdyn.friction import JointFriction
from jaxdyn.model import Model
from jaxdyn.sysid.recordings._recording import Recording

# Rates that agree to this part are the same; between them lie noise, filters and delays.
_SAME_RATE = 0.2
# A delay is reported if it leaves less than this part of the power that is unexplained without it and at the ends of
# the search, and if the motion explains all but this part of most joints' torques.
_LESS_RESIDUAL, _EXPLAINED = 0.75, 0.1
# Samples that a search for a delay looks at, at most, and their rate: what moves a robot lies far below.
_DELAY_SAMPLES, _DELAY_RATE = 4000, 200.0
_CHUNK = 500


class RecordingWarning(UserWarning):
    """A recording that can be used, but likely has a mistake; see `check_recording`."""


class Finding(NamedTuple):
    """A likely mistake in a recording."""

    kind: str
    """`"gap"`, `"degrees"`, `"limits"`, `"wrapped"`, `"rates"`, `"still"`, `"no torque"` or `"delay"`."""
    message: str
    joints: tuple[str, ...] = ()
    value: float | None = None
    """The longest gap, s; the factor between two rates; or the delay of the torque, s, negative if it is early."""


def check_recording(
    recording: Recording, model: Model | None = None, *, max_gap: float = 0.1, max_delay: float = 0.1, warn: bool = True
) -> tuple[Finding, ...]:
    """Look for common mistakes in a recording, and warn of each as a `RecordingWarning` unless `warn` is false.

    - `"gap"`: more than `max_gap` s, and more than five times the usual spacing, without samples;
    - `"degrees"`: positions or rates that look like degrees;
    - `"limits"`: positions beyond the model's;
    - `"wrapped"`: angles that jump by a turn;
    - `"rates"`: `v` that differs from the derivative of `q`, or `a` from that of `v`, by a factor or a sign;
    - `"still"`: a joint that never moves, of which hardly more than its gravity torque can be identified;
    - `"no torque"`: a torque that never changes;
    - `"delay"`, with a model: torques that fit the motion better when shifted, by up to `max_delay` s. For each shift
      the torques are projected onto the columns of the torque regressor and of joint friction, which needs no
      parameters; the shift with the smallest rest, in the median of the joints, is interpolated between samples. Exact
      torques show a delay of a tenth of a sample, those of a real arm one of about 20 ms.

    Without a model, joints are named by their columns.

    **Raises** `DataError` if the recording's columns do not fit the model.
    """
    if model is None:
        names = tuple(str(k) for k in range(recording.dofs or recording.q.shape[1]))
    else:
        recording.require_columns(model)
        names = model.topology.dof_names
    findings = [*_gaps(recording, max_gap), *_units(recording, model, names), *_rates(recording, model, names)]
    findings += _still(recording, model, names)
    if not any(x.kind in ("degrees", "wrapped", "rates", "gap") for x in findings):
        findings += _delay(recording, model, max_delay)
    if warn:
        for finding in findings:
            warnings.warn(f"{recording.name}: {finding.message}", RecordingWarning, stacklevel=2)
    return tuple(findings)


def _plain(recording: Recording, model: Model | None) -> list[tuple[int, int, bool]]:
    """Return the columns in `q` and in `v` of the coordinates that are plain numbers, and whether they are angles."""
    if model is not None:
        return [(i, j, joint.units == ("rad",)) for joint, i, j in model.topology.blocks if joint.nq == 1]
    count = recording.q.shape[1]
    return [(k, k, True) for k in range(count)] if recording.dofs in (None, count) else []


def _gaps(recording: Recording, max_gap: float) -> list[Finding]:
    step = np.diff(recording.t)
    long = (step > max_gap) & (step > 5 * np.median(step))
    if not long.any():
        return []
    k = int(np.argmax(step))
    message = (
        f"{int(long.sum())} gaps of more than {max_gap:g} s without samples, the longest {step[k]:.4g} s after t = "
        f"{recording.t[k]:g} s; take the parts between them with between()"
    )
    return [Finding("gap", message, value=float(step[k]))]


def _units(recording: Recording, model: Model | None, names: tuple[str, ...]) -> list[Finding]:
    turned, beyond, wrapped = [], [], []
    for i, j, angle in _plain(recording, model):
        x = recording.q[:, i]
        lower, upper = (-np.inf, np.inf)
        if model is not None:
            lower, upper = float(model.position_lower[i]), float(model.position_upper[i])
        # A twentieth of the range for overshoot.
        slack = 0.05 * (upper - lower) if np.isfinite(upper - lower) else 0.05
        degrees = np.deg2rad(x)
        if x.min() < lower - slack or x.max() > upper + slack:
            # Angles with another zero exceed the limits by a turn at most.
            fits = degrees.min() >= lower - slack and degrees.max() <= upper + slack and np.abs(x).max() > 10
            (turned if angle and fits else beyond).append(names[j])
        elif angle and not np.isfinite(upper - lower) and np.abs(x).max() > 4 * np.pi:
            turned.append(names[j])
        jump = np.abs(np.diff(x))
        if angle and np.any(np.abs(jump - 2 * np.pi) < 0.1 * np.pi):
            wrapped.append(names[j])
    return [
        *_of_joints("degrees", turned, "positions of {} look like degrees; radians are needed (numpy.deg2rad)"),
        *_of_joints("limits", beyond, "positions of {} lie beyond the model's limits: other zeros, or another order?"),
        *_of_joints("wrapped", wrapped, "angles of {} jump by a turn; call unwrapped() with their columns"),
    ]


def _of_joints(kind: str, joints: Sequence[str], message: str) -> list[Finding]:
    """Return a finding about joints, or none for no joints."""
    return [Finding(kind, message.format(", ".join(joints)), tuple(joints))] if joints else []


def _rates(recording: Recording, model: Model | None, names: tuple[str, ...]) -> list[Finding]:
    if recording.v is None:
        return []
    i, j = np.array([columns[:2] for columns in _plain(recording, model)], int).reshape(-1, 2).T
    pairs = [("v", "q", recording.v[:, j], recording.q[:, i], [names[k] for k in j])]
    if recording.a is not None:
        pairs.append(("a", "v", recording.a, recording.v, list(names)))
    out = []
    for rate, of, x, y, joints in pairs:
        # Integrated rates against differences: neither is noisier than what was recorded.
        total = cumulative_trapezoid(x, recording.t, axis=0, initial=0.0)
        total, change = total - total.mean(axis=0), y - y.mean(axis=0)
        power = np.sum(change**2, axis=0)
        factors = np.where(power < 1e-6 * len(y), 1.0, np.sum(total * change, axis=0) / np.maximum(power, 1e-300))
        bad = {joint: factor for joint, factor in zip(joints, factors, strict=True) if abs(factor - 1) > _SAME_RATE}
        if not bad:
            continue
        factor = float(np.median(list(bad.values())))
        shown = ", ".join(f"{name} {f:.3g}" for name, f in bad.items())
        turned = {rate: 180 / np.pi, of: np.pi / 180}
        turned = [f"{x} looks like degrees" for x, size in turned.items() if abs(factor / size - 1) < 0.5 * _SAME_RATE]
        reason = turned[0] if turned else "another order, sign, unit or clock?"
        message = f"{rate} is not the derivative of {of} but that times, by joint: {shown}; {reason}"
        out.append(Finding("degrees" if turned else "rates", message, tuple(bad), factor))
    return out


def _still(recording: Recording, model: Model | None, names: tuple[str, ...]) -> list[Finding]:
    resting = [names[j] for i, j, _ in _plain(recording, model) if np.ptp(recording.q[:, i]) < 1e-3]
    message = "{} never moves: its friction, its armature and most of its inertia stay unknown"
    out = _of_joints("still", resting, message)
    if recording.tau is not None:
        constant = np.ptp(recording.tau, axis=0) <= 1e-9 * np.abs(recording.tau).max()
        dead = [names[j] for j in np.flatnonzero(constant)]
        out += _of_joints("no torque", dead, "the torque of {} never changes: is it measured?")
    return out


def _delay(recording: Recording, model: Model | None, max_delay: float) -> list[Finding]:
    """Find the shift of the torques at which the motion explains most of them."""
    if recording.tau is None or model is None:
        return []
    step = float(np.median(np.diff(recording.t)))
    rate = min(1 / step, _DELAY_RATE)
    if recording.duration < max(8 * max_delay, 1.0) or rate * max_delay < 2:
        return []
    part = recording.between(recording.t[0], recording.t[0] + _DELAY_SAMPLES / rate)
    part = dataclasses.replace(part, a=None, current=None).resampled(rate, "linear", np.inf, model)
    # One filter for everything: it has no delay, and keeps the torques of inertia and gravity.
    part = part.filtered(min(10.0, rate / 8), trim=0.1, model=model).differentiated(model=model)
    reach = int(max_delay * rate)
    lags = np.arange(-reach, reach + 1)
    kept = slice(reach + 1, len(part) - reach - 1)
    count = kept.stop - kept.start
    (tau,) = part.require("tau")
    curves = []
    for j, Y in enumerate(_explanations(part, model)):
        # The columns depend on each other: an orthonormal basis of what they span.
        Y = Y[kept] / np.maximum(np.linalg.norm(Y[kept], axis=0), 1e-300)
        basis, size, _ = np.linalg.svd(Y, full_matrices=False)
        basis = basis[:, size > 1e-6 * size[0]]
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


def _explanations(part: Recording, model: Model) -> list[np.ndarray]:
    """Return, for each degree of freedom, the columns `[n, P]` whose combination is its torque."""
    v, a = part.require("v", "a")
    # In parts of one length, of which the last is filled up with repeats: one program serves all.
    rows = np.minimum(np.arange(-(-len(part) // _CHUNK) * _CHUNK), len(part) - 1).reshape(-1, _CHUNK)
    parts = [torque_regressor(model, *(jnp.asarray(x[k]) for x in (part.q, v, a))) for k in rows]
    Y = np.concatenate([np.asarray(x, np.float64) for x in parts])[: len(part)]
    ones = np.ones((len(part), 1))
    springs = part.q if model.stiffness is not None else ones
    friction = JointFriction(1.0, 1.0, friction_velocity=0.05).columns(v)
    by_joint = np.moveaxis(np.stack([a, *friction]), -1, 0)
    return [np.concatenate([Y[:, j], x.T, springs, ones], axis=-1) for j, x in enumerate(by_joint)]
