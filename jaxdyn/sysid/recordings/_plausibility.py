"""Checks for likely mistakes in a recording."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.integrate import cumulative_trapezoid

from jaxdyn._errors import DataError, naming_arguments, warn
from jaxdyn.model import Model
from jaxdyn.sysid.recordings import _signals as signals
from jaxdyn.sysid.recordings import _transmissions as transmissions
from jaxdyn.sysid.recordings._explained_torques import basis_of, inertial_columns, is_gap, joint_columns, prepared
from jaxdyn.sysid.recordings._findings import Finding, RecordingWarning, in_places, of_joints
from jaxdyn.sysid.recordings._recording import Recording
from jaxdyn.sysid.recordings._several_recordings import Recordings, as_recordings
from jaxdyn.sysid.recordings._torque_checks import torque_findings

# Rates that agree to this part are the same; between them lie noise, filters and delays.
_SAME_RATE = 0.2
# Two columns belong together if the square of their correlation is larger than this.
_SAME_COLUMN = 0.9
# Times that are this far apart, s, are no seconds if the motion between them is smooth, and this slow: rad/s or m/s for
# a range of less than pi, in proportion for larger ones, so that positions in degrees are judged as those in radians.
_LONG_STEP, _SLOW, _SMOOTH = 0.5, 0.01, 0.5
_CLOCKS = {1e3: "milliseconds", 1e6: "microseconds", 1e9: "nanoseconds"}
# A delay is reported if it leaves less than this part of the power that is unexplained without it and at the ends of
# the search, and if the motion explains all but this part of most joints' torques.
_LESS_RESIDUAL, _EXPLAINED = 0.75, 0.1


@naming_arguments
def check_recording(
    recording: Recording, model: Model | None = None, *, max_gap: float = 0.1, max_delay: float = 0.1, warn: bool = True
) -> tuple[Finding, ...]:
    """Look for common mistakes in a recording, and warn of each as a `RecordingWarning` unless `warn` is false.

    - `"gap"`: more than `max_gap` s, and more than five times the usual spacing, without samples;
    - `"clock"`: times that look like milliseconds, microseconds or nanoseconds;
    - `"degrees"`: positions or rates that look like degrees;
    - `"limits"`: positions beyond the model's;
    - `"wrapped"`: angles that jump by a turn, which is grave unless the model's joint has no limits;
    - `"rates"`: `v` that differs from the derivative of `q`, or `a` from that of `v`, by a factor or a sign;
    - `"order"`: columns that belong to other joints;
    - `"still"`: a joint that never moves, of which hardly more than its gravity torque can be identified;
    - `"no torque"`: a torque that never changes;
    - `"saturated"`: a torque that stays at its largest value, or at the model's limit, as where a limit clips it;
    - `"sign"`, `"scale"`, with a model: torques that follow the model's with a negative factor, or with one far from 1;
      torques that the model and friction explain only if they are negated; torques far larger than those of the joints
      that follow the model, or beyond a joint's limit where other joints stay within theirs; and torques far smaller
      than the model's;
    - `"misfit"`, with a model: large torques of which the model cannot have a third;
    - `"delay"`, with a model: torques that fit the motion better when shifted, by up to `max_delay` s. For each shift
      the torques are projected onto the columns of the torque regressor and of joint friction, which needs no
      parameters; the shift with the smallest rest, in the median of the joints, is interpolated between samples. Exact
      torques show a delay of a tenth of a sample, those of a real arm one of about 20 ms.

    The checks of signs, factors and orders need a model with rough inertias. A joint is suspicious if a tenth of the
    power of its torque remains when the torque of each link may be five times larger or smaller than the model's, with
    a payload of up to half of the robot's mass, armature of up to 20 times its inertia, friction and an offset. It is
    reported if a third of that, or less, remains with another factor, in another order of joints, or with positions in
    degrees. For exchanged columns the torques, the positions, and all of them are compared, and the best is named. A
    joint whose friction is large beside the torques of its links is judged by the size of its torque and the sign of
    its friction only: `unchecked_torques` names such joints. A finding is grave only where no true recording looks so:
    the given reading leaves much and the other one hardly anything; a sign also needs friction that opposes it, or a
    torque that is not small beside others; a factor far below 1 at single joints may be a joint without a drive.

    The checks with a model are those of the joints (`Recording.of_joints`), without `"misfit"` at joints that motors
    drive together, whose friction the check does not know. Without a model, joints are named by their columns. Torques
    of robots with closed loops, and those beside unknown forces of contacts, are not compared with the model's.

    **Raises** `DataError` if the recording's columns do not fit the model.
    """
    coupled: set[str] = set()
    if model is not None and recording.transmission is not None:
        recording.require_columns(model)
        names = np.array(model.topology.dof_names)
        coupled = set(names[~transmissions.alone(recording.transmission)].tolist())
        recording = recording.of_joints()
    if model is not None and recording.joints is not None:
        # The columns are those of some joints, and the torques also move what hangs on the passive ones.
        recording.require_columns(model)
        model, names = None, recording.joints
    elif model is None:
        names = tuple(str(k) for k in range(recording.dofs or recording.q.shape[1]))
    else:
        recording.require_columns(model)
        names = model.topology.dof_names
    rates = _rates(recording, model, names)
    clock = [x for x in rates if x.kind == "clock"][:1] or _clock(recording, model)
    findings = [] if clock else _gaps(recording, max_gap)
    findings += [*clock, *_units(recording, model, names), *(x for x in rates if x.kind != "clock")]
    findings += _still(recording, model, names)
    # Torques beside contacts hold their forces, too.
    if model is not None and not model.topology.has_loops and recording.contacts is None:
        findings = _with_torques(findings, recording, model, max_gap, max_delay)
        # The friction of motors that drive joints together belongs to none of these joints.
        findings = [x for x in findings if x.kind != "misfit" or not coupled.issuperset(x.joints)]
    if warn:
        _warn_of(recording, findings)
    return tuple(findings)


@naming_arguments
def require_plausible(recordings: Recordings, model: Model | None = None, *, force: bool = False) -> None:
    """Raise `DataError` if `check_recording` makes a grave finding in one of several recordings, and warn of all others
    as `RecordingWarning`s.

    A fit to torques of the wrong sign, unit or order would end with numbers that mean nothing. The error names every
    grave finding and what to try. With `force`, grave findings are warnings too.
    """
    grave = []
    for recording in as_recordings(recordings):
        findings = check_recording(recording, model, warn=False)
        refused = [x for x in findings if x.grave and not force]
        grave += [f"{recording.name}: {x.message}" for x in refused]
        _warn_of(recording, [x for x in findings if x not in refused])
    if grave:
        raise DataError(
            f"the data look wrong:\n- {'\n- '.join(grave)}\n"
            "Correct the data, or the model if it is at fault; to go on with the data as they are, give force=True"
        )


def _warn_of(recording: Recording, findings: Sequence[Finding]) -> None:
    for finding in findings:
        warn(f"{recording.name}: {finding.message}", RecordingWarning)


def _with_torques(
    findings: list[Finding], recording: Recording, model: Model, max_gap: float, max_delay: float
) -> list[Finding]:
    """Return the findings with those of the torques, where the motion can be trusted."""
    kinds = {x.kind for x in findings}
    if "clock" in kinds or any(x.kind in ("degrees", "wrapped") and x.grave for x in findings):
        return findings
    consistent = not kinds & {"rates", "order"}
    part = prepared(recording, model, max_gap, use_rates=consistent)
    if part is None:
        return findings
    found = torque_findings(part, model)
    if any(x.kind == "degrees" for x in found):
        # It says the same with more evidence.
        findings = [x for x in findings if x.kind != "degrees"]
    if not found and consistent and not kinds & {"gap", "degrees"}:
        found = _delay_findings(part, model, max_delay)
    return [*findings, *found]


def _plain(recording: Recording, model: Model | None) -> list[tuple[int, int, bool]]:
    """Return the columns in `q` and in `v` of the coordinates that are plain numbers, and whether they are angles."""
    if model is not None:
        return [(i, j, joint.units == ("rad",)) for joint, i, j in model.topology.blocks if joint.nq == 1]
    count = recording.q.shape[1]
    return [(k, k, True) for k in range(count)] if recording.dofs in (None, count) else []


def _gaps(recording: Recording, max_gap: float) -> list[Finding]:
    step, long = np.diff(recording.t), is_gap(recording, max_gap)
    if not long.any():
        return []
    k = int(np.argmax(step))
    message = (
        f"{int(long.sum())} gaps of more than {max_gap:g} s without samples, the longest {step[k]:.4g} s after t = "
        f"{recording.t[k]:g} s; take the parts between them with between()"
    )
    return [Finding("gap", message, value=float(step[k]))]


def _clock(recording: Recording, model: Model | None) -> list[Finding]:
    """Find times that are too far apart for a motion as smooth and slow as this."""
    step = float(np.median(np.diff(recording.t)))
    columns = [i for i, _, _ in _plain(recording, model)]
    if step < _LONG_STEP or len(recording) < 50 or not columns:
        return []
    # A few hundred samples, so that the motion between two of them exceeds the resolution of the sensor.
    q = recording.q[:: max(1, len(recording) // 1000), columns]
    size = np.maximum(np.ptp(q, axis=0), 1e-3)
    first, second = (np.sqrt(np.mean((np.diff(q, k, axis=0) / size) ** 2)) for k in (1, 2))
    speed = np.percentile(np.abs(np.diff(recording.q[:, columns], axis=0)), 95, axis=0) / step
    if first == 0 or second > _SMOOTH * first or (speed > _SLOW * np.maximum(size / np.pi, 1)).any():
        return []
    factor = 1e3 if step < 500 else 1e6 if step < 5e5 else 1e9
    message = (
        f"by their times the samples are {step:g} s apart, and yet the motion between them is smooth: the times look "
        f"like {_CLOCKS[factor]}; divide them by {factor:g}"
    )
    return [Finding("clock", message, value=factor, grave=True)]


def _units(recording: Recording, model: Model | None, names: tuple[str, ...]) -> list[Finding]:
    turned, turning, beyond, wrapped, unwrapped = [], [], [], [], []
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
            turning.append(names[j])
        if angle and signals.jumps_by_a_turn(x).size:
            # Preparation unwraps the angles of joints that the model leaves without limits.
            endless = model is not None and not np.isfinite([lower, upper]).any()
            (unwrapped if endless else wrapped).append(names[j])
    message = "positions of {} look like degrees; radians are needed (numpy.deg2rad)"
    return [
        *of_joints("degrees", turned, message, grave=True),
        # A wheel may turn as far.
        *of_joints("degrees", turning, message),
        *of_joints("limits", beyond, "positions of {} lie beyond the model's limits: other zeros, or another order?"),
        *of_joints("wrapped", wrapped, "angles of {} jump by a turn; call unwrapped() with their columns", grave=True),
        *of_joints("wrapped", unwrapped, "angles of {}, which have no limits, jump by a turn; they are unwrapped"),
    ]


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
        if of == "q":
            y = np.stack([np.unwrap(c) if signals.jumps_by_a_turn(c).size else c for c in y.T], axis=-1)
        total = cumulative_trapezoid(x, recording.t, axis=0, initial=0.0)
        total, change = total - total.mean(axis=0), y - y.mean(axis=0)
        power = np.sum(change**2, axis=0)
        moving = power >= 1e-6 * len(y)
        factors = np.where(moving, np.sum(total * change, axis=0) / np.maximum(power, 1e-300), 1.0)
        bad = {joint: factor for joint, factor in zip(joints, factors, strict=True) if abs(factor - 1) > _SAME_RATE}
        if not bad:
            continue
        places = _places(total, change, moving)
        if places:
            # Columns that, by their names, are those of other joints.
            others = {joints[m]: joints[k] for m, k in places.items()}
            message = (
                f"the columns of {rate} stand in another order than those of {of}: {in_places(others)}; exchange those "
                "that are wrong"
            )
            out.append(Finding("order", message, tuple(others), grave=True))
            bad = {joint: factor for joint, factor in bad.items() if joint not in out[-1].joints}
        if bad:
            out.append(_wrong_rate(rate, of, bad, len(bad) == moving.sum()))
    return out


def _places(total: np.ndarray, change: np.ndarray, moving: np.ndarray) -> dict[int, int]:
    """Return the columns of integrated rates that are changes of another column, each with that column."""
    size = np.sqrt(np.outer(np.sum(total**2, axis=0), np.sum(change**2, axis=0)))
    alike = (total.T @ change / np.maximum(size, 1e-300)) ** 2 * moving
    best = np.argmax(alike, axis=1)
    return {
        int(k): int(best[k])
        for k in np.flatnonzero(moving)
        if best[k] != k and alike[k, best[k]] > _SAME_COLUMN > 2 * alike[k, k]
    }


def _wrong_rate(rate: str, of: str, bad: dict[str, float], everywhere: bool) -> Finding:
    """Return a finding about rates that are the derivatives times factors."""
    factors = np.array(list(bad.values()))
    factor = float(np.median(factors))
    for size, clock in _CLOCKS.items():
        for times, what in (
            (size, f"look like {clock}; divide them by {size:g}"),
            (1 / size, f"are {size:g} times too small"),
        ):
            if everywhere and (np.abs(factors / times - 1) < _SAME_RATE).all():
                message = (
                    f"{rate} is the derivative of {of} times {times:g} at every joint: by this clock the times {what}"
                )
                return Finding("clock", message, tuple(bad), times, True)
    shown = ", ".join(f"{name} {f:.3g}" for name, f in bad.items())
    turned = {rate: 180 / np.pi, of: np.pi / 180}
    turned = [f"{x} looks like degrees" for x, size in turned.items() if abs(factor / size - 1) < 0.5 * _SAME_RATE]
    reason = turned[0] if turned else "another order, sign, unit or clock?"
    message = f"{rate} is not the derivative of {of} but that times, by joint: {shown}; {reason}"
    return Finding("degrees" if turned else "rates", message, tuple(bad), factor, True)


def _still(recording: Recording, model: Model | None, names: tuple[str, ...]) -> list[Finding]:
    resting = [names[j] for i, j, _ in _plain(recording, model) if np.ptp(recording.q[:, i]) < 1e-3]
    message = "{} never moves: its friction, its armature and most of its inertia stay unknown"
    out = of_joints("still", resting, message)
    if recording.tau is not None:
        constant = np.ptp(recording.tau, axis=0) <= 1e-9 * np.abs(recording.tau).max()
        # No motor drives the base of a robot that stands on its feet.
        kinds = zip(model.joint_names, model.topology.joint_types, strict=True) if model is not None else ()
        for joint, kind in kinds if recording.contacts is not None else ():
            if model is not None and kind == "free":
                constant[model.v_index(joint)] = False
        dead = [names[j] for j in np.flatnonzero(constant)]
        out += of_joints("no torque", dead, "the torque of {} never changes: is it measured?")
        message = "the torques of {} stay at their largest values or limits, which fits leave out as clipped"
        clipped = recording.clipped_torques(model).any(axis=0)
        out += of_joints("saturated", [names[j] for j in np.flatnonzero(clipped)], message)
    return out


def _delay_findings(part: Recording, model: Model, max_delay: float) -> list[Finding]:
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
