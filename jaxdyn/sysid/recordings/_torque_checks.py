"""Checks of recorded torques against those of a rough model: their sign, unit and order, and the order of positions."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from jaxdyn._printing import percent
from jaxdyn.model import Model
from jaxdyn.sysid.recordings._findings import Finding, exchanged, of_joints
from jaxdyn.sysid.recordings._recording import Recording
from jaxdyn.sysid.recordings._torque_columns import (
    FACTOR,
    GOOD,
    SHARE,
    SUSPICIOUS,
    Explanation,
    unexplained_by_friction,
)
from jaxdyn.sysid.recordings._torque_sizes import contradictions, size_findings

# Another reading of the columns is right if it leaves less than a third of what the given reading leaves.
_BETTER = 1 / 3
# Far better readings, by a factor of ten, count as well: where the given one leaves a little, or where the model is too
# rough for one of two joints.
_FAR_BETTER, _LITTLE = 0.1, 0.03
# The same for a reading that leaves suspicious joints: the model is too rough there to tell it from others.
_POOR = 0.05
# Friction confirms a sign if, whatever the inertias are, the other sign leaves this part of the power or more, and this
# many times as much as the given one. Where friction is silent, torques smaller than this part of the robot's largest
# may be negative because centers of mass lie on another side than the model's.
_OPPOSED, _CONFIRMED, _LIGHT = 0.01, 3.0, 0.1
# Differences below this unexplained part are friction and noise.
_FLOOR = 1e-3
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
    `"scale"`, `"misfit"`."""
    part = thinned(part)
    (tau,) = part.require("tau")
    given = Explanation.along(part, model)
    unexplained = given.unexplained_parts(tau)
    factors, share = np.array([given.factor(j, tau[:, j]) for j in range(model.nv)]).T
    found = _other_readings(part, model, given, unexplained, factors, share)
    # Torques in another unit at other joints, too, hide in friction, and are found once these are right.
    if any(x.kind in ("order", "degrees", "scale") for x in found):
        return found
    found += size_findings(part, model, given, unexplained, share, {name for x in found for name in x.joints})
    return found + contradictions(part, model, given, unexplained, {name for x in found for name in x.joints})


