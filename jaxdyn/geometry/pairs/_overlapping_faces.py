"""The contacts of a disk and another face that lies on it: corners of the part that both share (polygonClip and
polygonQuad of MuJoCo 4).

MuJoCo cuts the second face by the edges of the disk, one after the other, leaves out the corners beyond the margin, and
takes four of the others that span a large area. Which four these are depends on the corner that it starts at, and for
the regular polygons of disks on the last digits of their corners, whose errors are exaggerated here for this choice. A
corner is known by the two lines that meet there, so that places have derivatives.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdyn.geometry._componentwise import SHORTEST, roundoff, select, side_by_side
from jaxdyn.geometry._witness import FAR, Witness, inactive_unless
from jaxdyn.geometry.pairs._faces import Face, disk_corners
from jaxdyn.spatial import Vec3

CORNERS = 4
"""The most contacts."""
PARALLEL = 1e-9
"""The sine of the angle between two lines below which they do not meet."""


EXAGGERATION = {True: 1e4, False: 1e11}
"""The factor of the errors of a disk's corners, for double and for single precision."""


def disk_polygon(radius, exaggerated: bool) -> tuple[Any, Any]:
    """The corners `[n, corners, *batch]` of the polygon that MuJoCo takes for a disk, from its middle, if wanted with
    exaggerated errors."""
    units = disk_corners(EXAGGERATION[radius.dtype == jnp.float64] * exaggerated)
    x, y = (jnp.asarray(c, radius.dtype).reshape(1, -1, *[1] * (radius.ndim - 2)) * radius for c in units)
    return x, y


class Outline(NamedTuple):
    """A face that lies on a disk."""

    corners: tuple[Vec3, Vec3]
    """Its corners in the world, `[n, corners, *batch]`, in MuJoCo's order, and the same with exaggerated errors."""
    normal: Vec3
    """Its outward normal."""
    radius: Any
    """The radius of the disk."""


class _Lines(NamedTuple):
    """Lines along a face, `[n, lines, *batch]`: the outward normals of what they bound, and distances."""

    a: Any
    b: Any
    offset: Any

    def numbers(self):
        """The number of each line."""
        count = self.a.shape[1]
        return jnp.arange(count, dtype=self.a.dtype).reshape(1, count, *[1] * (self.a.ndim - 2))

    def line(self, number) -> tuple[Any, Any, Any]:
        chosen = (self.numbers() == number).astype(self.a.dtype)
        return (
            jnp.sum(self.a * chosen, axis=1, keepdims=True),
            jnp.sum(self.b * chosen, axis=1, keepdims=True),
            jnp.sum(self.offset * chosen, axis=1, keepdims=True),
        )

    def end_of(self, number, last) -> tuple[Any, Any, Any]:
        """Return where the edge along a line ends, counterclockwise, inside all lines up to the number `last`, and the
        number of the line that comes after it."""
        a, b, offset = self.line(number)
        rate = self.b * a - self.a * b
        ahead = (rate > PARALLEL) & (self.numbers() <= last)
        room = self.offset - (self.a * a + self.b * b) * offset
        ways = jnp.where(ahead, room / jnp.where(ahead, rate, 1), FAR)
        way = jnp.min(ways, axis=1, keepdims=True)
        after = jnp.min(jnp.where(ways <= way, self.numbers(), self.a.shape[1] - 1.0), axis=1, keepdims=True)
        return a * offset - b * way, b * offset + a * way, after

    def meeting(self, one, two) -> tuple[Any, Any]:
        """Return the point at which two lines meet."""
        (a1, b1, o1), (a2, b2, o2) = self.line(one), self.line(two)
        across = a1 * b2 - b1 * a2
        meets = jnp.abs(across) > PARALLEL
        scale = jnp.where(meets, 1 / jnp.where(meets, across, 1), 0)
        return (o1 * b2 - b1 * o2) * scale, (a1 * o2 - o1 * a2) * scale


