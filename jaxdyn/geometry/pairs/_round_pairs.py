"""Candidates of spheres and capsules, and of spheres with cylinders, after MuJoCo's engine_collision_primitive.c."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxdyn.geometry._componentwise import SHORTEST, clipped, select
from jaxdyn.geometry._witness import Witness, inactive_unless
from jaxdyn.geometry.pairs._candidates import Placed, place_on_axis, spheres_touch

PARALLEL = 1e-8
"""The square of the sine of the angle below which two capsules are parallel: they have two contacts then."""


def sphere_sphere(one: Placed, two: Placed, margin) -> list[Witness]:
    return [spheres_touch(one.position, one.size(0), one.axis, two.position, two.size(0), two.axis)]


def sphere_capsule(sphere: Placed, capsule: Placed, margin) -> list[Witness]:
    place = place_on_axis(capsule, sphere.position, capsule.size(1))
    return [spheres_touch(sphere.position, sphere.size(0), sphere.axis, place, capsule.size(0), capsule.axis)]


class TwoAxes(NamedTuple):
    """The axes of two capsules, with places measured along them from their middles; arrays `[n, 1, *batch]`."""

    one: Placed
    two: Placed
    cosine: Any
    """The cosine of the angle between them."""
    along1: Any
    """The place of the first line that is nearest to the middle of the second capsule."""
    along2: Any
    """The place of the second line that is nearest to the middle of the first capsule."""
    square: Any
    """The square of the sine of the angle."""
    shift: Any
    """This square times the place of the first line that is nearest to the second line."""

    @classmethod
    def of(cls, one: Placed, two: Placed) -> TwoAxes:
        """Return the axes of two capsules."""
        between, across = one.position - two.position, one.axis.cross(two.axis)
        along1, along2 = -one.axis.dot(between), two.axis.dot(between)
        shift = across.dot(two.axis.cross(between))
        return cls(one, two, one.axis.dot(two.axis), along1, along2, across.squared_norm(), shift)

    def nearest_on_one(self, t: Any) -> Any:
        """Return the place of the first axis that is nearest to a place of the second."""
        return clipped(self.along1 + self.cosine * t, self.one.size(1))

    def nearest_on_two(self, s: Any) -> Any:
        """Return the place of the second axis that is nearest to a place of the first."""
        return clipped(self.along2 + self.cosine * s, self.two.size(1))

    def nearest(self, parallel: float = PARALLEL) -> tuple[Any, tuple[Any, Any]]:
        """Return whether the squared sine is larger than `parallel`, and the nearest places of both axes; for parallel
        axes those beside the lower end of the first."""
        crossing = self.square > parallel
        half = self.one.size(1)
        start = jnp.where(crossing, clipped(self.shift / jnp.where(crossing, self.square, 1), half), -half)
        return crossing, self.from_one(start)

    def from_one(self, s: Any) -> tuple[Any, Any]:
        """Return the places for one of the first axis, which moves where the second axis ends."""
        t = self.along2 + self.cosine * s
        on_two = self.nearest_on_two(s)
        return jnp.where(jnp.abs(t) > self.two.size(1), self.nearest_on_one(on_two), s), on_two

    def touch(self, s: Any, t: Any) -> Witness:
        """Return the contacts of the spheres around two places."""
        one, two = self.one, self.two
        center1, center2 = one.position + one.axis * s, two.position + two.axis * t
        return spheres_touch(center1, one.size(0), one.axis, center2, two.size(0), two.axis)


def capsule_capsule(one: Placed, two: Placed, margin) -> list[Witness]:
    """The nearest places of the axes, or for parallel axes the places that lie beside the ends of the first.

    MuJoCo's formulas, from one end in units of the whole length, are the same. Both lengths are positive.
    """
    axes = TwoAxes.of(one, two)
    crossing, nearest = axes.nearest()
    return [axes.touch(*nearest), inactive_unless(~crossing, axes.touch(*axes.from_one(one.size(1))))]


def nearest_capsules(one: Placed, two: Placed, margin) -> list[Witness]:
    """The nearest places of the axes; for parallel axes those beside the lower end of the first."""
    # Below this sine, 4 roots of the roundoff, rounding errors decide where the lines cross.
    axes = TwoAxes.of(one, two)
    return [axes.touch(*axes.nearest(16 * float(jnp.finfo(jnp.result_type(axes.square)).eps))[1])]


def sphere_cylinder(sphere: Placed, cylinder: Placed, margin) -> list[Witness]:
    """The contact with the side, with a disk, or with the edge between them."""
    radius, half, own = cylinder.size(0), cylinder.size(1), sphere.size(0)
    axis = cylinder.axis
    offset = sphere.position - cylinder.position
    height = axis.dot(offset)
    across = offset - axis * height
    square = across.squared_norm()
    beside, over = jnp.abs(height) < half, square < radius * radius
    outside = jnp.sqrt(jnp.where(square > SHORTEST**2, square, 1))
    depth = radius - jnp.where(square > SHORTEST**2, outside, 0)
    nearer_disk = half - jnp.abs(height) < depth
    at_side = beside & ~(over & nearer_disk)
    at_disk = over & ~(beside & ~nearer_disk)

    upward = jnp.where(height > 0, 1.0, -1.0).astype(jnp.result_type(height))
    end = cylinder.position + axis * (upward * half)
    outward = axis * upward
    distance = outward.dot(sphere.position - end) - own
    disk = Witness(distance, -outward, sphere.position - outward * (0.5 * distance + own))
    # The side is a sphere around a place of the axis, the edge a point.
    places = (cylinder.position + axis * height, radius), (end + across * (radius / outside), jnp.zeros_like(radius))
    center, reach = select(at_side, *places)
    return [select(at_side | ~at_disk, spheres_touch(sphere.position, own, sphere.axis, center, reach, axis), disk)]
