"""The model and the visual geometry of a robot from its file.

In a URDF file it is `<visual>` of the links (http://wiki.ros.org/urdf/XML/link), in an MJCF file the geoms of MuJoCo's
compiled model.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxdyn._errors import RobotFileError
from jaxdyn.io import LeftOutWarning, is_mjcf, load_mjcf, load_urdf
from jaxdyn.io.mjcf import Names, compile_massless_mjcf, drawn_geoms, geom_pose, object_name
from jaxdyn.io.robot_files import enumerate_names, named_robot, warn
from jaxdyn.io.urdf import Element, missing_meshes, read_shapes
from jaxdyn.model import Model
from jaxdyn.viz._geometry import Visual, box, capsule, cylinder, mesh_of, posed, scaled, sphere
from jaxdyn.viz._mesh_colors import MeshPart, read_mesh

_GRAY = np.array([0.73, 0.75, 0.78, 1.0])
"""Default color of a surface."""
COLLISION_COLOR = np.array([0.05, 0.60, 0.55, 0.5])
"""Color of collision geometry, in which files give it none."""
_PLANE = 2.0
"""Half the edge of the square that is shown of an infinite plane, m."""


def load_visuals(
    path_or_text: str | os.PathLike | Any,
    *,
    collision: bool = False,
    package_dirs: Sequence[str | os.PathLike] = (),
    skip_missing: bool = False,
) -> list[Visual]:
    """Return the visual geometry of a robot's links, from its URDF or MJCF file, in the frames of the loaded model.

    From a URDF file it is `<visual>` of every link: meshes (STL, OBJ, COLLADA, PLY, GLB), boxes, cylinders, spheres,
    capsules, ellipsoids. The colors and images of a mesh's file come before the `<material>` of the link. From an MJCF
    file it is the geoms of the groups 0 to 2 in MuJoCo's compiled model, which its viewer shows; images on them are not
    read.

    With `collision` it is the geometry with which the links touch others, translucent and in one color: `<collision>`
    of a URDF file, and the geoms of any group that MuJoCo lets collide (`contype` or `conaffinity` is not 0).

    **Arguments**

    - `path_or_text`: as in `load_world`, also the name of a robot; a root element `<mujoco>`, or a `mujoco.MjModel`, is
      MJCF.
    - `package_dirs`: folders with the packages of `package://name/path`. A package that holds the robot's file is found
      without them.
    - `skip_missing`: whether missing files of meshes are left out, with one warning that lists them.

    **Raises** `RobotFileError` for a file that cannot be read, for missing files of meshes (all of them, with the lines
    that name them), and for any other geometry; `ImportError` without trimesh, pycollada (COLLADA) or MuJoCo (MJCF).
    """
    path_or_text = named_robot(path_or_text, ("MJCF", "URDF"))
    if is_mjcf(path_or_text):
        return _mjcf_visuals(path_or_text, collision)
    return _urdf_visuals(path_or_text, "collision" if collision else "visual", package_dirs, skip_missing)


def load_robot(source: Any, package_dirs: Sequence[str | os.PathLike], **options) -> Model:
    """Return the model of a URDF or MJCF file; `options` are its loader's. Faults of the file, and parts that models do
    not have, only warn unless the options say otherwise, and inertias may be missing: they do not matter for a
    picture."""
    with warnings.catch_warnings():
        # Neither do contacts, ranges and servos.
        warnings.simplefilter("ignore", LeftOutWarning)
        if is_mjcf(source):
            return load_mjcf(source, **{"unsupported": "warn", "kinematics_only": True, **options})
        return load_urdf(source, package_dirs=package_dirs, **{"strict": False, "kinematics_only": True, **options})


def _mjcf_visuals(path_or_text: Any, collision: bool) -> list[Visual]:
    """Return the visuals of an MJCF file. See `load_visuals`."""
    m, source = compile_massless_mjcf(path_or_text, kinematics_only=True)
    names = Names.of(m)
    out: list[Visual] = []
    left_out: list[str] = []
    for geom in drawn_geoms(m):
        if not (geom.touches if collision else geom.shown):
            continue
        mesh = geom_mesh(geom.kind, geom.size, geom.surface)
        if mesh is None:
            left_out.append(object_name(m, "geom", geom.number))
            continue
        mesh = posed(mesh, geom_pose(m, geom.number))
        color = COLLISION_COLOR if collision else geom.color
        textured = mesh if mesh.visual.kind == "texture" and not collision else None
        out.append(Visual(names.bodies[m.geom_bodyid[geom.number]], mesh.vertices, mesh.faces, color, textured))
    if left_out:
        warn(f"{source}: shown without signed distance fields: {enumerate_names(left_out)}")
    return out


def geom_mesh(kind: str, size: np.ndarray, surface: Any) -> Any:
    """Return the mesh of a geom in its frame, with a surface as in `DrawnSurface`; None for a signed distance field."""
    match kind:
        case "plane":
            half = np.where(size[:2] > 0, size[:2], _PLANE)
            # A little below, where the grid of the ground would flicker.
            return posed(box([*(2 * half), 0.002]), np.array([0, 0, -0.003, 1, 0, 0, 0]))
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
    if surface is None:
        return None
    return mesh_of(surface.vertices, surface.faces, surface.coordinates, surface.pixels)


def _urdf_visuals(
    path_or_text: str | os.PathLike, tag: str, package_dirs: Sequence[str | os.PathLike], skip_missing: bool
) -> list[Visual]:
    """Return the geometry of a URDF file in the elements `tag`, visual or collision. See `load_visuals`."""
    robot, shapes = read_shapes(path_or_text, tag, package_dirs)
    if missing := missing_meshes(shapes):
        what = f"{robot.source.name}: files of meshes do not exist: {missing}"
        if not skip_missing:
            advice = "give package_dirs=[...] with the folders of the packages, or skip_missing=True to show it without"
            raise RobotFileError(f"{what}; {advice} them")
        warn(f"{what}; shown without them")
    # Colors given inside a link may be used by name elsewhere.
    inside = (m for link in robot.all("link") for v in link.all("visual") for m in v.all("material"))
    colors: dict[str, np.ndarray] = {}
    for material in (*robot.all("material")[::-1], *inside):
        name, color = material.attributes.get("name"), _color(material)
        if name and color is not None:
            colors.setdefault(name, color)
    out: list[Visual] = []
    meshes: dict[Path, list[MeshPart]] = {}
    for shape in shapes:
        color = COLLISION_COLOR if tag == "collision" else _named_color(shape.element.child("material"), colors)
        parts: list[MeshPart]
        if shape.kind != "mesh":
            parts = [(_PRIMITIVES[shape.kind](shape.sizes), None)]
        elif shape.file is None:
            continue
        else:
            if shape.file not in meshes:
                meshes[shape.file] = read_mesh(shape.file)
            parts = [(scaled(part, shape.sizes), own) for part, own in meshes[shape.file]]
        for part, own in parts:
            part = posed(part, shape.pose)
            textured = part if part.visual.kind == "texture" else None
            shown = color if own is None or tag == "collision" else own
            out.append(Visual(shape.link, part.vertices, part.faces, shown, textured))
    return out


_PRIMITIVES: dict[str, Callable[[tuple[float, ...]], Any]] = {
    "box": box,
    "sphere": lambda sizes: sphere(sizes[0]),
    "ellipsoid": sphere,
    "cylinder": lambda sizes: cylinder(sizes[0], sizes[1]),
    "capsule": lambda sizes: capsule(sizes[0], sizes[1]),
}


def _named_color(material: Element | None, colors: dict[str, np.ndarray]) -> np.ndarray:
    """Return the color of a material, which may be given elsewhere by its name."""
    color = None if material is None else _color(material)
    return colors.get(material.attributes.get("name", "") if material else "", _GRAY) if color is None else color


def _color(material: Element) -> np.ndarray | None:
    color = material.child("color")
    return None if color is None else np.clip(color.numbers("rgba", 4), 0.0, 1.0)
