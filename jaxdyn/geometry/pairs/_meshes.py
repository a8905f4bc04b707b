"""Meshes in contact with planes (mjc_PlaneConvex of MuJoCo 4)."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxdyn.geometry._componentwise import roundoff
from jaxdyn.geometry._witness import Witness, inactive_unless
from jaxdyn.geometry.pairs._bounds import WIDER
from jaxdyn.geometry.pairs._candidates import Placed, point_on_plane
from jaxdyn.geometry.pairs._clipped_faces import LOWEST, Sided, quadrilateral
from jaxdyn.geometry.pairs._expanding_polytope import farthest_vertex
from jaxdyn.geometry.pairs._hull_tables import CORNERS, hulls_of
from jaxdyn.geometry.pairs._lanes import Side, as_rows, common_shape, flat_number, flat_vector, of_near


def plane_mesh(plane: Placed, mesh: Placed, margin) -> list[Witness]:
    """The lowest vertex, and corners of the lowest face that has it.

    A face with more than four corners that lies flat has several lowest ones. MuJoCo's choice of them, which follows
    the rounding errors of the vertices, may be another.
    """
    shape = common_shape(plane.pose, mesh.pose, margin, mesh.sizes[:1, :1])
    position = flat_vector(mesh.position, shape)
    side = Side.of(mesh, shape, jnp.zeros_like(position))
    down = flat_vector(-plane.axis, shape)
    height = flat_number((mesh.position - plane.position).dot(plane.axis) - margin, shape)
    near = hulls_of(mesh).near
    held = jax.lax.stop_gradient((down, height))
    numbers, exists = _lowest(side.constant(), *held, None if near is True else near, near is True)
    places = side.place(numbers)
    found = []
    for k in range(CORNERS):
        touch = point_on_plane(plane, as_rows(places[:, k] + position, shape))
        found.append(inactive_unless(as_rows(exists[:, k], shape), touch))
    return found


@functools.partial(jax.jit, static_argnums=4)
def _lowest(side: Side, down, height, near, alone: bool) -> tuple[Any, Any]:
    """The numbers `[lanes, 4]` of the corners of the lowest face, and which of them there are, for meshes whose origins
    are so high above where contacts begin."""

    def of_lane(lane):
        hull, solid = jnp.asarray(side.hull)[lane], side.solid(lane)
        sided = Sided(solid, side.tables, hull)
        local = down[lane] @ solid.rotation
        first = farthest_vertex(solid.columns, solid.count, local)
        faces, has = sided.around(jnp.stack([first] * 3))
        facing = jnp.where(has, sided.normals(faces) @ down[lane], -2.0)
        # The first one of equal ones.
        face = faces[jnp.argmax(facing >= jnp.max(facing) - roundoff(facing))]
        tables = side.tables
        assert tables is not None
        count = tables.count(hull, face)
        # Counterclockwise, as MuJoCo has them.
        backward = jnp.maximum(count - 1 - jnp.asarray(tables.places), 0)
        corners = tables.corner(hull, face, backward)
        places = solid.vertices[corners]
        # Not by the largest vertex of all, which a loop over pairs would look for again and again.
        size = jnp.max(jnp.abs(places))
        lowest = solid.vertices[first] @ local - roundoff(size) * size
        begin = jnp.argmax(places @ local >= lowest)
        many = count > CORNERS
        spread = quadrilateral(places, count, begin, jnp.where(many, begin, -1), LOWEST)
        # The lowest one is the first contact, which sweeps against slip depend on.
        chosen = jnp.where(many, spread, (begin + jnp.arange(CORNERS)) % jnp.maximum(count, 1))
        numbers = corners[chosen]
        depth = solid.vertices[numbers] @ local
        return numbers, (jnp.arange(CORNERS) < count) & ((depth >= 0) | (depth >= lowest))

    def wanted():
        middle, half = side.box()
        along = jnp.abs(jnp.einsum("lji,lj->li", side.rotation, down))
        lowest = jnp.sum(middle * down, axis=1) + jnp.sum(along * half, axis=1)
        return height <= lowest + WIDER * jnp.sum(half, axis=1)

    return of_near(of_lane, wanted, near, alone)
