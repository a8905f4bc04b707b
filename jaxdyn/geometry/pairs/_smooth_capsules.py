"""The possible contacts of capsules with capsules and boxes at places that move smoothly along the first one: two for
each pair, such as two logs have.

The two are at the ends of that part of the first one's axis which lies over the other shape. Where a place between them
is closer by more than 1 % of the radius, as in capsules that cross, both move there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxdyn._types import Array
from jaxdyn.geometry._componentwise import along_candidates, clipped, largest_of, slab
from jaxdyn.geometry._witness import Witness
from jaxdyn.geometry.pairs._candidates import Placed, half_sizes
from jaxdyn.geometry.pairs._capsule_box import nearest_of_box, sphere_at_box
from jaxdyn.geometry.pairs._round_pairs import TwoAxes
from jaxdyn.spatial import Vec3

BLEND = 0.01
"""The two places on a capsule may miss the deepest one by half of this times its radius."""
ROUNDING = 1e-5
"""The weight that draws a place on a capsule that is not unique to the middle of what is possible."""


def smooth_capsules(one: Placed, two: Placed, margin) -> list[Witness]:
    axes, half = TwoAxes.of(one, two), one.size(1)
    # The ends of the other segment, seen from this axis.
    stretch = axes.cosine * two.size(1)
    ends = clipped(axes.along1 - stretch, half), clipped(axes.along1 + stretch, half)
    center = 0.5 * (ends[0] + ends[1])
    # The nearest place of the other axis without its ends; for parallel axes the middle.
    nearest = clipped((ROUNDING * center + axes.shift) / (axes.square + ROUNDING), half)
    return _at_two_places(one, ends, nearest, lambda s: axes.touch(s, axes.nearest_on_two(s)))


def smooth_capsule_box(capsule: Placed, box: Placed, margin) -> list[Witness]:
    center, slabs, nearest = _over_box(capsule, box, ROUNDING)
    # The axis over the face that the normal belongs to is within the slabs of the two other directions.
    normal = nearest_of_box(box, center(nearest))[1]
    faces = [
        (jnp.abs(n), (jnp.maximum(slabs[j][0], slabs[k][0]), jnp.minimum(slabs[j][1], slabs[k][1])))
        for n, j, k in zip(jax.tree.leaves(normal), (1, 2, 0), (2, 0, 1), strict=True)
    ]
    low, high = largest_of(faces)[1]
    ends = jnp.minimum(low, nearest), jnp.maximum(high, nearest)
    return _at_two_places(capsule, ends, nearest, lambda s: sphere_at_box(box, center(s), capsule.size(0)))


def nearest_capsule_box(capsule: Placed, box: Placed, margin) -> list[Witness]:
    """The sphere around the place of the capsule's axis that is nearest to the box; where the axis goes through the
    box, around the middle of its part inside."""
    # Larger than rounding errors of the slope, and so small that the place is the nearest one to 4e-11 (double).
    rounding = float(jnp.finfo(jnp.result_type(capsule.sizes)).eps) ** (2 / 3)
    center, _, nearest = _over_box(capsule, box, rounding)
    return [sphere_at_box(box, center(nearest), capsule.size(0))]


def _over_box(
    capsule: Placed, box: Placed, rounding: float
) -> tuple[Callable[[Any], Vec3], list[tuple[Any, Any]], Any]:
    """The points of the capsule's axis in the box's axes, by their places; the parts of the axis in the slabs of the
    box's three directions; and the place nearest to the box."""
    at, half = box.pose.inverse().compose(capsule.pose), capsule.size(1)
    columns = (jax.tree.leaves(v) for v in (at.translation, at.rotation.z, half_sizes(box)))
    axes = list(zip(*columns, strict=True))
    slabs = [slab(x, slope, side, half) for x, slope, side in axes]
    return lambda s: at.translation + at.rotation.z * s, slabs, _nearest_to_box(axes, slabs, half, rounding)


def _nearest_to_box(axes, slabs, half, rounding: float) -> Array:
    """The place of a capsule's axis that is nearest to a box: the root of the slope of the squared distance.

    The slope grows, and is linear between the places where the axis enters and leaves the slabs of the three
    directions. A small multiple of the squared distance from the capsule's middle makes the root unique.
    """

    def slope_at(s):
        return sum(slope * (x + slope * s - clipped(x + slope * s, side)) for x, slope, side in axes) + rounding * s

    low, high = -half, half
    for place in (x for pair in slabs for x in pair):
        slope = slope_at(place)
        low = jnp.maximum(low, jnp.where(slope <= 0, place, low))
        high = jnp.minimum(high, jnp.where(slope >= 0, place, high))
    low, high = jnp.minimum(low, high), jnp.maximum(low, high)
    at_low, at_high = slope_at(low), slope_at(high)
    rise = at_high - at_low
    wide = rise > float(jnp.finfo(rise.dtype).eps) * rounding
    fraction = jnp.where(wide, -at_low / jnp.where(wide, rise, 1), 0.5)
    return low + (high - low) * jnp.clip(fraction, 0, 1)


def _at_two_places(
    capsule: Placed, ends: tuple[Any, Any], nearest: Any, touch: Callable[[Any], Witness]
) -> list[Witness]:
    """The spheres around the ends of the part of the axis over the other shape, or around the nearest place where that
    is closer than both."""
    first, last, closest = (touch(s).gap for s in (*ends, nearest))
    closer = jnp.maximum(jnp.minimum(first, last) - closest, 0)
    allowed = BLEND * capsule.size(0)
    square = closer * closer
    weight = square / (square + allowed * allowed + float(jnp.finfo(square.dtype).tiny))
    signs = along_candidates([0.0, 1.0], capsule.sizes)
    outer = ends[0] * (1 - signs) + ends[1] * signs
    return [touch(outer + weight * (nearest - outer))]
