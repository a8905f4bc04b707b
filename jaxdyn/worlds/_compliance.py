"""The contacts of a file under the law of Hunt and Crossley, in the place of MuJoCo's: places, friction and margins of
geoms are those of the file."""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import ModelError, warn
from jaxdyn._types import Array, Float
from jaxdyn.algorithms.recursions import Robot
from jaxdyn.contact import ContactLaw
from jaxdyn.geometry import FAR, moves_smoothly
from jaxdyn.io import LeftOutWarning
from jaxdyn.io.mjcf import GeomPair, object_name
from jaxdyn.io.robot_files import enumerate_items
from jaxdyn.laws import ConstantForce, HuntCrossley, LawRows, normal_force
from jaxdyn.solve import Term
from jaxdyn.spatial import Vec3
from jaxdyn.worlds._contact_rows import Contacts, FoundBodies, Pairs, TouchingBodies, by_directions
from jaxdyn.worlds._parts import Instant, Part, PartRows

_DIRECTIONS = 3
"""The directions of a contact under this law: the normal, and two in which it slides."""


class Compliance(Part):
    """The numbers of a `ContactLaw` that all contacts of a file have; friction is that of the geoms."""

    stiffness: Float[Array, "*batch"]
    dissipation: Float[Array, "*batch"]
    stiction_velocity: Float[Array, "*batch"]
    width: Float[Array, "*batch"]

    @classmethod
    def of(cls, law: Any) -> Self:
        """Return the numbers of a law. **Raises** `ModelError` for another law, and for a friction that the geoms
        would override."""
        if not isinstance(law, ContactLaw):
            raise ModelError(
                f"law is {type(law).__name__}; an MJCF file has the numbers of MuJoCo's law itself, and "
                "law=jaxdyn.ContactLaw(...) gives its contacts another"
            )
        default = np.asarray(ContactLaw().friction)
        if not isinstance(law.friction, Tracer) and not np.allclose(law.friction, default, rtol=1e-6):
            raise ModelError(
                f"law has the friction {np.asarray(law.friction)}, but contacts have that of the geoms of the file; "
                "leave `friction` out of ContactLaw, and change that of the geoms"
            )
        return cls(law.stiffness, law.dissipation, law.stiction_velocity, law.width)


def compliant_contacts(contacts: Contacts) -> Contacts:
    """Return the contacts of a file in the directions that this law has, at places that move smoothly where such are
    built."""
    # Places that move smoothly are known at any distance, so that a search would find all of them.
    return dataclasses.replace(contacts, pairs=tuple(map(_compliant, contacts.pairs)), listed=False)


def _compliant(pairs: Pairs) -> Pairs:
    rubs = np.array(pairs.dims) > 1
    return dataclasses.replace(
        pairs,
        dims=(_DIRECTIONS,) * len(pairs.dims),
        # Nobody decides about friction that there is not.
        deciders=tuple(by if rub else ((), (), ()) for by, rub in zip(pairs.deciders, rubs, strict=True)),
        friction=pairs.friction * np.where(rubs, 1.0, 0.0)[:, None].astype(pairs.friction.dtype),
        points="smooth" if moves_smoothly(*pairs.types) else "mujoco",
    )


def compliant_terms(
    robot: Robot, compliance: PartRows, contacts: PartRows, at: Instant, dt, *, at_state: bool
) -> list[Term]:
    """Return the rows of the contacts at a state, and their law at the end of a step of the length `dt`; with
    `at_state` their forces by the law at the state."""
    found = by_directions(robot, contacts, at)
    if not at_state:
        return [_term(robot, compliance, own, at, dt) for _, own in found]
    terms = [_term(robot, compliance, own, at, 0 * dt) for _, own in found]
    return [term._replace(law=ConstantForce(_DIRECTIONS, term.law.force(term.offset)), gain=None) for term in terms]


def _term(robot: Robot, compliance: PartRows, own: TouchingBodies | FoundBodies, at: Instant, dt) -> Term:
    touch = own.touching
    rows = own.motions(robot, _DIRECTIONS, at)
    now = rows.rates(robot, at.velocity, at.v)
    approach = now[: len(own.dims)]
    # Candidates that there are not have no stiffness: their distance is too large a number to compute with.
    there = touch.candidates.distance < 0.5 * FAR
    gap = jnp.where(there, touch.candidates.distance - touch.margin, 0.0)
    stiffness = jnp.where(there, compliance.stiffness[None], 0.0)
    others = (x[None] for x in (compliance.stiction_velocity, compliance.width))
    numbers = LawRows(stiffness, compliance.dissipation[None], touch.friction[:, 0], *others)
    numbers = LawRows(*map(robot.broadcast, numbers))
    normal = Vec3(jnp.ones_like(approach), *(jnp.zeros_like(approach) for _ in range(2)))
    lagged = normal_force(numbers, gap, approach, 0.0)[0]
    return Term(rows, HuntCrossley(numbers, gap, normal, lagged, dt[None]), now, dt[None])


def warn_of_what_is_left_out(m: Any, source: str, pairs: list[GeomPair]) -> None:
    """Warn of what the contacts of an `mjModel`, those of these pairs of geoms, have and this law does not."""
    out = []
    for what, there in (
        ("torsional and rolling friction (condim)", lambda pair: pair.condim > _DIRECTIONS),
        ("the second friction of sliding", lambda pair: pair.condim > 1 and pair.friction[0] != pair.friction[1]),
    ):
        if names := [_title(m, pair) for pair in pairs if there(pair)]:
            out.append(f"{what} of {enumerate_items(names)}")
    if m.opt.noslip_iterations > 0:
        out.append("the sweeps against slip (noslip_iterations), which belong to MuJoCo's law")
    if out:
        lines = "\n".join(f"- {x}" for x in out)
        warn(f"{source}: contacts with a ContactLaw leave out what the file has:\n{lines}", LeftOutWarning)


def _title(m: Any, pair: GeomPair) -> str:
    return " with ".join(repr(object_name(m, "geom", g)) for g in (pair.geom1, pair.geom2))
