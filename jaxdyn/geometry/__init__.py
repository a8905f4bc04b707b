"""Shapes, surfaces, and where they touch: gaps, normals and points of fixed number; nothing about robots."""

from jaxdyn.geometry._shapes import AbstractShape, Box, Capsule, Cylinder, Ellipsoid, Points, Sphere
from jaxdyn.geometry._surface_witnesses import surface_witnesses
from jaxdyn.geometry._surfaces import AbstractSurface, HeightField, Plane, SignedDistance
from jaxdyn.geometry._witness import FAR, Witness
from jaxdyn.geometry.pairs import (
    MOST_PRISMS,
    WIDER,
    Candidates,
    ChosenHulls,
    Grid,
    Hull,
    Hulls,
    PointChoice,
    ShapeKind,
    ball_radius,
    candidate_count,
    candidates,
    has_flat_disks,
    has_several_contacts,
    is_built,
    is_searched,
    may_be_deep,
    may_touch,
    moves_smoothly,
    pair_witness_count,
    pair_witnesses,
    shallow_depth,
)

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
