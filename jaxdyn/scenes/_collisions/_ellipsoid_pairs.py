"""Candidates of ellipsoids with ellipsoids, boxes and cylinders, also where they overlap: one contact, along the
direction in which they are farthest apart."""

from __future__ import annotations

from collections.abc import Callable

from jaxdyn.scenes._collisions._candidates import Found, Geom
from jaxdyn.scenes._collisions._separation import (
    Separation,
    Shape,
    box_shape,
    cylinder_shape,
    ellipsoid_shape,
    separation,
)


def ellipsoid_ellipsoid(one: Geom, two: Geom, margin) -> list[Found]:
    return _single(one, two, ellipsoid_shape)


def ellipsoid_cylinder(one: Geom, two: Geom, margin) -> list[Found]:
    return _single(one, two, cylinder_shape)


def ellipsoid_box(one: Geom, two: Geom, margin) -> list[Found]:
    return _single(one, two, box_shape)


def _single(one: Geom, two: Geom, shape_of_second: Callable[[Geom], Shape]) -> list[Found]:
    apart = separation(two.position - one.position, ellipsoid_shape(one), shape_of_second(two))
    return [contact_at(one, two, apart)]


def contact_at(one: Geom, two: Geom, apart: Separation) -> Found:
    """The contact halfway between the nearest points."""
    middle = (one.position + apart.place1 + two.position + apart.place2) * 0.5
    return Found(apart.distance, middle, apart.normal)
