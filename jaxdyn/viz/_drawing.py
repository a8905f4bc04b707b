"""The surfaces of a picture of a model: in layers, each fixed in a body or in the world."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import ModelError, require_last_axes
from jaxdyn.algorithms import forward_kinematics
from jaxdyn.contact import ShapeContacts
from jaxdyn.joints import JOINT_TYPES, coordinate_range
from jaxdyn.model import Model, rotational_about_center, unphysical_reason
from jaxdyn.spatial import (
    IDENTITY_POSE,
    SE3,
    compose_poses,
    invert_pose,
    quaternion_to_rotation,
    transform_points,
)
from jaxdyn.viz._contact_scene import height_of_level, surface_mesh
from jaxdyn.viz._geometry import (
    Cable,
    Visual,
    arrow,
    box,
    cylinder,
    inflated,
    merge,
    mesh_of,
    point_z_along,
    posed,
    rod,
    rod_at,
    sphere,
    tube,
)

LAYERS = ("meshes", "collisions", "ellipsoids", "skeleton", "frames", "axes", "loops", "tendons", "contacts", "forces")
MESHES, COLLISIONS, ELLIPSOIDS, SKELETON, FRAMES, AXES, LOOPS, TENDONS, CONTACTS, FORCES = LAYERS
SEGMENT, JOINT, INERTIA, UNPHYSICAL = "#6b7280", "#334155", "#4c9be8", "#e11d48"
INERTIA_OPACITY = 0.55
TRIAD = ("#e5484d", "#30a46c", "#3e63dd")
TURNS, SLIDES = "#f59e0b", "#a855f7"
LOOP, TENDON = "#06b6d4", "#b45309"
SHAPE, SHAPE_OPACITY = "#16a34a", 0.5
GROUND, GROUND_OPACITY = "#a8a29e", 0.35
FORCE = "#db2777"
"""Colors of contact shapes, of the surface that they touch, and of contact forces."""
COMPARED, COMPARED_OPACITY = "#f07828", 0.45
"""Color of a second robot."""
PATH, COMPARED_PATH = "#1d4ed8", "#c2410c"
"""Colors of the path of a frame, and of that of a second robot."""

FIELD_OF_VIEW = float(np.radians(45.0))
"""The angle between the upper and the lower edge of a picture."""
_GAP = 2e-3
"""The distance between surfaces that may coincide, in lengths of a usual segment."""
_SURROUNDINGS = 4.0
"""The largest size of a part of the world that a picture shows whole, in sizes of what moves: the rail of a cart and
the table of an arm are smaller, floors are larger."""
_PATH_POINTS = 200
"""The most points of the path of a frame."""


class Surface(NamedTuple):
    """Triangles in the frame of body `body` (-1: of the world) with one color `[4]`, of one of `LAYERS`. `mesh` is a
    `trimesh.Trimesh`, and `name` is that of the link, joint or frame which is drawn."""

    layer: str
    body: int
    mesh: Any
    color: np.ndarray
    name: str

    @property
    def textured(self) -> bool:
        """Whether the mesh has an image."""
        return self.mesh.visual.kind == "texture"

    def in_world(self, poses: np.ndarray) -> Any:
        """Return the mesh in the axes of the world, with the bodies at `poses` `[nb, 7]`."""
        return self.mesh if self.body < 0 else posed(self.mesh, poses[self.body])

    def as_compared(self, unit: float) -> Surface:
        """Return the surface of a second robot: translucent, orange, and a little larger, so that it does not flicker
        where it coincides with that of the first one."""
        return self._replace(mesh=inflated(self.mesh, 1.5 * _GAP * unit), color=rgba(COMPARED, COMPARED_OPACITY))


@dataclasses.dataclass(frozen=True, eq=False)
class Drawing:
    """The surfaces of a model, and `unit`, the length of a usual segment, m. Poses of its bodies are `[nb, 7]`, and
    behind them one for each mocap body: how far it is moved from where the file has it."""

    model: Model
    surfaces: list[Surface]
    unit: float
    shown: tuple[str, ...]
    """The layers to show at first."""
    load_collisions: Callable[[], Sequence[Surface]] | None = None
    """Returns the collision geometry, which is read from the robot's file when it is first shown."""
    contacts: ShapeContacts | None = None
    """The contacts whose shapes, surface and forces are drawn."""
    cables: tuple[Cable, ...] = ()
    mocap: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """The poses `[7]` of mocap bodies in the file, by their names."""
    floor: float | None = None
    """The height of a level plane of a world, m."""
    start: np.ndarray = dataclasses.field(kw_only=True)
    """The configuration `[nq]` at first."""

    @property
    def layers(self) -> list[str]:
        """The layers that have surfaces, or may have."""
        present = {x.layer for x in self.surfaces} | ({COLLISIONS} if self.load_collisions else set())
        present |= ({CONTACTS, FORCES} if self.contacts is not None else set()) | ({TENDONS} if self.cables else set())
        return [x for x in LAYERS if x in present]

    def collisions(self) -> list[Surface]:
        """Return the surfaces of the collision geometry, a little larger than they are: often they are nearly those of
        the meshes. **Raises** as `load_visuals`."""
        surfaces = () if self.load_collisions is None else self.load_collisions()
        return [x._replace(mesh=inflated(x.mesh, _GAP * self.unit)) for x in surfaces]

    def with_layers(self, shown: Sequence[str] | None) -> Drawing:
        """Return the drawing with these layers visible at first (None: unchanged). **Raises** `ModelError` for layers
        that the drawing does not have."""
        if shown is None:
            return self
        if isinstance(shown, str) or not shown or set(shown) - set(self.layers):
            raise ModelError(f"show is {shown!r}, but there is {', '.join(map(repr, self.layers))} to show, in a list")
        surfaces = [*self.surfaces, *(self.collisions() if COLLISIONS in shown else ())]
        return dataclasses.replace(self, shown=tuple(shown), surfaces=surfaces)

    def is_shared(self, surface: Surface) -> bool:
        """Return whether a surface belongs to the surroundings, which a second robot has in common with the first."""
        return self.floor is not None and surface.body < 0 and surface.layer in (MESHES, COLLISIONS)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of what has a pose: the bodies, and the mocap bodies."""
        return (*self.model.body_names, *self.mocap)

    def poses(self, q: Any, mocap: Any = None) -> np.ndarray:
        """Return the poses `[*batch, nodes, 7]` at configurations `q` `[*batch, nq]`, with the mocap bodies at poses
        `[*batch, nmocap, 7]`, by default as the file has them. **Raises** `ShapeError`."""
        bodies, count = body_poses(self.model, q), len(self.mocap)
        if not count:
            return bodies
        moved = np.tile(IDENTITY_POSE, (count, 1))
        if mocap is not None:
            require_last_axes(mocap, (count, 7), "mocap", f"poses of the mocap bodies {', '.join(self.mocap)}")
            now = np.array(mocap, np.float64)
            now[..., 3:] /= np.linalg.norm(now[..., 3:], axis=-1, keepdims=True)
            moved = compose_poses(now, invert_pose(np.stack(list(self.mocap.values()))))
        return np.concatenate([bodies, np.broadcast_to(moved, (*bodies.shape[:-2], count, 7))], axis=-2)

    def path(self, frame: str, poses: np.ndarray, *, compared: bool = False) -> Surface:
        """Return the line along which a frame moves with the bodies at `poses` `[n, nb, 7]`, as a tube. **Raises**
        `UnknownNameError`."""
        points = frame_poses(self.model, frame, poses)[:, :3]
        points = points[:: max(1, -(-len(points) // _PATH_POINTS))]
        radius = (0.016 if compared else 0.018) * self.unit
        return Surface(FRAMES, -1, tube(points, radius), rgba(COMPARED_PATH if compared else PATH), f"path of {frame}")

    def lines(self, poses: np.ndarray) -> list[Surface]:
        """Return what moves with several bodies, in the world, with these at `poses` `[nodes, 7]`: a line between the
        origins of the two frames of each loop that are apart, and the tendons."""
        topology, (first, second) = self.model.topology, _loop_ends(self.model)
        bodies, out = _with_world(poses), []
        for k, loop in enumerate(topology.loops):
            start = transform_points(bodies[loop.body1], first[k, :3])
            end = transform_points(bodies[loop.body2], second[k, :3])
            if np.linalg.norm(end - start) > 1e-3 * self.unit:
                mesh = rod_at(start, end, 0.025 * self.unit)
                out.append(Surface(LOOPS, -1, mesh, rgba(LOOP), f"loop {loop.name}"))
        for cable in self.cables:
            out.append(Surface(TENDONS, -1, cable.mesh(bodies, 0.02 * self.unit), rgba(TENDON), f"tendon {cable.name}"))
        return out

    def ground(self, low: np.ndarray, high: np.ndarray) -> tuple[float, float]:
        """Return the height of the ground's grid below a box, and the size of its cells, m. A level surface of contacts
        or a level plane of a world is the ground."""
        level = self.floor if self.contacts is None else height_of_level(self.contacts.surface)
        below, cell = min(0.0, float(low[2])), float(10.0 ** np.round(np.log10(np.linalg.norm(high - low) / 10)))
        return below if level is None else level, cell

    def world_surface(self, low: np.ndarray, high: np.ndarray) -> Surface | None:
        """Return the surface of the world around a box, or None."""
        surface = None if self.contacts is None else self.contacts.surface
        mesh = None if surface is None else surface_mesh(surface, low, high)
        return mesh and Surface(CONTACTS, -1, mesh, rgba(GROUND, GROUND_OPACITY), "surface of the world")

    def force_surface(self, mesh: Any) -> Surface:
        """Return the mesh of contact forces in the world as a surface."""
        return Surface(FORCES, -1, mesh, rgba(FORCE), "contact forces")

    def bounds(self, poses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the corners `[3]`, `[3]` of a box along the axes of the world around the visible surfaces, without
        those of the world that are much larger than what moves, with the bodies at `poses` `[*batch, nb, 7]`. It holds
        the surfaces' boxes in the bodies' axes."""
        poses = _with_world(poses.reshape(-1, *poses.shape[-2:]))
        shown = [x for x in self.surfaces if x.layer in self.shown and x.layer not in (FRAMES, AXES)]
        boxes = []
        for x in shown or self.surfaces:
            around = np.stack(np.meshgrid(*np.asarray(x.mesh.bounds).T), axis=-1).reshape(-1, 3)
            boxes.append((x.body, transform_points(poses[:, None, x.body], around).reshape(-1, 3)))
        points = _of_interest(boxes)
        return points.min(axis=0), points.max(axis=0)


