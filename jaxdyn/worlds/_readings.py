"""Quantities that sensors of a world read besides its state."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from jaxdyn.spatial import Vec3
from jaxdyn.worlds._actuators import Actuated
from jaxdyn.worlds._parts import Loads
from jaxdyn.worlds._tendons import TendonInertia, TendonRows


class ContactLoads(NamedTuple):
    """Contacts as sensors of touch see them, rows `[n, *batch]`."""

    bodies: tuple[Any, Any]
    """MuJoCo's numbers of the bodies of both geoms: NumPy arrays, or where they depend on the state, rows."""
    point: Vec3
    normal: Vec3
    """From the first geom to the second, in world axes."""
    pressure: Any
    """The normal force, zero for contacts that do not act."""

    def of_bodies(self, carriers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return pairs of a body, by its place among the given ones, and a contact that may be one of its."""
        ends = [x[None] == carriers[:, None] for x in self.bodies if isinstance(x, np.ndarray)]
        every = np.ones((len(carriers), len(self.pressure)), bool)
        return np.nonzero(np.logical_or(*ends) if ends else every)


class Readings(NamedTuple):
    """Quantities that sensors read besides the state; those that none of them reads may be missing."""

    acceleration: Any = None
    """Accelerations of the degrees of freedom, rows `[nv, *batch]`."""
    tendons: TendonRows | None = None
    actuated: Actuated | None = None
    loads: tuple[Loads, ...] | None = None
    """The forces of contacts, of equality constraints between bodies, of spatial tendons (`tendon_loads`), and those
    that a user applies."""
    contacts: tuple[ContactLoads, ...] | None = None
    springs: Any = None
    """The potential energy of the springs (`spring_energy`), `[*batch]`."""
    joint_limits: Any = None
    """The forces of the joints' limits, `[njnt, *batch]`."""
    tendon_limits: Any = None
    """The forces of the tendons' limits, `[nt, *batch]`."""
    time: Any = None
    """`[*batch]`"""
    along: TendonInertia | None = None
    """The inertia along tendons."""
