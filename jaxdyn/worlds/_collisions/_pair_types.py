"""The candidates of pairs of geoms, by their types."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._compile import once
from jaxdyn._errors import ModelError
from jaxdyn.geometry import side_by_side, with_candidates
from jaxdyn.io.mjcf import GeomPair, GeomType, is_disabled
from jaxdyn.spatial import Pose
from jaxdyn.worlds._collisions import (
    _box_box,
    _box_pairs,
    _convex_pairs,
    _cylinder_pairs,
    _height_fields,
    _meshes,
    _overlapping_faces,
    _plane_pairs,
    _prism_pairs,
    _round_pairs,
)
from jaxdyn.worlds._collisions._candidates import (
    Candidates,
    Found,
    Geom,
    complete_frame,
    inactive_unless,
)

PairFunction = Callable[[Geom, Geom, Any], list[Found]]

_T = GeomType
_PAIRS: dict[tuple[GeomType, GeomType], tuple[int, PairFunction]] = {
    (_T.PLANE, _T.SPHERE): (1, _plane_pairs.plane_sphere),
    (_T.PLANE, _T.CAPSULE): (2, _plane_pairs.plane_capsule),
    (_T.PLANE, _T.ELLIPSOID): (1, _plane_pairs.plane_ellipsoid),
    (_T.PLANE, _T.CYLINDER): (4, _plane_pairs.plane_cylinder),
    (_T.PLANE, _T.BOX): (4, _plane_pairs.plane_box),
    (_T.PLANE, _T.MESH): (_meshes.CORNERS, _meshes.plane_mesh),
    (_T.HFIELD, _T.SPHERE): (0, _prism_pairs.field_sphere),
    (_T.HFIELD, _T.CAPSULE): (0, _prism_pairs.field_capsule),
    (_T.HFIELD, _T.ELLIPSOID): (0, _prism_pairs.field_ellipsoid),
    (_T.HFIELD, _T.CYLINDER): (0, _prism_pairs.field_cylinder),
    (_T.HFIELD, _T.BOX): (0, _prism_pairs.field_box),
    (_T.SPHERE, _T.SPHERE): (1, _round_pairs.sphere_sphere),
    (_T.SPHERE, _T.CAPSULE): (1, _round_pairs.sphere_capsule),
    (_T.SPHERE, _T.ELLIPSOID): (1, _convex_pairs.sphere_ellipsoid),
    (_T.SPHERE, _T.CYLINDER): (1, _round_pairs.sphere_cylinder),
    (_T.SPHERE, _T.BOX): (1, _box_pairs.sphere_box),
    (_T.CAPSULE, _T.CAPSULE): (2, _round_pairs.capsule_capsule),
    (_T.CAPSULE, _T.ELLIPSOID): (1, _convex_pairs.capsule_ellipsoid),
    (_T.CAPSULE, _T.CYLINDER): (2, _convex_pairs.capsule_cylinder),
    (_T.CAPSULE, _T.BOX): (2, _box_pairs.capsule_box),
    (_T.ELLIPSOID, _T.ELLIPSOID): (1, _convex_pairs.ellipsoid_ellipsoid),
    (_T.ELLIPSOID, _T.CYLINDER): (1, _convex_pairs.ellipsoid_cylinder),
    (_T.ELLIPSOID, _T.BOX): (1, _convex_pairs.ellipsoid_box),
    (_T.CYLINDER, _T.CYLINDER): (_overlapping_faces.CORNERS, _cylinder_pairs.cylinder_cylinder),
    (_T.CYLINDER, _T.BOX): (_overlapping_faces.CORNERS, _cylinder_pairs.cylinder_box),
    (_T.BOX, _T.BOX): (_box_box.COUNT, _box_box.box_box),
}
"""The number of candidates of a pair and their function. The type with the smaller number comes first. Height fields
have as many as there are prisms in their windows."""
_BY_GENERAL_ROUTINE = {
    (_T.HFIELD, _T.ELLIPSOID): 0.5,
    (_T.HFIELD, _T.CYLINDER): 0.5,
    (_T.SPHERE, _T.ELLIPSOID): 1.0,
    (_T.CAPSULE, _T.ELLIPSOID): 1.0,
    (_T.CAPSULE, _T.CYLINDER): 1.0,
    (_T.ELLIPSOID, _T.ELLIPSOID): 1.0,
    (_T.ELLIPSOID, _T.CYLINDER): 0.5,
    (_T.ELLIPSOID, _T.BOX): 1.0,
    (_T.CYLINDER, _T.CYLINDER): 0.5,
    (_T.CYLINDER, _T.BOX): 0.5,
}
"""The pairs for which MuJoCo has no formulas. Their contacts are MuJoCo's for overlaps up to a part of the smallest
half size of their ellipsoids, cylinders and boxes; of deeper ones most are."""
_WITH_SEVERAL_CONTACTS = {(_T.CAPSULE, _T.CYLINDER), (_T.CYLINDER, _T.CYLINDER), (_T.CYLINDER, _T.BOX)}
"""The pairs among them that have several contacts with the flag `multiccd`, which is on by default."""
_SIZES = {_T.ELLIPSOID: 3, _T.CYLINDER: 2, _T.BOX: 3}


def candidate_count(type1: int, type2: int, structures: tuple[Hashable, Hashable] = (None, None)) -> int:
    """Return the number of candidates of a pair of geoms of two types, of which the smaller number comes first, and
    with such structures.

    **Raises** `ModelError` for types whose contacts are not built.
    """
    count, _ = _pair(type1, type2)
    return structures[0].prisms if isinstance(structures[0], _height_fields.Grid) else count


def is_built(type1: int, type2: int) -> bool:
    """Return whether the contacts of two types are built."""
    return (type1, type2) in _PAIRS


def may_be_deep(type1: int, type2: int) -> bool:
    """Return whether contacts of two types are MuJoCo's only while the overlap is shallow."""
    return (type1, type2) in _BY_GENERAL_ROUTINE


