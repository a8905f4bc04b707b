"""Checks of recorded torques against those of a rough model: their sign, unit and order, and the order of positions."""

from __future__ import annotations

import dataclasses
import itertools
from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from jaxdyn._printing import percent
from jaxdyn.model import Model
from jaxdyn.sysid.recordings._explained_torques import (
    FACTOR,
    GOOD,
    SHARE,
    SUSPICIOUS,
    ComparedTorques,
    Explanation,
    contradictions,
    size_findings,
    unexplained_by_friction,
)
from jaxdyn.sysid.recordings._findings import Finding, in_places, of_joints
from jaxdyn.sysid.recordings._recording import Recording

# Another reading of the columns is right if it leaves less than a third of what the given reading leaves.
_BETTER = 1 / 3
# Far better readings, by a factor of ten, count as well: where the given one leaves a little, or where the model is too
# rough for one of two joints.
_FAR_BETTER, _LITTLE = 0.1, 0.03
# Friction confirms a sign if, whatever the inertias are, the other sign leaves this part of the power or more, and this
# many times as much as the given one. Where friction is silent, torques smaller than this part of the robot's largest
# may be negative because centers of mass lie on another side than the model's.
_OPPOSED, _CONFIRMED, _LIGHT = 0.01, 3.0, 0.1
# Differences below this unexplained part are friction and noise.
_FLOOR = 1e-3
# Searches over more joints take long and tell little more.
_JOINTS = 16
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


def torque_findings(part: Recording, model: Model) -> list[Finding]:
    """Return what `check_recording` finds in the torques of a prepared part: `"degrees"`, `"order"`, `"sign"` and
    `"scale"`, `"misfit"`."""
    torques = ComparedTorques(part, model)
    found = _other_readings(torques)
    # Torques in another unit at other joints, too, hide in friction, and are found once these are right.
    if any(x.kind in ("order", "degrees", "scale") for x in found):
        return found
    found += size_findings(torques, {name for x in found for name in x.joints})
    return found + contradictions(torques, {name for x in found for name in x.joints})


def _other_readings(x: ComparedTorques) -> list[Finding]:
    """Return findings of columns that the torques fit far better with another factor, in another order, or in
    degrees."""
    names, unexplained = x.names, x.unexplained
    scaled = np.array([x.given.unexplained(j, x.tau[:, j] / (k or 1.0)) for j, k in enumerate(x.factors)])
    # Where the model's torque is a small part of the measured one, its factor says nothing.
    scaled[x.share < SHARE] = np.inf
    # Friction, which opposes the motion, may show the sign of a torque that the links hardly change.
    negated = np.where(_is_better(x.negated, np.minimum(unexplained, scaled)), x.negated, np.inf)
    doubtful = np.isfinite(negated) | (x.factors < 0) & _is_better(scaled, unexplained)
    possible = _possible_signs(x) if doubtful.any() else doubtful
    before = np.minimum(unexplained, negated)
    if degrees := _degrees(x, np.minimum(before, scaled)):
        return degrees
    order, findings = _torque_order(x, scaled), _factors(x, unexplained, scaled, negated, possible)
    for k, finding in enumerate(findings):
        if finding.kind == "scale" and finding.grave:
            # Rotors behind gears may have hundreds of times the inertia of a light wrist.
            left = Explanation.along(x.part, x.model, rotor=np.inf).unexplained_parts(x.tau)
            grave = any(left[names.index(joint)] > SUSPICIOUS for joint in finding.joints)
            findings[k] = finding._replace(grave=grave)
    explained = {name for finding in findings for name in finding.joints}
    if order is None and all(u <= SUSPICIOUS or name in explained for u, name in zip(unexplained, names, strict=True)):
        return findings
    best = _OrderSearch(x).best_reading(order)
    if best is None or best.misfit > _misfit(before):
        return findings
    # Factors say something only of torques in their places.
    right, moved = [], best.moved
    if best.what == _TORQUES:
        left = np.where(moved, 0.0, unexplained), scaled, np.where(moved, np.inf, negated)
        right = _factors(x, *left, possible)
    places = {names[i]: names[best.order[i]] for i in np.flatnonzero(moved)}
    message = f"the columns of the {best.what} stand in another order than the joints: {in_places(places)}; "
    # A rough model tells which joints, and not always which of their columns.
    message += "exchange them" if best.is_sure else "compare all columns of these joints with their names"
    return [Finding("order", message, tuple(places), grave=best.is_beyond_doubt(unexplained)), *right]


