"""Tests of the residuals of a calibration: measurements that the others contradict, and effects that are missing."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy.stats import chi2
from scipy.stats import f as f_distribution

from jaxdyn._printing import percent
from jaxdyn.algorithms import generalized_gravity
from jaxdyn.sysid.calibration._geometry_fit import GeometryProblem, Rows, Solution

# The probability by chance that some measurement of a data set counts as an outlier.
_FALSE_ALARM = 0.01
# At most this part of the measurements is taken for outliers: more are no outliers.
_MOST = 0.25
# A cause is named if chance explains it with less than this probability and it explains at least this part.
_CHANCE, _LEAST_PART = 1e-4, 0.1
_WORDS = {
    "flexible joints": "joints that bend under gravity",
    "gear ratios": "encoders that count too much or too little",
    "eccentric encoders": "eccentric encoders",
}


class Outlier(NamedTuple):
    """A measurement that differs from what all others predict."""

    measurement: int
    """Its number among the measurements."""
    posture: int
    """The row of the configuration."""
    distance: float
    """How far its positions are from the predicted ones, m; zero without positions."""
    angle: float
    """How far its directions are from the predicted ones, rad; zero without directions."""
    chance: float
    """The probability of such a difference by chance, in one measurement of that many."""
    what: str
    """The parts that were measured."""

    def sentence(self) -> str:
        """The outlier in words."""
        sizes = [f"{self.distance:.3g} m"] * bool(self.distance) + [f"{self.angle:.3g} rad"] * bool(self.angle)
        return (
            f"The measurement of posture {self.posture} ({self.what}) differs by {' and '.join(sizes)} from what the "
            f"others predict, which chance explains with a probability of {self.chance:.1g}."
        )


class GeometryCause(NamedTuple):
    """An effect that residuals may come from, and the evidence for it."""

    name: str
    """`"flexible joints"`, `"gear ratios"` or `"eccentric encoders"`."""
    part: float
    """The part of the residuals' sum of squares that it would explain, to first order."""
    chance: float
    """The probability of that by chance (F test)."""
    joints: tuple[str, ...]
    """The joints that explain most of it by themselves, the first of them most."""
    parameters: dict[str, float]
    """The numbers that explain it, for each joint: the compliance, rad/(N m) or m/N; the part by which the motion is
    more than the encoder reads; the amplitude of an eccentric encoder's error, rad."""

    @property
    def evident(self) -> bool:
        """Whether the evidence is strong."""
        return self.chance < _CHANCE and self.part > _LEAST_PART

    def sentence(self) -> str:
        """The cause in words."""
        numbers = ", ".join(f"{name} {self.parameters[name]:.3g}" for name in self.joints)
        return (
            f"The residuals point to {_WORDS[self.name]}, which would explain {percent(self.part)} of their squares "
            f"(probability by chance {self.chance:.1g}), most at {numbers}. The calibration and its intervals hold "
            "only without them."
        )


def outliers(problem: GeometryProblem, found: Solution) -> tuple[Outlier, ...]:
    """Return the measurements that the others contradict, the worst first.

    One after the other, the measurement with the least probability is left out of the linearized problem, and the noise
    is estimated again (data snooping: Baarda 1968), so that one does not hide another.
    """
    rows = problem.rows
    r, J = found.whitened(rows)
    groups, kept, out = np.unique(rows.group), np.full(len(r), True), []
    for _ in range(int(_MOST * len(groups))):
        worst = _worst(rows, r, J, kept, len(groups))
        if worst is None or worst[0] > _FALSE_ALARM:
            break
        chance, group, difference = worst
        mine = rows.group == group
        sizes = {"m": 0.0, "rad": 0.0}
        for k in np.unique(rows.part[mine]):
            at = rows.part[mine] == k
            sizes[rows.parts[k].unit] += float(np.sum((difference[at] * found.sigma[k]) ** 2))
        what = " and ".join(rows.parts[k].name for k in np.unique(rows.part[mine]))
        posture, number = int(rows.posture[mine][0]), rows.owners[rows.part[mine][0]]
        out.append(Outlier(number, posture, sizes["m"] ** 0.5, sizes["rad"] ** 0.5, chance, what))
        kept &= ~mine
    return tuple(sorted(out, key=lambda x: x.chance))


