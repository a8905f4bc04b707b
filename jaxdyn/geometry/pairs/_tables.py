"""The possible contacts of pairs of shapes, by their classes and by how their points are chosen."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from jaxdyn._compile import once
from jaxdyn._errors import ModelError
from jaxdyn._types import Array
from jaxdyn.geometry._componentwise import side_by_side, with_candidates
from jaxdyn.geometry._shapes import AbstractShape, Box, Capsule, Cylinder, Ellipsoid, Points, Sphere
from jaxdyn.geometry._surfaces import AbstractSurface, HeightField, Plane
from jaxdyn.geometry._witness import Witness, inactive_unless
from jaxdyn.geometry.pairs import (
    _box_box,
    _capsule_box,
    _convex_pairs,
    _cylinder_pairs,
    _hull_pairs,
    _hull_tables,
    _meshes,
    _overlapping_faces,
    _plane_pairs,
    _prism_pairs,
    _round_pairs,
    _smooth_boxes,
    _smooth_capsules,
)
from jaxdyn.geometry.pairs._candidates import Candidates, Placed, complete_frame
from jaxdyn.geometry.pairs._height_fields import Grid
from jaxdyn.spatial import Pose

type ShapeKind = type[AbstractShape] | type[AbstractSurface]
"""The class of a shape, or of a surface whose pose is a body's: a plane with its z-axis as the normal, and a height
field."""
type Structures = tuple[Hashable, Hashable]
"""The parts of two shapes that are not numbers; None for most."""
type PointChoice = Literal["smooth", "mujoco", "nearest"]
"""How the points of a pair are chosen: such that their places and gaps move smoothly, or as MuJoCo chooses them; or
only where both are nearest, for their distance."""


class _Pair(NamedTuple):
    """How pairs of two classes touch."""

    count: int
    """The number of candidates; for each point of `Points`, and 0 for the prisms in the window of a height field."""
    function: Callable[[Placed, Placed, Any], list[Witness]]
    """Called with both shapes and the margin."""
    shallow: float | None = None
    """For pairs for which MuJoCo has no formulas: the part of the smallest half size of their ellipsoids, cylinders and
    boxes up to which contacts are MuJoCo's. Most deeper ones are, too."""
    several: bool = False
    """Whether MuJoCo has several contacts for such a pair with the flag `multiccd`, which is on by default."""


_SPHERES: dict[tuple[ShapeKind, ShapeKind], _Pair] = {
    (Sphere, Sphere): _Pair(1, _round_pairs.sphere_sphere),
    (Sphere, Capsule): _Pair(1, _round_pairs.sphere_capsule),
    (Sphere, Cylinder): _Pair(1, _round_pairs.sphere_cylinder),
    (Sphere, Box): _Pair(1, _capsule_box.sphere_box),
}
"""The pairs with a unique nearest point."""


def _as_spheres(points: Placed) -> Placed:
    """Spheres of radius zero, which touch what points touch."""
    centers, radius = Points.spheres(points.sizes)
    pose = Pose(points.pose.rotation, points.pose.apply(centers))
    return Placed(jnp.full_like(points.sizes[:, :1], radius), pose)


def _points_touch(pair: _Pair) -> _Pair:
    return _Pair(1, lambda one, two, margin: pair.function(_as_spheres(one), two, margin))