def has_several_contacts(type1: int, type2: int) -> bool:
    """Return whether two types can have several contacts that MuJoCo finds by its general routine."""
    return (type1, type2) in _WITH_SEVERAL_CONTACTS


def shallow_depth(type1: int, sizes1: Any, type2: int, sizes2: Any) -> Any:
    """Return the overlap `[n, *batch]` up to which contacts of such types are MuJoCo's, for sizes `[n, 3, *batch]`."""
    kinds = (GeomType(type1), sizes1), (GeomType(type2), sizes2)
    sides = [sizes[:, i] for kind, sizes in kinds for i in range(_SIZES.get(kind, 0))]
    return _BY_GENERAL_ROUTINE[kinds[0][0], kinds[1][0]] * functools.reduce(jnp.minimum, sides)


def what_is_missing(m: Any, pair: GeomPair) -> str | None:
    """Return the types of a pair of geoms of an `mjModel` whose contacts cannot be those of MuJoCo, with the flag for
    which they cannot; None if they are."""
    names = _names(pair.type1, pair.type2)
    if not is_built(pair.type1, pair.type2):
        return names
    for flag, types in (("nativeccd", _BY_GENERAL_ROUTINE), ("multiccd", _WITH_SEVERAL_CONTACTS)):
        if (pair.type1, pair.type2) in types and is_disabled(m, flag):
            return f'{names}, with <flag {flag}="disable"/>,'
    if pair.type1 == GeomType.HFIELD:
        grid = shapes_of_pair(m, pair)[0][0]
        assert isinstance(grid, _height_fields.Grid)
        if grid.prisms > _height_fields.MOST_PRISMS:
            return f"{names}, of which the second can be over more than {_height_fields.MOST_PRISMS} triangles,"
    return None


def shape_of(m: Any, geom: int, reach: float = 0.0) -> tuple[Hashable, np.ndarray]:
    """Return the structure of the shape of a geom of an `mjModel`, and its sizes `[k]`: None and the three numbers of
    `geom_size`, for a mesh the faces of its convex hull and the positions of its vertices (m), for a height field its
    grid for geoms that reach so far from their centers (m), and its sizes and elevations."""
    kind = int(m.geom_type[geom])
    if kind == GeomType.MESH:
        hull, vertices = _meshes.hull_of(m, geom)
        return hull, vertices.ravel()
    if kind == GeomType.HFIELD:
        return _height_fields.grid_of(m, geom, reach)
    return None, m.geom_size[geom].copy()


