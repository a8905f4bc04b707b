"""Candidates of pairs for which MuJoCo has only its general routine for convex shapes, which ends at a tolerance: those
with one contact, along the direction in which they are farthest apart, and capsules with cylinders.

MuJoCo's own contacts differ from it by that tolerance: with the default, for shapes of 0.1 m, by at most 1e-7 m in
distance, 5e-5 m in position and 2e-4 in the normal.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxdyn.geometry._componentwise import select, sign
from jaxdyn.geometry._witness import Witness, inactive_unless
from jaxdyn.geometry.pairs._candidates import Placed
from jaxdyn.geometry.pairs._faces import SLANT, disk, edge_on_face
from jaxdyn.geometry.pairs._separation import (
    Separation,
    Shape,
    box_shape,
    capsule_axis,
    cylinder_shape,
    ellipsoid_shape,
    separation,
)
from jaxdyn.spatial import Vec3

SIDEWAYS = 1e-5
"""The part of a normal along a cylinder's axis, or across it, below which it counts as none."""


def sphere_ellipsoid(one: Placed, two: Placed, margin) -> list[Witness]:
    return [_single(one, (), two, ellipsoid_shape(two), one.size(0))]


def capsule_ellipsoid(one: Placed, two: Placed, margin) -> list[Witness]:
    return [_single(one, capsule_axis(one), two, ellipsoid_shape(two), one.size(0))]


def ellipsoid_ellipsoid(one: Placed, two: Placed, margin) -> list[Witness]:
    return [_single(one, ellipsoid_shape(one), two, ellipsoid_shape(two))]


def ellipsoid_cylinder(one: Placed, two: Placed, margin) -> list[Witness]:
    return [_single(one, ellipsoid_shape(one), two, cylinder_shape(two))]


def ellipsoid_box(one: Placed, two: Placed, margin) -> list[Witness]:
    return [_single(one, ellipsoid_shape(one), two, box_shape(two))]


def capsule_cylinder(capsule: Placed, cylinder: Placed, margin) -> list[Witness]:
    """The contact of the nearest place of the axis; but for a capsule that lies along one of the disks two contacts
    with it."""
    single = _single(capsule, capsule_axis(capsule), cylinder, cylinder_shape(cylinder), capsule.size(0))
    lies, pair = _along_disk(capsule, cylinder, single.normal, margin)
    first = select(lies, pair[0], single)
    return [first, inactive_unless(lies, pair[1])]


def _single(one: Placed, shape1: Shape, two: Placed, shape2: Shape, radius: Any = 0.0) -> Witness:
    """The contact of two shapes, of which a radius is added to the first."""
    return contact_at(one, two, separation(two.position - one.position, shape1, shape2), radius)


def contact_at(one: Placed, two: Placed, apart: Separation, radius: Any = 0.0) -> Witness:
    """The contact halfway between the nearest points, of which the first moves outward by a radius."""
    places = one.position + apart.place1 + apart.normal * radius, two.position + apart.place2
    return Witness(apart.distance - radius, apart.normal, (places[0] + places[1]) * 0.5)


def _along_disk(capsule: Placed, cylinder: Placed, normal: Vec3, margin) -> tuple[Any, list[Witness]]:
    """Whether a capsule lies along a disk of a cylinder, given the normal where it is nearest, and its two contacts: of
    a line of the capsule's surface."""
    along, slope = cylinder.axis.dot(capsule.axis), cylinder.axis.dot(normal)
    face = disk(cylinder, sign(-slope))
    across = normal - capsule.axis * capsule.axis.dot(normal)
    line = capsule.position + across * (capsule.size(0) + 0.5 * margin)
    reach = capsule.axis * capsule.size(1)
    lies, found = edge_on_face(face, (line - reach, line + reach), margin, 0.5 * margin)
    lies = lies & (jnp.abs(along) < SLANT) & (jnp.abs(slope) > SIDEWAYS)
    return lies, [each._replace(normal=-face.normal) for each in found]
