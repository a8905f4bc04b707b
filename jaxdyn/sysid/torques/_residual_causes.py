"""Causes of the residuals of a fit: wrong lengths, a tilted mount, gains, delays, effects that the model lacks, and
structure without a name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.polynomial import legendre
from scipy.signal import butter, sosfiltfilt
from scipy.stats import f as f_distribution

from jaxdyn._printing import percent
from jaxdyn.friction import JointFriction, LoadProportional, Stribeck
from jaxdyn.model import Model
from jaxdyn.sysid.parameters import leaves
from jaxdyn.sysid.recordings import Recordings
from jaxdyn.sysid.torques._effects import frictionless_torque
from jaxdyn.sysid.torques._fit_result import InverseDynamicsFit
from jaxdyn.sysid.torques._layout import length_slopes, place_positions, torque_slopes
from jaxdyn.sysid.torques._residual_noise import independent_share
from jaxdyn.sysid.torques._torque_model import Samples

LEAST_PART = 0.1
"""A cause is named if it explains at least this part of what is left, and by a statistic that chance hardly reaches."""
LEAST_STATISTIC = 10.0
"""That statistic."""
# Five kinds of structure at seven joints reach this probability by chance in one of 300 fits.
_CHANCE = 1e-4
# A cause with a name comes before structure if it has at least this part of its evidence: to first order a cause
# explains less than it does when it is fitted.
_NAMELESS = 0.5
# A cause of which there is no doubt explains this part of what is left. The causes that choices of effects try, and
# the structure that these effects leave where they are not fitted.
_MOST, _EFFECTS = 0.5, ("load friction", "Stribeck friction", "springs", "torque delay", "velocity", "position")
_TRIED = ("load friction", "Stribeck friction", "springs")
# Lengths that are wrong by this part are a mistake that should show.
_LENGTH_ERROR = 0.1
# The part of the cutoff below which deflections of flexible joints are looked for.
_SLOW = 0.25
# Columns of residuals smaller than this part of the torque are rounding.
_EXACT = 1e-7
STRUCTURES = {
    "time": "a change with time, as of joints that warm up",
    "position": "a dependence on the joint's position",
    "direction": "a dependence on the way since the last reversal, as of friction before sliding",
    "velocity": "a dependence on velocity that the friction model lacks",
    "other joints": "a dependence on the motion of other joints, as of coupled drives",
}
"""The kinds of structure, and what they mean."""
# Ways since a reversal over which friction may change, as parts of the joint's range, and velocities, as parts of its
# largest one, over which it may.
_WAYS, _VELOCITIES = (0.01, 0.05), (0.03, 0.15)


class Cause(NamedTuple):
    """Something that residuals may come from, and the evidence for it."""

    name: str
    """Such as `"lengths"`, `"tilt"`, `"gain"`, `"torque delay"`, `"load friction"`; or a kind of structure: `"time"`,
    `"position"`, `"direction"`, `"velocity"`, `"other joints"`."""
    part: float
    """The part of the residuals' sum of squares that the cause would explain, to first order, with all parameters of
    the fit at their best; of a structure, the part at its `joints`."""
    statistic: float
    """The F statistic of that part, with as many residuals as are independent; by chance it is about 1."""
    joints: tuple[str, ...]
    """The joints at which the residuals fall most, those with half of the decrease; those that have a structure."""
    parameters: np.ndarray
    """`[k]`: the cause's own parameters that would explain it, to first order: of the three axes of each joint's
    placement, and of the first and the second frame of each closed loop, in m, of gravity along the two axes of
    `horizontal_axes` in m/s^2, or one for each degree of freedom (of flexibility the compliance, rad/(N m)); of a
    structure NaN."""
    chance: float = 0.0
    """The probability of such a statistic by chance, at the joint where that is largest; only for a structure."""
    hidden: tuple[str, ...] = ()
    """The joints and loops whose distance from the joint before may be wrong by a tenth without evidence, since the fit
    takes that for inertias; only for lengths."""

    @property
    def structure(self) -> bool:
        """Whether it is structure that no parameter of a model describes."""
        return self.name in STRUCTURES

    @property
    def evident(self) -> bool:
        """Whether the evidence is strong: at least a tenth of what is left, and a statistic above 10, or, of a
        structure, one that chance hardly reaches at any joint."""
        return self.part > LEAST_PART and (
            self.chance < _CHANCE if self.structure else self.statistic > LEAST_STATISTIC
        )


def residual_causes(fit: InverseDynamicsFit, recordings: Recordings | Samples) -> tuple[Cause, ...]:
    """Return what the residuals of a fit on its own recordings may come from, the most convincing cause first.

    For each cause, the residuals are regressed on the torque's derivatives with respect to the cause's parameters,
    after all parameters of the fit (a score test: Rao 1948). A cause that explains much shows that *something like it*
    is missing; causes that look alike in a recording explain the same part.

    What has no name may leave structure: residuals of a joint that depend on time, on its position, on the way since
    its last reversal, on its velocity, or on other joints' motions. Each kind is described by a few smooth columns.
    Where a cause with a name is the first, structure is what is left beside it.
    """
    samples = Samples(fit.before, recordings, fit.effects, fit.shape, fit.refined)
    samples.linearize(fit.drive_model, fit.values)
    samples.take_noise(fit.sigma)
    residual = samples.residuals(fit.parameters, fit.values.gain)
    scale = np.maximum(fit.sigma, _EXACT * samples.torque_scale)
    rest = residual / scale
    if not np.any(np.abs(residual) > _EXACT * samples.torque_scale):
        return ()
    X = np.concatenate([B[..., :-2] for _, B in samples.chunks()]) / (fit.values.gain * scale)[:, None]
    X = X.reshape(-1, X.shape[-1])[:, fit.base_parameters().independent]
    known, _ = np.linalg.qr(X / np.maximum(np.linalg.norm(X, axis=0), 1e-300))
    rest = rest.ravel() - known @ (known.T @ rest.ravel())
    total = float(rest @ rest)
    shape = residual.shape
    shares = [independent_share(x) for x in residual.T[samples.driven]]
    count = float(samples.valid.sum(axis=0)[samples.driven] @ shares)
    out, scores, explained = [], [], []
    for name, columns in _columns(fit, samples):
        # To take away the forces of contacts twice does no harm.
        columns = columns if samples.forces is None else samples.on_drives(slice(None), columns)
        Z = samples.low_passed(columns) * samples.valid[..., None] / scale[:, None]
        Z = Z.reshape(len(rest), -1)
        length = np.linalg.norm(Z, axis=0)
        # Columns far shorter than the others are rounding.
        length = np.where(length > 1e-9 * length.max(), length, np.inf)
        free = Z / length
        free = free - known @ (known.T @ free)
        U, size, V = np.linalg.svd(free, full_matrices=False)
        kept = size > 1e-6
        weights = U[:, kept].T @ rest
        decrease, k = float(weights @ weights), int(kept.sum())
        if not k or count <= known.shape[1] + k + 1:
            continue
        left = max(total - decrease, 1e-12 * total) / (count - known.shape[1] - k)
        squares = (np.sum(x.reshape(shape) ** 2, axis=0) for x in (rest, rest - U[:, kept] @ weights))
        by_joint = np.subtract(*squares)
        values = -(V[kept].T @ (weights / size[kept])) / length
        hidden = ()
        if name == "lengths":
            hidden = _hidden_lengths(fit.model, free * np.where(np.isfinite(length), length, 0.0), count / rest.size)
        out.append(Cause(name, decrease / total, decrease / k / left, _most(fit, by_joint), values, hidden=hidden))
        scores.append(_score(decrease / total, len(values), count))
        explained.append(U[:, kept])
    first = int(np.argmax(scores)) if out else 0
    found = _structures(fit, samples, rest, scale, known)
    if out and out[first].evident and scores[first] > _NAMELESS * max((score for _, score in found), default=0.0):
        # Of structure, what is left beside the first cause.
        U = explained[first]
        found = _structures(fit, samples, rest - U @ (U.T @ rest), scale, np.column_stack([known, U]))
        found = [(x, min(score, scores[first])) for x, score in found]
    out, scores = out + [x for x, _ in found], scores + [score for _, score in found]
    return tuple(out[i] for i in np.argsort(-np.array(scores), kind="stable"))


def _hidden_lengths(model: Model, slopes: np.ndarray, share: float) -> tuple[str, ...]:
    """Return the places whose distance from the joint before may be wrong by a tenth without evidence: `slopes`
    `[n, 3 places]` are the derivatives of residuals that the fit does not explain, of which a `share` counts as
    independent."""
    chosen = leaves.chosen_places(model)
    positions = place_positions(model, chosen)
    along = (slopes * positions).reshape(len(slopes), -1, 3).sum(axis=-1)
    evidence = share * np.sum((_LENGTH_ERROR * along) ** 2, axis=0)
    hidden = (evidence < LEAST_STATISTIC) & positions.reshape(-1, 3).any(axis=1)
    return tuple(leaves.place_label(model, chosen[k]) for k in np.flatnonzero(hidden).tolist())


def _score(part: float, size: int, count: float) -> float:
    """How convincing a cause with so many parameters is: one with few convinces more than one with many that explains
    as much (Schwarz 1978)."""
    return count * np.log(1 / max(1 - part, 1e-12)) - size * np.log(count)


def _structures(
    fit: InverseDynamicsFit, samples: Samples, rest: np.ndarray, scale: np.ndarray, known: np.ndarray
) -> list[tuple[Cause, float]]:
    """Return the kinds of structure in the residuals, each at the joints that have it clearly, or else most of it, with
    their scores."""
    rest = rest.reshape(-1, fit.model.nv)
    known = known.reshape(*rest.shape, -1)
    total, names = np.sum(rest**2, axis=0), fit.model.topology.dof_names
    recorded = samples.valid.sum(axis=0).tolist()
    counts = [n * independent_share(x) - known.shape[-1] / fit.model.nv for n, x in zip(recorded, rest.T, strict=True)]
    found: dict[str, list[tuple[float, ...]]] = {}
    for name, j, columns in _structure_columns(samples):
        Z = samples.low_passed(columns) * samples.valid[:, j, None] / scale[j]
        Z = Z / np.maximum(np.linalg.norm(Z, axis=0), 1e-300)
        C = known[:, j].T @ Z
        # The columns less what the fit explains of them have these products with each other and with the residuals.
        lengths, directions = np.linalg.eigh(Z.T @ Z - C.T @ C)
        kept = lengths > 1e-6
        weights = directions[:, kept] @ (directions[:, kept].T @ (Z.T @ rest[:, j]) / lengths[kept])
        left = rest[:, j] - Z @ weights + known[:, j] @ (C @ weights)
        part = max(1 - float(left @ left) / max(float(rest[:, j] @ rest[:, j]), 1e-300), 0.0)
        size, count = int(kept.sum()), counts[j]
        if size and count > size + 1:
            statistic = part / size / max(1 - part, 1e-12) * (count - size)
            chance = float(f_distribution.sf(statistic, size, count - size))
            found.setdefault(name, []).append((_score(part, size, count), part, statistic, chance, j))
    out = []
    for name, joints in found.items():
        joints.sort(reverse=True)
        clear = [x for x in joints if x[1] > LEAST_PART and x[3] < _CHANCE] or joints[:1]
        _, parts, statistics, chances, dofs = (np.array(x) for x in zip(*clear, strict=True))
        part = float(np.average(parts, weights=np.maximum(total[dofs], 1e-300)))
        where = tuple(names[j] for j in dofs.tolist())
        cause = Cause(name, part, float(statistics.mean()), where, np.full(1, np.nan), chance=float(chances.max()))
        out.append((cause, sum(max(x[0], 0.0) for x in clear)))
    return out


def best_rival(causes: Sequence[Cause]) -> Cause | None:
    """Return the cause that explains most of what is left, of those with a name that choices of effects do not try, and
    that chance hardly explains: an effect that explains less may only make up for it."""
    rivals = [x for x in causes if not x.structure and x.name not in _TRIED and x.statistic > LEAST_STATISTIC]
    return max(rivals, key=lambda x: x.part, default=None)


def what_explains_most(causes: Sequence[Cause]) -> str | None:
    """Return a sentence if one cause that is no effect of friction or a spring explains most of what a fit with the
    usual effects leaves: effects that are chosen beside such a cause would make up for it."""
    first = next(iter(causes), None)
    if first is None or not (first.evident and first.part > _MOST) or first.name in _EFFECTS:
        return None
    what = f"a dependence on {first.name}" if first.structure else first.name
    return (
        f"No further effects were tried, since {what} would explain {percent(first.part)} of what the usual ones leave "
        f"(F = {first.statistic:.3g}): effects that do not exist would make up for it."
    )


def horizontal_axes(model: Model) -> np.ndarray:
    """Two unit vectors `[2, 3]` that are perpendicular to the model's gravity; x and y for gravity along z."""
    g = np.asarray(model.gravity, np.float64)
    axes = np.delete(np.eye(3), np.argmax(np.abs(g)), axis=0)
    axes = axes - np.outer(axes @ g, g) / max(float(g @ g), 1e-300)
    first = axes[0] / np.linalg.norm(axes[0])
    second = axes[1] - first * (axes[1] @ first)
    return np.stack([first, second / np.linalg.norm(second)])


