"""Geoms of MJCF files as contact shapes, and the plane or height field of the world as the surface."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from jaxdyn._errors import JaxdynError, look_up
from jaxdyn.contact._law import ContactLaw
from jaxdyn.contact._reading import BETWEEN, BY_PAIRS, Reading
from jaxdyn.geometry import AbstractShape, AbstractSurface, Box, Capsule, Ellipsoid, HeightField, Plane, Sphere
from jaxdyn.io.mjcf import (
    GeomPair,
    Names,
    compile_massless_mjcf,
    enum_name,
    geom_mesh,
    geom_pairs,
    geom_pose,
    mixed_pair,
    object_name,
)
from jaxdyn.spatial import compose_poses, pose_array, quaternion_to_rotation

_SURFACES = ("plane", "hfield")
_SOFTNESS = {"solref": (0.02, 1.0), "solimp": (0.9, 0.95, 0.001, 0.5, 2.0)}
"""MuJoCo's defaults."""


def read_mjcf_shapes(reading: Reading, path_or_text: Any) -> None:
    """Add the geoms of moving bodies that touch the surface, and the surface; with pairs also those that touch each
    other, and what is fixed in the world."""
    m, reading.source = compile_massless_mjcf(path_or_text, kinematics_only=True)
    pairs = {frozenset((pair.geom1, pair.geom2)): pair for pair in geom_pairs(m, even_disabled=True)}
    file, with_pairs = _File(m, Names.of(m).bodies, pairs), bool(reading.options.pairs)
    named = {*m.pair_geom1.tolist(), *m.pair_geom2.tolist()}
    collides = [g for g in range(m.ngeom) if m.geom_contype[g] or m.geom_conaffinity[g] or g in named]
    reading.require_links(tuple(file.bodies), {file.link(g) for g in collides if with_pairs or not file.is_fixed(g)})
    surface = _surface(reading, file, collides)
    taken: dict[int, int] = {}
    for g in sorted(set(range(m.ngeom)) - {surface}):
        name = repr(file.name(g))
        on_surface = not file.is_fixed(g) and (surface is None or file.touches(g, surface))
        if g not in collides:
            reading.leave_out("geoms that touch nothing", name, False)
        elif not reading.wants(file.link(g), name):
            continue
        elif file.is_fixed(g) and file.kind(g) in _SURFACES:
            reading.leave_out("planes and height fields that are not the surface", name, True)
        elif not on_surface and not with_pairs:
            reading.leave_out("geoms that do not touch the surface", name, True, BY_PAIRS)
        else:
            try:
                shape = _shape(reading, file, g)
            except JaxdynError as error:
                reading.refuse(f"geom {name}: {error}")
                continue
            if shape is not None:
                law = _law(reading, file, g, surface if on_surface else None)
                taken[g] = len(reading.shapes)
                reading.add(file.link(g), file.name(g), shape, geom_pose(m, g), law, on_surface)
    _leave_out_numbers(reading, file, list(taken), surface)
    if not with_pairs:
        _leave_out_pairs(reading, file, list(taken), surface)
        return
    between = [pair for both, pair in pairs.items() if both <= set(taken)]
    chosen = [(taken[x.geom1], taken[x.geom2], reading.law(_friction(x))) for x in between]
    reading.pair(chosen, reading.in_pairs())


@dataclasses.dataclass(frozen=True)
class _File:
    """MuJoCo's compiled model, with the names of its bodies, and the pairs of geoms that can touch."""

    m: Any
    bodies: list[str]
    pairs: dict[frozenset[int], GeomPair]

    def name(self, g: int) -> str:
        return object_name(self.m, "geom", g)

    def kind(self, g: int) -> str:
        return enum_name("mjtGeom", self.m.geom_type[g])

    def link(self, g: int) -> str:
        return self.bodies[self.m.geom_bodyid[g]]

    def is_fixed(self, g: int) -> bool:
        """Return whether a geom is fixed in the world."""
        return self.m.body_weldid[self.m.geom_bodyid[g]] == 0

    def touches(self, g: int, h: int) -> bool:
        """Return whether two geoms can touch."""
        return frozenset((g, h)) in self.pairs


def _surface(reading: Reading, file: _File, collides: list[int]) -> int | None:
    """Set the surface, and return the number of its geom, or None."""
    found = [g for g in collides if file.is_fixed(g) and file.kind(g) in _SURFACES]
    names = [file.name(g) for g in found]
    if reading.options.surface is not None:
        found = [found[look_up(reading.options.surface, names, "plane or height field")]]
    if len(found) > 1:
        shown = ", ".join(map(repr, names))
        reading.refuse(f"several planes and height fields in the world: {shown}; choose one by surface=...")
    if len(found) != 1:
        return None
    reading.surface = _surface_of(reading, file, found[0])
    return None if reading.surface is None else found[0]


