"""Causes of the residuals of a fit: wrong lengths, a tilted mount, gains, delays, effects that the model lacks, and
structure without a name."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from math import comb
from typing import NamedTuple

import numpy as np
from numpy.polynomial import legendre
from scipy.stats import f as f_distribution

from jaxdyn._printing import percent
from jaxdyn.friction import JointFriction
from jaxdyn.model import Model
from jaxdyn.sysid.parameters import leaves
from jaxdyn.sysid.recordings import Recordings
from jaxdyn.sysid.torques._deflections import DEFLECTED, deflection_slopes
from jaxdyn.sysid.torques._effect_columns import friction_column
from jaxdyn.sysid.torques._effects import CAUSES
from jaxdyn.sysid.torques._fit_result import InverseDynamicsFit
from jaxdyn.sysid.torques._friction_motion import friction_motion
from jaxdyn.sysid.torques._layout import length_slopes, place_positions, torque_slopes, waves
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
# A cause of which there is no doubt explains this part of what is left. The causes that are effects of joints, and the
# structure that these effects leave where they are not fitted.
_MOST, _EFFECTS = 0.5, (*CAUSES, "torque delay", "velocity", "position", "time", "direction")
# Lengths that are wrong by this part are a mistake that should show.
_LENGTH_ERROR = 0.1
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
# The delay of friction (s) and the warm-up time, as a part of the time, that stand for others.
_DELAY, _WARM_UP = 0.03, 0.3


class Cause(NamedTuple):
    """Something that residuals may come from, and the evidence for it."""

    name: str
    """`"lengths"`, `"tilt"`, `"gain"`, `"torque delay"`; an effect of joints, such as `"load friction"`, `"Stribeck
    friction"`, `"presliding friction"`, `"asymmetric friction"`, `"position-dependent friction"`, `"warm-up"`,
    `"friction delay"`, `"springs"`, `"flexibility"`, `"backlash"`; or a kind of structure: `"time"`, `"position"`,
    `"direction"`, `"velocity"`, `"other joints"`."""
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
    `horizontal_axes` in m/s^2, or one for each degree of freedom (of flexibility the compliance, rad/(N m)), several
    times that for laws with several columns, and 0 for joints that do not need it; of a structure NaN."""
    chance: float = 0.0
    """The probability of such a statistic by chance; of a structure, at the joint where that is largest."""
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
        owners = np.arange(free.shape[1]) % fit.model.nv if name not in ("lengths", "tilt") else None
        test = _ScoreTest.of(free, rest, owners, count)
        decrease, k = test.decrease, test.size
        if not k or count <= known.shape[1] + k + 1:
            continue
        left = max(total - decrease, 1e-12 * total) / (count - known.shape[1] - k)
        squares = (np.sum(x.reshape(shape) ** 2, axis=0) for x in (rest, rest - test.basis @ (test.basis.T @ rest)))
        by_joint = np.subtract(*squares)
        hidden = ()
        if name == "lengths":
            hidden = _hidden_lengths(fit.model, free * np.where(np.isfinite(length), length, 0.0), count / rest.size)
        statistic = decrease / k / left
        chance = min(test.ways * float(f_distribution.sf(statistic, k, count - known.shape[1] - k)), 1.0)
        found = decrease / total, statistic, _most(fit, by_joint), -test.weights / length, chance, hidden
        out.append(Cause(name, *found))
        scores.append(_score(decrease / total, k, count))
        explained.append(test.basis)
    first = int(np.argmax(scores)) if out else 0
    found = _structures(fit, samples, rest, scale, known)
    if out and out[first].evident and scores[first] > _NAMELESS * max((score for _, score in found), default=0.0):
        # Of structure, what is left beside the first cause.
        U = explained[first]
        found = _structures(fit, samples, rest - U @ (U.T @ rest), scale, np.column_stack([known, U]))
        found = [(x, min(score, scores[first])) for x, score in found]
    out, scores = out + [x for x, _ in found], scores + [score for _, score in found]
    return tuple(out[i] for i in np.argsort(-np.array(scores), kind="stable"))


