"""Files of meshes, read by trimesh."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from jaxdyn._errors import RobotFileError
from jaxdyn._extras import import_extra


def read_meshes(path: Path) -> list[tuple[Any, np.ndarray]]:
    """Return the meshes of a file as `trimesh.Trimesh`, each with the transform `[4, 4]` that puts it where it belongs,
    in m. Formats: STL, OBJ, COLLADA, PLY, OFF, GLB and glTF.

    **Raises** `RobotFileError` for a file that cannot be read or has no triangles, `ImportError` without trimesh, or
    without pycollada for COLLADA.
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
    out = []
    for node in scene.graph.nodes_geometry:
        transform, name = scene.graph[node]
        mesh = scene.geometry[name]
        if isinstance(mesh, trimesh.Trimesh) and len(mesh.faces):
            out.append((mesh, np.diag([*[_unit(mesh)] * 3, 1.0]) @ transform))
    if not out:
        raise RobotFileError(f"the mesh {str(path)!r} has no triangles; export its surface")
    return out


def _unit(mesh) -> float:
    """Return the unit of length in m, which COLLADA files have; others are in m in robots' files."""
    unit = re.fullmatch(r"([\d.eE+-]+) \* meters", str(mesh.metadata.get("units", "")))
    return float(unit[1]) if unit else 1.0
