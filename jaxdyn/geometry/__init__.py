"""Shapes, surfaces, and where they touch: gaps, normals and points of fixed number; nothing about robots."""

from jaxdyn.geometry._pair_witnesses import pair_witness_count, pair_witnesses
from jaxdyn.geometry._shapes import AbstractShape, Box, Capsule, Cylinder, Ellipsoid, Points, Sphere
from jaxdyn.geometry._signed_distances import clipped, largest_of, select, sign
from jaxdyn.geometry._surface_witnesses import surface_witnesses
from jaxdyn.geometry._surfaces import AbstractSurface, HeightField, Plane, SignedDistance
from jaxdyn.geometry._witness import Witness, length_and_direction, side_by_side, with_candidates

__all__ = [
    "AbstractShape",
    "AbstractSurface",
    "Box",
    "Capsule",
    "Cylinder",
    "Ellipsoid",
    "HeightField",
    "Plane",
    "Points",
    "SignedDistance",
    "Sphere",
    "Witness",
    "pair_witness_count",
    "pair_witnesses",
    "surface_witnesses",
]