class _ScoreTest(NamedTuple):
    """The part of residuals that columns explain."""

    basis: np.ndarray
    """`[n, size]`: an orthonormal basis of the columns that count."""
    weights: np.ndarray
    """`[k]`: the columns' factors, zero for those that do not count."""
    decrease: float
    """The part of the sum of squares."""
    ways: int = 1
    """The number of ways to choose so many joints."""

    @property
    def size(self) -> int:
        return self.basis.shape[1]

    @classmethod
    def of(cls, columns: np.ndarray, rest: np.ndarray, owners: np.ndarray | None, count: float) -> _ScoreTest:
        """The best factors of columns `[n, k]`. Of joints, the `owners` `[k]`, only those count that explain more than
        their parameters may by chance (Schwarz 1978), or the best one: one joint may have what the others do not."""
        U, size, V = np.linalg.svd(columns, full_matrices=False)
        kept = size > 1e-6
        along = U[:, kept].T @ rest
        weights, basis = V[kept].T @ (along / size[kept]), U[:, kept]
        if owners is not None and kept.any():
            covariance = (V[kept].T / size[kept] ** 2) @ V[kept]
            noise = max(float(rest @ rest - along @ along), 1e-12 * float(rest @ rest)) / max(count, 1.0)
            evidence = np.full(int(owners.max()) + 1, -np.inf)
            for joint in np.unique(owners):
                mine = (owners == joint) & (np.diagonal(covariance) > 0)
                w, C = weights[mine], covariance[np.ix_(mine, mine)]
                if mine.any():
                    evidence[joint] = float(w @ np.linalg.lstsq(C, w)[0]) / noise - mine.sum() * np.log(max(count, 2.0))
            counted = (evidence > 0) | (evidence == evidence.max())
            if not counted.all():
                some = counted[owners]
                test = cls.of(columns[:, some], rest, None, count)
                weights = np.zeros(len(owners))
                weights[some] = test.weights
                return test._replace(weights=weights, ways=comb(len(counted), int(counted.sum())))
        return cls(basis, weights, float(along @ along))


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
    """Return the cause that explains most of what is left, of those with a name that are no effects of joints, and that
    chance hardly explains: an effect that explains less may only make up for it."""
    rivals = [x for x in causes if not x.structure and x.name not in CAUSES and x.statistic > LEAST_STATISTIC]
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
    model, gain = fit.drive_model, fit.values.gain
    # The forces of contacts are unknown, and with them the derivatives of their torques by lengths.
    if not fit.layout.places and samples.forces is None:
        chosen = leaves.chosen_places(model)
        slopes = length_slopes(model, chosen, samples.motion, samples.joints, samples.transmission)
        yield "lengths", slopes / gain[:, None]
    axes = [("gravity", (slice(None),), e) for e in horizontal_axes(model)]
    tilted = torque_slopes(model, axes, samples.frictionless_torque)
    yield "tilt", tilted / gain[:, None]
    predicted = np.concatenate([fit.predict(x) for x in samples.recordings])
    rate = samples.on_recordings(lambda t, part: np.gradient(predicted[part], t, axis=0))
    candidates = {"gain": [predicted], "torque delay": [-rate]} | _friction_columns(fit, samples)
    for name, columns in candidates.items():
        if not any(fit.effects.dofs(x, model).any() for x in CAUSES.get(name, (name.replace(" ", "_"),))[:1]):
            each = (x[..., None] * np.eye(model.nv) for x in columns)
            yield name, samples.friction_on_drives(slice(None), np.concatenate(list(each), axis=-1))
    if model.nq == model.nv and not fit.effects.dofs("spring", model).any():
        q = samples.q - samples.q.mean(axis=0)
        yield "springs", samples.on_drives(slice(None), q[..., None] * np.eye(model.nv))
    simple = model.nq == model.nv and samples.joints is None and samples.transmission is None
    simple = simple and samples.forces is None
    if simple and all(x.cutoff and x.rate for x in samples.recordings):
        kinds: dict[str, str] = dict(zip(DEFLECTED, ("flexibility", "backlash"), strict=True))
        joints = {x: list(range(model.nv)) for x, name in kinds.items() if not fit.effects.dofs(name, model).any()}
        parts = [slice(*x) for x in itertools.pairwise(samples.starts)]
        found = [
            deflection_slopes(model, r.t, tuple(x[part] for x in samples.motion), samples.cutoff, joints)
            for r, part in zip(samples.recordings, parts, strict=True)
        ]
        for kind, dofs in joints.items():
            slopes = np.stack([np.concatenate([x[kind, j] for x in found]) for j in dofs], axis=-1)
            yield kinds[kind], slopes / gain[:, None]


def _friction_columns(fit: InverseDynamicsFit, samples: Samples) -> dict[str, list[np.ndarray]]:
    """The columns `[n, nv]` of laws of friction that stand for others, by the causes that they describe."""
    shape, scales = samples.shape, samples.shape_scales
    warm_up = shape._replace(warm_up=_WARM_UP * np.maximum(scales[3], 1e-300))
    effects = dataclasses.replace(fit.effects, warm_up=True)
    motion = friction_motion(samples, warm_up, effects)._replace(load=samples.transmitted)
    v_s = np.outer(_VELOCITIES, scales[0]) + 1e-12
    d, f = (np.asarray(x, np.float64) for x in (fit.drive_model.damping, fit.drive_model.friction))
    before_sliding = [shape._replace(presliding=x * scales[2]) for x in _WAYS]
    later = friction_motion(samples, shape._replace(friction_delay=shape.friction_delay + _DELAY), fit.effects)

    def columns(*kinds: str) -> list[np.ndarray]:
        return [np.asarray(friction_column(kind, motion, shape.stribeck_velocity), np.float64) for kind in kinds]

    asymmetry = ("viscous asymmetry",) if fit.effects.offset else ("viscous asymmetry", "coulomb asymmetry")
    return {
        "load friction": columns("load"),
        "Stribeck friction": [np.asarray(friction_column("static", motion, x)) for x in v_s],
        "presliding friction": [friction_motion(samples, x, fit.effects).direction for x in before_sliding],
        "asymmetric friction": columns(*asymmetry),
        "position-dependent friction": columns(*waves(fit.effects.harmonics)),
        "warm-up": columns("warm-up viscous", "warm-up coulomb"),
        "friction delay": [
            d * (later.velocity - motion.velocity) + f * (later.direction - motion.direction),
        ],
    }


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