class _Corner(NamedTuple):
    """A corner and the lines before and after it."""

    x: Any
    y: Any
    before: Any
    after: Any


def faces_overlap(face: Face, outline: Outline, margin, needed) -> tuple[Any, list[Witness]]:
    """Whether a disk, which is `face`, and another face share a part within the margin, and up to four contacts.

    Nothing is found where it is not `needed`.
    """
    lines, first = _lines_of(face, outline, False)
    slanted, begin = jax.lax.stop_gradient(_lines_of(face, outline, True))
    # The height of the other face over the disk.
    slope = select(needed, face.axes.apply_transpose(outline.normal), Vec3(0.0, 0.0, -1.0))
    plane = slope.x / slope.z, slope.y / slope.z, slope.dot(first) / slope.z

    def height(x, y):
        return plane[2] - plane[0] * x - plane[1] * y

    corner, inside = _start(slanted, begin, outline.corners[0].x.shape[1], needed)
    kept, places = _walk(slanted, corner, inside, jax.lax.stop_gradient((plane, margin)))
    chosen = _quadrangle(kept, places)
    found = []
    for k, number in enumerate(chosen):
        before, after = (_taken(x, number) for x in (places.before, places.after))
        x, y = lines.meeting(before, after)
        distance = -height(x, y) * slope.z
        place = face.axes.apply(Vec3(x, y, 0.0)) + face.origin - outline.normal * (0.5 * distance)
        found.append(inactive_unless(kept > k, Witness(distance, -outline.normal, place)))
    return kept > 0, found


def _lines_of(face: Face, outline: Outline, exaggerated: bool) -> tuple[_Lines, Vec3]:
    """The edges of the other face along the disk and then those of the disk, and the other's first corner, if wanted
    with exaggerated errors."""
    flat = face.axes.apply_transpose(outline.corners[exaggerated] - face.origin)
    polygons = ((flat.x, flat.y), 1.0), (disk_polygon(outline.radius, exaggerated), -1.0)
    sides = [_lines_along(*corners, turn) for corners, turn in polygons]
    lines = _Lines(*(side_by_side(list(parts)) for parts in zip(*sides, strict=True)))
    return lines, jax.tree.map(lambda x: x[:, :1], flat)


def _lines_along(x, y, turn: float) -> tuple[Any, Any, Any]:
    """The lines from each corner of a polygon to the next one, whose inside is to the left (1) or to the right (-1)."""
    dx, dy = (jnp.roll(v, -1, axis=1) - v for v in (x, y))
    square = dx * dx + dy * dy
    # A face seen from its side has edges without length.
    scale = turn / jnp.sqrt(jnp.where(square > SHORTEST, square, 1))
    a, b = dy * scale, -dx * scale
    return a, b, a * x + b * y


def _taken(values, number):
    """The value of each row at a number."""
    count = values.shape[1]
    numbers = jnp.arange(count, dtype=values.dtype).reshape(1, count, *[1] * (values.ndim - 2))
    return jnp.sum(jnp.where(numbers == number, values, 0), axis=1, keepdims=True)


def _start(lines: _Lines, first: Vec3, count: int, needed) -> tuple[_Corner, Any]:
    """The corner that MuJoCo's list begins with after all cuts, and whether any part is left; where needed.

    A cut moves the beginning to the corner after the former one: after the cut itself where that was cut off.
    """
    zero = jnp.zeros_like(first.x + lines.a[:, :1])
    noise = roundoff(zero) * jnp.max(jnp.abs(lines.offset), axis=1, keepdims=True)
    last = lines.a.shape[1] - 1.0

    def cut(carried):
        number, corner = carried
        a, b, offset = lines.line(number)
        outside = a * corner.x + b * corner.y - offset > noise
        before = jnp.where(outside, number, corner.after)
        x, y, after = lines.end_of(before, number)
        return number + 1, _Corner(x, y, before, after)

    begin = jnp.where(needed, float(count), last + 1) + zero, _Corner(first.x + zero, first.y + zero, zero, zero)
    _, corner = jax.lax.while_loop(lambda carried: (carried[0] <= last).any(), cut, begin)
    beyond = jnp.max(lines.a * corner.x + lines.b * corner.y - lines.offset, axis=1, keepdims=True)
    return corner, needed & (beyond <= noise)