_TABLES: dict[PointChoice, dict[tuple[ShapeKind, ShapeKind], _Pair]] = {
    "smooth": {
        **_SPHERES,
        **{(Points, other): _points_touch(pair) for (_, other), pair in _SPHERES.items()},
        (Capsule, Capsule): _Pair(2, _smooth_capsules.smooth_capsules),
        (Capsule, Box): _Pair(2, _smooth_capsules.smooth_capsule_box),
        (Box, Box): _Pair(_smooth_boxes.COUNT, _smooth_boxes.smooth_boxes),
        **{
            (Plane, kind): _Pair(kind.witness_count(3), _plane_pairs.as_on_surface(kind))
            for kind in (Sphere, Capsule, Ellipsoid, Cylinder, Box)
        },
    },
    "nearest": {
        **_SPHERES,
        (Capsule, Capsule): _Pair(1, _round_pairs.nearest_capsules),
        (Capsule, Box): _Pair(1, _smooth_capsules.nearest_capsule_box),
    },
    "mujoco": {
        **_SPHERES,
        (Plane, Sphere): _Pair(1, _plane_pairs.plane_sphere),
        (Plane, Capsule): _Pair(2, _plane_pairs.plane_capsule),
        (Plane, Ellipsoid): _Pair(1, _plane_pairs.plane_ellipsoid),
        (Plane, Cylinder): _Pair(4, _plane_pairs.plane_cylinder),
        (Plane, Box): _Pair(4, _plane_pairs.plane_box),
        (Plane, Points): _Pair(_hull_tables.CORNERS, _meshes.plane_mesh),
        (HeightField, Sphere): _Pair(0, _prism_pairs.field_sphere),
        (HeightField, Capsule): _Pair(0, _prism_pairs.field_capsule),
        (HeightField, Ellipsoid): _Pair(0, _prism_pairs.field_ellipsoid, 0.5),
        (HeightField, Cylinder): _Pair(0, _prism_pairs.field_cylinder, 0.5),
        (HeightField, Box): _Pair(0, _prism_pairs.field_box),
        (Sphere, Ellipsoid): _Pair(1, _convex_pairs.sphere_ellipsoid, 1.0),
        (Capsule, Capsule): _Pair(2, _round_pairs.capsule_capsule),
        (Capsule, Ellipsoid): _Pair(1, _convex_pairs.capsule_ellipsoid, 1.0),
        (Capsule, Cylinder): _Pair(2, _convex_pairs.capsule_cylinder, 1.0, True),
        (Capsule, Box): _Pair(2, _capsule_box.capsule_box),
        (Ellipsoid, Ellipsoid): _Pair(1, _convex_pairs.ellipsoid_ellipsoid, 1.0),
        (Ellipsoid, Cylinder): _Pair(1, _convex_pairs.ellipsoid_cylinder, 0.5),
        (Ellipsoid, Box): _Pair(1, _convex_pairs.ellipsoid_box, 1.0),
        (Cylinder, Cylinder): _Pair(_overlapping_faces.CORNERS, _cylinder_pairs.cylinder_cylinder, 0.5, True),
        (Cylinder, Box): _Pair(_overlapping_faces.CORNERS, _cylinder_pairs.cylinder_box, 0.5, True),
        (Box, Box): _Pair(_box_box.COUNT, _box_box.box_box),
        (Sphere, Points): _Pair(1, _hull_pairs.sphere_mesh),
        (Capsule, Points): _Pair(2, _hull_pairs.capsule_mesh, several=True),
        (Ellipsoid, Points): _Pair(1, _hull_pairs.ellipsoid_mesh),
        (Cylinder, Points): _Pair(_hull_tables.CORNERS, _hull_pairs.cylinder_mesh, several=True),
        (Box, Points): _Pair(_hull_tables.CORNERS, _hull_pairs.box_mesh, several=True),
        (Points, Points): _Pair(_hull_tables.CORNERS, _hull_pairs.mesh_mesh, several=True),
    },
}
_SOLID_SIZES = {Ellipsoid: 3, Cylinder: 2, Box: 3}
"""The number of half sizes of the classes that `shallow_depth` looks at."""


def pair_witness_count(
    kind1: ShapeKind,
    size_count1: int,
    kind2: ShapeKind,
    size_count2: int,
    points: PointChoice = "smooth",
    structures: Structures = (None, None),
) -> int:
    """Return the number of witnesses of a pair of shapes of two classes with so many sizes: see `pair_witnesses`.

    **Raises** `ModelError` for classes that have no pairs.
    """
    pair, swapped = _pair(kind1, kind2, points)
    if swapped:
        kind1, size_count1, structures = kind2, size_count2, (structures[1], structures[0])
    if isinstance(structures[0], Grid):
        return structures[0].prisms
    return pair.count * (Points.witness_count(size_count1) if kind1 is Points else 1)