def frame_poses(model: Model, frame: str, poses: np.ndarray) -> np.ndarray:
    """Return the poses `[*batch, 7]` of a frame in the world, with the bodies at `poses` `[*batch, nb, 7]`. **Raises**
    `UnknownNameError`."""
    k = model.topology.frame(frame)
    body = SE3.from_vector(_with_world(poses)[..., model.topology.frame_bodies[k], :])
    return np.asarray((body @ SE3.from_vector(np.asarray(model.frame_placement[k], np.float64))).to_vector())


def body_poses(model: Model, q) -> np.ndarray:
    """Return position and quaternion `[*batch, nb, 7]` of all bodies in the world. **Raises** `ShapeError`."""
    q = jnp.asarray(q, model.dtype)
    require_last_axes(q, (model.nq,), "q", f"nq = {model.nq} for this model")
    return np.asarray(_poses(model, q), np.float64)


@jax.jit
def _poses(model: Model, q):
    return forward_kinematics(model, q).to_vector()


def compared_layers(layers: Collection[str]) -> set[str]:
    """Return the layers that a second robot shows of those of the first: without collision geometry and contacts,
    unless there is nothing else, as they would cover what the first one shows."""
    return set(layers) - {COLLISIONS, CONTACTS, FORCES} or set(layers)


