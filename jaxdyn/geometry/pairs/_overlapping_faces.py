"""The contacts of a disk and another face that lies on it: four places around the part that both share.

MuJoCo has polygons for disks, and takes four of the corners that both share, which ones by the last digits of their
areas (polygonQuad of MuJoCo 4). Here they are the places that are farthest along four directions, the first of which
is the one in which the disk comes down. So the deepest place is one of them, and none jumps where both lie flat. They
are MuJoCo's where the part has four corners or fewer that are not a disk's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from jaxdyn.geometry._componentwise import length_and_direction, roundoff, select, sign
from jaxdyn.geometry._witness import FAR, Witness, inactive_unless
from jaxdyn.geometry.pairs._faces import Face
from jaxdyn.spatial import Vec3

CORNERS = 4
"""The most contacts."""
TURN = 1e-6
"""The angle (rad) by which directions are turned before corners are looked for, so that four directions along the sides
of a rectangle have four corners."""
SAME = 1e-14
"""The square of the distance of equal places, as a part of the squared radius, as for boxes."""

type Farthest = Callable[[Vec3], tuple[Any, Any]]
"""The place of a shared part that is farthest along a direction."""


type SharedPart = Callable[[Vec3, Any], tuple[Any, Farthest]]
"""Called with the middle of a disk, in the axes of another face, and its radius. Returns whether both share a part, and
its farthest places."""


def faces_overlap(
    disk: Face, radius: Any, other: Face, shared: SharedPart, margin: Any, needed: Any
) -> tuple[Any, list[Witness]]:
    """Whether a disk and another face share a part within the margin, and up to four contacts; none where they are not
    `needed`."""
    middle = other.axes.apply_transpose(disk.origin - other.origin)
    normal = select(needed, other.axes.apply_transpose(disk.normal), Vec3(0.0, 0.0, -1.0))
    along = other.axes.apply_transpose(disk.axes.x)
    # As for a cylinder on a surface: a smaller tilt has no direction, and that of the cylinder's x-axis counts.
    shortest = float(jnp.finfo(jnp.result_type(middle.x)).eps) ** 0.5
    along = length_and_direction(Vec3(along.x, along.y, 0.0))[1]
    down = length_and_direction(Vec3(-normal.x, -normal.y, 0.0), along, shortest)[1]
    across = Vec3(-down.y, down.x, 0.0)
    exists, farthest = shared(middle, radius)
    found, places, use = [], [], False
    for way in (down, across, -down, -across):
        x, y = farthest(way)
        gap = middle.z - (normal.x * (x - middle.x) + normal.y * (y - middle.y)) / normal.z
        kept = needed & exists & (gap <= margin)
        use = use | kept
        for before, u, v in places:
            dx, dy = x - u, y - v
            kept = kept & ~(before & (dx * dx + dy * dy < SAME * radius * radius))
        places.append((kept, x, y))
        place = other.axes.apply(Vec3(x, y, 0.5 * gap)) + other.origin
        found.append(inactive_unless(kept, Witness(gap, -other.normal, place)))
    return use, found


def shared_with_disk(other_radius: Any) -> SharedPart:
    """The part that a disk shares with another one, whose middle is the origin."""

    def shared(middle: Vec3, radius: Any) -> tuple[Any, Farthest]:
        x, y, square1, square2 = middle.x, middle.y, radius * radius, other_radius * other_radius
        square = x * x + y * y
        apart = square > 0
        safe = jnp.where(apart, square, 1)
        # Where both circles meet: beside this part of the way from the origin to the middle.
        part = 0.5 * (square + square2 - square1) / safe
        beside = square2 / safe - part * part
        reach = jnp.where(beside > 0, jnp.sqrt(jnp.where(beside > 0, beside, 1)), 0)
        slack = 1 + roundoff(square)

        def farthest(way: Vec3) -> tuple[Any, Any]:
            own, others = (x + way.x * radius, y + way.y * radius), (way.x * other_radius, way.y * other_radius)
            inside = own[0] * own[0] + own[1] * own[1] <= square2 * slack
            contains = (others[0] - x) ** 2 + (others[1] - y) ** 2 <= square1 * slack
            side = sign(way.y * x - way.x * y) * reach
            return select(inside, own, select(contains, others, (x * part - y * side, y * part + x * side)))

        return square < (radius + other_radius) ** 2, farthest

    return shared


def shared_with_rectangle(half_x: Any, half_y: Any) -> SharedPart:
    """The part that a disk shares with a rectangle around the origin, whose sides are along the axes."""

    def shared(middle: Vec3, radius: Any) -> tuple[Any, Farthest]:
        x, y, square = middle.x, middle.y, radius * radius
        crossings = []
        for at, beside, half, limit, turned in ((x, y, half_x, half_y, False), (y, x, half_y, half_x, True)):
            for side in (-half, half):
                rest = square - (side - at) ** 2
                reach = jnp.sqrt(jnp.where(rest > 0, rest, 1))
                for end in (beside - reach, beside + reach):
                    place = (end, side + 0 * end) if turned else (side + 0 * end, end)
                    crossings.append(((rest > 0) & (jnp.abs(end) <= limit), place))

        def farthest(way: Vec3) -> tuple[Any, Any]:
            own = x + way.x * radius, y + way.y * radius
            corner = sign(way.x - TURN * way.y) * half_x, sign(way.y + TURN * way.x) * half_y
            inside = (jnp.abs(own[0]) <= half_x) & (jnp.abs(own[1]) <= half_y)
            contains = (corner[0] - x) ** 2 + (corner[1] - y) ** 2 <= square
            best, place = -FAR, own
            for exists, point in crossings:
                value = jnp.where(exists, way.x * point[0] + way.y * point[1], -FAR)
                best, place = jnp.maximum(best, value), select(value > best, point, place)
            return select(inside, own, select(contains, corner, place))

        beyond = jnp.maximum(jnp.abs(x) - half_x, 0) ** 2 + jnp.maximum(jnp.abs(y) - half_y, 0) ** 2
        return beyond < square, farthest

    return shared
