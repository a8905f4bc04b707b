"""The geoms of MJCF files as pictures show them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from jaxdyn.io.mjcf import _compiled as mj

_SHOWN_GROUPS = 3
"""MuJoCo's viewer shows the geoms of the groups below this number; the others are usually for collisions."""


class DrawnSurface(NamedTuple):
    """The triangles of a mesh or a height field."""

    vertices: np.ndarray
    """`[n, 3]`, m, in the geom's frame."""
    faces: np.ndarray
    """`[k, 3]`"""
    coordinates: np.ndarray | None = None
    """`[n, 2]`: where each vertex is in the image, from its lower left corner, in parts of its width and height; None
    without an image."""
    pixels: np.ndarray | None = None
    """`[height, width, 3]`: the image, in the color of its material, from its upper row on."""


class DrawnGeom(NamedTuple):
    """A geom that is shown, or that can touch others."""

    number: int
    """MuJoCo's."""
    kind: str
    """`"plane"`, `"hfield"`, `"sphere"`, `"capsule"`, `"ellipsoid"`, `"cylinder"`, `"box"`, `"mesh"` or `"sdf"`."""
    size: np.ndarray
    """`[3]`, m: MuJoCo's `geom_size`."""
    color: np.ndarray
    """`[4]`: red, green, blue and opacity in [0, 1]; for a textured material the mean of the texture."""
    shown: bool
    """Whether MuJoCo's viewer shows it."""
    touches: bool
    """Whether MuJoCo lets it collide."""
    surface: DrawnSurface | None
    """The triangles of a mesh or a height field."""


def drawn_geoms(m) -> list[DrawnGeom]:
    """Return the geoms of an `mjModel` that are shown or can touch others."""
    out = []
    # Many geoms share one material, and textures are large.
    materials = [k for k in np.unique(m.geom_matid).tolist() if k >= 0]
    colors, images = {k: _material_color(m, k) for k in materials}, {k: _material_image(m, k) for k in materials}
    for g in range(m.ngeom):
        color = colors.get(int(m.geom_matid[g]), np.array(m.geom_rgba[g], np.float64))
        shown = bool(m.geom_group[g] < _SHOWN_GROUPS and color[3] > 0)
        touches = bool(m.geom_contype[g] or m.geom_conaffinity[g])
        if not (shown or touches):
            continue
        kind, surface = mj.enum_name("mjtGeom", m.geom_type[g]), None
        if kind == "mesh":
            surface = _mesh_surface(m, g, images.get(int(m.geom_matid[g])))
        elif kind == "hfield":
            surface = _field_surface(m, int(m.geom_dataid[g]))
        size = np.array(m.geom_size[g], np.float64)
        out.append(DrawnGeom(g, kind, size, np.clip(color, 0, 1), shown, touches, surface))
    return out


def _material_color(m, material: int) -> np.ndarray:
    """Return the color of a material. Where it has a texture, that is the mean color of this, times its own."""
    color = np.array(m.mat_rgba[material], np.float64)
    for _, pixels in _textures(m, material):
        color[:3] *= pixels.mean(axis=(0, 1)) / 255
    return color


def _material_image(m, material: int) -> np.ndarray | None:
    """Return the image `[height, width, 3]` of a material, in its color; None without one that lies on a surface."""
    for k, pixels in _textures(m, material):
        if mj.enum_name("mjtTexture", m.tex_type[k]) == "2d":
            return np.round(pixels * m.mat_rgba[material, :3]).astype(np.uint8)
    return None


def _textures(m, material: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the number and the image `[height, width, 3]` of each texture that colors a material."""
    for role in ("RGB", "RGBA"):
        k = int(np.atleast_1d(m.mat_texid[material])[int(getattr(mj.mujoco().mjtTextureRole, f"mjTEXROLE_{role}"))])
        if k >= 0:
            shape = int(m.tex_height[k]), int(m.tex_width[k]), int(m.tex_nchannel[k])
            pixels = m.tex_data[m.tex_adr[k] :][: np.prod(shape)].reshape(shape)
            # Gray images have one channel, or two with an opacity, which MuJoCo does not draw with.
            yield k, pixels[:, :, :3] if shape[2] >= 3 else np.repeat(pixels[:, :, :1], 3, axis=2)


def _mesh_surface(m, g: int, pixels: np.ndarray | None) -> DrawnSurface:
    """Return the triangles of a mesh, with the image of its material where its file says where this lies."""
    vertices, faces = mj.geom_mesh(m, g)
    k = m.geom_dataid[g]
    if pixels is None or not m.mesh_texcoordnum[k]:
        return DrawnSurface(vertices, faces)
    # A vertex between faces may have several places in the image.
    places = m.mesh_facetexcoord[m.mesh_faceadr[k] :][: len(faces)]
    corners = np.stack([faces, places], axis=2).reshape(-1, 2)
    corners, number = np.unique(corners, axis=0, return_inverse=True)
    coordinates = m.mesh_texcoord[m.mesh_texcoordadr[k] + corners[:, 1]]
    # MuJoCo counts from the upper row.
    return DrawnSurface(vertices[corners[:, 0]], number.reshape(-1, 3), coordinates * [1, -1] + [0, 1], pixels)


def _field_surface(m, k: int) -> DrawnSurface:
    """Return the upper surface of a height field, each cell of the grid as two triangles with MuJoCo's diagonal."""
    rows, columns, start = int(m.hfield_nrow[k]), int(m.hfield_ncol[k]), int(m.hfield_adr[k])
    half_x, half_y, height, _ = np.asarray(m.hfield_size[k], np.float64)
    x, y = np.linspace(-half_x, half_x, columns), np.linspace(-half_y, half_y, rows)
    z = height * np.asarray(m.hfield_data[start : start + rows * columns], np.float64)
    vertices = np.column_stack([np.tile(x, rows), np.repeat(y, columns), z])
    i = np.arange(rows * columns).reshape(rows, columns)
    corner, right, up, across = i[:-1, :-1].ravel(), i[:-1, 1:].ravel(), i[1:, :-1].ravel(), i[1:, 1:].ravel()
    triangles = [np.stack(x, axis=1) for x in ((corner, right, across), (corner, across, up))]
    return DrawnSurface(vertices, np.concatenate(triangles))
