"""Checks of recorded torques against those of a rough model: their sign, unit and order, and the order of positions."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from jaxdyn.model import Model
from jaxdyn.sysid.recordings._findings import Finding, exchanged, of_joints
from jaxdyn.sysid.recordings._recording import Recording
from jaxdyn.sysid.recordings._torque_columns import FACTOR, Explanation

# A joint is suspicious if the model leaves more than this part of its torque's power unexplained, and another reading
# of the columns is right if it leaves at most `_GOOD`, and less than a third of what the given reading leaves.
_SUSPICIOUS, _GOOD, _BETTER = 0.1, 0.3, 1 / 3
# The same for a reading that leaves suspicious joints: the model is too rough there to tell it from others.
_POOR = 0.05
# The least part of a torque's power that the model's torque must explain beside friction to judge its factor.
_SHARE = 0.2
# Differences below this unexplained part are friction and noise.
_FLOOR = 1e-3
# A torque is far too small if this many times its power is left unexplained.
_FAR_TOO_SMALL = 3.0
# The part of the largest torque of a link that may be an error of the motion.
_CANCELLED = 0.1
# More samples than this, and searches over more joints, take long and tell little more.
_COUNT, _JOINTS = 500, 16
# Numbers in other units are those in N m times these factors, as far as a rough model can tell: within `_NEAR`.
_UNITS = {
    1000.0: "N mm",
    1e-3: "kN m",
    100.0: "N cm, or percent",
    180 / np.pi: "numbers that were multiplied by degrees per radian",
    np.pi / 180: "numbers that were multiplied by radians per degree",
    141.6: "ozf in",
    8.85: "lbf in",
    0.102: "kgf m",
}
_NEAR = 1.6
# The columns that may stand in another order.
_TORQUES, _MOTION, _EVERYTHING = "torques", "positions and velocities", "positions, velocities and torques"
_EXCHANGED = (_TORQUES, _MOTION, _EVERYTHING)


def torque_findings(part: Recording, model: Model) -> list[Finding]:
    """Return what `check_recording` finds in the torques of a prepared part: `"degrees"`, `"order"`, `"sign"` and
    `"scale"`."""
    step = -(-len(part) // _COUNT)
    part = part._map(lambda x: x[::step])
    (tau,) = part.require("tau")
    given = Explanation.along(part, model)
    unexplained = np.array([given.unexplained(j, tau[:, j]) for j in range(model.nv)])
    factors, share = np.array([given.factor(j, tau[:, j]) for j in range(model.nv)]).T
    found = []
    if (unexplained > _SUSPICIOUS).any():
        found = _other_readings(part, model, given, unexplained, factors, share)
    # Torques in another unit at other joints, too, hide in friction, and are found once these are right.
    if any(x.kind in ("order", "degrees", "scale") for x in found):
        return found
    return [*found, *_sizes(part, model, given, unexplained, share, {name for x in found for name in x.joints})]


def _other_readings(
    part: Recording,
    model: Model,
    given: Explanation,
    unexplained: np.ndarray,
    factors: np.ndarray,
    share: np.ndarray,
) -> list[Finding]:
    """Return findings of columns that the torques fit far better with another factor, in another order, or in
    degrees."""
    names, (tau,) = model.topology.dof_names, part.require("tau")
    scaled = np.array([given.unexplained(j, _ratio(tau[:, j], k)) for j, k in enumerate(factors)])
    # Where the model's torque is a small part of the measured one, its factor says nothing.
    scaled[share < _SHARE] = np.inf
    degrees = _degrees(part, model, np.minimum(unexplained, scaled))
    if degrees:
        return degrees
    order = _torque_order(given, tau, unexplained, scaled)
    findings = _factors(names, factors, unexplained, scaled)
    explained = {name for x in findings for name in x.joints}
    if order is None and all(u <= _SUSPICIOUS or x in explained for u, x in zip(unexplained, names, strict=True)):
        return findings
    readings = _OrderSearch(part, model, given, unexplained).readings(order)
    if not readings:
        return findings
    places = [(x.what, {names[i]: names[x.order[i]] for i in np.flatnonzero(x.moved)}) for x in readings]
    best, moved = readings[0], readings[0].moved
    # Factors say something only of torques in their places.
    right = _factors(names, factors, np.where(moved, 0.0, unexplained), scaled) if best.what == _TORQUES else []
    return [exchanged(places, sure=best.is_sure and len(readings) == 1), *right]


def _ratio(torque: np.ndarray, factor: float) -> np.ndarray:
    return torque / factor if factor else torque


def _is_better(new: np.ndarray, old: np.ndarray) -> np.ndarray:
    """Return which of the parts that a new reading leaves unexplained are small, and far smaller than the old ones."""
    return (new < _GOOD) & (new < _BETTER * old) & (old > _SUSPICIOUS)


def _factors(names: Sequence[str], factors: np.ndarray, unexplained: np.ndarray, scaled: np.ndarray) -> list[Finding]:
    """Return findings of torques that are the model's times a negative factor, or times one far from 1."""
    better = _is_better(scaled, unexplained)
    out = []
    negative = np.flatnonzero(better & (factors < 0))
    if negative.size:
        joints = tuple(names[j] for j in negative.tolist())
        message = (
            f"the torques of {_listed(joints, factors[negative])} follow the model's with a negative factor: negate "
            "them, or check the joint's axis and the direction of gravity in the model"
        )
        out.append(Finding("sign", message, joints, float(np.median(factors[negative])), True))
    size = np.abs(factors)
    far = np.flatnonzero(better & ((size > FACTOR) | (size < 1 / FACTOR)))
    if far.size:
        joints = tuple(names[j] for j in far.tolist())
        factor = float(np.exp(np.median(np.log(size[far]))))
        message = (
            f"the torques of {_listed(joints, factors[far])} are the model's times a factor far from 1; "
            f"{_unit(factor)}N m and N are needed at the joints"
        )
        out.append(Finding("scale", message, joints, float(np.median(factors[far])), True))
    return out