def first_configuration(model: Model) -> np.ndarray:
    """Return the configuration `[nq]` of zeros and identity rotations, put within the limits."""
    low, high = slider_ranges(model)
    return np.clip(np.asarray(model.neutral(), np.float64), low, high)


def slider_ranges(model: Model) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest and highest values `[nq]` of sliders: the limits, or half a turn or a meter to both sides."""
    low, high = (np.asarray(x, np.float64) for x in (model.position_lower, model.position_upper))
    return coordinate_range(model.topology, low, high)


def camera_pose(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the position of a camera that sees a box, and the point at which it looks."""
    center = (low + high) / 2
    away = np.array([1.0, -0.85, 0.45])
    return center + 1.3 * float(np.linalg.norm(high - low)) * away / np.linalg.norm(away), center


def _of_interest(clouds: Sequence[tuple[int, np.ndarray]]) -> np.ndarray:
    """Return the points `[n, 3]` of clouds in the world, each with the body that it belongs to, without those of the
    world (-1) that are much larger than what moves: floors, of 80 m in files of MuJoCo, and walls."""

    def extent(clouds: Sequence[np.ndarray]) -> float:
        return float(np.linalg.norm(np.ptp(np.concatenate(clouds), axis=0)))

    moving = [points for body, points in clouds if body >= 0]
    most = _SURROUNDINGS * extent(moving) if moving else np.inf
    return np.concatenate([points for body, points in clouds if body >= 0 or extent([points]) <= most])


