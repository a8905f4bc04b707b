"""Meshes in contact with planes (mjc_PlaneConvex of MuJoCo 4)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxdyn.geometry._componentwise import roundoff
from jaxdyn.geometry._witness import Witness, inactive_unless
from jaxdyn.geometry.pairs._candidates import Placed, point_on_plane
from jaxdyn.geometry.pairs._clipped_faces import LOWEST, Sided, quadrilateral
from jaxdyn.geometry.pairs._expanding_polytope import Solid
from jaxdyn.geometry.pairs._hull_tables import CORNERS
from jaxdyn.geometry.pairs._lanes import Side, as_rows, common_shape, flat_vector


def plane_mesh(plane: Placed, mesh: Placed, margin) -> list[Witness]:
    """The lowest vertex, and corners of the lowest face that has it.

    A face with more than four corners that lies flat has several lowest ones. MuJoCo's choice of them, which follows
    the rounding errors of the vertices, may be another.
    """
    shape = common_shape(plane.pose, mesh.pose, margin, mesh.sizes[:1, :1])
    position = flat_vector(mesh.position, shape)
    side = Side.of(mesh, shape, jnp.zeros_like(position))
    down = flat_vector(-plane.axis, shape)
    numbers, exists = _lowest(side.constant(), jax.lax.stop_gradient(down))
    places = side.place(numbers)
    found = []
    for k in range(CORNERS):
        touch = point_on_plane(plane, as_rows(places[:, k] + position, shape))
        found.append(inactive_unless(as_rows(exists[:, k], shape), touch))
    return found


@jax.jit
def _lowest(side: Side, down) -> tuple[Any, Any]:
    """The numbers `[lanes, 4]` of the corners of the lowest face, and which of them there are."""
    size = jnp.max(jnp.abs(side.vertices))
    noise = roundoff(size) * size

    def of_lane(lane, down):
        row, hull = (jnp.asarray(x)[lane] for x in (side.row, side.hull))
        solid = Solid(side.rotation[lane], jnp.zeros(3, down.dtype), side.vertices[row])
        sided = Sided(solid, side.tables, hull)
        depths = solid.vertices @ (down @ solid.rotation)
        first = jnp.argmax(depths)
        lowest = depths[first] - noise
        faces, has = sided.around(jnp.stack([first] * 3))
        facing = jnp.where(has, sided.normals(faces) @ down, -2.0)
        # The first one of equal ones.
        face = faces[jnp.argmax(facing >= jnp.max(facing) - roundoff(size))]
        tables = side.tables
        assert tables is not None
        count = jnp.asarray(tables.counts)[hull, face]
        # Counterclockwise, as MuJoCo has them.
        backward = jnp.maximum(count - 1 - jnp.arange(tables.faces.shape[2]), 0)
        corners = jnp.asarray(tables.faces)[hull, face, backward]
        begin = jnp.argmax(depths[corners] >= lowest)
        many = count > CORNERS
        places = solid.vertices[corners]
        spread = quadrilateral(places, count, begin, jnp.where(many, begin, -1), LOWEST)
        chosen = jnp.where(many, spread, jnp.minimum(jnp.arange(CORNERS), len(corners) - 1))
        numbers = corners[chosen]
        depth = depths[numbers]
        return numbers, (jnp.arange(CORNERS) < count) & ((depth >= 0) | (depth >= lowest))

    return jax.vmap(of_lane)(jnp.arange(len(down)), down)
