"""The geoms that rays of rangefinders may meet, and how far away they are.

`engine_ray.c` of MuJoCo 4.0 (`mj_ray`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._types import Array, Float, float_leaf
from jaxdyn.algorithms.recursions import Robot
from jaxdyn.io.mjcf import enum_name
from jaxdyn.spatial import Vec3
from jaxdyn.tree import columns_of, take_rows
from jaxdyn.worlds._parts import Instant, Located, Part, PartRows, Places
from jaxdyn.worlds._zones import FAR, ZONES, distance

_TARGETS = ("plane", *ZONES)


class Targets(Part):
    """The geoms of a world that can be seen."""

    kinds: tuple[str, ...] = eqx.field(static=True)
    bodies: tuple[int, ...] = eqx.field(static=True)
    """MuJoCo's number of the body of each."""
    places: Places
    sizes: Float[Array, "*batch n 3"]

    @classmethod
    def of(cls, m, wanted: bool) -> Self:
        """Return the visible geoms of an `mjModel`; none if they are not `wanted`."""
        geoms = visible_geoms(m) if wanted else np.zeros(0, int)
        return cls(
            tuple(enum_name("mjtGeom", x) for x in m.geom_type[geoms]),
            tuple(m.geom_bodyid[geoms].tolist()),
            Places.of(m, "geom", geoms),
            float_leaf(m.geom_size[geoms]),
        )


def visible_geoms(m) -> np.ndarray:
    """Return the numbers of the geoms that rays meet: those that are not transparent."""
    material = np.asarray(m.geom_matid)
    clear = m.geom_rgba[:, 3] == 0
    if m.nmat:
        clear &= (material < 0) | (m.mat_rgba[np.maximum(material, 0), 3] == 0)
    return np.flatnonzero(~clear)


def shapes_without_rays(m) -> set[str]:
    """Return the types of visible geoms that rays are not built for."""
    return {enum_name("mjtGeom", m.geom_type[i]) for i in visible_geoms(m)} - set(_TARGETS)


def ranges(robot: Robot, targets: PartRows, at: Instant, eyes: Located, bodies: Sequence[int]):
    """Return how far it is from sites along their z axes to the nearest geom of another body, `[n, *batch]`; -1 where
    there is none. `bodies`: MuJoCo's number of the body of each site."""
    nearest: Any = jnp.full((len(eyes.dofs), *robot.batch), FAR, robot.dtype)
    if targets.kinds:
        places, kinds = Places.located(targets.places, at), np.array(targets.kinds)
        seen = np.array(bodies)[:, None] != np.array(targets.bodies)[None]
        for kind in dict.fromkeys(targets.kinds):
            rows = np.flatnonzero(kinds == kind)
            geoms = jax.tree.map(lambda x: x[None], take_rows(places.pose, rows))
            size = Vec3(*(x[None] for x in columns_of(take_rows(targets.sizes, rows))))
            start, along = (
                jax.tree.map(lambda x: x[:, None], v) for v in (eyes.pose.translation, eyes.pose.rotation.z)
            )
            local = geoms.rotation.apply_transpose(start - geoms.translation)
            far = distance(str(kind), size, local, geoms.rotation.apply_transpose(along))
            mask = robot.constant(seen[:, rows].astype(float)) > 0
            nearest = jnp.minimum(nearest, jnp.where(mask, far, FAR).min(axis=1))
    return jnp.where(nearest < FAR, nearest, -1.0)
