"""All constraints of a world at a state, in the order of `RowKinds`."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from jaxdyn.algorithms.recursions import Robot
from jaxdyn.io.mjcf import is_disabled
from jaxdyn.tree import sum_down
from jaxdyn.worlds._contact_rows import Contacts, contact_rows
from jaxdyn.worlds._equalities import Equalities, equality_rows
from jaxdyn.worlds._law import RowKinds, RowNumbers
from jaxdyn.worlds._limits import FrictionLosses, Limits, friction_rows, limit_rows
from jaxdyn.worlds._newton import transposed_product
from jaxdyn.worlds._parts import Instant, Part, PartRows
from jaxdyn.worlds._rows import Contacting, Rows, Timing, rates_of
from jaxdyn.worlds._tendons import TendonRows


class Constraints(Part):
    """The constraints of a world."""

    equalities: Equalities
    losses: FrictionLosses
    limits: Limits
    contacts: Contacts
    safe: bool = eqx.field(static=True)
    """Whether time constants are at least two time steps."""

    @classmethod
    def of(cls, m) -> Self:
        """Return the constraints of an `mjModel`."""
        parts = Equalities.of(m), FrictionLosses.of(m), Limits.of(m), Contacts.of(m)
        return cls(*parts, safe=not is_disabled(m, "refsafe"))


class ConstraintRows(NamedTuple):
    """The rows of all constraints at a state."""

    kinds: RowKinds
    parts: list[Rows]
    aref: Any
    """`[n, *batch]`"""
    numbers: RowNumbers

    def moves(self, robot: Robot) -> np.ndarray:
        """Return, `[n, nv]`, which entries of the Jacobian may be other than zero."""
        return np.concatenate([np.zeros((0, robot.nv), bool), *(x.moves for x in self.parts)])

    def jacobian(self, robot: Robot, at: Instant):
        """Return the Jacobian `J` `[n, nv, *batch]`."""
        J = [robot.constant(np.zeros((0, robot.nv)))]
        J += [x.J.jacobian(robot, at) if isinstance(x.J, Contacting) else x.J for x in self.parts]
        return jnp.concatenate([robot.broadcast(x) for x in J])

    def rates(self, robot: Robot, at: Instant, x):
        """Return `J x` for rows `[nv]`."""
        motion = sum_down(robot.tree, at.at.S * x)
        rates = [robot.zeros()[:0]]
        for part in self.parts:
            rates += part.J.rates(motion) if isinstance(part.J, Contacting) else [rates_of(part.J, x)]
        return jnp.concatenate([robot.broadcast(r) for r in rates])

    def torque(self, robot: Robot, at: Instant, push):
        """Return `J^T f` for the forces `f` of all rows."""
        total = robot.zeros()
        pushes = jnp.split(push, np.cumsum([len(x.moves) for x in self.parts]))
        for part, f in zip(self.parts, pushes, strict=False):
            dense = not isinstance(part.J, Contacting)
            total = total + (transposed_product(part.J, f) if dense else part.J.torque(robot, at, f))
        return total


def constraint_rows(robot: Robot, constraints: PartRows, at: Instant, tendons: TendonRows | None, dt) -> ConstraintRows:
    """Return the rows at a state, with the time step `[1, *batch]`."""
    timing = Timing(dt, constraints.safe)
    equalities = equality_rows(robot, constraints.equalities, at, tendons, timing)
    losses = friction_rows(robot, constraints.losses, at, tendons, timing)
    limits = limit_rows(robot, constraints.limits, at, tendons, timing)
    smooth, cones = contact_rows(robot, constraints.contacts, at, timing)
    frictions = [] if losses is None else [losses]
    inequalities = [x for x in (limits, smooth) if x is not None]
    rows = [*equalities, *frictions, *inequalities, *(c.rows for c in cones)]
    kinds = RowKinds(
        _count(equalities),
        _count(frictions),
        _count(inequalities),
        tuple((c.dim, c.mu.shape[0]) for c in cones),
        constraints.contacts.elliptic,
    )
    loss = _joined(robot, [] if losses is None else [constraints.losses.loss])
    numbers = RowNumbers(
        _joined(robot, [x.D for x in rows]),
        loss,
        _joined(robot, [c.friction for c in cones]),
        _joined(robot, [c.mu for c in cones]),
    )
    return ConstraintRows(kinds, rows, _joined(robot, [x.aref for x in rows]), numbers)


def _count(rows: list[Rows]) -> int:
    return sum(len(x.moves) for x in rows)


def _joined(robot: Robot, parts: list):
    return jnp.concatenate([robot.broadcast(x) for x in (robot.zeros()[:0], *parts)])