def _most(fit: InverseDynamicsFit, decrease: np.ndarray) -> tuple[str, ...]:
    order = np.argsort(-decrease)
    share = np.cumsum(decrease[order]) / max(float(decrease.sum()), 1e-300)
    names = fit.model.topology.dof_names
    return tuple(names[j] for j in order[: int(np.argmax(share >= 0.5)) + 1])


def _columns(fit: InverseDynamicsFit, samples: Samples) -> Iterator[tuple[str, np.ndarray]]:
    """Yield causes and the derivatives `[n, nv, k]` of the recorded torque with respect to their parameters."""
    model, gain, v = fit.drive_model, fit.values.gain, samples.drive_motion[1]

    def each(x: np.ndarray) -> np.ndarray:
        return samples.friction_on_drives(slice(None), x[..., None] * np.eye(model.nv))

    # The forces of contacts are unknown, and with them the derivatives of their torques by lengths.
    if not fit.layout.places and samples.forces is None:
        chosen = leaves.chosen_places(model)
        slopes = length_slopes(model, chosen, samples.motion, samples.joints, samples.transmission)
        yield "lengths", slopes / gain[:, None]
    axes = [("gravity", (slice(None),), e) for e in horizontal_axes(model)]
    tilted = torque_slopes(model, axes, samples.frictionless_torque)
    yield "tilt", tilted / gain[:, None]
    fitted = {name: fit.effects.dofs(name, model) for name in ("gain", "torque_delay", "stribeck", "load", "spring")}
    law = Stribeck(1.0, 1.0, 0.1 * np.abs(v).max(axis=0) + 1e-12, np.asarray(model.friction_velocity, np.float64))
    (by_load,) = LoadProportional(1.0, samples.transmitted, law.friction_velocity).columns(samples.u)
    predicted = np.concatenate([fit.predict(x) for x in samples.recordings])
    rate = samples.on_recordings(lambda t, part: np.gradient(predicted[part], t, axis=0))
    candidates = {
        "gain": ("gain", predicted),
        "torque_delay": ("torque delay", -rate),
        "load": ("load friction", by_load),
        "stribeck": ("Stribeck friction", law.columns(samples.u)[1]),
    }
    for name, (words, x) in candidates.items():
        if not fitted[name].any():
            yield words, each(np.asarray(x, np.float64))
    if model.nq == model.nv:
        if not fitted["spring"].any():
            q = samples.q - samples.q.mean(axis=0)
            yield "springs", samples.on_drives(slice(None), q[..., None] * np.eye(model.nv))
        if (
            samples.joints is None
            and samples.transmission is None
            and all(x.cutoff and x.rate for x in samples.recordings)
        ):
            yield "flexibility", _flexibility_slopes(model, samples) / gain[:, None]