def _surface_of(reading: Reading, file: _File, g: int) -> AbstractSurface | None:
    m, pose = file.m, geom_pose(file.m, g)
    body = int(m.geom_bodyid[g])
    while body > 0:
        pose = compose_poses(pose_array(m.body_pos[body], m.body_quat[body]), pose)
        body = int(m.body_parentid[body])
    rotation = quaternion_to_rotation(pose[3:])
    if file.kind(g) == "plane":
        return Plane(rotation[:, 2], float(rotation[:, 2] @ pose[:3]))
    if not np.allclose(rotation, np.eye(3), atol=1e-9):
        reading.refuse(f"height field {file.name(g)!r} is turned; its grid must lie along the axes of the world")
        return None
    k = int(m.geom_dataid[g])
    rows, columns, size = int(m.hfield_nrow[k]), int(m.hfield_ncol[k]), np.asarray(m.hfield_size[k], np.float64)
    start = int(m.hfield_adr[k])
    heights = np.asarray(m.hfield_data[start : start + rows * columns], np.float64).reshape(rows, columns).T * size[2]
    spacing = 2 * size[:2] / (np.array([columns, rows]) - 1)
    return HeightField(heights, spacing, pose[:3] - [*size[:2], 0.0], "linear")


def _shape(reading: Reading, file: _File, g: int) -> AbstractShape | None:
    """Return the shape of a geom; None, and note it, where there is none."""
    size, name = np.asarray(file.m.geom_size[g], np.float64), repr(file.name(g))
    match file.kind(g):
        case "sphere":
            return Sphere(size[0])
        case "capsule":
            return Capsule(size[0], size[1])
        case "ellipsoid":
            return Ellipsoid(size)
        case "box":
            return Box(size)
        case "cylinder":
            return reading.cylinder(name, size[0], size[1])
        case "mesh":
            return reading.hull(name, geom_mesh(file.m, g)[0])
    reading.refuse(f"geom {name} is of the type {file.kind(g)}")
    return None


def _law(reading: Reading, file: _File, g: int, surface: int | None) -> ContactLaw | None:
    """Return the law with the friction that the file has between a geom and the surface, or that of the geom; None
    where none is wanted."""
    friction = _friction(mixed_pair(file.m, g, g) if surface is None else file.pairs[frozenset((g, surface))])
    if reading.options.law is None:
        note = "shapes have the friction of the law of the World; law=ContactLaw(...) takes that of the file"
        reading.leave_out("coefficients of friction", f"{file.name(g)!r} {friction:g}", True, note)
        return None
    return reading.law(friction)


def _friction(pair: GeomPair) -> float:
    """Return the coefficient of sliding friction of two geoms, which is 0 for contacts of one dimension."""
    return float(pair.friction[0]) * (pair.condim > 1)


def _leave_out_numbers(reading: Reading, file: _File, taken: list[int], surface: int | None) -> None:
    """Note the numbers of contacts that the law does not have."""
    m = file.m
    for g in [*taken, *([surface] if taken and surface is not None else [])]:
        name = repr(file.name(g))
        if any(not np.allclose(getattr(m, f"geom_{key}")[g], x) for key, x in _SOFTNESS.items()):
            note = "ContactLaw is another law, with a stiffness and a dissipation"
            reading.leave_out("softness of contacts (solref, solimp)", name, True, note)
        if m.geom_condim[g] > 3:
            reading.leave_out("torsional and rolling friction (condim)", name, True)
        for what in ("margin", "gap", "adhesion", "surfacevel"):
            if np.any(getattr(m, f"geom_{what}", np.zeros(m.ngeom))[g]):
                reading.leave_out(f"{what} of geoms", name, True)


def _leave_out_pairs(reading: Reading, file: _File, taken: list[int], surface: int | None) -> None:
    """Note the contacts between bodies."""
    m = file.m
    for k, (g, h) in enumerate(zip(map(int, m.pair_geom1), map(int, m.pair_geom2), strict=True)):
        if surface not in (g, h):
            reading.leave_out("explicit pairs of geoms", repr(object_name(m, "pair", k)), True)
    between = [g for g in taken if any(file.touches(g, h) for h in taken)]
    for link in dict.fromkeys(file.link(g) for g in between):
        reading.leave_out(BETWEEN, repr(link), True, BY_PAIRS)
