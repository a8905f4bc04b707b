"""The appearance of a world: the geoms that pictures show, also those that touch nothing."""

from __future__ import annotations

import dataclasses
import functools
from typing import Self

import equinox as eqx
import numpy as np

from jaxdyn._digests import digest_of_arrays
from jaxdyn._types import Array, Float, float_leaf
from jaxdyn.io.mjcf import DrawnGeom, drawn_geoms, object_name
from jaxdyn.worlds._parts import Part, Places


@dataclasses.dataclass(frozen=True, eq=False)
class GeomSurface:
    """The triangles of a mesh or a height field, and the image on them. Equal ones are known by a digest, so that
    compiled functions of worlds do not compare vertices."""

    vertices: np.ndarray
    """`[n, 3]`, m, in the frame of the geom."""
    faces: np.ndarray
    """`[k, 3]`"""
    coordinates: np.ndarray | None = None
    pixels: np.ndarray | None = None
    """An image and the places of the vertices in it, as in `DrawnSurface`."""

    @functools.cached_property
    def _digest(self) -> str:
        arrays = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return digest_of_arrays({name: x for name, x in arrays.items() if x is not None})

    def __hash__(self) -> int:
        return hash(self._digest)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, GeomSurface) and self._digest == other._digest)


class VisualFile(eqx.Module):
    """The URDF file of a world, whose visual geometry pictures read when they are drawn."""

    source: str = eqx.field(static=True)
    """Its path, or its text."""
    package_dirs: tuple[str, ...] = eqx.field(static=True)


class Appearance(Part):
    """The geoms of a world that are shown, or that can touch others. Numbers are arrays, so that worlds that look
    different, and are the same otherwise, run the same programs."""

    numbers: tuple[int, ...] = eqx.field(static=True)
    """The geoms in MuJoCo's numbers."""
    names: tuple[str, ...] = eqx.field(static=True)
    """The bodies that they belong to."""
    kinds: tuple[str, ...] = eqx.field(static=True)
    """Their types, as in `DrawnGeom`."""
    shown: tuple[bool, ...] = eqx.field(static=True)
    touching: tuple[bool, ...] = eqx.field(static=True)
    """Whether MuJoCo shows each, and lets it collide."""
    surfaces: tuple[GeomSurface, ...] = eqx.field(static=True)
    surface_of: tuple[int, ...] = eqx.field(static=True)
    """The row in `surfaces` of each mesh and height field, -1 for other geoms."""
    places: Places
    sizes: Float[Array, "*batch n 3"]
    colors: Float[Array, "*batch n 4"]

    @classmethod
    def of(cls, m) -> Self:
        """Return the appearance of an `mjModel`."""
        geoms: list[DrawnGeom] = drawn_geoms(m)
        surfaces: dict[GeomSurface, int] = {}
        rows = [-1 if x.surface is None else surfaces.setdefault(GeomSurface(*x.surface), len(surfaces)) for x in geoms]
        numbers = tuple(x.number for x in geoms)
        return cls(
            numbers=numbers,
            names=tuple(object_name(m, "body", m.geom_bodyid[g]) for g in numbers),
            kinds=tuple(x.kind for x in geoms),
            shown=tuple(x.shown for x in geoms),
            touching=tuple(x.touches for x in geoms),
            surfaces=tuple(surfaces),
            surface_of=tuple(rows),
            places=Places.of(m, "geom", numbers),
            sizes=float_leaf(np.array([x.size for x in geoms]).reshape(-1, 3)),
            colors=float_leaf(np.array([x.color for x in geoms]).reshape(-1, 4)),
        )
