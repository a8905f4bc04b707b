"""All constraints of a world at a state, in the order of `RowKinds`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import equinox as eqx

from jaxdyn.algorithms.recursions import Robot
from jaxdyn.io.mjcf import GeomPair, is_disabled
from jaxdyn.solve import ListedTerm, Term
from jaxdyn.worlds._compliance import Compliance, compliant_terms
from jaxdyn.worlds._contact_rows import Contacts, contact_terms
from jaxdyn.worlds._contact_search import list_shapes
from jaxdyn.worlds._equalities import Equalities, equality_terms
from jaxdyn.worlds._limits import FrictionLosses, Limits, friction_terms, limit_terms
from jaxdyn.worlds._parts import Instant, Part, PartRows
from jaxdyn.worlds._rows import Timing
from jaxdyn.worlds._tendons import TendonRows


class RowKinds(NamedTuple):
    """How many rows there are of each kind. They stand in this order: equalities; friction losses; one-sided rows
    (limits and contacts without friction); then the contacts with friction, by the number of their directions, and in a
    group of these direction by direction: the normal, two tangents, and the turns about these three."""

    equalities: int
    frictions: int
    inequalities: int
    cones: tuple[tuple[int, int], ...]
    """The number of directions and of contacts of each group of contacts with friction."""
    elliptic: bool
    """Whether cones are elliptic rather than pyramids."""

    @property
    def scalars(self) -> int:
        """The number of rows with a law of their own."""
        return self.equalities + self.frictions + self.inequalities

    @property
    def count(self) -> int:
        """The number of all rows."""
        return self.scalars + sum(dim * n for dim, n in self.cones)

    @property
    def cone_starts(self) -> list[int]:
        """The first row of each group of contacts with friction."""
        starts = [self.scalars]
        for dim, n in self.cones:
            starts.append(starts[-1] + dim * n)
        return starts[:-1]


class Constraints(Part):
    """The constraints of a world."""

    equalities: Equalities
    losses: FrictionLosses
    limits: Limits
    contacts: Contacts
    safe: bool = eqx.field(static=True)
    """Whether time constants are at least two time steps."""
    compliance: Compliance | None = None
    """The law of contacts in the place of MuJoCo's, if they have another."""

    @classmethod
    def of(cls, m, pairs: Sequence[GeomPair]) -> Self:
        """Return the constraints of an `mjModel` with these pairs of geoms."""
        parts = Equalities.of(m), FrictionLosses.of(m), Limits.of(m), Contacts.of(m, pairs)
        return cls(*parts, safe=not is_disabled(m, "refsafe"))

    @property
    def kinds(self) -> RowKinds:
        """How many rows there are of each kind."""
        losses, limits, contacts = self.losses, self.limits, self.contacts
        sides = 2 * len(limits.joints) + len(limits.balls) + 2 * len(limits.tendons)
        directions = [(x.dim, x.room) for x in list_shapes(contacts)] if contacts.listed else contacts.directions()
        smooth = sum(n for dim, n in directions if dim == 1)
        cones = tuple((dim, n) for dim, n in directions if dim > 1)
        frictions = len(losses.dofs) + len(losses.tendons)
        return RowKinds(self.equalities.row_count(), frictions, sides + smooth, cones, contacts.elliptic)


def constraint_terms(
    robot: Robot,
    constraints: PartRows,
    at: Instant,
    tendons: TendonRows | None,
    dt,
    *,
    at_state: bool = False,
) -> tuple[Term | ListedTerm, ...]:
    """Return the rows at a state, with the time step `[1, *batch]`, and their laws. With `at_state`, contacts whose law
    is of the end of a step push by the state."""
    timing, contacts = Timing(dt, constraints.safe), constraints.contacts
    if constraints.compliance is None:
        touching = contact_terms(robot, contacts, at, timing)
    else:
        touching = compliant_terms(robot, constraints.compliance, contacts, at, dt, at_state=at_state)
    return (
        *equality_terms(robot, constraints.equalities, at, tendons, timing),
        *friction_terms(robot, constraints.losses, at, tendons, timing),
        *limit_terms(robot, constraints.limits, at, tendons, timing),
        *touching,
    )