def _possible_signs(x: ComparedTorques) -> np.ndarray:
    """Return whether true torques may have the given sign, whatever the model says, `[nv]` of bool: friction confirms
    it, or says nothing of a torque that is small beside others."""
    as_given, opposite = unexplained_by_friction(x.part, x.model)
    confirmed = (opposite > _OPPOSED) & (opposite > _CONFIRMED * as_given)
    refuted = (as_given > _OPPOSED) & (as_given > _CONFIRMED * opposite)
    size = x.tau.std(axis=0)
    light = size < _LIGHT * np.array([size[x.units == unit].max() for unit in x.units])
    return confirmed | light & ~refuted


def _misfit(unexplained: np.ndarray) -> float:
    """Return the sum of the logarithms of the parts that are left unexplained at all joints."""
    return float(np.log(np.maximum(unexplained, _FLOOR)).sum())


def _is_better(new: np.ndarray, old: np.ndarray) -> np.ndarray:
    """Return which of the parts that a new reading leaves unexplained are small, and far smaller than the old ones."""
    better = (new < _BETTER * old) & (old > SUSPICIOUS) | (new < _FAR_BETTER * old) & (old > _LITTLE)
    return (new < GOOD) & better


def _factors(
    x: ComparedTorques, unexplained: np.ndarray, scaled: np.ndarray, negated: np.ndarray, possible: np.ndarray
) -> list[Finding]:
    """Return findings of torques that are the model's times a negative factor, or times one far from 1, or that the
    model and friction explain when they are negated (`negated`: the part that is left then, if that is far less).

    True torques and a model that is wrong by more than factors may look like that, too: links whose centers of mass lie
    on the other side, joints without a drive, whose torque is an error, torques that no model explains well. A finding
    is grave where the given reading leaves much, the other one hardly anything, the sign is not `possible`
    (`_possible_signs`), and no torque has the model's size beside one that is too small.
    """
    factors, names, out, clauses = x.factors, x.names, [], []
    better = _is_better(scaled, unexplained)
    sure = (unexplained > GOOD) & (np.where(better, scaled, negated) <= SUSPICIOUS)
    size = np.abs(factors)
    far = better & ((size > FACTOR) | (size < 1 / FACTOR))
    like_the_model = (unexplained <= SUSPICIOUS) & np.isfinite(scaled) & ~far
    undriven = far & (size < 1) & bool(like_the_model.any())
    following, opposing = better & (factors < 0), np.isfinite(negated) & ~better
    follow, opposed = np.flatnonzero(following).tolist(), np.flatnonzero(opposing).tolist()
    if follow:
        shown = ", ".join(f"{names[j]} ({factors[j]:.3g})" for j in follow)
        clauses.append(f"the torques of {shown} follow the model's with a negative factor")
    if opposed:
        shown = ", ".join(f"{names[j]} ({percent(unexplained[j])} and {percent(negated[j])})" for j in opposed)
        clauses.append(
            f"the model and friction explain the torques of {shown} far better when these are negated (in brackets "
            "what is left of the power, as given and negated)"
        )
    if clauses:
        message = (
            f"{'; '.join(clauses)}: negate them, or check the joint's axis and the direction of gravity in the model, "
            "and the order of the columns"
        )
        grave = bool((sure & ~possible & ~undriven & (following | opposing)).any())
        value = float(np.median(factors[follow])) if follow else None
        out.append(Finding("sign", message, tuple(names[j] for j in follow + opposed), value, grave))
    if far.any():
        joints = tuple(names[j] for j in np.flatnonzero(far).tolist())
        shown = ", ".join(f"{name} ({k:.3g})" for name, k in zip(joints, factors[far], strict=True))
        message = (
            f"the torques of {shown} are the model's times a factor far from 1; "
            f"{_unit(float(np.exp(np.median(np.log(size[far])))))}N m and N are needed at the joints"
        )
        grave = bool((sure & far & ~undriven).any())
        out.append(Finding("scale", message, joints, float(np.median(factors[far])), grave))
    return out