def _flexibility_slopes(model: Model, samples: Samples) -> np.ndarray:
    """The derivatives `[n, nv, nv]` of the torque with respect to the compliance (rad/(N m)) of each joint, behind
    which the links deflect by the transmitted torque while the encoder sees the motor."""
    motion = samples.q, samples.v, samples.a
    torque, out = np.array(frictionless_torque(model, *motion)), []
    for x, start, end in zip(samples.recordings, samples.starts, samples.starts[1:], strict=False):
        # Noise of the positions is in the residuals, too, and grows with the fourth power of the frequency here.
        low_pass = butter(4, _SLOW * (x.cutoff or 0.0), fs=x.rate, output="sos")
        torque[start:end] = sosfiltfilt(low_pass, torque[start:end], axis=0)
    for j in range(model.nv):
        way = np.zeros_like(torque)
        way[:, j] = -torque[:, j]
        step = 1e-3 / max(float(np.abs(way).max()), 1e-300)
        ways = [way]
        for _ in range(2):
            ways.append(samples.on_recordings(lambda t, part, x=ways[-1]: np.gradient(x[part], t, axis=0)))
        ends = ([x + sign * step * y for x, y in zip(motion, ways, strict=True)] for sign in (1, -1))
        above, below = (frictionless_torque(model, q, v, a) for q, v, a in ends)
        out.append((above - below) / (2 * step))
    return np.stack(out, axis=-1)


