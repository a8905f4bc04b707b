"""The surfaces of a world: its geoms and tendons as the world has them now, not as its file had them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from jaxdyn._errors import ModelError
from jaxdyn.io.robot_files import enumerate_names, warn
from jaxdyn.spatial import quaternion_to_rotation
from jaxdyn.viz._drawing import (
    COLLISIONS,
    GROUND_OPACITY,
    MESHES,
    SHAPE,
    Drawing,
    Surface,
    body_name,
    draw,
    rgba,
    surface_of,
)
from jaxdyn.viz._geometry import Cable, posed
from jaxdyn.viz._visuals import COLLISION_COLOR, geom_mesh, load_visuals
from jaxdyn.worlds import Appearance, VisualFile, World


def draw_world(world: World, *, skip_missing: bool = False) -> Drawing:
    """Return the drawing of a world. **Raises** `ModelError` for one with batch axes; as `load_visuals` for the
    meshes of a URDF file."""
    start, moved = (np.asarray(x, np.float64) for x in (world.start, world.parts.bodies.mocap))
    if start.ndim > 1 or moved.ndim > 2:
        raise ModelError("the world has batch axes; choose one element, by jax.tree.map(lambda x: x[0], world)")
    geoms, visuals = _geoms(world), _of_file(world, skip_missing, MESHES)
    # A URDF file shows more than the shapes that touch, but not the floor.
    shown = [x.surface(MESHES) for x in geoms if x.shown and (x.is_floor or not visuals)]

    def load_collisions() -> list[Surface]:
        return [x.surface(COLLISIONS) for x in geoms if x.touching] or _of_file(world, skip_missing, COLLISIONS)

    return draw(
        world.model,
        [*visuals, *shown],
        start,
        mocap=dict(zip(world.mocap_names, moved, strict=True)),
        cables=_cables(world),
        floor=max((x.place[2] for x in geoms if x.is_floor), default=None),
        load_collisions=load_collisions,
    )


def _of_file(world: World, skip_missing: bool, layer: str) -> list[Surface]:
    """Return the visual or collision geometry of the URDF file of a world; none, with a warning, without the file."""
    file = world.appearance
    if not isinstance(file, VisualFile):
        return []
    if "<" not in file.source and not os.path.exists(file.source):
        warn(f"the world is shown without the meshes of {file.source}, which is not there; visuals=... names others")
        return []
    dirs, collision = file.package_dirs, layer == COLLISIONS
    found = load_visuals(file.source, collision=collision, package_dirs=dirs, skip_missing=skip_missing)
    return [surface_of(world.model, x, layer) for x in found]


class _ShownGeom(NamedTuple):
    """A geom as the world has it now."""

    kind: str
    body: int
    """The row of poses that moves it."""
    place: np.ndarray
    mesh: Any
    color: np.ndarray
    name: str
    shown: bool
    touching: bool

    @property
    def is_floor(self) -> bool:
        """Whether it is a plane that is level and does not move."""
        upright = quaternion_to_rotation(self.place[3:])[2, 2] > 1 - 1e-9
        return self.kind == "plane" and self.body < 0 and bool(upright)

    def surface(self, layer: str) -> Surface:
        """Return its surface. The grid of the ground, and shadows, are seen through a floor."""
        color = np.array(COLLISION_COLOR if layer == COLLISIONS else self.color)
        if self.is_floor:
            color[3] = min(color[3], GROUND_OPACITY)
        return Surface(layer, self.body, posed(self.mesh, self.place), color, f"geom of {self.name}")


def _geoms(world: World) -> list[_ShownGeom]:
    """Return the geoms of a world that are drawn, with a warning of those that pictures do not have."""
    drawn, contacts = world.appearance, world.parts.constraints.contacts
    if not isinstance(drawn, Appearance):
        return _touching_shapes(world)
    sizes, places, colors = (np.array(x, np.float64) for x in (drawn.sizes, drawn.places.placement, drawn.colors))
    # Geoms that can touch have the places and the sizes with which they do.
    rows = {number: i for i, number in enumerate(contacts.numbers)}
    for k, number in enumerate(drawn.numbers):
        if number in rows:
            sizes[k], places[k] = contacts.sizes[rows[number]], contacts.geoms.placement[rows[number]]
    out, left_out = [], []
    for k, body in enumerate(_movers(world, drawn.places)):
        row = drawn.surface_of[k]
        mesh = geom_mesh(drawn.kinds[k], sizes[k], None if row < 0 else drawn.surfaces[row])
        if mesh is None:
            left_out.append(f"{drawn.kinds[k]} of {drawn.names[k]}")
            continue
        what = mesh, colors[k], drawn.names[k], drawn.shown[k], drawn.touching[k]
        out.append(_ShownGeom(drawn.kinds[k], body, places[k], *what))
    if left_out:
        warn(f"the world is shown without geoms that pictures do not have: {enumerate_names(left_out)}")
    return out


def _touching_shapes(world: World) -> list[_ShownGeom]:
    """Return the shapes that can touch in a world that is made of a model, under MuJoCo's law."""
    contacts, kinds = world.parts.constraints.contacts, {}
    for pairs in contacts.pairs:
        for kind, rows in zip(pairs.types, (pairs.first, pairs.second), strict=True):
            kinds |= dict.fromkeys(rows, kind.__name__.lower())
    bodies, out = list(_movers(world, contacts.geoms)) if kinds else [], []
    for i, kind in sorted(kinds.items()):
        size, place = (np.asarray(x[i], np.float64) for x in (contacts.sizes, contacts.geoms.placement))
        name = body_name(world.model, bodies[i])
        # A plane without sizes is infinite.
        mesh = geom_mesh(kind, np.zeros(3) if kind == "plane" else size, None)
        out.append(_ShownGeom(kind, bodies[i], place, mesh, rgba(SHAPE, 1.0), name, True, True))
    return out


def _movers(world: World, places: Any) -> Iterator[int]:
    """Yield for each frame the row of the poses of a drawing that moves it: a body of the model, a mocap body behind
    these, or -1 for the world."""
    for dof, mocap in zip(places.dofs, places.mocap or [-1] * len(places.dofs), strict=True):
        if dof >= 0:
            yield int(world.model.topology.body_of_dof[dof])
        else:
            yield world.model.nb + mocap if mocap >= 0 else -1


def _cables(world: World) -> tuple[Cable, ...]:
    """Return the tendons that are paths through sites, straight also where they wrap around geoms."""
    tendons = world.parts.tendons
    points = np.asarray(tendons.sites.placement, np.float64)[:, :3]
    ends = list(zip(_movers(world, tendons.sites), points, strict=True))
    pieces: dict[int, list[Any]] = {}
    for owner, first, second, *_ in (*tendons.segments, *tendons.wraps):
        pieces.setdefault(owner, []).append((ends[first], ends[second]))
    return tuple(Cable(tendons.names[i], tuple(found)) for i, found in pieces.items())