def shapes_of_pair(m: Any, pair: GeomPair) -> tuple[tuple[Hashable, np.ndarray], tuple[Hashable, np.ndarray]]:
    """Return the shapes of both geoms of a pair of an `mjModel`, as `shape_of` does."""
    reach = float(m.geom_rbound[pair.geom2]) + pair.margin + pair.gap
    return shape_of(m, pair.geom1, reach), shape_of(m, pair.geom2)


def candidates(
    type1: int,
    sizes1: Any,
    pose1: Pose,
    type2: int,
    sizes2: Any,
    pose2: Pose,
    margin: Any = 0.0,
    structures: tuple[Hashable, Hashable] = (None, None),
) -> Candidates:
    """Return the possible contacts of pairs of geoms, each one of the first type with one of the second.

    Sizes are rows `[n, k, *batch]` and structures are those of all geoms of a type, both as `shape_of` returns them.
    Poses of geoms in the world, and the distance `margin + gap` within which MuJoCo reports contacts, are rows
    `[n, *batch]`. The candidates are rows `[n * count, *batch]`, ordered pair by pair, with `candidate_count` of them a
    pair. The ones that MuJoCo reports are those of its `mjData.contact`; the others have the distance `FAR`.

    | pair | count | equal to MuJoCo's |
    |---|---|---|
    | plane with sphere, capsule, ellipsoid, cylinder, box | 1, 2, 1, 4, 4 | to rounding |
    | plane with mesh | 4 | to rounding, but for faces of more than four corners that lie flat: see `plane_mesh` |
    | sphere with sphere, capsule, cylinder, box | 1 | to rounding |
    | capsule with capsule, box | 2 | to rounding, but for choices that MuJoCo makes by rounding errors |
    | box with box | 8 | to rounding |
    | sphere or capsule with ellipsoid | 1 | to the tolerance of MuJoCo's general routine |
    | capsule with cylinder | 2 | the same; where both are parallel, the place along them is any |
    | ellipsoid with ellipsoid, cylinder, box | 1 | the same |
    | height field with sphere, capsule | prisms | to rounding; overlaps deeper than the radius as the next ones |
    | height field with ellipsoid, cylinder, box | prisms | the same as for the other pairs of that routine |
    | cylinder with cylinder, box | 4 | the same, but where the answer is not unique, see below |

    The rows of that routine hold for overlaps up to `shallow_depth`: the smallest half size of the ellipsoids,
    cylinders and boxes of a pair, or half of it for cylinders with ellipsoids, cylinders and boxes. Most deeper ones
    are MuJoCo's, too; others have a direction out of each other that is not the shortest one. Where the side of a
    cylinder lies along a face, MuJoCo's contacts miss the deepest line of the side by up to 1e-6 m at any tolerance.

    Of a cylinder that touches another cylinder or a box's edge along a line MuJoCo reports one contact, at any place of
    this line. Where an end of the other geom, tilted a little, looks at the side of a cylinder whose end is touched,
    MuJoCo takes a line of that side that depends on its search. Of equally large sets of four corners of two faces it
    takes any.

    With height fields there is a candidate for each prism below the triangles of the grid that the geom can reach. If
    its size is changed so that it reaches more of them, the contacts are NaN. Where a face or an edge lies flat on a
    prism, MuJoCo's one contact is at a place that depends on its search; here it is in the middle or at an end.

    What is not built are meshes but with planes.

    **Raises** `ModelError` for types whose contacts are not built.
    """
    count, function = candidate_count(type1, type2, structures), _pair(type1, type2)[1]
    margin = with_candidates(jnp.asarray(margin))
    one = Geom(jnp.asarray(sizes1), with_candidates(pose1), structures[0])
    two = Geom(jnp.asarray(sizes2), with_candidates(pose2), structures[1])
    rows = side_by_side([inactive_unless(each.distance <= margin, each) for each in function(one, two, margin)])
    assert rows.distance.shape[1] == count
    flat = once(jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rows))
    return Candidates(flat.distance, flat.position, complete_frame(flat.normal, flat.tangent))


def _pair(type1: int, type2: int) -> tuple[int, PairFunction]:
    known = _PAIRS.get((GeomType(type1), GeomType(type2)))
    if known is None:
        advice = "give one of the geoms another type, or keep them apart by contype and conaffinity or <exclude>"
        raise ModelError(f"contacts of {_names(type1, type2)} are not built; {advice}")
    return known


def _names(type1: int, type2: int) -> str:
    return f"{GeomType(type1).name.lower()} and {GeomType(type2).name.lower()}"