def _with_world(poses: np.ndarray) -> np.ndarray:
    """Append the pose of the world to poses `[*batch, nb, 7]`, as that of body number -1."""
    return np.concatenate([poses, np.broadcast_to(IDENTITY_POSE, (*poses.shape[:-2], 1, 7))], axis=-2)


def draw(
    model: Model,
    visuals: Sequence[Surface],
    start: np.ndarray,
    *,
    mocap: dict[str, np.ndarray] | None = None,
    cables: tuple[Cable, ...] = (),
    floor: float | None = None,
    load_collisions: Callable[[], Sequence[Surface]] | None = None,
) -> Drawing:
    """Return the drawing of a model with visual geometry, which it is seen with if there is any."""
    surfaces, mocap = list(visuals), mocap or {}
    segments = list(_segments(model))
    poses = _with_world(np.concatenate([body_poses(model, start), np.tile(IDENTITY_POSE, (len(mocap), 1))]))
    clouds = [(x.body, np.asarray(x.mesh.vertices)) for x in surfaces] + [
        (i, np.stack([0 * end, end])) for i, end in segments
    ]
    clouds = [(i, transform_points(poses[i], cloud)) for i, cloud in clouds]
    points = _of_interest([*clouds, *((i, pose[None, :3]) for i, pose in enumerate(poses[: model.nb]))])
    lengths = [x for _, end in segments if (x := float(np.linalg.norm(end))) > 1e-6]
    parameters = np.asarray(model.inertial_parameters, np.float64)
    # Where everything is at one point, twice the largest radius of gyration.
    radii = [np.sqrt(abs(np.trace(rotational_about_center(p))) / p[0]) for p in parameters if p[0] > 0]
    size = float(np.linalg.norm(np.ptp(points, axis=0))) or 2.0 * max(radii, default=0.0) or 1.0
    unit = float(np.clip(np.quantile(lengths, 0.75) if lengths else size / 4, size / 25, size / 4))
    surfaces += [_ellipsoid(model, i, x, 0.06 * unit) for i, x in enumerate(parameters) if x[0] > 0]
    surfaces += _skeleton(model, segments, unit)
    surfaces += _triads(model, unit)
    surfaces += [x for i in range(model.nb) for x in _joint_axes(model, i, unit)]
    surfaces += _loop_ends_drawn(model, unit)
    present = {x.layer for x in surfaces}
    shown = (MESHES, LOOPS) if visuals else (ELLIPSOIDS, SKELETON, FRAMES, AXES, LOOPS)
    shown = (*(x for x in shown if x in present), *([TENDONS] if cables else []))
    return Drawing(model, surfaces, unit, shown, load_collisions, None, cables, mocap, floor, start=start)