def _unit(factor: float) -> str:
    """Return a guess at the unit of torques that are `factor` times those of the model."""
    near = {name: abs(np.log(factor / size)) for size, name in _UNITS.items()}
    likely = [name for name, distance in sorted(near.items(), key=lambda x: x[1]) if distance < np.log(_NEAR)]
    if 1 / 500 < factor < 1:
        likely.append("torques before the gear, or motor currents (torque_from_current)")
    return f"they look like {', or '.join(likely)}; " if likely else ""


def _torque_order(x: ComparedTorques, scaled: np.ndarray) -> np.ndarray | None:
    """Return the joint to which each column of the torques belongs, if that is not the given order."""
    rows = np.flatnonzero(x.unexplained > SUSPICIOUS)
    if not 2 <= rows.size <= _JOINTS:
        return None
    U = np.array([[x.given.unexplained(j, x.tau[:, i]) for j in rows.tolist()] for i in rows.tolist()])
    # A column stays where it is unless another joint explains it better than this one does with any factor.
    old, same = np.minimum(x.unexplained, scaled), np.arange(len(x.names))
    for limit in (GOOD, np.inf):
        allowed = (np.minimum(limit, old[rows, None]) > U) | np.eye(len(U), dtype=bool)
        order = same.copy()
        order[rows] = rows[linear_sum_assignment(np.where(allowed, np.log(np.maximum(U, _FLOOR)), 1e3))[1]]
        new, left = old.copy(), set(rows.tolist())
        new[rows] = U[np.arange(len(U)), np.searchsorted(rows, order[rows])]
        while left:
            cycle = [left.pop()]
            while (following := int(order[cycle[-1]])) != cycle[0]:
                cycle.append(following)
                left.remove(following)
            if not _explains(new[cycle], old[cycle]):
                order[cycle] = cycle
        if (order != same).any():
            return order
    return None


def _explains(new: np.ndarray, old: np.ndarray, moved: np.ndarray | slice = slice(None)) -> bool:
    """Return whether exchanged columns, those `moved` of some which leave the parts `new` unexplained and left `old`
    before, are explained far better: all of them, or some so well that the model may be too rough for the others."""
    gain = np.log(np.maximum(new, _FLOOR) / np.maximum(old, _FLOOR)).mean()
    if (new[moved] <= GOOD).all():
        return bool(gain < np.log(_BETTER))
    return bool(gain < np.log(_FAR_BETTER) and new.min() <= _LITTLE and (new <= old).all())


def _degrees(x: ComparedTorques, unexplained: np.ndarray) -> list[Finding]:
    """Return a finding if the torques fit positions in degrees."""
    turns, turning = x.model.topology.coordinate_units == "rad", x.units == "rad"
    if not turns.any() or np.abs(x.part.q[:, turns]).max() < np.pi:
        return []
    factor, rate = (np.where(chosen, np.pi / 180, 1.0) for chosen in (turns, turning))
    other = dataclasses.replace(x.part, q=factor * x.part.q, v=rate * x.v, a=rate * x.a)
    new = Explanation.along(other, x.model).unexplained_parts(x.tau)
    suspicious = unexplained > SUSPICIOUS
    better = _is_better(new, unexplained) & suspicious
    if 2 * better.sum() <= suspicious.sum() or (new > 3 * unexplained)[~suspicious].any():
        return []
    message = "positions of {} look like degrees, which the torques fit; radians are needed (numpy.deg2rad)"
    return of_joints("degrees", [x.names[j] for j in np.flatnonzero(turning)], message, grave=True)


