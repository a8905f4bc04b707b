"""Paths of tendons around spheres and cylinders: where the path between two sites touches a geom, and how long it is.

A path lies in the plane through both sites and the center of a sphere, or is seen along the axis of a cylinder. With a
site at its side it passes on that site's side, and where that site is inside of the geom, the path goes through the
inside and touches the wall at one place, where both pieces make the same angle with the wall.

Source: MuJoCo's documentation, XML reference, `spatial/geom`; `mju_wrap` in `engine_util_misc.c` of MuJoCo.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdyn.algorithms.recursions import Robot
from jaxdyn.spatial import Vec3
from jaxdyn.worlds._parts import SMALL

_STEPS = 20
"""The most steps of MuJoCo's search for the place at the inside."""
_START = 1 - 1e-7
"""Where this search starts: the sine of the angle at the wall."""
_CLOSE = 1e-6
"""The error of angles (rad) at which it ends. It has the same steps here, so that it ends at the same place."""


class Wrap(NamedTuple):
    """How paths touch geoms, `[n, *batch]`, in the frames of the geoms."""

    there: Any
    """Whether the path touches the geom at all."""
    first: Vec3
    second: Vec3
    """Where the first straight piece ends, and where the second one starts."""
    arc: Any
    """The length between these."""


def wrapped(robot: Robot, spheres: np.ndarray, radius, ends: tuple[Vec3, Vec3], side: Vec3, sided: np.ndarray) -> Wrap:
    """Return how the paths between pairs of sites touch geoms, all in the frames of the geoms.

    `spheres`: truth values `[n]`, false for cylinders; `side`: the sites at the side of those with one (`sided`).
    """
    first, second = ends
    ball = robot.constant(spheres.astype(float)) > 0
    axes = jax.tree.map(lambda a, b: jnp.where(ball, a, b), _plane_of(first, second), (_unit(0), _unit(1)))
    d0, d1, flat = (_flat(x.dot(axes[0]), x.dot(axes[1])) for x in (first, second, side))
    has = robot.constant(sided.astype(float)) > 0
    there, tangents, arc = _around(d0, d1, radius, has, _directed(flat) * radius)
    if sided.any():
        inside = has & (side.squared_norm() < radius * radius)
        found, place = _through(d0, d1, radius)
        there, arc = jnp.where(inside, found, there), jnp.where(inside, 0.0, arc)
        tangents = jax.tree.map(lambda a, b: jnp.where(inside, a, b), (place, place), tangents)
    near = jnp.minimum(first.squared_norm(), second.squared_norm()) >= SMALL * SMALL
    ahead, behind = (axes[0] * x.x + axes[1] * x.y for x in tangents)
    before, after = (_root((a - b).squared_norm()) for a, b in ((d0, tangents[0]), (tangents[1], d1)))
    total = jnp.maximum(before + arc + after, SMALL)
    # The path rises along the axis of a cylinder as it would if the cylinder was unrolled.
    rise = jnp.where(ball, 0.0, second.z - first.z)
    low, high = (jnp.where(ball, 0.0, first.z) + rise * x / total for x in (before, before + arc))
    arc = jnp.where(ball, arc, _root(arc * arc + (high - low) ** 2))
    ahead, behind = (Vec3(p.x, p.y, p.z + z) for p, z in ((ahead, low), (behind, high)))
    return Wrap(there & near, ahead, behind, arc)


def _flat(x, y) -> Vec3:
    """Return vectors in a plane."""
    return Vec3(x, y, jnp.zeros_like(x))


def _unit(k: int) -> Vec3:
    return Vec3(*(1.0 if i == k else 0.0 for i in range(3)))


