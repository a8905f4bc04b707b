"""Contact shapes, the surface of the world, and contact forces, as pictures show them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np

from jaxdyn._errors import ModelError, require_positive, require_shape
from jaxdyn.contact import ContactForces, ShapeContacts
from jaxdyn.geometry import AbstractSurface, Box, Capsule, Cylinder, Ellipsoid, Plane, Points, Sphere
from jaxdyn.spatial import Vec3, quaternion_from_z
from jaxdyn.viz._geometry import (
    box,
    capsule,
    cone,
    convex_hull,
    cylinder,
    inflated,
    merge,
    mesh_of,
    point_z_along,
    posed,
    scaled,
    small_ball,
    sphere,
    with_creases,
)

_COLUMNS, _LEVELS = 61, 65
"""The numbers of columns along each side of a surface, and of heights at which it is looked for in each of them."""


def shape_meshes(contacts: ShapeContacts, unit: float) -> Iterator[tuple[int, Any]]:
    """Yield for each contact shape the number of its body, and its mesh in the body's frame. Points are small balls,
    with their convex hull where it has a volume. **Raises** `ModelError` for batch axes."""
    for group in contacts.groups:
        sizes, places = np.asarray(group.sizes, np.float64), np.asarray(group.placement, np.float64)
        if sizes.ndim > 2 or places.ndim > 2:
            raise ModelError("contacts have batch axes; show one element, by jax.tree.map(lambda x: x[0], world)")
        for body, numbers, place in zip(group.bodies, sizes, places, strict=True):
            for mesh in _meshes(group.kind, numbers, unit):
                yield body, posed(mesh, place)


def _meshes(kind: type, sizes: np.ndarray, unit: float) -> Iterator[Any]:
    least = 0.02 * unit
    if issubclass(kind, Sphere):
        yield sphere(max(sizes[0], least))
    elif issubclass(kind, Capsule):
        yield capsule(max(sizes[0], least), 2 * sizes[1])
    elif issubclass(kind, Cylinder):
        yield cylinder(max(sizes[0], least), max(2 * sizes[1], least))
    elif issubclass(kind, Box):
        yield box(2 * sizes)
    elif issubclass(kind, Ellipsoid):
        yield sphere(sizes)
    elif issubclass(kind, Points):
        points = sizes.reshape(-1, 3)
        yield merge([small_ball(least).apply_translation(x) for x in points])
        if (hull := convex_hull(points)) is not None:
            yield inflated(with_creases(hull), 2e-3 * unit)


def height_of_level(surface: AbstractSurface | None) -> float | None:
    """Return the height of a plane whose normal is z, m; None for other surfaces."""
    if not isinstance(surface, Plane):
        return None
    normal = np.asarray(surface.normal, np.float64)
    return float(surface.offset) if normal[2] > (1 - 1e-9) * np.linalg.norm(normal) else None


def surface_mesh(surface: AbstractSurface, low: np.ndarray, high: np.ndarray) -> Any | None:
    """Return the mesh of a surface of the world around a box; None where there is none near it.

    A plane is a square. Of other surfaces it is what is seen from above: in each column of a grid, the highest place
    where the distance changes its sign.
    """
    center, size = (low + high) / 2, float(np.linalg.norm(high - low))
    if isinstance(surface, Plane):
        normal = np.asarray(surface.normal, np.float64)
        normal = normal / np.linalg.norm(normal)
        corners = size * np.array([[-1, -1, 0], [1, -1, 0], [1, 1, 0], [-1, 1, 0]])
        square = mesh_of(corners, np.array([[0, 1, 2], [0, 2, 3]]))
        middle = center - (normal @ center - float(surface.offset)) * normal
        # A little below, as the grid of the ground may be there.
        return point_z_along(square, normal).apply_translation(middle - 1e-3 * size * normal)
    sides = [np.linspace(center[k] - size, center[k] + size, _COLUMNS) for k in range(2)]
    x, y = (a.ravel() for a in np.meshgrid(*sides, indexing="ij"))
    heights = np.linspace(high[2] + size, low[2] - size, _LEVELS)

    def distance(z: np.ndarray) -> np.ndarray:
        return np.asarray(_distances(surface, Vec3(*np.broadcast_arrays(x, y, z))))

    inside = distance(heights[:, None]) <= 0
    found, k = inside.any(axis=0) & ~inside[0], inside.argmax(axis=0)
    above, below = heights[np.maximum(k - 1, 0)], heights[k]
    for _ in range(24):
        middle = (above + below) / 2
        beneath = distance(middle) <= 0
        above, below = np.where(beneath, above, middle), np.where(beneath, middle, below)
    i = np.arange(_COLUMNS**2).reshape(_COLUMNS, _COLUMNS)
    corners = np.stack([i[:-1, :-1], i[1:, :-1], i[1:, 1:], i[:-1, 1:]], axis=-1).reshape(-1, 4)
    corners = corners[found[corners].all(axis=1)]
    if not len(corners):
        return None
    faces = np.concatenate([corners[:, [0, 1, 2]], corners[:, [0, 2, 3]]])
    mesh = mesh_of(np.stack([x, y, below], axis=1), faces)
    mesh.remove_unreferenced_vertices()
    return mesh


@eqx.filter_jit
def _distances(surface: AbstractSurface, point: Vec3) -> Any:
    return surface.distance(point)[0]


class Instances(NamedTuple):
    """Places of equal meshes: positions `[m, 3]`, quaternions `[m, 4]` and scales `[m, 3]` along their axes."""

    positions: np.ndarray
    wxyzs: np.ndarray
    scales: np.ndarray


class Forces(NamedTuple):
    """Contact forces to draw: points (m) and forces (N), `[n, nc, 3]` in the world, and which contacts are closed,
    `[n, nc]`. An arrow has `scale` N per m; `unit` is the length of a usual segment of the robot, m."""

    point: np.ndarray
    force: np.ndarray
    closed: np.ndarray
    scale: float
    unit: float

    @classmethod
    def of(cls, forces: ContactForces, count: int, scale: float | None, unit: float) -> Forces:
        """Return the forces at `count` samples. By default the largest force of a usual sample is as long as a segment.
        **Raises** `ShapeError`, and `ModelError` for a scale that is not positive."""
        point, force, gap = (np.asarray(x, np.float64) for x in (forces.point, forces.force, forces.gap))
        shape = (count, gap.shape[-1] if gap.ndim else 0)
        meaning = "world.contact_forces(states) of the states that are shown"
        require_shape(gap, shape, "forces.gap", meaning)
        for value, what in ((point, "forces.point"), (force, "forces.force")):
            require_shape(value, (*shape, 3), what, meaning)
        length = np.linalg.norm(force, axis=-1)
        if scale is None:
            largest = length.max(axis=-1, initial=0.0)
            usual = float(np.median(largest[largest > 0])) if largest.any() else unit
            scale = _round_number(usual / unit)
        require_positive(scale, "newtons_per_meter (N/m)")
        return cls(point, force, (gap <= 0) | (length > 1e-9 * length.max(initial=0.0)), float(scale), unit)

    @property
    def most(self) -> int:
        """The largest number of closed contacts of a sample."""
        return int(self.closed.sum(axis=1).max(initial=0))

    def instances(self, k: int) -> dict[str, Instances]:
        """Return the places of balls at the closed contacts, and of shafts and heads of arrows along the forces on the
        robot, at sample `k`. There are equally many at all samples; those that are not needed have almost no size."""
        at = np.flatnonzero(self.closed[k])
        count, unit = self.most, self.unit
        point = np.zeros((count, 3))
        point[: len(at)] = self.point[k, at]
        length, along = np.zeros(count), np.tile([0.0, 0, 1], (count, 1))
        length[: len(at)] = np.linalg.norm(self.force[k, at], axis=1) / self.scale
        pushes = length > 1e-3 * unit
        along[pushes] = self.force[k, at[pushes[: len(at)]]] / (self.scale * length[pushes, None])
        head = np.minimum(0.5 * length, 0.16 * unit)
        turn = quaternion_from_z(along)
        size = np.where(np.arange(count) < len(at), 0.05 * unit, 0.0)
        thick = np.where(pushes, 0.03 * unit, 0.0)

        def scales(across: np.ndarray, length: np.ndarray) -> np.ndarray:
            return np.maximum(np.stack([across, across, length], axis=1), 1e-6 * unit)

        neck = (length - head)[:, None] * along
        return {
            "ball": Instances(point, turn, scales(size, size)),
            "shaft": Instances(point + neck / 2, turn, scales(thick, length - head)),
            "head": Instances(point + neck, turn, scales(2.4 * thick, head)),
        }

    def mesh(self, k: int) -> Any | None:
        """Return balls and arrows at sample `k` as one mesh in the world; None where no contact is closed."""
        parts = []
        for name, places in self.instances(k).items():
            for position, wxyz, scale in zip(*places, strict=True):
                if scale[0] > 1e-5 * self.unit:
                    parts.append(posed(scaled(part_meshes()[name], scale), np.concatenate([position, wxyz])))
        return merge(parts) if parts else None


@functools.cache
def part_meshes() -> dict[str, Any]:
    """Return a ball of radius 1, a cylinder of radius and length 1 along z about the origin, and a cone of this size on
    the origin."""
    return {"ball": small_ball(1.0), "shaft": cylinder(1.0, 1.0, around=12), "head": cone(1.0, 1.0)}


def _round_number(x: float) -> float:
    """Return 1, 2 or 5 times a power of ten that is near a positive number."""
    power = 10.0 ** np.floor(np.log10(x))
    return float(min((power * k for k in (1, 2, 5, 10)), key=lambda y: abs(np.log(y / x))))
