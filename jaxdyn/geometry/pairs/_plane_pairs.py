"""Candidates of a plane and another geom: as MuJoCo has them (engine_collision_primitive.c and
engine_collision_convex.c), and those that move smoothly."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from jaxdyn.geometry._componentwise import SHORTEST, direction, length_and_direction, roundoff, sign
from jaxdyn.geometry._shapes import AbstractShape, Ellipsoid
from jaxdyn.geometry._surface_witnesses import places_on_surface
from jaxdyn.geometry._surfaces import Plane
from jaxdyn.geometry._witness import Witness
from jaxdyn.geometry.pairs._candidates import Placed, point_on_plane, sphere_on_plane
from jaxdyn.spatial import Vec3

ORIGIN = Vec3(0.0, 0.0, 0.0)


def as_on_surface(kind: type[AbstractShape]) -> Callable[[Placed, Placed, object], list[Witness]]:
    """Return the function of the points at which shapes of a class meet a surface of the world, for planes that may
    move: as many as `kind.witness_count`, on the shapes' own surfaces."""

    def smooth_plane(plane: Placed, shape: Placed, margin) -> list[Witness]:
        there = plane.pose.inverse().compose(shape.pose)
        level = Plane(np.array([0, 0, 1], shape.sizes.dtype), np.zeros((), shape.sizes.dtype))
        gap, _, point = places_on_surface(kind, shape.sizes, there, level)
        return [Witness(gap, plane.axis, plane.pose.apply(point))]

    return smooth_plane


def plane_sphere(plane: Placed, sphere: Placed, margin) -> list[Witness]:
    return [sphere_on_plane(plane, sphere.position, sphere.size(0))]


def plane_capsule(plane: Placed, capsule: Placed, margin) -> list[Witness]:
    """One contact at each end. Their first tangent is along the capsule."""
    reach = capsule.axis * capsule.size(1)
    ends = capsule.position + reach, capsule.position - reach
    return [sphere_on_plane(plane, end, capsule.size(0))._replace(tangent=capsule.axis) for end in ends]


def plane_ellipsoid(plane: Placed, ellipsoid: Placed, margin) -> list[Witness]:
    downward = ellipsoid.pose.rotation.apply_transpose(-plane.axis)
    return [point_on_plane(plane, ellipsoid.pose.apply(Ellipsoid.farthest(ellipsoid.sizes, downward)))]


def plane_cylinder(plane: Placed, cylinder: Placed, margin) -> list[Witness]:
    """The lowest points of both disks, and two more of the lower disk, all three at equal angles."""
    radius, half = cylinder.size(0), cylinder.size(1)
    # The axis of the cylinder that points to the plane, and the direction in its disks that does.
    upward = plane.axis.dot(cylinder.axis)
    axis = cylinder.axis * -sign(upward - roundoff(upward))
    lowest = axis * plane.axis.dot(axis) - plane.axis
    lowest = length_and_direction(lowest, cylinder.pose.rotation.x, SHORTEST)[1]
    sideways = direction(lowest.cross(axis)) * (radius * (0.5 * math.sqrt(3)))
    lowest, end = lowest * radius, axis * half
    middle = cylinder.position + end - lowest * 0.5
    places = [
        cylinder.position + end + lowest,
        cylinder.position - end + lowest,
        middle + sideways,
        middle - sideways,
    ]
    return [point_on_plane(plane, place) for place in places]


def plane_box(plane: Placed, box: Placed, margin) -> list[Witness]:
    """The four corners below the box's center, in MuJoCo's order: of each two opposite corners one is."""
    x, y, z = (
        axis * box.size(i) for i, axis in enumerate((box.pose.rotation.x, box.pose.rotation.y, box.pose.rotation.z))
    )
    # Corners by their numbers, whose bits are the signs of x, y and z, and those opposite to them.
    corners = {7: x + y + z, 3: x + y - z, 5: x - y + z, 1: x - y - z}
    ways = {number: -sign(plane.axis.dot(corner)) for number, corner in corners.items()}
    lower = [corner * ways[number] for number, corner in corners.items()]
    numbers = [jnp.where(way > 0, float(number), 7.0 - number) for number, way in ways.items()]
    ranks = [sum(jnp.where(other < own, 1.0, 0.0) for other in numbers) for own in numbers]
    places = [
        sum((corner * jnp.where(rank == k, 1.0, 0.0) for corner, rank in zip(lower, ranks, strict=True)), ORIGIN)
        for k in range(len(lower))
    ]
    return [point_on_plane(plane, box.position + place) for place in places]