def _plane_of(first: Vec3, second: Vec3) -> tuple[Vec3, Vec3]:
    """Return two axes of the planes through the origin and two points, of which the first goes through the first
    point; for points on one line with the origin MuJoCo's choice of planes."""
    axis = _directed(first)
    normal = first.cross(second)
    sizes = [jnp.abs(x) for x in (axis.x, axis.y, axis.z)]
    second_largest = (sizes[1] > sizes[0]) & (sizes[1] > sizes[2])
    third_largest = (sizes[2] > sizes[0]) & (sizes[2] > sizes[1])
    first_largest = ~(second_largest | third_largest)
    other = axis.cross(Vec3(*(jnp.where(x, 0.0, 1.0) for x in (first_largest, second_largest, third_largest))))
    on_line = normal.squared_norm() < SMALL * SMALL
    normal = _directed(jax.tree.map(lambda a, b: jnp.where(on_line, a, b), other, normal))
    return axis, _directed(normal.cross(axis))


def _around(d0: Vec3, d1: Vec3, radius, has, side: Vec3) -> tuple[Any, tuple[Vec3, Vec3], Any]:
    """Return whether paths touch circles from outside, the tangent points, and the length of the arcs between them."""
    square, from0, from1 = radius * radius, d0.squared_norm(), d1.squared_norm()
    between = d1 - d0
    apart = between.squared_norm()
    along = jnp.clip(-between.dot(d0) / jnp.maximum(apart, SMALL), 0.0, 1.0)
    nearest = d0 + between * along
    meets = (nearest.squared_norm() <= square) | (has & (side.dot(nearest) < 0))
    there = (from0 >= square) & (from1 >= square) & (radius >= SMALL) & (apart >= SMALL) & meets
    length0, length1 = (_root(x - square) for x in (from0, from1))
    inverse0, inverse1 = (1 / jnp.where(there, x, 1.0) for x in (from0, from1))
    ways = []
    for turn in (1.0, -1.0):
        s, t = (_flat(d.y, -d.x) * (radius * l * turn) for d, l in ((d0, length0), (d1, length1)))
        ways.append(((d0 * square + s) * inverse0, (d1 * square - t) * inverse1))
    goodness, crossing = [], [_cross(d0, s, d1, t) for s, t in ways]
    for (s, t), crosses in zip(ways, crossing, strict=True):
        good = jnp.where(has, _directed(s + t).dot(side), -(s - t).squared_norm())
        goodness.append(jnp.where(crosses, -10000.0, good))
    choice = goodness[0] > goodness[1]
    s, t = jax.tree.map(lambda a, b: jnp.where(choice, a, b), *ways)
    crosses = jnp.where(choice, *crossing)
    there = there & ~crosses
    # A path that does not touch has no arc, whose derivative would have no value at a radius of zero.
    y, x = (jnp.where(there, value, default) for value, default in ((s.cross(t).z, 0.0), (s.dot(t), 1.0)))
    angle = jnp.arctan2(y, x) * jnp.where(choice, -1.0, 1.0)
    # Where the path just touches, rounding decides the sign of an angle of zero.
    whole = angle < -16 * jnp.finfo(angle.dtype).eps
    return there, (s, t), radius * jnp.where(whole, angle + 2 * jnp.pi, angle)


def _cross(a: Vec3, b: Vec3, c: Vec3, d: Vec3) -> Any:
    """Return whether the pieces from `a` to `b` and from `c` to `d` cross."""
    one, two, start = b - a, d - c, a - c
    area = one.cross(two).z
    there = jnp.abs(area) >= SMALL
    inverse = 1 / jnp.where(there, area, 1.0)
    along, other = two.cross(start).z * inverse, one.cross(start).z * inverse
    return there & (along >= 0) & (along <= 1) & (other >= 0) & (other <= 1)