def thinned(part: Recording) -> Recording:
    """Return evenly spaced samples of a prepared part, enough to compare its torques with a model's."""
    step = -(-len(part) // _COUNT)
    return part._map(lambda x: x[::step])


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
    scaled[share < SHARE] = np.inf
    # Friction, which opposes the motion, may show the sign of a torque that the links hardly change.
    negated = given.unexplained_parts(-tau)
    negated[~_is_better(negated, np.minimum(unexplained, scaled))] = np.inf
    doubtful = np.isfinite(negated) | (factors < 0) & _is_better(scaled, unexplained)
    possible = _possible_signs(part, model) if doubtful.any() else doubtful
    before = np.minimum(unexplained, negated)
    degrees = _degrees(part, model, np.minimum(before, scaled))
    if degrees:
        return degrees
    order = _torque_order(given, tau, unexplained, scaled)
    findings = _factors(names, factors, unexplained, scaled, negated, possible)
    findings = [_unless_rotors(x, part, model) if x.kind == "scale" and x.grave else x for x in findings]
    explained = {name for x in findings for name in x.joints}
    if order is None and all(u <= SUSPICIOUS or x in explained for u, x in zip(unexplained, names, strict=True)):
        return findings
    readings = _OrderSearch(part, model, given, unexplained).readings(order)
    if not readings or _misfit(readings[0].unexplained) > _misfit(before):
        return findings
    places = [(x.what, {names[i]: names[x.order[i]] for i in np.flatnonzero(x.moved)}) for x in readings]
    best, moved = readings[0], readings[0].moved
    # Factors say something only of torques in their places.
    right = []
    if best.what == _TORQUES:
        left = np.where(moved, 0.0, unexplained), scaled, np.where(moved, np.inf, negated)
        right = _factors(names, factors, *left, possible)
    sure = best.is_sure and len(readings) == 1
    return [exchanged(places, sure=sure, grave=best.is_beyond_doubt(unexplained)), *right]


def _possible_signs(part: Recording, model: Model) -> np.ndarray:
    """Return whether true torques may have the given sign, whatever the model says, `[nv]` of bool: friction confirms
    it, or says nothing of a torque that is small beside others."""
    (tau,), units = part.require("tau"), model.topology.dof_units
    as_given, opposite = unexplained_by_friction(part, model)
    confirmed = (opposite > _OPPOSED) & (opposite > _CONFIRMED * as_given)
    refuted = (as_given > _OPPOSED) & (as_given > _CONFIRMED * opposite)
    size = tau.std(axis=0)
    light = size < _LIGHT * np.array([size[units == unit].max() for unit in units])
    return confirmed | light & ~refuted


def _misfit(unexplained: np.ndarray) -> float:
    """Return the sum of the logarithms of the parts that are left unexplained at all joints."""
    return float(np.log(np.maximum(unexplained, _FLOOR)).sum())


def _ratio(torque: np.ndarray, factor: float) -> np.ndarray:
    return torque / factor if factor else torque


def _is_better(new: np.ndarray, old: np.ndarray) -> np.ndarray:
    """Return which of the parts that a new reading leaves unexplained are small, and far smaller than the old ones."""
    better = (new < _BETTER * old) & (old > SUSPICIOUS) | (new < _FAR_BETTER * old) & (old > _LITTLE)
    return (new < GOOD) & better


def _unless_rotors(finding: Finding, part: Recording, model: Model) -> Finding:
    """Return the finding of a factor, grave unless an armature of any size would explain the torques as well: rotors
    behind gears may have hundreds of times the inertia of a light wrist."""
    (tau,), names = part.require("tau"), model.topology.dof_names
    unexplained = Explanation.along(part, model, rotor=np.inf).unexplained_parts(tau)
    return finding._replace(grave=any(unexplained[list(names).index(x)] > SUSPICIOUS for x in finding.joints))


def _factors(
    names: Sequence[str],
    factors: np.ndarray,
    unexplained: np.ndarray,
    scaled: np.ndarray,
    negated: np.ndarray,
    possible: np.ndarray,
) -> list[Finding]:
    """Return findings of torques that are the model's times a negative factor, or times one far from 1, or that the
    model and friction explain when they are negated (`negated`: the part that is left then, if that is far less).

    True torques and a model that is wrong by more than factors may look like that, too: links whose centers of mass lie
    on the other side, joints without a drive, whose torque is an error, torques that no model explains well. A finding
    is grave where the given reading leaves much, the other one hardly anything, the sign is not `possible`
    (`_possible_signs`), and no torque has the model's size beside one that is too small.
    """
    better = _is_better(scaled, unexplained)
    sure = (unexplained > GOOD) & (np.where(better, scaled, negated) <= SUSPICIOUS)
    size = np.abs(factors)
    far = better & ((size > FACTOR) | (size < 1 / FACTOR))
    like_the_model = (unexplained <= SUSPICIOUS) & np.isfinite(scaled) & ~far
    undriven = far & (size < 1) & bool(like_the_model.any())
    following, opposed = better & (factors < 0), np.isfinite(negated) & ~better
    grave = bool((sure & ~possible & ~undriven & (following | opposed)).any())
    out = [x._replace(grave=grave) for x in _negative(names, factors, following, opposed, unexplained, negated)]
    if far.any():
        joints = tuple(names[j] for j in np.flatnonzero(far).tolist())
        factor = float(np.exp(np.median(np.log(size[far]))))
        message = (
            f"the torques of {_listed(joints, factors[far])} are the model's times a factor far from 1; "
            f"{_unit(factor)}N m and N are needed at the joints"
        )
        grave = bool((sure & far & ~undriven).any())
        out.append(Finding("scale", message, joints, float(np.median(factors[far])), grave))
    return out


def _negative(
    names: Sequence[str],
    factors: np.ndarray,
    following: np.ndarray,
    opposing: np.ndarray,
    unexplained: np.ndarray,
    negated: np.ndarray,
) -> list[Finding]:
    """Return a finding of torques that look negated: those that are `following` the model's with a negative factor, and
    those that the model and friction explain when they are negated, `opposing` `[nv]` of bool."""
    follow, opposed = np.flatnonzero(following).tolist(), np.flatnonzero(opposing).tolist()
    clauses = []
    if follow:
        shown = _listed([names[j] for j in follow], factors[follow])
        clauses.append(f"the torques of {shown} follow the model's with a negative factor")
    if opposed:
        shown = ", ".join(f"{names[j]} ({percent(unexplained[j])} and {percent(negated[j])})" for j in opposed)
        clauses.append(
            f"the model and friction explain the torques of {shown} far better when these are negated (in brackets "
            "what is left of the power, as given and negated)"
        )
    if not clauses:
        return []
    message = (
        f"{'; '.join(clauses)}: negate them, or check the joint's axis and the direction of gravity in the model, and "
        "the order of the columns"
    )
    joints = tuple(names[j] for j in follow + opposed)
    return [Finding("sign", message, joints, float(np.median(factors[follow])) if follow else None)]


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
    rows = np.flatnonzero(unexplained > SUSPICIOUS)
    if not 2 <= rows.size <= _JOINTS:
        return None
    U = np.array([[given.unexplained(j, tau[:, i]) for j in rows.tolist()] for i in rows.tolist()])
    # A column stays where it is unless another joint explains it better than this one does with any factor.
    old = np.minimum(unexplained, scaled)
    for limit in (GOOD, np.inf):
        allowed = (np.minimum(limit, old[rows, None]) > U) | np.eye(len(U), dtype=bool)
        order = np.arange(tau.shape[1])
        order[rows] = rows[linear_sum_assignment(np.where(allowed, np.log(np.maximum(U, _FLOOR)), 1e3))[1]]
        new = old.copy()
        new[rows] = U[np.arange(len(U)), np.searchsorted(rows, order[rows])]
        for cycle in _cycles(order):
            if not _explains(new[cycle], old[cycle]):
                order[cycle] = cycle
        if (order != np.arange(len(order))).any():
            return order
    return None


def _explains(new: np.ndarray, old: np.ndarray) -> bool:
    """Return whether exchanged columns, which leave the parts `new` unexplained and left `old` before, are explained
    far better: all of them, or some so well that the model may be too rough for the others."""
    gain = np.log(np.maximum(new, _FLOOR) / np.maximum(old, _FLOOR)).mean()
    if (new <= GOOD).all():
        return bool(gain < np.log(_BETTER))
    return bool(gain < np.log(_FAR_BETTER) and new.min() <= _LITTLE and (new <= old).all())


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
    new = other.unexplained_parts(tau)
    suspicious = unexplained > SUSPICIOUS
    better = _is_better(new, unexplained) & suspicious
    if 2 * better.sum() <= suspicious.sum() or (new > 3 * unexplained)[~suspicious].any():
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
        """The sum of the logarithms of the parts that it leaves unexplained at all joints."""
        return _misfit(self.unexplained)

    @property
    def is_sure(self) -> bool:
        """Whether the joints whose columns are exchanged have no unexplained torque then."""
        return bool((self.unexplained[self.moved] <= SUSPICIOUS).all())

    @property
    def margin(self) -> float:
        """The misfit beyond this reading's at which another reading is no longer possible."""
        return np.log(1 / (_BETTER if self.is_sure else _POOR))

    def is_beyond_doubt(self, before: np.ndarray) -> bool:
        """Whether no true recording looks so. With the given order, which leaves `before` `[nv]`, every moved joint is
        suspicious, this order is better at all of them, and leaves hardly anything of a torque of which that leaves
        much. Or this order is far better at every moved joint."""
        old, new = before[self.moved], self.unexplained[self.moved]
        decided = ((new <= old) & (old > SUSPICIOUS)).all() and ((old > GOOD) & (new <= SUSPICIOUS)).any()
        return bool(decided or (new < _FAR_BETTER * old).all())

    def is_far_better(self, before: np.ndarray) -> bool:
        """Whether this leaves far less unexplained than the given order does, `before` `[nv]`."""
        new, moved = self.unexplained, self.moved
        # Torques that both orders explain, or none, count neither for the new order nor against it.
        judged = (np.maximum(new, before) > SUSPICIOUS) & (np.minimum(new, before) < GOOD) | moved
        if (new[moved] <= GOOD).all():
            gain = np.log(np.maximum(new, _FLOOR) / np.maximum(before, _FLOOR))[judged].mean()
            return bool(gain < np.log(_BETTER))
        return _explains(new[judged], before[judged])


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
        limit = min(_misfit(self.before), best.misfit + best.margin)
        alike = [x for x in out if x is not best and x.misfit < limit]
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
        return explanation.unexplained_parts(tau)

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
