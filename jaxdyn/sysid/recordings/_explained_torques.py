"""The torques that a model can explain along a recorded motion, as columns of numbers, for checks of recordings: of the
size of torques, where friction or a rough model hides what follows the links, and sentences about what the checks could
not compare with a model."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
from scipy.optimize import lsq_linear, nnls

from jaxdyn._printing import percent
from jaxdyn.algorithms import crba, torque_regressor
from jaxdyn.friction import JointFriction
from jaxdyn.model import Model
from jaxdyn.sysid.recordings._findings import Finding
from jaxdyn.sysid.recordings._recording import Recording
from jaxdyn.sysid.recordings._several_recordings import Recordings, as_recordings

# What moves a robot lies far below this rate; more samples than this say little more about a mistake.
_RATE, _SAMPLES = 200.0, 4000
_CHUNK = 500
FACTOR = 5.0
"""How wrong a rough model's inertias may be: the torque of each link may be this many times larger or smaller."""
SUSPICIOUS = 0.1
"""A joint is suspicious if the model leaves more than this part of its torque's power unexplained."""
GOOD = 0.3
"""The largest part that the right reading of the columns leaves unexplained."""
SHARE = 0.2
"""The least part of a torque's power that the model's torque must explain beside friction to judge its factor."""
# More samples than this take long and tell little more, where torques are compared with a model's.
_COUNT = 500
# The part of the robot's mass that a payload may have that the model lacks.
_PAYLOAD = 0.5
# A rotor behind a gear may have this many times the inertia that the robot has at the joint where it has most.
_ROTOR, _POSTURES = 20.0, 16


def is_gap(recording: Recording, max_gap: float) -> np.ndarray:
    """Return whether a time of more than `max_gap` s, and of many samples, follows each sample but the last."""
    step = np.diff(recording.t)
    return (step > max_gap) & (step > 5 * np.median(step))


def prepared(recording: Recording, model: Model, max_gap: float = 0.1, *, use_rates: bool = True) -> Recording | None:
    """Return the beginning of the longest part of a recording without a gap, with torques, resampled, low-passed, and
    with velocities and accelerations, which come from the positions unless `use_rates`; None for a recording that is
    too short."""
    if (gap := is_gap(recording, max_gap)).any():
        ends = np.concatenate([[-1], np.flatnonzero(gap), [len(recording) - 1]])
        k = int(np.argmax(np.diff(ends)))
        first, last = recording.t[ends[k] + 1].item(), recording.t[ends[k + 1]].item()
        recording = recording.between(first, float(np.nextafter(last, np.inf)))
    step = float(np.median(np.diff(recording.t)))
    rate = min(1 / step, _RATE)
    if recording.tau is None or recording.duration < 1.0 or len(recording) < 50 or rate < 4.0:
        return None
    part = recording.between(recording.t[0], recording.t[0] + _SAMPLES / rate)
    part = dataclasses.replace(part, v=part.v if use_rates else None, a=None, current=None)
    # One filter for everything: it has no delay, and keeps the torques of inertia and gravity.
    part = part.resampled(rate, "linear", np.inf, model)
    return part.filtered(min(10.0, rate / 8), trim=0.1, model=model).differentiated(model=model)