def pair_witnesses(
    kind1: ShapeKind,
    sizes1: Array,
    pose1: Pose,
    kind2: ShapeKind,
    sizes2: Array,
    pose2: Pose,
    points: PointChoice = "smooth",
    margin: Any = jnp.inf,
    structures: Structures = (None, None),
) -> Witness:
    """Return the possible contacts of pairs of shapes: of each shape of the first class with one of the second.

    Sizes are rows `[n, k, *batch]` and poses rows `[n, *batch]`. The witnesses are rows `[n * count, *batch]`, ordered
    pair by pair, with `pair_witness_count` of them a pair. `points` says how they are chosen: `"smooth"`, in this
    table, or `"mujoco"`, as `candidates` describes it, with a margin and structures. With `"nearest"` there is one a
    pair, whose gap is the exact distance; spheres and capsules have it with each other and with boxes, and spheres with
    cylinders.

    | pair | count | gap |
    |---|---|---|
    | plane with sphere, capsule, ellipsoid, cylinder, box | 1, 2, 1, 6, 8 | exact |
    | sphere or points with sphere, capsule, box, cylinder | 1 for each | exact |
    | capsule with capsule | 2 | the smaller one exact within 0.5 % of the first radius |
    | capsule with box | 2 | the same, while the capsule's axis is outside the box |
    | box with box | 13 | approximate, see below |

    The two contacts of a capsule are at the ends of that part of its axis which lies over the other shape, such as two
    logs have. Where a place between them is closer by more than 1 % of the radius, as in capsules that cross, both move
    there.

    Boxes have the points where the edges of one box's face enter and leave the other's face (8), that face's corners
    (4), and the two edges that cross (1). The faces are those of the direction with the largest separation (Gottschalk,
    Lin & Manocha, OBBTree, SIGGRAPH 1996), and gaps are along it. They are exact where boxes touch or overlap little,
    and too large or small between boxes far apart. Contacts that lie at the same place are counted as often.

    The points of a plane are those of `surface_witnesses`, on the other shape. All of these are elementwise, and all
    their derivatives are finite.

    **Raises** `ModelError` for classes that have no pairs: of smooth ones, ellipsoids but with planes, points with
    points or planes, and cylinders with capsules, boxes or cylinders.
    """
    pair, swapped = _pair(kind1, kind2, points)
    one = Placed(jnp.asarray(sizes1), with_candidates(pose1), structures[0])
    two = Placed(jnp.asarray(sizes2), with_candidates(pose2), structures[1])
    if points == "mujoco":
        margin = with_candidates(jnp.asarray(margin))
    found = pair.function(two, one, margin) if swapped else pair.function(one, two, margin)
    if points == "mujoco":
        found = [inactive_unless(each.gap <= margin, each) for each in found]
    rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), side_by_side(found))
    return rows._replace(normal=-rows.normal) if swapped else rows


def candidate_count(
    kind1: ShapeKind, kind2: ShapeKind, structures: Structures = (None, None), points: PointChoice = "mujoco"
) -> int:
    """Return the number of candidates of a pair of shapes of two classes with such structures.

    **Raises** `ModelError` for classes whose contacts are not built.
    """
    return pair_witness_count(kind1, 3, kind2, 3, points, structures)


def candidates(
    kind1: ShapeKind,
    sizes1: Any,
    pose1: Pose,
    kind2: ShapeKind,
    sizes2: Any,
    pose2: Pose,
    margin: Any = 0.0,
    structures: Structures = (None, None),
    points: PointChoice = "mujoco",
) -> Candidates:
    """Return the possible contacts of pairs of shapes as MuJoCo chooses them, with their frames; with other `points`
    those of `pair_witnesses`, at any distance.

    Sizes are rows `[n, k, *batch]`, of which those after a shape's own are not used, and structures are those of all
    shapes of a class: a `Grid` of a height field, whose sizes are its own, and `Hulls` of `Points`, whose sizes are the
    vertices of each hull. Poses of shapes in the world, and the distance `margin + gap` within which MuJoCo reports
    contacts, are rows `[n, *batch]`. The candidates are rows `[n * count, *batch]`, ordered pair by pair, with
    `candidate_count` of them a pair. The ones that MuJoCo reports are those of its `mjData.contact`; the others have
    the distance `FAR`.

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
    | mesh with sphere, ellipsoid | 1 | the same |
    | mesh with capsule, cylinder, box, mesh | 2, 4, 4, 4 | the same |

    The rows of that routine hold for overlaps up to `shallow_depth`: the smallest half size of the ellipsoids,
    cylinders and boxes of a pair, or half of it for cylinders with ellipsoids, cylinders and boxes. Most deeper ones
    are MuJoCo's, too; others have a direction out of each other that is not the shortest one. Where the side of a
    cylinder lies along a face, MuJoCo's contacts miss the deepest line of the side by up to 1e-6 m at any tolerance.

    Of a cylinder that touches another cylinder or a box's edge along a line MuJoCo reports one contact, at any place of
    this line. Where an end of the other shape, tilted a little, looks at the side of a cylinder whose end is touched,
    MuJoCo takes a line of that side that depends on its search. Where an end of a cylinder lies flat on a face, MuJoCo
    takes four corners of polygons by the last digits of their areas; here they are four places of the shared part, one
    of which is its deepest one.

    With height fields there is a candidate for each prism below the triangles of the grid that the shape can reach. If
    its size is changed so that it reaches more of them, the contacts are NaN. Where a face or an edge lies flat on a
    prism, MuJoCo's one contact is at a place that depends on its search; here it is in the middle or at an end.

    Meshes are their convex hulls. With a margin MuJoCo searches among rounded shapes; where these overlap, it may end
    at other faces and edges, and report other contacts. Meshes with height fields are not built.

    **Raises** `ModelError` for classes whose contacts are not built.
    """
    flat = once(pair_witnesses(kind1, sizes1, pose1, kind2, sizes2, pose2, points, margin, structures))
    return Candidates(flat.gap, flat.point, complete_frame(flat.normal, flat.tangent))