def _sizes(
    part: Recording, model: Model, given: Explanation, unexplained: np.ndarray, share: np.ndarray, named: set[str]
) -> list[Finding]:
    """Return findings of torques whose size is wrong, at joints where friction or noise hides what follows the model:
    far larger than those of the joints that follow it and beyond the joint's limit, or far smaller than the lightest
    links could have."""
    (tau,), names, units = part.require("tau"), model.topology.dof_names, model.topology.dof_units
    size, peak = np.sqrt(np.mean(tau**2, axis=0)), np.abs(tau).max(axis=0)
    follows = (unexplained <= _SUSPICIOUS) & (share >= _SHARE)
    by_model = np.array([np.sqrt(np.mean(x[:, 0] ** 2)) for x in given.free])
    limit = np.asarray(model.effort_limit, np.float64)
    limited = np.isfinite(limit) & (limit > 0)
    out = []
    for j in np.flatnonzero(~follows).tolist():
        like, others = np.flatnonzero(follows & (units == units[j])), np.delete(limited & (peak <= limit), j)
        if names[j] in named or (limited[j] and peak[j] <= limit[j]):
            continue
        beyond = bool(limited[j] and peak[j] > FACTOR * limit[j])
        if like.size and size[j] > FACTOR * max(size[like].max(), by_model[units == units[j]].max()):
            k = like[np.argmax(size[like])]
            reason = f"is {size[j] / size[k]:.3g} times as large as that of {names[k]}, which follows the model"
            if limited[j]:
                reason += f", and reaches {peak[j] / limit[j]:.3g} times the joint's limit"
        elif beyond and len(others) > 1 and others.all():
            reason = f"reaches {peak[j] / limit[j]:.3g} times its limit, while all other joints stay within theirs"
        else:
            continue
        message = f"the torque of {names[j]} {reason}: is it in another unit? N m and N are needed at the joints"
        out.append(Finding("scale", message, (names[j],), grave=beyond))
    # Where the torques of links cancel, as at a joint without a drive, errors of the motion are larger than the torque.
    left = np.sqrt(unexplained) * tau.std(axis=0) > _CANCELLED * given.largest_of_links()
    small = [names[j] for j in np.flatnonzero((unexplained > _FAR_TOO_SMALL) & left) if names[j] not in named]
    message = (
        "the torques of {} are far smaller than the model's, even if its links had a fifth of their inertias: are they "
        "in another unit, or without gravity?"
    )
    return out + of_joints("scale", small, message)


def _listed(joints: Sequence[str], factors: np.ndarray) -> str:
    return ", ".join(f"{name} ({k:.3g})" for name, k in zip(joints, factors, strict=True))


def _unit(factor: float) -> str:
    """Return a guess at the unit of torques that are `factor` times those of the model."""
    near = {name: abs(np.log(factor / size)) for size, name in _UNITS.items()}
    likely = [name for name, distance in sorted(near.items(), key=lambda x: x[1]) if distance < np.log(_NEAR)]
    if 1 / 500 < factor < 1:
        likely.append("torques before the gear, or motor currents (torque_from_current)")
    return f"they look like {', or '.join(likely)}; " if likely else ""


