"""Candidates of spheres and capsules, and of spheres with cylinders, after MuJoCo's engine_collision_primitive.c."""

from __future__ import annotations

import jax.numpy as jnp

from jaxdyn.geometry import clipped, select
from jaxdyn.worlds._collisions._candidates import (
    SHORTEST,
    Found,
    Geom,
    inactive_unless,
    place_on_axis,
    spheres_touch,
)

PARALLEL = 1e-8
"""The square of the sine of the angle below which two capsules are parallel: they have two contacts then."""


def sphere_sphere(one: Geom, two: Geom, margin) -> list[Found]:
    return [spheres_touch(one.position, one.size(0), one.axis, two.position, two.size(0), two.axis)]


def sphere_capsule(sphere: Geom, capsule: Geom, margin) -> list[Found]:
    place = place_on_axis(capsule, sphere.position, capsule.size(1))
    return [spheres_touch(sphere.position, sphere.size(0), sphere.axis, place, capsule.size(0), capsule.axis)]


def capsule_capsule(one: Geom, two: Geom, margin) -> list[Found]:
    """The nearest places of the axes, or for parallel axes the places that lie beside the ends of the first.

    Places are measured along the axes from their middles: MuJoCo's formulas, from one end in units of the whole length,
    are the same. Both lengths are positive.
    """
    half1, half2 = one.size(1), two.size(1)
    between, cosine = one.position - two.position, one.axis.dot(two.axis)
    along1, along2 = -one.axis.dot(between), two.axis.dot(between)

    def nearest_on_one(t):
        return clipped(along1 + cosine * t, half1)

    def both(s):
        """The places for one on the first axis, which moves where the second axis ends."""
        t = along2 + cosine * s
        on_two = clipped(t, half2)
        return jnp.where(jnp.abs(t) > half2, nearest_on_one(on_two), s), on_two

    across = one.axis.cross(two.axis)
    square = across.squared_norm()
    crossing = square > PARALLEL
    nearest = across.dot(two.axis.cross(between)) / jnp.where(crossing, square, 1)
    first = select(crossing, both(clipped(nearest, half1)), both(-half1))

    def touching(places):
        s, t = places
        center1, center2 = one.position + one.axis * s, two.position + two.axis * t
        return spheres_touch(center1, one.size(0), one.axis, center2, two.size(0), two.axis)

    return [touching(first), inactive_unless(~crossing, touching(both(half1)))]


def sphere_cylinder(sphere: Geom, cylinder: Geom, margin) -> list[Found]:
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

    side = spheres_touch(sphere.position, own, sphere.axis, cylinder.position + axis * height, radius, axis)
    upward = jnp.where(height > 0, 1.0, -1.0).astype(jnp.result_type(height))
    end = cylinder.position + axis * (upward * half)
    outward = axis * upward
    distance = outward.dot(sphere.position - end) - own
    disk = Found(distance, sphere.position - outward * (0.5 * distance + own), -outward)
    edge = spheres_touch(sphere.position, own, sphere.axis, end + across * (radius / outside), 0.0, axis)
    return [Found(*select(at_side, tuple(side[:3]), select(at_disk, tuple(disk[:3]), tuple(edge[:3]))))]
