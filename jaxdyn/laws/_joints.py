"""The laws of joints in steps: dry friction, and stops at their limits, at the velocities at the end of a step."""

from __future__ import annotations

from typing import Any

from jaxdyn.friction import Coulomb
from jaxdyn.laws._abstract_law import AbstractLaw, Curvature
from jaxdyn.laws._hunt_crossley import LawRows, normal_force


class JointDryFriction(AbstractLaw):
    """The smooth dry friction of joints."""

    friction: Any
    friction_velocity: Any

    def _law(self) -> Coulomb:
        return Coulomb(self.friction, self.friction_velocity)

    def force(self, x):
        return -self._law().torque(x)

    def curvature(self, x) -> Curvature:
        return [[self._law().slope(x)]]


class Stop(AbstractLaw):
    """Stops of joints at both of their limits: normal forces of the law of Hunt and Crossley."""

    numbers: LawRows
    below: Any
    """The distance of each coordinate from its lower limit; far for those without."""
    above: Any
    dt: Any

    def force(self, x):
        return self._sides(x)[0]

    def curvature(self, x) -> Curvature:
        return [[self._sides(x)[1]]]

    def _sides(self, x) -> tuple[Any, Any]:
        below, at_below = normal_force(self.numbers, self.below, x, self.dt)
        above, at_above = normal_force(self.numbers, self.above, -x, self.dt)
        return below - above, at_below + at_above