def surface_of(model: Model, visual: Visual, layer: str) -> Surface:
    """Return a visual in the body that carries its frame."""
    body, pose = -1, IDENTITY_POSE
    if visual.frame != "world" or "world" in model.topology.frame_names:
        k = model.topology.frame(visual.frame)
        body, pose = model.topology.frame_bodies[k], np.asarray(model.frame_placement[k], np.float64)
    mesh = mesh_of(visual.vertices, visual.faces) if visual.textured is None else visual.textured
    return Surface(layer, body, posed(mesh, pose), np.asarray(visual.color, np.float64), f"link {visual.frame}")


# Inertias


def _ellipsoid(model: Model, body: int, parameters: np.ndarray, least: float) -> Surface:
    """Return the uniform ellipsoid of the same mass, center of mass and moments of inertia: its semi-axes are the roots
    of `5 s / m` for the principal second moments `s_k = tr(I) / 2 - I_k`. A semi-axis is at least `least`, so that
    points and rods are seen. An inertia that no mass distribution has is red."""
    m = parameters[0]
    moments, axes = np.linalg.eigh(rotational_about_center(parameters))
    second = np.maximum(moments.sum() / 2 - moments, 0.0)
    axes = axes * np.sign(np.linalg.det(axes))
    mesh = sphere(np.maximum(np.sqrt(5 * second / m), least))
    mesh.vertices = mesh.vertices @ axes.T + parameters[1:4] / m
    color = INERTIA if unphysical_reason(parameters) is None else UNPHYSICAL
    return Surface(ELLIPSOIDS, body, mesh, rgba(color, INERTIA_OPACITY), f"inertia of {model.body_names[body]}")


# The skeleton


def _segments(model: Model) -> Iterator[tuple[int, np.ndarray]]:
    """Yield a body (-1: the world) and the end of a line from its origin: to the joints that it carries and the loops
    that hold it; if it carries none, to its frames and its center of mass; in the world, to the joints that do not move
    freely."""
    topology, parameters = model.topology, np.asarray(model.inertial_parameters, np.float64)
    places, frames = (np.asarray(x, np.float64)[:, :3] for x in (model.joint_placement, model.frame_placement))
    for i, parent in enumerate(topology.parents):
        if parent >= 0 or topology.joint_types[i] != "free":
            yield parent, places[i]
    for loop, *ends in zip(topology.loops, *_loop_ends(model), strict=True):
        yield from ((body, end[:3]) for body, end in zip((loop.body1, loop.body2), ends, strict=True) if body >= 0)
    for i in set(range(model.nb)) - set(topology.parents):
        for k in np.flatnonzero(np.array(topology.frame_bodies) == i):
            yield i, frames[k]
        if parameters[i, 0] > 0:
            yield i, parameters[i, 1:4] / parameters[i, 0]


def _skeleton(model: Model, segments, unit: float) -> list[Surface]:
    out = []
    for body in range(-1, model.nb):
        ends = [end for i, end in segments if i == body and np.linalg.norm(end) > 1e-3 * unit]
        if rods := [rod(np.zeros(3), end, 0.03 * unit) for end in ends]:
            out.append(Surface(SKELETON, body, merge(rods), rgba(SEGMENT), body_name(model, body)))
    for i, name in enumerate(model.joint_names):
        out.append(Surface(SKELETON, i, _joint_mesh(model, i, 0.09 * unit), rgba(JOINT), f"joint {name}"))
    return out


def body_name(model: Model, body: int) -> str:
    return "world" if body < 0 else f"body {model.body_names[body]}"


