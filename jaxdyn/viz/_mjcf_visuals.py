"""The visual geometry in an MJCF file: the geoms of MuJoCo's compiled model."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxdyn.io.mjcf import Names, compile_mjcf, enum_name, object_name
from jaxdyn.io.robot_files import enumerate_names, warn
from jaxdyn.spatial import pose_array
from jaxdyn.viz._geometry import Solid, Visual, box, capsule, cylinder, sphere

_SHOWN_GROUPS = 3
"""MuJoCo's viewer shows the geoms of the groups below this number; the others are usually for collisions."""
_PLANE = 2.0
"""Half the edge of the square that is shown of an infinite plane, m."""


def mjcf_visuals(path_or_text: Any) -> list[Visual]:
    """Return the visuals of an MJCF file. See `load_visuals`."""
    m, source = compile_mjcf(path_or_text)
    names = Names.of(m)
    out: list[Visual] = []
    left_out: list[str] = []
    for g in range(m.ngeom):
        color = np.array(m.geom_rgba[g] if m.geom_matid[g] < 0 else m.mat_rgba[m.geom_matid[g]], np.float64)
        if m.geom_group[g] >= _SHOWN_GROUPS or color[3] == 0:
            continue
        solid = _solid(m, g)
        if solid is None:
            left_out.append(object_name(m, "geom", g))
            continue
        solid = solid.transform(pose_array(m.geom_pos[g], m.geom_quat[g]))
        out.append(Visual(names.bodies[m.geom_bodyid[g]], solid.vertices, solid.faces, np.clip(color, 0, 1)))
    if left_out:
        warn(f"{source}: shown without height fields and signed distance fields: {enumerate_names(left_out)}")
    return out


def _solid(m, g: int) -> Solid | None:
    size = np.asarray(m.geom_size[g], np.float64)
    match enum_name("mjtGeom", m.geom_type[g]):
        case "plane":
            half = np.where(size[:2] > 0, size[:2], _PLANE)
            return box([*(2 * half), 0.002]).transform(np.array([0, 0, -0.001, 1, 0, 0, 0]))
        case "sphere":
            return sphere(size[0])
        case "ellipsoid":
            return sphere(size)
        case "capsule":
            return capsule(size[0], 2 * size[1])
        case "cylinder":
            return cylinder(size[0], 2 * size[1])
        case "box":
            return box(2 * size)
        case "mesh":
            k = m.geom_dataid[g]
            vertices = m.mesh_vert[m.mesh_vertadr[k] :][: m.mesh_vertnum[k]]
            faces = m.mesh_face[m.mesh_faceadr[k] :][: m.mesh_facenum[k]]
            return Solid(np.array(vertices, np.float64), np.array(faces, np.int64))
    return None
