"""The joints with one coordinate, which turn about an axis, shift along it, or do both."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np

from jaxdyn.joints._primitive import Components, Primitive
from jaxdyn.spatial import axis_angle_to_quaternion, pose_array


@dataclasses.dataclass(frozen=True, eq=False)
class Screw(Primitive):
    """A joint with one axis; its configuration is a number, which displacements are added to."""

    has_axis: bool = True

    def pose(self, axis, pitch, q):
        angle = q[..., 0]
        advance = angle * pitch if self.has_pitch else angle * self.translates[0]
        # Only the direction of an axis counts, as in the algorithms.
        direction = axis / ((axis * axis).sum(axis=-1, keepdims=True)) ** 0.5
        return pose_array(advance[..., None] * direction, axis_angle_to_quaternion(axis, angle * self.rotates[0]))


class Turn(Screw):
    """A joint whose angle counts up to whole turns, though its coordinate is a number: configurations differ by at most
    half a turn. A spring counts whole turns."""

    def difference(self, q0: Components, q1: Components) -> Components:
        (angle,) = super().difference(q0, q1)
        return [angle - 2 * np.pi * jnp.round(angle * (0.5 / np.pi))]

    def deflection(self, q0: Components, q: Components) -> Components:
        return super().difference(q0, q)


REVOLUTE = Screw("revolute", units=("rad",), rotates=(True,), translates=(False,))
"""The coordinate is the angle about the axis."""

CONTINUOUS = Turn("continuous", units=("rad",), rotates=(True,), translates=(False,))
"""A revolute joint without limits, which may turn any number of times."""

PRISMATIC = Screw("prismatic", units=("m",), rotates=(False,), translates=(True,))
"""The coordinate is the shift along the axis."""

HELICAL = Screw("helical", units=("rad",), rotates=(True,), translates=(False,), has_pitch=True)
"""The coordinate is the angle about the axis; the joint advances along it by its pitch, m/rad."""
