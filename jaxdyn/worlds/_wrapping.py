"""Paths of tendons around spheres and cylinders: where the path between two sites touches a geom, and how long it is.

A path lies in the plane through both sites and the center of a sphere, or is seen along the axis of a cylinder, which
has no ends. It is the shorter way around the geom where the straight one would cross it. With a site at its side that
lies in the sector between both ends, or in the opposite one, it passes on that site's side, also where the straight one
would not cross the geom. Where that site is inside of the geom, the path goes through the inside, and if it is not
straight, touches the wall at one place, where both pieces make the same angle with the wall.

Source: MuJoCo's documentation, XML reference, `spatial/geom`; `mju_wrap` in `engine_util_misc.c` of MuJoCo 3.12, but
for the choice of sides, which is that of MuJoCo 4.0 at 8000 random triples of sites. MuJoCo's search for the place at
the wall ends at errors of up to 1e-6 rad; this one goes on to rounding.
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

_STEPS = 64
"""The most steps of Newton's method for the place at the inside. It takes up to 7 but where both sites are so close to
the wall that the equation has almost no slope at its root."""


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
    turn = d0.cross(d1).z
    ahead, behind = (d.cross(side).z for d in (d0, d1))
    # Counterclockwise from the first end, the side is met before the second end, or the other way around.
    left, right = has & (ahead > 0) & (behind < 0), has & (ahead < 0) & (behind > 0)
    meets = (nearest.squared_norm() <= square) | (left & (turn < 0)) | (right & (turn > 0))
    there = (from0 >= square) & (from1 >= square) & (radius >= SMALL) & (apart >= SMALL) & meets
    way = jnp.where(left, 1.0, jnp.where(right, -1.0, jnp.where(turn > 0, 1.0, -1.0)))
    tangents = []
    for d, from_center, sign in ((d0, from0, way), (d1, from1, -way)):
        along_wall = _flat(-d.y, d.x) * (sign * radius * _root(from_center - square))
        tangents.append((d * square + along_wall) * (1 / jnp.where(there, from_center, 1.0)))
    s, t = tangents
    # A path that does not touch has no arc, whose derivative would have no value at a radius of zero.
    y, x = (jnp.where(there, value, default) for value, default in ((s.cross(t).z, 0.0), (s.dot(t), 1.0)))
    angle = jnp.arctan2(y, x) * way
    # Where the path just touches, rounding decides the sign of an angle of zero.
    whole = angle < -16 * jnp.finfo(angle.dtype).eps
    return there, (s, t), radius * jnp.where(whole, angle + 2 * jnp.pi, angle)


def _through(d0: Vec3, d1: Vec3, radius) -> tuple[Any, Vec3]:
    """Return whether paths through the inside of circles touch them, and where."""
    length0, length1 = (_root(x.squared_norm()) for x in (d0, d1))
    between = d1 - d0
    apart = between.squared_norm()
    along = -between.dot(d0) / jnp.maximum(apart, SMALL)
    nearest = d0 + between * along
    straight = (apart > SMALL) & (along > 0) & (along < 1) & (nearest.squared_norm() <= radius * radius)
    there = (length0 > radius) & (length1 > radius) & (radius >= SMALL) & ~straight
    A, B = (jnp.where(there, radius / jnp.where(there, x, 1.0), 0.5) for x in (length0, length1))
    turn, cosine = d0.cross(d1).z, d0.dot(d1)
    # Ends in one direction have the place in this direction, too.
    bent = there & (jnp.abs(turn) > SMALL)
    angle = jnp.where(bent, jnp.arctan2(jnp.where(bent, jnp.abs(turn), 0.0), jnp.where(bent, cosine, 1.0)), 0.0)
    incidence = _incidence(A, B, angle)
    # The place is turned from the end from which the way there is counterclockwise.
    forward = turn > 0
    start = jax.tree.map(lambda a, b: jnp.where(forward, a, b), _directed(d0), _directed(d1))
    ahead = incidence - jnp.arcsin(jnp.where(forward, A, B) * jnp.sin(incidence))
    c, s = jnp.cos(ahead), jnp.sin(ahead)
    return there, _flat(c * start.x - s * start.y, s * start.x + c * start.y) * radius


def _incidence(A, B, angle):
    """Return the angle `x` from 0 to pi/2 between the wall's normal and the path, the root of `asin(A sin x) + asin(B
    sin x) - 2 x + angle`, for radii `A`, `B` over the distances of the ends from the center."""

    def error(x, A, B, angle):
        return jnp.arcsin(A * jnp.sin(x)) + jnp.arcsin(B * jnp.sin(x)) - 2 * x + angle

    def slope(x, A, B):
        return sum(k * jnp.cos(x) / jnp.sqrt(1 - (k * jnp.sin(x)) ** 2) for k in (A, B)) - 2

    fixed = lax.stop_gradient((A, B, angle))

    def step(at):
        x, going, count = at
        # The error is concave and falls, so that steps from above the root stay there; rounding ends them.
        after = jnp.maximum(x - error(x, *fixed) / slope(x, *fixed[:2]), 0.0)
        better = going & (after < x)
        return jnp.where(better, after, x), better, count + 1

    start = jnp.full_like(fixed[2], 0.5 * jnp.pi)
    begin = start, start > 0, 0
    x, _, _ = lax.while_loop(lambda at: at[1].any() & (at[2] < _STEPS), step, begin)
    # Two more steps have the derivatives of the root up to the third order.
    for _ in range(2):
        x = x - error(x, A, B, angle) / slope(x, A, B)
    return x


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