class _Reading(NamedTuple):
    """Columns read in another order than they were given."""

    what: str
    """The columns that are exchanged: `_TORQUES`, `_MOTION` or `_EVERYTHING`."""
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
        return _misfit(self.unexplained)

    @property
    def is_sure(self) -> bool:
        """Whether the joints whose columns are exchanged have no unexplained torque then."""
        return bool((self.unexplained[self.moved] <= SUSPICIOUS).all())

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
        return _explains(new[judged], before[judged], moved[judged])


class _OrderSearch:
    """A search for orders of columns in which the torques fit the motion, by exchanges of two joints."""

    def __init__(self, torques: ComparedTorques):
        self.torques, self.same = torques, np.arange(torques.model.nv)
        self.coordinates, self.joints = torques.model.topology.scalar_coordinates
        self._costs: dict[tuple[int, ...], np.ndarray] = {}

    def best_reading(self, torque_order: np.ndarray | None) -> _Reading | None:
        """Return the best reading that fits far better than the given order, if there is one. `torque_order`: that of
        `_torque_order`, if it found one."""
        same, before, good = self.same, self.torques.unexplained, []
        orders = [] if torque_order is None else [torque_order]
        searchable = 2 <= len(self.joints) <= _JOINTS
        if searchable:
            orders += [np.argsort(self.columns(self.best(with_torques))) for with_torques in (False, True)]
        fixed = np.delete(same, self.joints)
        for what in (_TORQUES, _MOTION, _EVERYTHING):
            found = {}
            for order in orders:
                if (order != same).any() and (what == _TORQUES or (searchable and (order[fixed] == fixed).all())):
                    # Exchanges of two are the same in both directions; of cycles the other one is tried as well.
                    found |= {tuple(x.tolist()): x for x in (order, np.argsort(order))}
            for best in sorted((self.reading(what, x) for x in found.values()), key=lambda x: x.misfit)[:1]:
                accepted = what == _TORQUES and torque_order is not None and (best.order == torque_order).all()
                if accepted or best.is_far_better(before):
                    good.append(best)
        return min(good, key=lambda x: x.misfit, default=None)

    def columns(self, places: tuple[int, ...]) -> np.ndarray:
        """Return, for each degree of freedom, the column in which it stands if joint `k` stands in `places[k]`."""
        out = self.same.copy()
        out[self.joints] = self.joints[list(places)]
        return out

    def explanation(self, places: tuple[int, ...]) -> Explanation:
        x, columns = self.torques, self.columns(places)
        q = x.part.q.copy()
        q[:, self.coordinates] = x.part.q[:, self.coordinates[list(places)]]
        return Explanation.along(dataclasses.replace(x.part, q=q, v=x.v[:, columns], a=x.a[:, columns]), x.model)

    def reading(self, what: str, order: np.ndarray) -> _Reading:
        """Return the reading in which columns belong to the joints `order`."""
        columns, explanation, tau = np.argsort(order), self.torques.given, self.torques.tau
        if what != _TORQUES:
            explanation = self.explanation(tuple(np.searchsorted(self.joints, columns[self.joints]).tolist()))
        if what != _MOTION:
            tau = tau[:, columns]
        return _Reading(what, order, explanation.unexplained_parts(tau))

    def best(self, with_torques: bool) -> tuple[int, ...]:
        """Return the order of the positions, alone or together with the torques, at which no exchange explains the
        torques better."""
        places = tuple(range(len(self.joints)))
        for _ in places[1:]:
            swaps = []
            for i, j in itertools.combinations(range(len(places)), 2):
                swaps.append(tuple(places[{i: j, j: i}.get(k, k)] for k in range(len(places))))
            best = min(swaps, key=lambda x: self._rest(x, with_torques))
            if self._rest(best, with_torques) > self._rest(places, with_torques) - np.log(1 / _BETTER):
                break
            places = best
        return places

    def _rest(self, places: tuple[int, ...], with_torques: bool) -> float:
        if places not in self._costs:
            similarity = self.explanation(places).similarity(self.torques.tau)
            self._costs[places] = np.log(np.maximum(1 - similarity, _FLOOR))
        columns = self.columns(places) if with_torques else self.same
        return float(self._costs[places][columns, self.same].sum())