def _joint_mesh(model: Model, i: int, radius: float) -> Any:
    """Return a shape at a body's origin: a drum about the axis of a turning joint, a block along a sliding one's."""
    chain = JOINT_TYPES[model.topology.joint_types[i]]
    if not chain[-1].has_axis:
        return sphere(radius)
    made = cylinder(radius, 2.2 * radius) if chain[-1].rotates[0] else box([1.4 * radius, 1.4 * radius, 3 * radius])
    return point_z_along(made, _axes_of(model, i)[-1])


# Frames and axes


def _triads(model: Model, unit: float) -> list[Surface]:
    """Return the axes of frames in red, green, blue for x, y, z: of the world, of bodies, and, smaller, of others."""
    length, placements = 0.35 * unit, np.asarray(model.frame_placement, np.float64)
    triads: dict[int, list[tuple[float, np.ndarray]]] = {-1: [(1.5 * length, IDENTITY_POSE)]}
    for k, body in enumerate(model.topology.frame_bodies):
        triads.setdefault(body, []).append((length if k < model.nb else 0.6 * length, placements[k]))
    out = []
    for body, frames in triads.items():
        for axis, color in enumerate(TRIAD):
            ends = [pose[:3] + scale * quaternion_to_rotation(pose[3:])[:, axis] for scale, pose in frames]
            rods = [rod(x[:3], end, 0.05 * s) for (s, x), end in zip(frames, ends, strict=True)]
            out.append(Surface(FRAMES, body, merge(rods), rgba(color), f"frames of {body_name(model, body)}"))
    return out


def _axes_of(model: Model, i: int) -> np.ndarray:
    """Return the axes `[n, 3]` of a joint of one or more primitive motions, in its frame."""
    tree = model.topology.spanning
    rows = np.isin(model.topology.axis_dofs, np.arange(tree.v_starts[i], tree.v_starts[i + 1]))
    return np.asarray(model.joint_axis, np.float64)[rows]


def _joint_axes(model: Model, i: int, unit: float) -> Iterator[Surface]:
    """Yield arrows along the axes, orange where the joint turns about them, violet where it slides along them. The last
    axis is fixed in the joint's own body; those before it are fixed in the body that carries the joint, where they
    stand before any of them turns."""
    chain = JOINT_TYPES[model.topology.joint_types[i]]
    if not chain[-1].has_axis:
        return
    place = np.asarray(model.joint_placement[i], np.float64)
    for k, (joint, axis) in enumerate(zip(chain, _axes_of(model, i), strict=True)):
        start, neck, tip = (x * unit * axis / np.linalg.norm(axis) for x in (-0.25, 0.45, 0.59))
        mesh, last = arrow(start, neck, tip, 0.025 * unit), k == len(chain) - 1
        body, mesh = (i, mesh) if last else (model.topology.parents[i], posed(mesh, place))
        color = rgba(TURNS if joint.rotates[0] else SLIDES)
        yield Surface(AXES, body, mesh, color, f"axis of joint {model.joint_names[i]}")


# Loops


def _loop_ends(model: Model) -> tuple[np.ndarray, np.ndarray]:
    """Return the poses `[n, 7]` of the first and of the second frames of all loops, in their bodies."""
    placements = (model.loop_placement1, model.loop_placement2)
    first, second = (np.zeros((0, 7)) if x is None else np.asarray(x, np.float64) for x in placements)
    return first, second


def _loop_ends_drawn(model: Model, unit: float) -> Iterator[Surface]:
    """Yield a ball at either frame of each loop."""
    first, second = _loop_ends(model)
    for k, loop in enumerate(model.topology.loops):
        for body, pose in ((loop.body1, first[k]), (loop.body2, second[k])):
            mesh = posed(sphere(0.07 * unit), pose)
            yield Surface(LOOPS, body, mesh, rgba(LOOP), f"loop {loop.name} in {body_name(model, body)}")


def rgba(color: str, opacity: float = 1.0) -> np.ndarray:
    """Return a color `[4]` with parts in [0, 1] from `#rrggbb` and an opacity."""
    return np.array([*(int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)), opacity])
