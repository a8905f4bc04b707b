"""Candidates of pairs for which MuJoCo has only its general routine for convex shapes, which ends at a tolerance.

The contact is the one that the routine converges to: between the nearest points of the ellipsoid or cylinder and of the
center or the axis of the other shape. MuJoCo's own contacts differ from it by that tolerance: with the default, for
shapes of 0.1 m, by at most 1e-7 m in distance, 5e-5 m in position and 2e-4 in the normal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxdyn.geometry import clipped, length_and_direction, select
from jaxdyn.scenes._collisions._candidates import SHORTEST, X_AXIS, Found, Geom, inactive_unless, parts
from jaxdyn.scenes._collisions._faces import SLANT, disk, edge_on_face
from jaxdyn.scenes._collisions._round_pairs import sphere_cylinder
from jaxdyn.spatial import Pose, Vec3

MULTIPLIER_STEPS = 8
"""Newton steps for the nearest point of an ellipsoid."""
PLACE_STEPS = {"ellipsoid": 12, "cylinder": 24}
"""Newton steps, or halvings, for the place of an axis that is nearest to a shape."""
SIDEWAYS = 1e-5
"""The part of the normal along the cylinder's axis below which the contact is on its side."""
SMALLEST = 1e-3
"""How near the multiplier of a center inside may come to the one of the ellipsoid's center, where the nearest point is
not unique, in parts of the smallest squared semi-axis."""


def sphere_ellipsoid(sphere: Geom, ellipsoid: Geom, margin) -> list[Found]:
    """The contact with the nearest point of the ellipsoid, also for a center inside."""
    center = ellipsoid.pose.rotation.apply_transpose(sphere.position - ellipsoid.position)
    radius = sphere.size(0)
    axes = _semi_axes(ellipsoid)
    t = jax.lax.stop_gradient(_multiplier(axes, center))
    # One more step, which has the derivatives of the root.
    t = t + _newton_step(axes, center, t)
    normal = length_and_direction(_outward(axes, center, t), X_AXIS, SHORTEST)[1]
    # Of length one at the root.
    scaled = length_and_direction(jax.tree.map(lambda a, x: a * x / (a * a + t), axes, center), X_AXIS, SHORTEST)[1]
    nearest = jax.tree.map(lambda a, x: a * x, axes, scaled)
    distance = normal.dot(center - nearest)
    place = center - normal * (radius + 0.5 * (distance - radius))
    return [Found(distance - radius, ellipsoid.pose.apply(place), ellipsoid.pose.rotation.apply(-normal))]


def capsule_ellipsoid(capsule: Geom, ellipsoid: Geom, margin) -> list[Found]:
    """The contact of the sphere at the place of the axis that is nearest to the ellipsoid."""
    axes = _semi_axes(ellipsoid)

    def slope(point: Vec3, along: Vec3) -> tuple[Any, Any]:
        t = _multiplier(axes, point)
        outward = _outward(axes, point, t)
        scaled = jax.tree.map(lambda a, x: a * x / (a * a + t), axes, point)
        changing = jax.tree.map(lambda a, x: a * x / (a * a + t), axes, along)
        thinner = jax.tree.map(lambda a, x: x / (a * a + t), axes, scaled)
        rate = scaled.dot(changing) / (scaled.dot(thinner) + SHORTEST)
        rise = sum(
            u * (u - o * rate) / (a * a + t) for u, o, a in zip(*map(parts, (along, outward, axes)), strict=True)
        )
        return outward.dot(along), rise

    return sphere_ellipsoid(_sphere_nearest(capsule, ellipsoid, slope, PLACE_STEPS["ellipsoid"]), ellipsoid, margin)


def capsule_cylinder(capsule: Geom, cylinder: Geom, margin) -> list[Found]:
    """The contact of the sphere at the place of the axis that is nearest to the cylinder; but for a capsule that lies
    along one of the disks two contacts with it."""
    radius, half = cylinder.size(0), cylinder.size(1)

    def slope(point: Vec3, along: Vec3) -> tuple[Any, Any]:
        distance, outward = length_and_direction(Vec3(point.x, point.y, 0.0), X_AXIS, SHORTEST)
        beside, over = distance > radius, jnp.abs(point.z) > half
        share = jnp.where(beside, 1 - radius / jnp.where(beside, distance, 1), 0)
        height = point.z - clipped(point.z, half)
        radial = outward.dot(along)
        flat = along.x * along.x + along.y * along.y
        rise = jnp.where(beside, share * (flat - radial * radial) + radial * radial, 0)
        rise = rise + jnp.where(over, along.z * along.z, 0)
        return share * distance * radial + height * along.z, rise

    (single,) = sphere_cylinder(_sphere_nearest(capsule, cylinder, slope, PLACE_STEPS["cylinder"]), cylinder, margin)
    lies, pair = _along_disk(capsule, cylinder, single.normal, margin)
    first = Found(*select(lies, tuple(pair[0][:3]), tuple(single[:3])))
    return [first, inactive_unless(lies, pair[1])]


