"""The colors of files of meshes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from jaxdyn.io.robot_files import read_meshes
from jaxdyn.viz._geometry import mesh_of, with_creases

type MeshPart = tuple[Any, np.ndarray | None]
"""A `trimesh.Trimesh` of a file and its color `[4]`, None if the file does not say; one with an image has its mean."""

_COLORS = 32
"""The most colors of a mesh; more of them come from a picture, and are replaced by their mean."""


def read_mesh(path: Path) -> list[MeshPart]:
    """Return the triangles of a file in m, by color. **Raises** as `read_meshes`."""
    return [part for mesh, transform in read_meshes(path) for part in _parts(mesh, transform)]


def _parts(mesh, transform: np.ndarray) -> list[MeshPart]:
    mesh = mesh.copy()
    mesh.apply_transform(transform)
    if mesh.visual.kind is None:
        return [(with_creases(mesh), None)]
    if mesh.visual.kind == "texture":
        material = mesh.visual.material
        images = (getattr(material, name, None) for name in ("image", "baseColorTexture"))
        if mesh.visual.uv is None or all(image is None for image in images):
            return [(mesh_of(mesh.vertices, mesh.faces), np.asarray(material.main_color, np.float64) / 255)]
        return [(mesh, np.asarray(mesh.visual.to_color().vertex_colors, np.float64).mean(axis=0) / 255)]
    colors, which = np.unique(mesh.visual.face_colors, axis=0, return_inverse=True)
    if len(colors) > _COLORS:
        colors, which = colors.mean(axis=0)[None], np.zeros(len(mesh.faces), int)
    parts = mesh_of(mesh.vertices, mesh.faces).submesh([which.ravel() == k for k in range(len(colors))])
    return [(part, np.asarray(color, np.float64) / 255) for part, color in zip(parts, colors, strict=True)]