def is_built(kind1: ShapeKind | None, kind2: ShapeKind | None) -> bool:
    """Return whether contacts of two classes as MuJoCo chooses them are built."""
    return _built(kind1, kind2) is not None


def _built(kind1: ShapeKind | None, kind2: ShapeKind | None) -> _Pair | None:
    table: dict[Any, _Pair] = _TABLES["mujoco"]
    return table.get((kind1, kind2)) or table.get((kind2, kind1))


def moves_smoothly(kind1: ShapeKind, kind2: ShapeKind) -> bool:
    """Return whether two classes have contacts whose points move smoothly."""
    table = _TABLES["smooth"]
    return (kind1, kind2) in table or (kind2, kind1) in table


def may_be_deep(kind1: ShapeKind | None, kind2: ShapeKind | None) -> bool:
    """Return whether contacts of two classes are MuJoCo's only while the overlap is shallow."""
    pair = _built(kind1, kind2)
    return pair is not None and pair.shallow is not None


def is_searched(kind1: ShapeKind | None, kind2: ShapeKind | None) -> bool:
    """Return whether MuJoCo finds contacts of two classes by its general routine."""
    return may_be_deep(kind1, kind2) or (Points in (kind1, kind2) and Plane not in (kind1, kind2))


def has_several_contacts(kind1: ShapeKind | None, kind2: ShapeKind | None) -> bool:
    """Return whether two classes can have several contacts that MuJoCo finds by its general routine."""
    pair = _built(kind1, kind2)
    return pair is not None and pair.several


def has_flat_disks(kind1: ShapeKind | None, kind2: ShapeKind | None) -> bool:
    """Return whether an end of a cylinder can lie flat on the other shape, where MuJoCo's choice of places depends on
    the last digits of its search."""
    return (kind1, kind2) in ((Cylinder, Cylinder), (Cylinder, Box), (Box, Cylinder))


def shallow_depth(kind1: ShapeKind, sizes1: Any, kind2: ShapeKind, sizes2: Any) -> Any:
    """Return the overlap `[n, *batch]` up to which contacts of such classes are MuJoCo's, for sizes `[n, k, *batch]`.

    **Raises** `ModelError` for classes whose contacts are MuJoCo's at any depth.
    """
    part = _pair(kind1, kind2, "mujoco")[0].shallow
    if part is None:
        raise ModelError(f"contacts of {kind1.__name__} and {kind2.__name__} are MuJoCo's at any depth")
    kinds = (kind1, sizes1), (kind2, sizes2)
    sides = [sizes[:, i] for kind, sizes in kinds for i in range(_SOLID_SIZES.get(kind, 0))]
    return part * functools.reduce(jnp.minimum, sides)


def _pair(kind1: ShapeKind, kind2: ShapeKind, points: PointChoice) -> tuple[_Pair, bool]:
    """Return how pairs of two classes touch, and whether they are computed in the other order. **Raises** `ModelError`
    for classes that do not."""
    table = _TABLES[points]
    if (kind1, kind2) in table:
        return table[kind1, kind2], False
    if (kind2, kind1) in table:
        return table[kind2, kind1], True
    if points == "mujoco":
        advice = "give one of the shapes another class, or keep them apart by contype and conaffinity or <exclude>"
        raise ModelError(f"contacts of {kind1.__name__} and {kind2.__name__} are not built; {advice}")
    # Errors are about shapes; those without pairs of shapes touch surfaces.
    kinds = dict.fromkeys(kind for pair in table for kind in pair if kind is not Plane)
    known = {kind: [x.__name__ for x in kinds if {(kind, x), (x, kind)} & table.keys()] for kind in (kind1, kind2)}
    one, two = sorted((kind1, kind2), key=lambda kind: len(known[kind]))
    others = f"has pairs with {', '.join(known[one])} only" if known[one] else "touches surfaces only"
    raise ModelError(f"{one.__name__} {others}, not with {two.__name__}; a Capsule has more")