def _worst(
    rows: Rows, r: np.ndarray, J: np.ndarray, kept: np.ndarray, count: int
) -> tuple[float, int, np.ndarray] | None:
    """Return the least probability by chance of the kept groups, times their `count`, that group, and how it differs
    from what the others predict; None where nothing is left to compare."""
    scale = np.ones(len(rows.parts))

    def without_numbers() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        w = (1 / scale)[rows.part[kept]]
        Q, _ = np.linalg.qr(J[kept] * w[:, None])
        e = r[kept] * w
        return w, Q, e - Q @ (Q.T @ e)

    # The noise of what is left settles in two rounds.
    for _ in range(2):
        _, Q, e = without_numbers()
        for k, part in enumerate(rows.parts):
            mine = rows.part[kept] == k
            free = float(mine.sum() - np.sum(Q[mine] ** 2))
            if part.noise is None and free > 1 and e[mine].any():
                scale[k] *= np.sqrt(np.sum(e[mine] ** 2) / free)
    w, Q, e = without_numbers()
    left, best = len(e) - J.shape[1], None
    stated = all(x.noise is not None for x in rows.parts)
    for group in np.unique(rows.group[kept]):
        mine = np.flatnonzero(rows.group[kept] == group)
        d, free = len(mine), np.eye(len(mine)) - Q[mine] @ Q[mine].T
        # A measurement on which the solution depends alone contradicts nothing.
        if left <= d or np.linalg.eigvalsh(free)[0] < 1e-6:
            continue
        difference = np.linalg.solve(free, e[mine])
        square = float(e[mine] @ difference)
        if stated:
            chance = chi2.sf(square, d)
        else:
            others = max(float(e @ e) - square, 1e-300) / (left - d)
            chance = f_distribution.sf(square / d / others, d, left - d)
        if best is None or chance * count < best[0]:
            best = float(chance * count), int(group), difference / w[mine]
    return best


def geometry_causes(problem: GeometryProblem, found: Solution) -> tuple[GeometryCause, ...]:
    """Return effects that the residuals may come from, the most convincing first: for each, the residuals are regressed
    on what it would change, after all numbers of the calibration (Rao's score test)."""
    model, (r, J) = problem.model(found.x), found.whitened(problem.rows)
    joints, slopes = problem.joint_slopes(found.x)
    slopes = slopes / found.sigma[problem.rows.part][:, None]
    if not joints:
        return ()
    q = np.stack([problem.q[:, model.q_index(x).start] for x in joints], axis=-1)
    turns = np.array([model.topology.joint_types[model.topology.joint(x)] != "prismatic" for x in joints])
    candidates = {"gear ratios": [q]}
    if turns.any():
        candidates["eccentric encoders"] = [np.where(turns, np.sin(q), 0.0), np.where(turns, np.cos(q), 0.0)]
    if not model.topology.missing_inertias:
        load = np.asarray(generalized_gravity(model, jnp.asarray(problem.q, model.dtype)), np.float64)
        load = np.stack([load[:, model.v_index(x).start] for x in joints], axis=-1)
        candidates["flexible joints"] = [-load]
    Q, _ = np.linalg.qr(J)
    rest = r - Q @ (Q.T @ r)
    out = [_cause(name, x, joints, slopes, problem.rows, Q, rest) for name, x in candidates.items()]
    return tuple(sorted((x for x in out if x is not None), key=lambda x: x.chance))


def _cause(name, signals, joints, slopes, rows: Rows, Q: np.ndarray, rest: np.ndarray) -> GeometryCause | None:
    """Return the evidence for errors of joints' coordinates in proportion to signals `[postures, joints]` each."""
    Z = np.stack([slopes * x[rows.posture] for x in signals], axis=-1)
    length = np.linalg.norm(Z, axis=0)
    # Columns far shorter than the others are rounding.
    length = np.where(length > 1e-9 * max(float(length.max()), 1e-300), length, np.inf)
    Z = Z / length
    Z = Z - np.einsum("ri,ijk->rjk", Q, np.einsum("ri,rjk->ijk", Q, Z))
    total, left = float(rest @ rest), len(rest) - Q.shape[1]

    def explained(columns: np.ndarray) -> tuple[float, int, np.ndarray]:
        U, size, V = np.linalg.svd(columns, full_matrices=False)
        # What is left of unit columns after all numbers must be more than rounding.
        kept = size > 1e-6
        weights = U[:, kept].T @ rest
        return float(weights @ weights), int(kept.sum()), -(V[kept].T @ (weights / size[kept]))

    decrease, count, values = explained(Z.reshape(len(rest), -1))
    if not count or left <= count + 1 or not total:
        return None
    each = [explained(Z[:, j])[0] for j in range(len(joints))]
    order = np.argsort(each)[::-1]
    statistic = decrease / count / max((total - decrease) / (left - count), 1e-300)
    values = values.reshape(length.shape) / length
    numbers = np.linalg.norm(values, axis=-1) if len(signals) > 1 else values[:, 0]
    most = [joints[j] for j in order if each[j] > 0.5 * each[order[0]]]
    chance = float(f_distribution.sf(statistic, count, left - count))
    found = {name: float(x) for name, x in zip(joints, numbers, strict=True)}
    return GeometryCause(name, decrease / total, chance, tuple(most), found)
