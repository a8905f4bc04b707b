"""The joints with one coordinate, which turn about an axis, shift along it, or do both."""

from __future__ import annotations

import dataclasses

from jaxdyn.joints._primitive import Primitive
from jaxdyn.spatial import axis_angle_to_quaternion, pose_array


@dataclasses.dataclass(frozen=True, eq=False)
class Screw(Primitive):
    """A joint with one axis; its configuration is a number, so that its manifold is the real line."""

    has_axis: bool = True

    def pose(self, axis, pitch, q):
        angle = q[..., 0]
        advance = angle * pitch if self.has_pitch else angle * self.translates[0]
        # Only the direction of an axis counts, as in the algorithms.
        direction = axis / ((axis * axis).sum(axis=-1, keepdims=True)) ** 0.5
        return pose_array(advance[..., None] * direction, axis_angle_to_quaternion(axis, angle * self.rotates[0]))


REVOLUTE = Screw("revolute", units=("rad",), rotates=(True,), translates=(False,))
"""The coordinate is the angle about the axis."""

PRISMATIC = Screw("prismatic", units=("m",), rotates=(False,), translates=(True,))
"""The coordinate is the shift along the axis."""

HELICAL = Screw("helical", units=("rad",), rotates=(True,), translates=(False,), has_pitch=True)
"""The coordinate is the angle about the axis; the joint advances along it by its pitch, m/rad."""
