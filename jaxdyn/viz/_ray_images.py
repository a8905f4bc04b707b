"""Images by rays from a camera: they need no screen, no browser and no graphics card.

Rays meet triangles in Embree, through trimesh. Surfaces are lit without shadows on one another; the ground has a grid
and the shadow of the robot.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxdyn._errors import require_positive_integer
from jaxdyn._extras import import_extra
from jaxdyn.viz._drawing import CONTACTS, FIELD_OF_VIEW, Drawing, Surface, camera_pose, compared_layers

_LIGHT = np.array([0.45, -0.55, 0.9]) / np.linalg.norm([0.45, -0.55, 0.9])
_LAYERS = 12
"""The most surfaces, one behind the other, through which one looks."""
_SAMPLES = 2
"""Rays along each side of a pixel."""


class Background(NamedTuple):
    """The color `[3]` behind a robot, the brightness that lines of the grid add to it, and the part of the light that a
    shadow takes away."""

    color: np.ndarray
    line: float
    shadow: float


_LIGHT_PAGE = Background(np.ones(3), -0.14, 0.15)
_DARK = Background(np.array([13, 17, 23]) / 255, 0.16, 0.5)
"""The background of GitHub's dark pages."""


class Camera(NamedTuple):
    """A camera at `position`; the rows of `axes` point to the right, up and forwards; `half` is the half width and the
    half height of the picture at the distance of one."""

    position: np.ndarray
    axes: np.ndarray
    half: np.ndarray

    @classmethod
    def for_box(cls, low: np.ndarray, high: np.ndarray, aspect: float) -> Camera:
        """Return the camera that sees a box, for a picture whose width is `aspect` times its height."""
        position, center = camera_pose(low, high)
        forwards = (center - position) / np.linalg.norm(center - position)
        right = np.cross(forwards, [0, 0, 1]) / np.linalg.norm(np.cross(forwards, [0, 0, 1]))
        half = np.tan(FIELD_OF_VIEW / 2) * np.array([aspect, 1.0]) * (1.0 if aspect > 1 else 1 / aspect)
        return cls(position, np.stack([right, np.cross(right, forwards), forwards]), half)

    def rays(self, width: int, height: int) -> np.ndarray:
        """Return the directions `[height, width, 3]` through the pixels."""
        x = (np.arange(width) + 0.5) / width * 2 - 1
        y = 1 - (np.arange(height) + 0.5) / height * 2
        right, up, forwards = self.axes
        out = forwards + (self.half[0] * x)[None, :, None] * right + (self.half[1] * y)[:, None, None] * up
        return out / np.linalg.norm(out, axis=-1, keepdims=True)

    def on_ground(self, rays: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the points `[h, w, 3]` at which rays meet the plane z = `level`, and whether they do."""
        down = rays[..., 2] < -1e-3
        distance = np.where(down, (level - self.position[2]) / np.where(down, rays[..., 2], -1.0), 0.0)
        return self.position + distance[..., None] * rays, down

    def window(self, points: np.ndarray, width: int, height: int) -> tuple[slice, slice]:
        """Return the rows and columns of the pixels around points `[n, 3]`: all of them where some are not in front of
        the camera."""
        x, y, z = self.axes @ (points - self.position).T
        if z.min() <= 1e-6 * np.abs(z).max():
            return slice(0, height), slice(0, width)
        column, row = (x / z / self.half[0] + 1) / 2 * width, (1 - y / z / self.half[1]) / 2 * height
        limits = [np.clip([a.min() - 2, a.max() + 2], 0, n).astype(int) for a, n in ((row, height), (column, width))]
        return slice(*limits[0]), slice(*limits[1])


class _Scene:
    """Triangles with colors at their vertices, of which rays find the nearest."""

    def __init__(self, surfaces: Sequence[Surface], poses: Sequence[np.ndarray]):
        trimesh = import_extra("trimesh", "draw pictures")
        import_extra("embreex", "draw pictures without a browser")
        from trimesh.ray.ray_pyembree import RayMeshIntersector

        meshes = [x.in_world(p) for x, p in zip(surfaces, poses, strict=True)]
        starts = np.cumsum([0, *(len(x.vertices) for x in meshes)])
        faces = np.concatenate([x.faces + n for x, n in zip(meshes, starts[:-1], strict=True)])
        self.vertices = np.concatenate([x.vertices for x in meshes])
        self._mesh = trimesh.Trimesh(self.vertices, faces, process=False)
        self._colors = np.concatenate([_vertex_colors(*x) for x in zip(surfaces, meshes, strict=True)])
        self._caster = RayMeshIntersector(self._mesh)
        self._size = float(np.linalg.norm(np.ptp(self.vertices, axis=0)))

    def nearest(self, origins: np.ndarray, rays: np.ndarray) -> np.ndarray:
        """Return the numbers of the nearest triangles `[n]`, -1 where there are none."""
        return self._caster.intersects_first(origins, rays)

    def paint(self, origin: np.ndarray, rays: np.ndarray, behind: np.ndarray) -> np.ndarray:
        """Return the colors `[n, 3]` that are seen along rays `[n, 3]`, over those `behind`."""
        out, light = np.zeros((len(rays), 3)), np.ones(len(rays))
        left, origins = np.arange(len(rays)), np.broadcast_to(origin, rays.shape)
        for _ in range(_LAYERS):
            triangles = self.nearest(origins, rays[left])
            hit = triangles >= 0
            left, origins, triangles = left[hit], origins[hit], triangles[hit]
            if not len(left):
                break
            points, color, opacity = self._shade(triangles, origins, rays[left])
            out[left] += (light[left] * opacity)[:, None] * color
            light[left] *= 1 - opacity
            left, points = left[light[left] > 0.02], points[light[left] > 0.02]
            origins = points + 1e-5 * self._size * rays[left]
        return out + light[:, None] * behind

    def _shade(
        self, triangles: np.ndarray, origins: np.ndarray, rays: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the points `[n, 3]` where rays meet triangles, and the lit colors and opacities there."""
        trimesh, mesh = import_extra("trimesh", "draw pictures"), self._mesh
        corners, flat = mesh.triangles[triangles], mesh.face_normals[triangles]
        steep = (rays * flat).sum(axis=1)
        distance = ((corners[:, 0] - origins) * flat).sum(axis=1) / np.where(np.abs(steep) > 1e-9, steep, 1e-9)
        points = origins + distance[:, None] * rays
        weights = np.nan_to_num(trimesh.triangles.points_to_barycentric(corners, points), nan=1 / 3)
        at = mesh.faces[triangles]
        normal = np.einsum("nk,nki->ni", weights, mesh.vertex_normals[at])
        # Meshes of files are not always turned outwards, and both of their sides are lit.
        normal *= -np.sign((normal * rays).sum(axis=1) + 1e-12)[:, None]
        normal /= np.maximum(np.linalg.norm(normal, axis=1, keepdims=True), 1e-12)
        lit = 0.55 + 0.4 * np.maximum(normal @ _LIGHT, 0) + 0.1 * normal[:, 2]
        gloss = 0.12 * np.maximum((normal * _half_way(rays)).sum(axis=1), 0) ** 40
        color = np.einsum("nk,nki->ni", weights, self._colors[at])
        return points, np.clip(lit[:, None] * color[:, :3] + gloss[:, None], 0, 1), np.clip(color[:, 3], 0, 1)


def draw_robots(
    drawing: Drawing,
    poses: Sequence[np.ndarray],
    size: tuple[int, int],
    bounds: tuple[np.ndarray, np.ndarray] | None = None,
    more: Sequence[Surface] = (),
    *,
    dark: bool = False,
) -> np.ndarray:
    """Return a picture `[height, width, 3]`, 0 to 255, of a robot with its bodies at `poses[0]` `[nb, 7]`, of a second
    one where there are two poses, and of more surfaces in the world. The camera sees the box `bounds`, by default that
    of the robots; `size` is width and height in pixels; `dark` chooses the background."""
    for name, pixels in zip(("width", "height"), size, strict=True):
        require_positive_integer(pixels, f"{name} (pixels)")

    def shown(layers: Collection[str], pose: np.ndarray) -> list[Surface]:
        return [x for x in (*drawing.surfaces, *drawing.lines(pose)) if x.layer in layers]

    bounds = drawing.bounds(np.stack(poses)) if bounds is None else bounds
    surfaces = [*more, *shown(drawing.shown, poses[0])]
    if CONTACTS in drawing.shown and (ground := drawing.world_surface(*bounds)) is not None:
        surfaces.append(ground)
    places = [poses[0]] * len(surfaces)
    if len(poses) > 1:
        second = shown(compared_layers(drawing.shown), poses[1])
        second = [x.as_compared(drawing.unit) for x in second if not drawing.is_shared(x)]
        surfaces += second
        places += [poses[1]] * len(second)
    return _draw(surfaces, places, bounds, drawing.ground(*bounds), size, _DARK if dark else _LIGHT_PAGE)


def _draw(
    surfaces: Sequence[Surface],
    poses: Sequence[np.ndarray],
    bounds: tuple[np.ndarray, np.ndarray],
    ground: tuple[float, float],
    size: tuple[int, int],
    background: Background,
) -> np.ndarray:
    """Return a picture of surfaces, each with its own poses of the bodies; `ground` is the height of the ground and the
    size of the cells of its grid, m."""
    width, height = (_SAMPLES * x for x in size)
    scene, camera = _Scene(surfaces, poses), Camera.for_box(*bounds, size[0] / size[1])
    level, cell = ground
    # Lines of the grid are smooth already, at one ray for each pixel.
    points, below = camera.on_ground(camera.rays(*size), level)
    lines = below * _grid(points[..., :2], (bounds[0] + bounds[1])[:2] / 2, cell)
    lines = lines.repeat(_SAMPLES, axis=0).repeat(_SAMPLES, axis=1)[..., None]
    picture = background.color + background.line * lines
    rays = camera.rays(width, height)
    # The shadow lies where rays to the light meet the robot.
    shadow = scene.vertices - ((scene.vertices[:, 2] - level) / _LIGHT[2])[:, None] * _LIGHT
    where = camera.window(shadow, width, height)
    points, below = camera.on_ground(rays[where], level + 1e-4 * cell)
    dark = scene.nearest(points.reshape(-1, 3), np.broadcast_to(_LIGHT, (below.size, 3))) >= 0
    picture[where] *= 1 - background.shadow * (dark.reshape(below.shape) & below)[..., None]
    where = camera.window(scene.vertices, width, height)
    seen = scene.paint(camera.position, rays[where].reshape(-1, 3), picture[where].reshape(-1, 3))
    picture[where] = seen.reshape(picture[where].shape)
    picture = picture.reshape(size[1], _SAMPLES, size[0], _SAMPLES, 3).mean(axis=(1, 3))
    return np.round(255 * np.clip(picture, 0, 1)).astype(np.uint8)


def _grid(points: np.ndarray, center: np.ndarray, cell: float) -> np.ndarray:
    """Return how much of a line of the grid each pixel at points `[h, w, 2]` of the ground has, in [0, 1]; it fades out
    away from the center."""
    out = np.zeros(points.shape[:2])
    for k in range(2):
        x = points[..., k] / cell
        down, right = np.gradient(x)
        across = np.hypot(down, right) + 1e-12
        out = np.maximum(out, np.clip(1.2 - np.abs(x - np.round(x)) / across, 0, 1) / np.maximum(1, 6 * across))
    away = np.linalg.norm(points - center, axis=-1) / (20 * cell)
    return out * np.clip(1.5 * (1 - away), 0, 1)


def _half_way(rays: np.ndarray) -> np.ndarray:
    """Return the directions half-way between the light and the camera."""
    out = _LIGHT - rays
    return out / np.linalg.norm(out, axis=1, keepdims=True)


def _vertex_colors(surface: Surface, mesh: Any) -> np.ndarray:
    """Return a color `[n, 4]` for each vertex; of an image, its colors there."""
    if surface.textured:
        return np.asarray(mesh.visual.to_color().vertex_colors, np.float64) / 255
    return np.broadcast_to(surface.color, (len(mesh.vertices), 4))
