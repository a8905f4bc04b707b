"""The geoms of MJCF files as pictures show them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jaxdyn.io.mjcf import _compiled as mj

_SHOWN_GROUPS = 3
"""MuJoCo's viewer shows the geoms of the groups below this number; the others are usually for collisions."""


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
    surface: tuple[np.ndarray, np.ndarray] | None
    """The vertices `[n, 3]` in the geom's frame, m, and the triangles `[k, 3]` of a mesh or a height field."""


def drawn_geoms(m) -> list[DrawnGeom]:
    """Return the geoms of an `mjModel` that are shown or can touch others."""
    out = []
    # Many geoms share one material, and textures are large.
    colors = {k: _material_color(m, k) for k in np.unique(m.geom_matid).tolist() if k >= 0}
    for g in range(m.ngeom):
        color = colors.get(int(m.geom_matid[g]), np.array(m.geom_rgba[g], np.float64))
        shown = bool(m.geom_group[g] < _SHOWN_GROUPS and color[3] > 0)
        touches = bool(m.geom_contype[g] or m.geom_conaffinity[g])
        if not (shown or touches):
            continue
        kind, surface = mj.enum_name("mjtGeom", m.geom_type[g]), None
        if kind == "mesh":
            surface = mj.geom_mesh(m, g)
        elif kind == "hfield":
            surface = _field_surface(m, int(m.geom_dataid[g]))
        size = np.array(m.geom_size[g], np.float64)
        out.append(DrawnGeom(g, kind, size, np.clip(color, 0, 1), shown, touches, surface))
    return out


def _material_color(m, material: int) -> np.ndarray:
    """Return the color of a material. Where it has a texture, that is the mean color of this, times its own."""
    color = np.array(m.mat_rgba[material], np.float64)
    for role in ("RGB", "RGBA"):
        k = int(np.atleast_1d(m.mat_texid[material])[int(getattr(mj.mujoco().mjtTextureRole, f"mjTEXROLE_{role}"))])
        if k >= 0:
            channels = int(m.tex_nchannel[k])
            pixels = m.tex_data[m.tex_adr[k] :][: int(m.tex_height[k]) * int(m.tex_width[k]) * channels]
            mean = pixels.reshape(-1, channels).mean(axis=0) / 255
            # Gray images have one channel, or two with an opacity, which MuJoCo does not draw with.
            color[:3] *= mean[:3] if channels >= 3 else mean[0]
    return color


def _field_surface(m, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the upper surface of a height field, each cell of the grid as two triangles with MuJoCo's diagonal."""
    rows, columns, start = int(m.hfield_nrow[k]), int(m.hfield_ncol[k]), int(m.hfield_adr[k])
    half_x, half_y, height, _ = np.asarray(m.hfield_size[k], np.float64)
    x, y = np.linspace(-half_x, half_x, columns), np.linspace(-half_y, half_y, rows)
    z = height * np.asarray(m.hfield_data[start : start + rows * columns], np.float64)
    vertices = np.column_stack([np.tile(x, rows), np.repeat(y, columns), z])
    i = np.arange(rows * columns).reshape(rows, columns)
    corner, right, up, across = i[:-1, :-1].ravel(), i[:-1, 1:].ravel(), i[1:, :-1].ravel(), i[1:, 1:].ravel()
    triangles = [np.stack(x, axis=1) for x in ((corner, right, across), (corner, across, up))]
    return vertices, np.concatenate(triangles)
