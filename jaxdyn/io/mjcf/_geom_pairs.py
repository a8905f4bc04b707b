"""The pairs of geoms that can touch, and the parameters of their contacts, as MuJoCo selects and mixes them
(engine_collision_driver.c; MuJoCo's documentation, Computation, "Selection", and Modeling, "Contact parameters")."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import numpy as np

from jaxdyn.geometry import Box, Capsule, Cylinder, Ellipsoid, HeightField, Plane, Points, ShapeKind, Sphere
from jaxdyn.io.mjcf._compiled import is_disabled, is_enabled

SMALLEST_FRICTION = 1e-5
"""Coefficients of friction are at least this large (mjMINMU)."""
SMALLEST_WEIGHT = 1e-15
"""A `solmix` that is smaller counts as zero (mjMINVAL)."""


class GeomType(enum.IntEnum):
    """Types of geoms as MuJoCo numbers them (mjtGeom). In a pair of two types the smaller number comes first."""

    PLANE = 0
    HFIELD = 1
    SPHERE = 2
    CAPSULE = 3
    ELLIPSOID = 4
    CYLINDER = 5
    BOX = 6
    MESH = 7
    SDF = 8


GEOM_SHAPES: dict[GeomType, ShapeKind] = {
    GeomType.PLANE: Plane,
    GeomType.HFIELD: HeightField,
    GeomType.SPHERE: Sphere,
    GeomType.CAPSULE: Capsule,
    GeomType.ELLIPSOID: Ellipsoid,
    GeomType.CYLINDER: Cylinder,
    GeomType.BOX: Box,
    GeomType.MESH: Points,
}
"""The classes of shapes, whose sizes are the first numbers of `geom_size`, and the vertices of a mesh."""


@dataclasses.dataclass(frozen=True, eq=False)
class GeomPair:
    """Two geoms that can touch, and the parameters of their contacts. The geom whose type has the smaller number comes
    first; normals point from it to the other one."""

    geom1: int
    geom2: int
    type1: GeomType
    type2: GeomType
    condim: int
    margin: float
    """Contacts have forces where their distance is smaller, m."""
    gap: float
    """Contacts are found up to the distance `margin + gap`, m."""
    solref: np.ndarray
    """`[2]`."""
    solreffriction: np.ndarray
    """`[2]`; zeros where friction uses `solref`."""
    solimp: np.ndarray
    """`[5]`."""
    friction: np.ndarray
    """`[5]`: two tangential, one torsional, two rolling."""
    adhesion: float
    """N."""

    @property
    def kinds(self) -> tuple[ShapeKind | None, ShapeKind | None]:
        """The classes of both shapes; None for a type without one."""
        return GEOM_SHAPES.get(self.type1), GEOM_SHAPES.get(self.type2)


def geom_pairs(m: Any, *, even_disabled: bool = False) -> list[GeomPair]:
    """Return the pairs of geoms of an `mjModel` that can touch; none where flags of the file disable all contacts,
    unless they are wanted `even_disabled`.

    These are the pairs that `<pair>` names, and those of bodies that neither `<exclude>`, nor being one rigid body or
    parent and child, nor the bits of `contype` and `conaffinity` keep apart. Pairs of geoms that cannot move against
    each other, and of types that MuJoCo never lets collide (planes and height fields with each other), are left out.
    """
    if not even_disabled and (is_disabled(m, "contact") or is_disabled(m, "constraint")):
        return []
    named = [_named_pair(m, i) for i in range(m.npair)]
    taken = {frozenset((pair.geom1, pair.geom2)) for pair in named}
    found = [mixed_pair(m, int(g1), int(g2)) for g1, g2 in np.argwhere(_may_collide(m)) if {g1, g2} not in taken]
    return [pair for pair in named + found if _can_move(m, pair) and pair.type2 > GeomType.HFIELD]


def _may_collide(m: Any) -> np.ndarray:
    """`[ngeom, ngeom]`: which pairs of geoms collide unless they are named, with the smaller number first."""
    body = m.geom_bodyid
    weld = m.body_weldid[body]
    parent = m.body_weldid[m.body_parentid[weld]]
    allowed = (m.geom_contype[:, None] & m.geom_conaffinity) | (m.geom_conaffinity[:, None] & m.geom_contype) != 0
    allowed &= weld[:, None] != weld
    if not is_disabled(m, "filterparent"):
        related = (weld[:, None] == parent) | (parent[:, None] == weld)
        allowed &= ~(related & (weld[:, None] != 0) & (weld != 0))
    signature = (np.minimum(body[:, None], body).astype(np.int64) << 16) + np.maximum(body[:, None], body)
    return np.triu(allowed & ~np.isin(signature, m.exclude_signature), 1)


def _can_move(m: Any, pair: GeomPair) -> bool:
    """Whether joints move the geoms against each other."""
    weld1, weld2 = m.body_weldid[m.geom_bodyid[[pair.geom1, pair.geom2]]]
    return bool(weld1 != weld2 and (m.body_dofnum[weld1] or m.body_dofnum[weld2]))


def _by_type(m: Any, g1: int, g2: int) -> tuple[int, int, GeomType, GeomType]:
    """Two geoms, the one whose type has the smaller number first, and their types."""
    if m.geom_type[g1] > m.geom_type[g2]:
        g1, g2 = g2, g1
    return g1, g2, GeomType(int(m.geom_type[g1])), GeomType(int(m.geom_type[g2]))


def _named_pair(m: Any, i: int) -> GeomPair:
    return _overridden(
        m,
        GeomPair(
            *_by_type(m, int(m.pair_geom1[i]), int(m.pair_geom2[i])),
            condim=int(m.pair_dim[i]),
            margin=float(m.pair_margin[i]),
            gap=float(m.pair_gap[i]),
            solref=m.pair_solref[i].copy(),
            solreffriction=m.pair_solreffriction[i].copy(),
            solimp=m.pair_solimp[i].copy(),
            friction=m.pair_friction[i].copy(),
            adhesion=float(m.pair_adhesion[i]),
        ),
    )


def mixed_pair(m: Any, g1: int, g2: int) -> GeomPair:
    """Return a pair with the parameters of the geom with priority, or a mixture of those of both."""
    g = np.array([g1, g2])
    low, high = sorted(m.geom_priority[g])
    if low != high:
        first = g[int(np.argmax(m.geom_priority[g]))]
        condim, friction, solref = m.geom_condim[first], m.geom_friction[first], m.geom_solref[first]
        solimp, adhesion = m.geom_solimp[first], m.geom_adhesion[first]
    else:
        condim, friction, solref = m.geom_condim[g].max(), m.geom_friction[g].max(axis=0), m.geom_solref[g]
        weights = _weights(m.geom_solmix[g])
        # Negative numbers are a stiffness and a damping, which have no mean with time constants.
        solref = weights @ solref if np.all(solref[:, 0] > 0) else solref.min(axis=0)
        solimp, adhesion = weights @ m.geom_solimp[g], m.geom_adhesion[g].sum()
    return _overridden(
        m,
        GeomPair(
            *_by_type(m, g1, g2),
            condim=int(condim),
            margin=float(m.geom_margin[g].sum()),
            gap=float(m.geom_gap[g].sum()),
            solref=np.array(solref),
            solreffriction=np.zeros(2),
            solimp=np.array(solimp),
            friction=np.repeat(friction, (2, 1, 2)),
            adhesion=float(adhesion),
        ),
    )


def _weights(solmix: np.ndarray) -> np.ndarray:
    kept = np.where(solmix < SMALLEST_WEIGHT, 0.0, solmix)
    return kept / kept.sum() if kept.any() else np.array([0.5, 0.5])


def _overridden(m: Any, pair: GeomPair) -> GeomPair:
    """The pair with the parameters of `<option>` where `<flag override="enable">` makes them those of all contacts."""
    if is_enabled(m, "override"):
        pair = dataclasses.replace(
            pair,
            margin=float(m.opt.o_margin),
            solref=m.opt.o_solref.copy(),
            solreffriction=m.opt.o_solref.copy(),
            solimp=m.opt.o_solimp.copy(),
            friction=m.opt.o_friction.copy(),
        )
    return dataclasses.replace(pair, friction=np.maximum(pair.friction, SMALLEST_FRICTION))
