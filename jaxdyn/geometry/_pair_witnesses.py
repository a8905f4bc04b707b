"""The possible contacts of two shapes."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxdyn._errors import ModelError
from jaxdyn._types import Array
from jaxdyn.geometry._box_pairs import BOX_PAIR_COUNT, box_pair
from jaxdyn.geometry._shapes import (
    AbstractRoundedPoints,
    AbstractShape,
    Box,
    Capsule,
    Cylinder,
    Points,
    Sphere,
    along_candidates,
)
from jaxdyn.geometry._signed_distances import (
    DISTANCES,
    box_distance,
    capsule_distance,
    clipped,
    half_sizes,
    largest_of,
    slab,
)
from jaxdyn.geometry._witness import Witness, with_candidates, witness_rows
from jaxdyn.spatial import Pose, Vec3

BLEND = 0.01
"""The two places on a capsule may miss the deepest one by half of this times its radius."""
ROUNDING = 1e-5
"""The weight that draws a place on a capsule that is not unique to the middle of what is possible."""

_ORDER = (Points, Sphere, Capsule, Box, Cylinder)
"""The pairs are computed with the class that comes earlier as the first."""


def pair_witness_count(
    kind1: type[AbstractShape], size_count1: int, kind2: type[AbstractShape], size_count2: int
) -> int:
    """Return the number of witnesses of a pair of shapes of two classes with so many sizes: see `pair_witnesses`.

    **Raises** `ModelError` for classes that have no pairs.
    """
    if _reversed(kind1, kind2):
        kind1, size_count1, kind2 = kind2, size_count2, kind1
    return {Box: BOX_PAIR_COUNT, Capsule: 2}.get(kind1, kind1.witness_count(size_count1))


def pair_witnesses(
    kind1: type[AbstractShape], sizes1: Array, pose1: Pose, kind2: type[AbstractShape], sizes2: Array, pose2: Pose
) -> Witness:
    """Return the possible contacts of pairs of shapes: of each shape of the first class with one of the second.

    Sizes are rows `[n, k, *batch]` and poses rows `[n, *batch]`. The witnesses are rows `[n * count, *batch]`, ordered
    pair by pair, with `pair_witness_count` of them a pair:

    | pair | count | gap |
    |---|---|---|
    | sphere or points with sphere, capsule, box, cylinder | 1 for each | exact |
    | capsule with capsule | 2 | the smaller one exact within 0.5 % of the first radius |
    | capsule with box | 2 | the same, while the capsule's axis is outside the box |
    | box with box | 13 | approximate, see below |

    The two contacts of a capsule are at the ends of that part of its axis which lies over the other shape, such as two
    logs have. Where a place between them is closer by more than 1 % of the radius, as in capsules that cross, both move
    there.

    Boxes have the points where the edges of one box's face enter and leave the other's face (8), that face's corners
    (4), and the two edges that cross (1). The faces are those of the direction with the largest separation (Gottschalk,
    Lin & Manocha, OBBTree, SIGGRAPH 1996), and gaps are along it. They are exact where boxes touch or overlap little,
    and too large or small between boxes far apart. Contacts that lie at the same place are counted as often.

    Everything is elementwise, and all derivatives are finite.

    **Raises** `ModelError` for classes that have no pairs: ellipsoids, points with points, and cylinders with capsules,
    boxes or cylinders.
    """
    if _reversed(kind1, kind2):
        gap, normal, point = pair_witnesses(kind2, sizes2, pose2, kind1, sizes1, pose1)
        return Witness(gap, -normal, point)
    at1, at2 = with_candidates(pose1), with_candidates(pose2)
    if kind1 is Box:
        return witness_rows(*box_pair(sizes1, at1, sizes2, at2))
    # In the axes of the second shape.
    at = at2.inverse().compose(at1)
    if kind1 is Capsule:
        along = (_along_capsule if kind2 is Capsule else _along_box)(sizes1, at, sizes2)
        center, radius = at.translation + at.rotation.z * along, sizes1[:, :1]
    else:
        assert issubclass(kind1, AbstractRoundedPoints)
        centers, radius = kind1.spheres(sizes1)
        center = at.apply(centers)
    distance, normal = DISTANCES[kind2](sizes2, center)
    middle = center - normal * (0.5 * (distance + radius))
    return witness_rows(distance - radius, -at2.rotation.apply(normal), at2.apply(middle))


def _reversed(kind1: type[AbstractShape], kind2: type[AbstractShape]) -> bool:
    """Whether a pair is computed in the other order."""
    for kind in (kind1, kind2):
        if kind not in _ORDER:
            known = ", ".join(x.__name__ for x in _ORDER)
            raise ModelError(f"{kind.__name__} touches surfaces only; pairs of shapes are built of {known}")
    if kind1 is Points and kind2 is Points:
        raise ModelError("Points do not touch Points; give one of the bodies another shape")
    if Cylinder in (kind1, kind2) and not {kind1, kind2} & {Points, Sphere}:
        other = kind1 if kind2 is Cylinder else kind2
        raise ModelError(f"a Cylinder touches Sphere and Points, but not {other.__name__}; a Capsule touches more")
    return _ORDER.index(kind1) > _ORDER.index(kind2)


# Places along the axis of a capsule, whose middle and direction in the other shape's frame are those of a pose `at`.


def _along_capsule(sizes: Array, at: Pose, other: Array) -> Array:
    """The two places where a capsule meets another capsule."""
    c, u, half, reach = at.translation, at.rotation.z, sizes[:, 1:2], other[:, 1:2]
    middle, stretch = -u.dot(c), u.z * reach
    # The ends of the other segment, seen from this axis.
    ends = clipped(middle - stretch, half), clipped(middle + stretch, half)
    center = 0.5 * (ends[0] + ends[1])
    # The nearest place of the other axis without its ends; for parallel axes the middle.
    nearest = (ROUNDING * center - c.x * u.x - c.y * u.y) / (u.x * u.x + u.y * u.y + ROUNDING)
    return _two_places(sizes, at, ends, clipped(nearest, half), lambda x: capsule_distance(other, x)[0])


def _along_box(sizes: Array, at: Pose, other: Array) -> Array:
    """The two places where a capsule meets a box."""
    c, u, half, sides = at.translation, at.rotation.z, sizes[:, 1:2], half_sizes(other)
    axes = list(zip(jax.tree.leaves(c), jax.tree.leaves(u), jax.tree.leaves(sides), strict=True))
    slabs = [slab(x, slope, side, half) for x, slope, side in axes]
    nearest = _nearest_to_box(axes, slabs, half)
    normal = box_distance(other, c + u * nearest)[1]
    # The axis over the face that the normal belongs to is within the slabs of the two other directions.
    faces = [
        (jnp.abs(n), (jnp.maximum(slabs[j][0], slabs[k][0]), jnp.minimum(slabs[j][1], slabs[k][1])))
        for n, j, k in zip(jax.tree.leaves(normal), (1, 2, 0), (2, 0, 1), strict=True)
    ]
    low, high = largest_of(faces)[1]
    ends = jnp.minimum(low, nearest), jnp.maximum(high, nearest)
    return _two_places(sizes, at, ends, nearest, lambda x: box_distance(other, x)[0])


def _nearest_to_box(axes, slabs, half) -> Array:
    """The place of a capsule's axis that is nearest to a box: the root of the slope of the squared distance.

    The slope grows, and is linear between the places where the axis enters and leaves the slabs of the three
    directions. A small multiple of the squared distance from the capsule's middle makes the root unique.
    """

    def slope_at(s):
        return sum(slope * (x + slope * s - clipped(x + slope * s, side)) for x, slope, side in axes) + ROUNDING * s

    low, high = -half, half
    for place in (x for pair in slabs for x in pair):
        slope = slope_at(place)
        low = jnp.maximum(low, jnp.where(slope <= 0, place, low))
        high = jnp.minimum(high, jnp.where(slope >= 0, place, high))
    low, high = jnp.minimum(low, high), jnp.maximum(low, high)
    at_low, at_high = slope_at(low), slope_at(high)
    rise = at_high - at_low
    wide = rise > float(jnp.finfo(rise.dtype).eps) * ROUNDING
    fraction = jnp.where(wide, -at_low / jnp.where(wide, rise, 1), 0.5)
    return low + (high - low) * jnp.clip(fraction, 0, 1)


def _two_places(sizes: Array, at: Pose, ends, nearest, distance: Callable[[Vec3], Array]) -> Array:
    """The ends of the part of the axis over the other shape, or the nearest place where that is closer than both."""
    first, last, closest = (distance(at.translation + at.rotation.z * s) for s in (*ends, nearest))
    closer = jnp.maximum(jnp.minimum(first, last) - closest, 0)
    allowed = BLEND * sizes[:, :1]
    square = closer * closer
    weight = square / (square + allowed * allowed + float(jnp.finfo(square.dtype).tiny))
    signs = along_candidates([0.0, 1.0], sizes)
    outer = ends[0] * (1 - signs) + ends[1] * signs
    return outer + weight * (nearest - outer)