def _torque_order(
    given: Explanation, tau: np.ndarray, unexplained: np.ndarray, scaled: np.ndarray
) -> np.ndarray | None:
    """Return the joint to which each column of the torques belongs, if that is not the given order."""
    rows = np.flatnonzero(unexplained > _SUSPICIOUS)
    if not 2 <= rows.size <= _JOINTS:
        return None
    U = np.array([[given.unexplained(j, tau[:, i]) for j in rows.tolist()] for i in rows.tolist()])
    # A column stays where it is unless another joint explains it better than this one does with any factor.
    old = np.minimum(unexplained, scaled)
    allowed = (np.minimum(_GOOD, old[rows, None]) > U) | np.eye(len(U), dtype=bool)
    order = np.arange(tau.shape[1])
    order[rows] = rows[linear_sum_assignment(np.where(allowed, np.log(np.maximum(U, _FLOOR)), 1e3))[1]]
    new = old.copy()
    new[rows] = U[np.arange(len(U)), np.searchsorted(rows, order[rows])]
    gain = np.log(np.maximum(new, _FLOOR) / np.maximum(old, _FLOOR))
    for cycle in _cycles(order):
        if gain[cycle].mean() > np.log(_BETTER):
            order[cycle] = cycle
    return None if (order == np.arange(len(order))).all() else order


def _cycles(order: np.ndarray) -> list[list[int]]:
    """Return the cycles of a permutation."""
    out, left = [], set(range(len(order)))
    while left:
        cycle = [left.pop()]
        while (following := int(order[cycle[-1]])) != cycle[0]:
            cycle.append(following)
            left.remove(following)
        out.append(cycle)
    return out


def _degrees(part: Recording, model: Model, unexplained: np.ndarray) -> list[Finding]:
    """Return a finding if the torques fit positions in degrees."""
    turns = model.topology.coordinate_units == "rad"
    if not turns.any() or np.abs(part.q[:, turns]).max() < np.pi:
        return []
    v, a = part.require("v", "a")
    factor = np.where(turns, np.pi / 180, 1.0)
    rate = np.where(model.topology.dof_units == "rad", np.pi / 180, 1.0)
    other = Explanation.along(dataclasses.replace(part, q=factor * part.q, v=rate * v, a=rate * a), model)
    (tau,) = part.require("tau")
    new = np.array([other.unexplained(j, tau[:, j]) for j in range(model.nv)])
    suspicious = unexplained > _SUSPICIOUS
    if 2 * _is_better(new, unexplained).sum() <= suspicious.sum() or (new > 3 * unexplained)[~suspicious].any():
        return []
    names = [
        name for name, unit in zip(model.topology.dof_names, model.topology.dof_units, strict=True) if unit == "rad"
    ]
    message = "positions of {} look like degrees, which the torques fit; radians are needed (numpy.deg2rad)"
    return of_joints("degrees", names, message, grave=True)


class _Reading(NamedTuple):
    """Columns read in another order than they were given."""

    what: str
    """The columns that are exchanged, one of `_EXCHANGED`."""
    order: np.ndarray
    """`[nv]`: the joint to which each of these columns belongs."""
    unexplained: np.ndarray
    """`[nv]`: the part of each joint's power that this reading leaves unexplained."""

    @property
    def moved(self) -> np.ndarray:
        """`[nv]` of bool: whether a column belongs to another joint."""
        return self.order != np.arange(len(self.order))

    @property
    def misfit(self) -> float:
        """The sum of the logarithms of what is left unexplained, over all joints."""
        return float(np.log(np.maximum(self.unexplained, _FLOOR)).sum())

    @property
    def is_sure(self) -> bool:
        """Whether the joints whose columns are exchanged have no unexplained torque then."""
        return bool((self.unexplained[self.moved] <= _SUSPICIOUS).all())

    @property
    def margin(self) -> float:
        """The misfit beyond this reading's at which another reading is no longer possible."""
        return np.log(1 / (_BETTER if self.is_sure else _POOR))

    def is_far_better(self, before: np.ndarray) -> bool:
        """Whether this leaves far less unexplained than the given order does, `before` `[nv]`."""
        new, moved = self.unexplained, self.moved
        # Torques that both orders explain, or none, count neither for the new order nor against it.
        judged = (np.maximum(new, before) > _SUSPICIOUS) & (np.minimum(new, before) < _GOOD) | moved
        gain = np.log(np.maximum(new, _FLOOR) / np.maximum(before, _FLOOR))[judged].mean()
        return bool((new[moved] <= _GOOD).all() and gain < np.log(_BETTER))