def _structure_columns(samples: Samples) -> Iterator[tuple[str, int, np.ndarray]]:
    """Yield kinds, degrees of freedom, and columns `[samples, k]` of the joint's torque that describe the kind."""
    model, v = samples.before, samples.u
    _, sign = JointFriction(1.0, 1.0, samples.shape.friction_velocity).columns(v)
    top = np.maximum(np.abs(v).max(axis=0), 1e-300)
    positions, _, a = samples.drive_motion
    v, a = v / top, a / np.maximum(np.abs(a).max(axis=0), 1e-300)
    time = legendre.legvander(np.linspace(-1, 1, len(v)), 3)[:, 1:]
    coordinates = dict(zip(*(x.tolist() for x in model.topology.scalar_coordinates[::-1]), strict=True))
    for j in np.flatnonzero(samples.driven & (np.ptp(samples.u, axis=0) > 0)).tolist():
        s, x, speed = sign[:, j, None], v[:, j, None], np.abs(v[:, j, None])
        yield "time", j, np.concatenate([time, time[:, :2] * s, time[:, :2] * x], axis=1)
        widths = [s * np.exp(-speed / w) for w in _VELOCITIES]
        yield "velocity", j, np.concatenate([x * speed, speed, x**2, *widths], axis=1)
        others = np.delete(np.arange(model.nv), j)
        yield "other joints", j, np.concatenate([sign[:, others], v[:, others], a[:, others]], axis=1)
        if j in coordinates:
            q = positions[:, coordinates[j]]
            width = max(float(np.ptp(q)), 1e-300)
            powers = legendre.legvander(2 * (q - q.min()) / width - 1, 4)[:, 1:]
            yield "position", j, np.concatenate([powers, powers[:, :2] * s], axis=1)
            way = _way(samples, q)[:, None]
            yield "direction", j, np.concatenate([s * np.exp(-way / (x * width)) for x in _WAYS], axis=1)


def _way(samples: Samples, q: np.ndarray) -> np.ndarray:
    """The distance `[n]` of positions from that of the last reversal in their recording, or from its start."""

    def way(_: np.ndarray, part: slice) -> np.ndarray:
        x = q[part]
        forward = np.diff(x, prepend=x[0]) > 0
        turned = np.flatnonzero(np.diff(forward, prepend=forward[0]))
        last = np.zeros(len(x), int)
        last[turned] = turned
        return np.abs(x - x[np.maximum.accumulate(last)])

    return samples.on_recordings(way)
