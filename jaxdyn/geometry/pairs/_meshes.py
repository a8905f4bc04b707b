"""Meshes in contact with planes (mjc_PlaneConvex of MuJoCo 4)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxdyn._array_programs import of_wanted
from jaxdyn.geometry._componentwise import roundoff
from jaxdyn.geometry._witness import Witness, inactive_unless
from jaxdyn.geometry.pairs._bounds import WIDER
from jaxdyn.geometry.pairs._candidates import Placed, point_on_plane
from jaxdyn.geometry.pairs._clipped_faces import LOWEST, Sided, quadrilateral
from jaxdyn.geometry.pairs._expanding_polytope import farthest_vertex
from jaxdyn.geometry.pairs._hull_tables import CORNERS
from jaxdyn.geometry.pairs._lanes import Side, as_rows, common_shape, flat_number, flat_vector


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
    numbers, exists = _lowest(side.constant(), *jax.lax.stop_gradient((down, height)))
    places = side.place(numbers)
    found = []
    for k in range(CORNERS):
        touch = point_on_plane(plane, as_rows(places[:, k] + position, shape))
        found.append(inactive_unless(as_rows(exists[:, k], shape), touch))
    return found


@jax.jit
def _lowest(side: Side, down, height) -> tuple[Any, Any]:
    """The numbers `[lanes, 4]` of the corners of the lowest face, and which of them there are, for meshes whose origins
    are so high above where contacts begin."""
    size = jnp.max(jnp.abs(side.vertices))
    noise = roundoff(size) * size
    middle, half = side.box()
    along = jnp.abs(jnp.einsum("lji,lj->li", side.rotation, down))
    lowest = jnp.sum(middle * down, axis=1) + jnp.sum(along * half, axis=1)
    wanted = height <= lowest + WIDER * jnp.sum(half, axis=1)

    def of_lane(lane):
        hull, solid = jnp.asarray(side.hull)[lane], side.solid(lane)
        sided = Sided(solid, side.tables, hull)
        local = down[lane] @ solid.rotation
        first = farthest_vertex(solid.vertices, solid.count, local)
        lowest = solid.vertices[first] @ local - noise
        faces, has = sided.around(jnp.stack([first] * 3))
        facing = jnp.where(has, sided.normals(faces) @ down[lane], -2.0)
        # The first one of equal ones.
        face = faces[jnp.argmax(facing >= jnp.max(facing) - roundoff(size))]
        tables = side.tables
        assert tables is not None
        count = jnp.asarray(tables.counts)[hull, face]
        # Counterclockwise, as MuJoCo has them.
        backward = jnp.maximum(count - 1 - jnp.arange(tables.faces.shape[2]), 0)
        corners = jnp.asarray(tables.faces)[hull, face, backward]
        places = solid.vertices[corners]
        begin = jnp.argmax(places @ local >= lowest)
        many = count > CORNERS
        spread = quadrilateral(places, count, begin, jnp.where(many, begin, -1), LOWEST)
        chosen = jnp.where(many, spread, jnp.minimum(jnp.arange(CORNERS), len(corners) - 1))
        numbers = corners[chosen]
        depth = solid.vertices[numbers] @ local
        return numbers, (jnp.arange(CORNERS) < count) & ((depth >= 0) | (depth >= lowest))

    return of_wanted(of_lane, wanted)