class _OrderSearch:
    """A search for orders of columns in which the torques fit the motion, by exchanges of two joints."""

    def __init__(self, part: Recording, model: Model, given: Explanation, before: np.ndarray):
        self.part, self.model, self.given, self.before = part, model, given, before
        self.coordinates, self.joints = model.topology.scalar_coordinates
        (self.tau,), (self.v, self.a) = part.require("tau"), part.require("v", "a")
        self._costs: dict[tuple[int, ...], np.ndarray] = {}

    def readings(self, torque_order: np.ndarray | None) -> list[_Reading]:
        """Return the best reading, if it fits far better than the given order, and then those that fit nearly as well.
        `torque_order`: that of `_torque_order`, if it found one."""
        same = np.arange(self.model.nv)
        orders, out = [] if torque_order is None else [torque_order], []
        searchable = 2 <= len(self.joints) <= _JOINTS
        if searchable:
            orders += [np.argsort(self.columns(self.best(with_torques))) for with_torques in (False, True)]
        for what in _EXCHANGED:
            found = {}
            fixed = np.delete(same, self.joints)
            for order in orders:
                if (order != same).any() and (what == _TORQUES or (searchable and (order[fixed] == fixed).all())):
                    # Exchanges of two are the same in both directions; of cycles the other one is tried as well.
                    found |= {tuple(x.tolist()): x for x in (order, np.argsort(order))}
            tried = [_Reading(what, x, self.unexplained(x, what)) for x in found.values()]
            out += sorted(tried, key=lambda x: x.misfit)[:1]
        found = () if torque_order is None else tuple(torque_order)
        accepted = [x.what == _TORQUES and tuple(x.order) == found for x in out]
        good = [x for x, known in zip(out, accepted, strict=True) if known or x.is_far_better(self.before)]
        if not good:
            return []
        best = min(good, key=lambda x: x.misfit)
        given = float(np.log(np.maximum(self.before, _FLOOR)).sum())
        alike = [x for x in out if x is not best and x.misfit < min(given, best.misfit + best.margin)]
        return [best, *sorted(alike, key=lambda x: x.misfit)]

    def columns(self, places: tuple[int, ...]) -> np.ndarray:
        """Return, for each degree of freedom, the column in which it stands if joint `k` stands in `places[k]`."""
        out = np.arange(self.model.nv)
        out[self.joints] = self.joints[list(places)]
        return out

    def explanation(self, places: tuple[int, ...]) -> Explanation:
        q, columns = self.part.q.copy(), self.columns(places)
        q[:, self.coordinates] = self.part.q[:, self.coordinates[list(places)]]
        return Explanation.along(
            dataclasses.replace(self.part, q=q, v=self.v[:, columns], a=self.a[:, columns]), self.model
        )

    def unexplained(self, order: np.ndarray, what: str) -> np.ndarray:
        """Return the part of each joint's power that is left unexplained if columns belong to the joints `order`."""
        columns, explanation, tau = np.argsort(order), self.given, self.tau
        if what != _TORQUES:
            explanation = self.explanation(tuple(np.searchsorted(self.joints, columns[self.joints]).tolist()))
        if what != _MOTION:
            tau = tau[:, columns]
        return np.array([explanation.unexplained(k, tau[:, k]) for k in range(self.model.nv)])

    def best(self, with_torques: bool) -> tuple[int, ...]:
        """Return the order of the positions, alone or together with the torques, at which no exchange explains the
        torques better."""
        places = tuple(range(len(self.joints)))
        for _ in places[1:]:
            swaps = [self._swapped(places, *pair) for pair in itertools.combinations(range(len(places)), 2)]
            best = min(swaps, key=lambda x: self._rest(x, with_torques))
            if self._rest(best, with_torques) > self._rest(places, with_torques) - np.log(1 / _BETTER):
                break
            places = best
        return places

    @staticmethod
    def _swapped(places: tuple[int, ...], first: int, second: int) -> tuple[int, ...]:
        out = list(places)
        out[first], out[second] = out[second], out[first]
        return tuple(out)

    def _rest(self, places: tuple[int, ...], with_torques: bool) -> float:
        if places not in self._costs:
            self._costs[places] = np.log(np.maximum(1 - self.explanation(places).similarity(self.tau), _FLOOR))
        columns = self.columns(places) if with_torques else np.arange(self.model.nv)
        return float(self._costs[places][columns, np.arange(self.model.nv)].sum())
