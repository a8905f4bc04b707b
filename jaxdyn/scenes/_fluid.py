"""Forces of a fluid on the bodies of a scene."""

from __future__ import annotations

from typing import Self

from jaxdyn.scenes._parts import Part


class Fluid(Part):
    """The fluid of a scene."""

    @classmethod
    def of(cls, m) -> Self | None:
        return None


def fluid_forces(robot, fluid, at):
    return 0.0, None
