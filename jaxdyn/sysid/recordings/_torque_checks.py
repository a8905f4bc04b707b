"""Checks of recorded torques against those of a rough model: their sign, unit and order, and the order of positions."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from jaxdyn.model import Model
from jaxdyn.sysid.recordings._findings import Finding, exchanged, of_joints
from jaxdyn.sysid.recordings._recording import Recording
from jaxdyn.sysid.recordings._torque_columns import FACTOR, Explanation

# A joint is suspicious if the model leaves more than this part of its torque's power unexplained, and another reading
# of the columns is right if it leaves at most `_GOOD`, and less than a third of what the given reading leaves.
_SUSPICIOUS, _GOOD, _BETTER = 0.1, 0.3, 1 / 3
# The least part of a torque's power that the model's torque must explain beside friction to judge its factor.
_SHARE = 0.2
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


def torque_findings(part: Recording, model: Model) -> list[Finding]:
    """Return what `check_recording` finds in the torques of a prepared part: `"degrees"`, `"order"`, `"sign"` and
    `"scale"`."""
    step = -(-len(part) // _COUNT)
    part = part._map(lambda x: x[::step])
    (tau,) = part.require("tau")
    given = Explanation.along(part, model)
    unexplained = np.array([given.unexplained(j, tau[:, j]) for j in range(model.nv)])
    if not (unexplained > _SUSPICIOUS).any():
        return []
    names = model.topology.dof_names
    factors, share = np.array([given.factor(j, tau[:, j]) for j in range(model.nv)]).T
    scaled = np.array([given.unexplained(j, _ratio(tau[:, j], k)) for j, k in enumerate(factors)])
    # Where the model's torque is a small part of the measured one, its factor says nothing.
    scaled[share < _SHARE] = np.inf
    degrees = _degrees(part, model, np.minimum(unexplained, scaled))
    if degrees:
        return degrees
    order = _torque_order(given, tau, unexplained, scaled)
    if order is not None:
        moved = np.flatnonzero(order != np.arange(len(order)))
        unexplained[moved] = 0.0
        findings = [exchanged("columns of the torques", {names[i]: names[order[i]] for i in moved})]
        return findings + _factors(names, factors, unexplained, scaled)
    findings = _factors(names, factors, unexplained, scaled)
    explained = {name for x in findings for name in x.joints}
    if all(u <= _SUSPICIOUS or name in explained for u, name in zip(unexplained, names, strict=True)):
        return findings
    return _position_order(part, model, unexplained) or findings


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


def _position_order(part: Recording, model: Model, unexplained: np.ndarray) -> list[Finding]:
    """Return a finding if the torques fit positions in another order, alone or together with the torques."""
    search = _OrderSearch(part, model)
    if not 2 <= len(search.joints) <= _JOINTS:
        return []
    names = model.topology.dof_names
    for what, with_torques in (("positions and velocities", False), ("positions, velocities and torques", True)):
        places = search.best(with_torques)
        columns = search.columns(places)
        moved = columns != np.arange(model.nv)
        new = search.unexplained(places, with_torques)
        if not moved.any() or (new[moved] > _GOOD).any():
            continue
        # Torques that both orders explain, or none, count neither for the new order nor against it.
        judged = (np.maximum(new, unexplained) > _SUSPICIOUS) & (np.minimum(new, unexplained) < _GOOD) | moved
        if np.log(np.maximum(new, _FLOOR) / np.maximum(unexplained, _FLOOR))[judged].mean() < np.log(_BETTER):
            # `columns[k]` holds the position of joint `k`.
            return [
                exchanged(
                    f"columns of the {what}", {names[columns[k]]: names[k] for k in np.argsort(columns) if moved[k]}
                )
            ]
    return []


class _OrderSearch:
    """A search for the order of joints in which the torques fit the positions best, by exchanges of two joints."""

    def __init__(self, part: Recording, model: Model):
        self.part, self.model = part, model
        self.coordinates, self.joints = model.topology.scalar_coordinates
        (self.tau,), (self.v, self.a) = part.require("tau"), part.require("v", "a")
        self._costs: dict[tuple[int, ...], np.ndarray] = {}

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

    def unexplained(self, places: tuple[int, ...], with_torques: bool) -> np.ndarray:
        """Return the part of each joint's power that this order leaves unexplained."""
        tau, explanation = self.tau[:, self.columns(places)] if with_torques else self.tau, self.explanation(places)
        return np.array([explanation.unexplained(k, tau[:, k]) for k in range(self.model.nv)])

    def best(self, with_torques: bool) -> tuple[int, ...]:
        """Return the order at which no exchange explains the torques better."""
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