def _along_disk(capsule: Geom, cylinder: Geom, normal: Vec3, margin) -> tuple[Any, list[Found]]:
    """Whether a capsule lies along a disk of a cylinder, given the normal where it is nearest, and its two contacts: of
    a line of the capsule's surface."""
    along, slope = cylinder.axis.dot(capsule.axis), cylinder.axis.dot(normal)
    face = disk(cylinder, jnp.where(slope > 0, -1.0, 1.0).astype(jnp.result_type(slope)))
    across = normal - capsule.axis * capsule.axis.dot(normal)
    line = capsule.position + across * (capsule.size(0) + 0.5 * margin)
    reach = capsule.axis * capsule.size(1)
    lies, found = edge_on_face(face, (line - reach, line + reach), margin, 0.5 * margin)
    lies = lies & (jnp.abs(along) < SLANT) & (jnp.abs(slope) > SIDEWAYS)
    return lies, [each._replace(normal=-face.normal) for each in found]


def _semi_axes(ellipsoid: Geom) -> Vec3:
    return Vec3(ellipsoid.size(0), ellipsoid.size(1), ellipsoid.size(2))


def _outward(axes: Vec3, point: Vec3, t) -> Vec3:
    """The direction of the surface's normal at the point that is nearest to another one."""
    return jax.tree.map(lambda a, x: x / (a * a + t), axes, point)


def _newton_step(axes: Vec3, point: Vec3, t):
    """The step for the multiplier `t` with `sum (a x / (a^2 + t))^2 = 1`, for the inverse square root of the sum, which
    is nearly linear in `t` (Moré & Sorensen, Computing a trust region step, 1983)."""
    scaled = jax.tree.map(lambda a, x: a * x / (a * a + t), axes, point)
    thinner = jax.tree.map(lambda a, x: x / (a * a + t), axes, scaled)
    square = scaled.squared_norm() + SHORTEST
    return square / (scaled.dot(thinner) + SHORTEST) * (jnp.sqrt(square) - 1)


def _multiplier(axes: Vec3, point: Vec3):
    """The `t` with which the point of an ellipsoid nearest to a point is `a^2 x / (a^2 + t)`."""
    smallest = jnp.minimum(jnp.minimum(axes.x, axes.y), axes.z)
    least = -smallest * smallest * (1 - SMALLEST)

    def step(t, _):
        return jnp.maximum(t + _newton_step(axes, point, t), least), None

    start = jnp.zeros_like(point.x + smallest)
    return jax.lax.scan(step, start, None, length=MULTIPLIER_STEPS)[0]


def _sphere_nearest(capsule: Geom, other: Geom, slope: Callable[[Vec3, Vec3], tuple[Any, Any]], steps: int) -> Geom:
    """The sphere of a capsule at the place of its axis that is nearest to a convex shape.

    The slope, and its own, of the distance along the axis are given for a point and a direction in the other shape's
    axes. The slope grows: Newton steps between the places that are known to lie on both sides, or halvings where these
    are slow, find its root.
    """
    center = other.pose.rotation.apply_transpose(capsule.position - other.position)
    along = other.pose.rotation.apply_transpose(capsule.axis)
    half = capsule.size(1)

    def step(state, _):
        low, high, s, last = state
        value, rise = slope(center + along * s, along)
        low, high = jnp.where(value <= 0, s, low), jnp.where(value >= 0, s, high)
        steep = rise > SHORTEST
        proposed = s - value / jnp.where(steep, rise, 1)
        fast = steep & (proposed > low) & (proposed < high) & (2 * jnp.abs(proposed - s) < last)
        proposed = jnp.where(fast, proposed, 0.5 * (low + high))
        return (low, high, proposed, jnp.abs(proposed - s)), None

    zero = jnp.zeros_like(center.x + half)
    ends = [slope(center + along * s, along)[0] for s in (-half, half)]
    s = jax.lax.scan(step, (zero - half, zero + half, zero, zero + 4 * half), None, length=steps)[0][2]
    s = jax.lax.stop_gradient(s)
    value, rise = slope(center + along * s, along)
    steep = rise > SHORTEST
    s = s - jnp.where(steep, value / jax.lax.stop_gradient(jnp.where(steep, rise, 1)), 0)
    s = jnp.where(ends[0] >= 0, -half, jnp.where(ends[1] <= 0, half, s))
    place = capsule.position + capsule.axis * s
    return Geom(capsule.sizes, Pose(capsule.pose.rotation, place))