def inertial_columns(part: Recording, model: Model) -> np.ndarray:
    """Return the torque regressor `[n, nv, 10 nb]` along a prepared motion."""
    v, a = part.require("v", "a")
    # In parts of one length, of which the last is filled up with repeats: one program serves all.
    rows = np.minimum(np.arange(-(-len(part) // _CHUNK) * _CHUNK), len(part) - 1).reshape(-1, _CHUNK)
    parts = [torque_regressor(model, *(jnp.asarray(x[k]) for x in (part.q, v, a))) for k in rows]
    return np.concatenate([np.asarray(x, np.float64) for x in parts])[: len(part)]


def joint_columns(part: Recording, model: Model) -> tuple[np.ndarray, np.ndarray]:
    """Return columns `[nv, n, 3]` of armature, viscous and Coulomb friction, and columns `[n, k]` of springs and of an
    offset."""
    v, a = part.require("v", "a")
    friction = JointFriction(1.0, 1.0, friction_velocity=0.05).columns(v)
    springs = [part.q] if model.stiffness is not None else []
    return np.moveaxis(np.stack([a, *friction]), 0, -1).swapaxes(0, 1), np.concatenate(
        [*springs, np.ones((len(part), 1))], axis=-1
    )


def basis_of(columns: np.ndarray) -> np.ndarray:
    """Return an orthonormal basis `[n, r]` of what columns `[n, k]` span, which may depend on each other."""
    basis = columns / np.maximum(np.linalg.norm(columns, axis=0), 1e-300)
    # Eigenvectors of the small product cost far less than a decomposition of the tall matrix. The first time rounding
    # leaves errors of some 1e-6; the second time removes them.
    for tolerance in (1e-10, 0.0):
        power, vectors = np.linalg.eigh(basis.T @ basis)
        kept = power > tolerance * power[-1]
        basis = basis @ (vectors[:, kept] / np.sqrt(power[kept]))
    return basis


def unexplained_by_friction(part: Recording, model: Model) -> np.ndarray:
    """Return `[2, nv]`: the parts of the power of each joint's torque along a prepared motion that are left with any
    inertias, physical or not, and armature and friction that are not negative: of the torque, and of its negative."""
    (tau,), Y, (own, shared) = part.require("tau"), inertial_columns(part, model), joint_columns(part, model)
    Y = Y.reshape(len(part), model.nv, -1)
    out = np.empty((2, model.nv))
    for j, y in enumerate(tau.T):
        basis = basis_of(np.concatenate([Y[:, j], shared], axis=-1))
        columns, left = (x - basis @ (basis.T @ x) for x in (own[j], y))
        # What is left of columns that inertias explain is rounding.
        columns = columns * (np.linalg.norm(columns, axis=0) > 1e-4 * np.linalg.norm(own[j], axis=0))
        power = max(float(np.sum((y - y.mean()) ** 2)), 1e-300)
        out[:, j] = [nnls(columns, x)[1] ** 2 / power for x in (left, -left)]
    return out


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The torques that a model, whose inertias are roughly known, can explain along a motion.

    For each degree of freedom these are the torque of each link, times a factor between 1 / `FACTOR` and `FACTOR`; the
    torque of a payload at the end of each branch; armature and friction, which are not negative; springs and an offset.
    What the model lacks is bounded where a bound is known: payload and armature by the robot's own inertia.
    """

    bounded: list[np.ndarray]
    """For each degree of freedom columns `[n, k]` whose factors have `bounds`."""
    bounds: list[np.ndarray]
    """`[2, k]` each."""
    free: list[np.ndarray]
    """For each degree of freedom the columns `[n, k]` of the model's torque, friction and offset."""

    @classmethod
    def along(cls, part: Recording, model: Model, *, rotor: float = _ROTOR) -> Explanation:
        """Return the torques along a prepared motion, with an armature of up to `rotor` times the largest inertia that
        the robot has at a joint."""
        inertias = np.asarray(model.inertial_parameters, np.float64)
        Y = inertial_columns(part, model).reshape(len(part), model.nv, model.nb, 10)
        links = np.einsum("njbp,bp->njb", Y, inertias)
        ends = [b for b in range(model.nb) if b not in model.topology.parents]
        mass = _PAYLOAD * max(float(inertias[:, 0].sum()), 0.0)
        lever = 0.5 * float(np.linalg.norm(np.asarray(model.joint_placement)[:, :3], axis=-1).max(initial=0.0))
        postures = part.q[np.linspace(0, len(part) - 1, _POSTURES).astype(int)]
        inertia = np.asarray(crba(model, jnp.asarray(postures)), np.float64).diagonal(axis1=-2, axis2=-1).max(axis=0)
        # The largest about any degree of freedom that turns, or shifts, as this one does.
        units = model.topology.dof_units
        armature = rotor * np.array([inertia[units == unit].max() for unit in units])
        own, shared = joint_columns(part, model)
        bounded, bounds, free = [], [], []
        x = links.sum(axis=-1)
        for j in range(model.nv):
            load = Y[:, j, ends, :4].reshape(len(part), -1)
            columns = np.concatenate([links[:, j], load, own[j], shared], axis=-1)
            others = np.array(
                [[0.0, armature[j]], [0.0, np.inf], [0.0, np.inf], *[[-np.inf, np.inf]] * shared.shape[1]]
            )
            first = mass * lever * np.array([-1.0, 1.0])
            payload = np.array([[0.0, mass], first, first, first] * len(ends))
            limits = np.concatenate([[[1 / FACTOR, FACTOR]] * model.nb, payload, others]).T
            kept = (np.abs(columns).max(axis=0) > 1e-12) & (limits[0] < limits[1])
            bounded.append(columns[:, kept])
            bounds.append(limits[:, kept])
            free.append(np.concatenate([x[:, j : j + 1], own[j][:, 1:], shared], axis=-1))
        return cls(bounded, bounds, free)

    def factor(self, j: int, torque: np.ndarray) -> tuple[float, float]:
        """Return the factor by which a torque `[n]` follows the model's at degree of freedom `j`, and the part of its
        power about its mean that the model's torque explains beside friction."""
        columns = self.free[j]
        # What friction and an offset leave of the model's torque.
        own = columns[:, 0] - columns[:, 1:] @ np.linalg.lstsq(columns[:, 1:], columns[:, 0])[0]
        power, total = own @ own, np.sum((torque - torque.mean()) ** 2)
        if power <= 1e-6 * (columns[:, 0] @ columns[:, 0]) or total == 0:
            return 0.0, 0.0
        return float(own @ torque / power), float((own @ torque) ** 2 / (power * total))

    def largest_of_links(self) -> np.ndarray:
        """Return, for each degree of freedom, the root mean square of the largest torque that a link of the model has,
        `[nv]`."""
        out = np.zeros(len(self.bounded))
        for j, (columns, bounds) in enumerate(zip(self.bounded, self.bounds, strict=True)):
            links = columns[:, bounds[1] == FACTOR]
            out[j] = np.sqrt(np.mean(links**2, axis=0)).max(initial=0.0)
        return out

    def unexplained(self, j: int, torque: np.ndarray) -> float:
        """Return the part of the power of a torque `[n]` about its mean that degree of freedom `j` cannot have."""
        power = np.sum((torque - torque.mean()) ** 2)
        if power == 0:
            return 0.0
        size = np.linalg.norm(self.bounded[j], axis=0)
        small = np.linalg.qr(np.column_stack([self.bounded[j] / size, torque]), mode="r")
        rest = lsq_linear(small[:, :-1], small[:, -1], tuple(self.bounds[j] * size), method="bvls")
        return float(2 * rest.cost / power)

    def unexplained_parts(self, torques: np.ndarray) -> np.ndarray:
        """Return `unexplained` of each column of `torques` `[n, nv]` at its degree of freedom, `[nv]`."""
        return np.array([self.unexplained(j, torques[:, j]) for j in range(len(self.bounded))])

    def similarity(self, torques: np.ndarray) -> np.ndarray:
        """Return `[m, nv]`: the part of the power of each of `torques` `[n, m]` that each degree of freedom's columns
        explain with any factors."""
        centered = torques - torques.mean(axis=0)
        power = np.maximum(np.sum(centered**2, axis=0), 1e-300)
        out = []
        for columns in self.free:
            out.append(np.sum((basis_of(columns).T @ centered) ** 2, axis=0) / power)
        return np.stack(out, axis=-1)


class ComparedTorques:
    """The torques of a prepared part, at evenly spaced samples, beside those that a model may have there."""

    def __init__(self, part: Recording, model: Model):
        step = -(-len(part) // _COUNT)
        self.part, self.model = part._map(lambda x: x[::step]), model
        self.names, self.units = tuple(model.topology.dof_names), model.topology.dof_units
        self.tau, self.v, self.a = self.part.require("tau", "v", "a")
        self.given = Explanation.along(self.part, model)
        self.unexplained = self.given.unexplained_parts(self.tau)
        """`[nv]`: the part of each torque's power that the model cannot have."""
        self.negated = self.given.unexplained_parts(-self.tau)
        """`[nv]`: the same of the negative torques."""
        self.factors, self.share = np.array([self.given.factor(j, x) for j, x in enumerate(self.tau.T)]).T
        """`[nv]` each: see `Explanation.factor`."""
        self.peak, limit = np.abs(self.tau).max(axis=0), np.asarray(model.effort_limit, np.float64)
        """`[nv]`: the largest torque, and below the model's limit, infinite for none."""
        self.limit = np.where(np.isfinite(limit) & (limit > 0), limit, np.inf)


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
# The sentences; joints and numbers stand for `{}`.
_NOT_COMPARED = (
    "Torques were not compared with the model's before the fit, because the recording is too short, too slow or of "
    "some joints only ({}): only the error of the fit may show a wrong sign, unit or order of columns."
)
_UNJUDGED = (
    "A wrong sign, unit or order of these torques may not show, because a rough model does not explain them, or "
    "friction hides those of the links: {}."
)
_CLIPPED = (
    "These torques stay at their largest values or limits: {}. They count as clipped, and fits leave out these samples "
    "and those that filters mix with them: the motions there say nothing about these joints."
)
_ONE_WAY = (
    "These joints turn in one direction only: {}. Their Coulomb friction and offset are known only together, so a "
    "torque in the other direction may be predicted wrong by twice the friction."
)
_ALIKE = "These joints move in proportion to each other, so that exchanged positions may not show: {}."


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
    times = by_model / np.maximum(size, 1e-300)
    smaller = (times > _TIMES_SMALLER) & (x.given.similarity(x.tau).diagonal() > _FOLLOWING)
    smaller |= (x.unexplained > _FAR_TOO_SMALL) & left
    if ratios := {names[j]: times[j] for j in np.flatnonzero(smaller) if names[j] not in named}:
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
    shown = ", ".join(f"{x.names[j]} ({percent(x.unexplained[j])})" for j in np.flatnonzero(wrong).tolist())
    message = (
        f"the model cannot have the torques of {shown}: these parts of their power about the "
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
    if any(x.contacts is not None for x in recordings):
        return [
            "Torques beside unknown forces of contacts are not compared with the model's before a fit: only the error "
            "of the fit may show a wrong sign, unit or order of columns."
        ]
    for recording in recordings:
        for sentence, what in _unchecked(recording, model).items():
            found.setdefault(sentence, []).append(f"{recording.name}: {what}" if len(recordings) > 1 else what)
    return [sentence.format("; ".join(dict.fromkeys(what))) for sentence, what in found.items()]


def _unchecked(recording: Recording, model: Model) -> dict[str, str]:
    """Return sentences, each with the text that stands for `{}` in it."""
    recording = recording.of_joints()
    part = None if recording.joints is not None else prepared(recording, model)
    if part is None:
        return {_NOT_COMPARED: f"{recording.duration:.3g} s"}
    x = ComparedTorques(part, model)
    unjudged = (np.ptp(x.tau, axis=0) > 0) & ((x.unexplained > SUSPICIOUS) | (x.share < SHARE))
    # Noise may turn a slow motion around for a moment.
    one_way = np.prod(np.quantile(x.v, [0.01, 0.99], axis=0), axis=0) > 0
    clipped = recording.clipped_torques(model).sum(axis=0)
    unjudged, one_way, clips = (np.flatnonzero(chosen).tolist() for chosen in (unjudged, one_way, clipped))
    out = {
        _UNJUDGED: ", ".join(x.names[j] for j in unjudged),
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