def _through(d0: Vec3, d1: Vec3, radius) -> tuple[Any, Vec3]:
    """Return whether paths through the inside of circles touch them, and where."""
    length0, length1 = (_root(x.squared_norm()) for x in (d0, d1))
    between = d1 - d0
    apart = between.squared_norm()
    along = -between.dot(d0) / jnp.maximum(apart, SMALL)
    nearest = d0 + between * along
    straight = (apart > SMALL) & (along > 0) & (along < 1) & (nearest.squared_norm() <= radius * radius)
    product = jnp.maximum(length0 * length1, SMALL)
    cosine = d0.dot(d1) / product
    there = (length0 > radius) & (length1 > radius) & (radius >= SMALL) & ~straight & (cosine >= -1 + SMALL)
    A, B = (jnp.where(there, radius / jnp.where(there, x, 1.0), 0.5) for x in (length0, length1))
    bent = there & (cosine <= 1 - SMALL)
    turn = d0.cross(d1).z
    angle = jnp.arctan2(jnp.where(bent, jnp.abs(turn), 1.0), jnp.where(bent, d0.dot(d1), 0.0))
    sine, found = _sine_at_wall(A, B, angle, bent)
    # The place is turned from the site from which the way there is counterclockwise.
    forward = turn > 0
    start = jax.tree.map(lambda a, b: jnp.where(forward, a, b), _directed(d0), _directed(d1))
    ahead = jnp.arcsin(sine) - jnp.arcsin(jnp.where(forward, A, B) * sine)
    c, s = jnp.cos(ahead), jnp.sin(ahead)
    middle = _directed(d0 + d1)
    place = _flat(c * start.x - s * start.y, s * start.x + c * start.y)
    return there, jax.tree.map(lambda a, b: jnp.where(found, a, b), place, middle) * radius


def _sine_at_wall(A, B, angle, bent) -> tuple[Any, Any]:
    """Return the root of `asin(A z) + asin(B z) - 2 asin(z) + angle`, and whether MuJoCo's search finds it."""

    def error(z, A, B, angle):
        return jnp.arcsin(A * z) + jnp.arcsin(B * z) - 2 * jnp.arcsin(z) + angle

    def slope(z, A, B):
        parts = (k / jnp.maximum(SMALL, _root(1 - k * k * z * z)) for k in (A, B))
        return sum(parts) - 2 / jnp.maximum(SMALL, _root(1 - z * z))

    fixed = lax.stop_gradient((A, B, angle))
    start = jnp.full_like(angle, _START)
    one, none = jnp.ones_like(angle), jnp.zeros_like(angle)
    fails = jnp.where(bent & (error(start, *fixed) <= 0), none, one)

    def going(at):
        z, failed, _ = at
        return (failed < 1) & (jnp.abs(error(z, *fixed)) > _CLOSE)

    def step(at):
        z, failed, count = at
        rate = slope(z, *fixed[:2])
        after = z - error(z, *fixed) / rate
        bad = (rate > -SMALL) | (after > z) | (error(after, *fixed) > _CLOSE)
        moves = going(at)
        return jnp.where(moves & ~bad, after, z), jnp.where(moves & bad, one, failed), count + 1

    begin = start, lax.stop_gradient(fails), none
    z, failed, _ = lax.while_loop(lambda at: (going(at) & (at[2] < _STEPS)).any(), step, begin)
    found = (failed < 1) & (jnp.abs(error(z, *fixed)) <= _CLOSE)
    # Two steps of Newton's method have the derivatives of the root up to the third order; the value stays MuJoCo's.
    z = jnp.where(found, z, 0.5)
    refined = z
    for _ in range(2):
        refined = refined - jnp.where(found, error(refined, A, B, angle) / slope(refined, A, B), 0.0)
    return refined + lax.stop_gradient(z - refined), found


def _root(square) -> Any:
    """Return the root of numbers, with the derivative 0 where they are not positive."""
    there = square > 0
    return jnp.where(there, jnp.sqrt(jnp.where(there, square, 1.0)), 0.0)


def _inverse_root(square, least: float) -> tuple[Any, Any]:
    there = square > least
    return jnp.where(there, 1 / jnp.sqrt(jnp.where(there, square, 1.0)), 0.0), there


def _directed(x: Vec3) -> Vec3:
    """Return the directions of vectors: that of x for one of no length."""
    inverse, there = _inverse_root(x.squared_norm(), SMALL * SMALL)
    return Vec3(jnp.where(there, x.x * inverse, 1.0), x.y * inverse, x.z * inverse)