def _walk(lines: _Lines, start: _Corner, inside, bounds) -> tuple[Any, _Corner]:
    """The number of corners within the margin, and these in order, `[n, lines, *batch]`."""
    (plane, margin), most = bounds, lines.a.shape[1]
    zero = jnp.zeros_like(start.x)
    empty = jnp.zeros_like(lines.a)
    begin = zero + jnp.where(inside, 1.0, 0.0), zero, zero, start, _Corner(empty, empty, empty, empty)

    def step(carried):
        going, steps, kept, corner, places = carried
        height = plane[2] - plane[0] * corner.x - plane[1] * corner.y
        counts = (going > 0) & (height <= margin)
        here = counts & (lines.numbers() == kept)
        places = jax.tree.map(lambda old, new: jnp.where(here, new, old), places, corner)
        x, y, after = lines.end_of(corner.after, most - 1.0)
        going = going * jnp.where((after == start.after) | (steps >= most - 1), 0.0, 1.0)
        return going, steps + 1, kept + counts, _Corner(x, y, corner.after, after), places

    _, _, kept, _, places = jax.lax.while_loop(lambda carried: (carried[0] > 0).any(), step, begin)
    return kept, places


class _Quadrangle(NamedTuple):
    """The search for four corners: those at hand, the best so far, and what is tried next."""

    going: Any
    trying: Any
    """0 for the next fourth corner, 1 for the third, 2 for the second."""
    now: tuple[Any, ...]
    best: tuple[Any, ...]
    area: Any


def _quadrangle(count, places: _Corner) -> tuple[Any, ...]:
    """Four of the corners that span a large area; the first four where there are no more."""
    zero = jnp.zeros_like(count)

    def area(x, y):
        return 0.5 * jnp.abs((x[0] - x[2]) * (y[1] - y[3]) - (y[0] - y[2]) * (x[1] - x[3]))

    def following(number):
        return jnp.where(number + 1 >= count, 0.0, number + 1)

    def step(at: _Quadrangle) -> _Quadrangle:
        tried = tuple(
            jnp.where(at.trying == mode, following(k), k) if mode is not None else k
            for mode, k in zip((None, 2, 1, 0), at.now, strict=True)
        )
        larger = area(*([_taken(values, k) for k in tried] for values in (places.x, places.y)))
        better = larger > at.area
        one, two, three, four = at.now
        # The first corner moves on, and the others out of its way.
        meets = two == one
        next_two = jnp.where(meets, following(two), two)
        pushed = meets & (three == next_two)
        next_three = jnp.where(pushed, following(three), three)
        next_four = jnp.where(pushed & (four == next_three), following(four), four)
        moved = one + 1, next_two, next_three, next_four
        ends = ~better & (at.trying == 0)
        trying = jnp.where(at.trying == 0, jnp.where(better, 1.0, 0.0), jnp.where(better, at.trying, at.trying + 1))
        after = _Quadrangle(
            jnp.where(ends & (one + 1 >= count), 0.0, at.going),
            jnp.where(trying > 2, 0.0, trying),
            select(better, tried, select(ends, moved, at.now)),
            select(better, tried, at.best),
            jnp.where(better, larger, at.area),
        )
        return select(at.going > 0, after, at)

    numbers = tuple(zero + k for k in range(CORNERS))
    first = area(*([values[:, k : k + 1] for k in range(CORNERS)] for values in (places.x, places.y)))
    start = _Quadrangle(jnp.where(count > CORNERS, 1.0, 0.0) + zero, zero, numbers, numbers, first)
    return jax.lax.while_loop(lambda at: (at.going > 0).any(), step, start).best
