"""Files of meshes, read by trimesh."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from jaxdyn._errors import RobotFileError
from jaxdyn.viz._extras import import_extra
from jaxdyn.viz._geometry import mesh_of, with_creases

type MeshPart = tuple[Any, np.ndarray | None]
"""A `trimesh.Trimesh` of a file and its color `[4]`, None if the file does not say; one with an image has its mean."""

_COLORS = 32
"""The most colors of a mesh; more of them come from a picture, and are replaced by their mean."""


def read_mesh(path: Path) -> list[MeshPart]:
    """Return the triangles of a file in m, by color. Formats: STL, OBJ, COLLADA, PLY, OFF, GLB and glTF.

    **Raises** `RobotFileError` for a file that cannot be read, `ImportError` without trimesh, or without pycollada for
    COLLADA.
    """
    trimesh = import_extra("trimesh", "read meshes")
    if path.suffix.lower() == ".dae":
        import_extra("collada", f"read COLLADA files such as {path.name!r}")
    try:
        # Shared vertices stay as in the file: edges at which triangles share none are sharp.
        scene = trimesh.load_scene(path, process=False)
    except Exception as error:
        # Whatever the foreign reader raises says what is wrong with the file.
        reason = str(error) or type(error).__name__
        raise RobotFileError(f"cannot read the mesh {str(path)!r}: {reason}; convert it to STL, OBJ or DAE") from error
    parts: list[MeshPart] = []
    for node in scene.graph.nodes_geometry:
        transform, name = scene.graph[node]
        mesh = scene.geometry[name]
        if isinstance(mesh, trimesh.Trimesh) and len(mesh.faces):
            parts += _parts(mesh, np.diag([*[_unit(mesh)] * 3, 1.0]) @ transform)
    if not parts:
        raise RobotFileError(f"the mesh {str(path)!r} has no triangles; export its surface")
    return parts


def _unit(mesh) -> float:
    """Return the unit of length in m, which COLLADA files have; others are in m in robots' files."""
    unit = re.fullmatch(r"([\d.eE+-]+) \* meters", str(mesh.metadata.get("units", "")))
    return float(unit[1]) if unit else 1.0


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
