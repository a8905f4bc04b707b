"""Shapes of URDF files: `<visual>` and `<collision>` of links, in whichever order and number."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxdyn._errors import RobotFileError
from jaxdyn.io.robot_files import enumerate_items, enumerate_names, quote, robot_text
from jaxdyn.io.urdf._link_tree import format_version, pose_of
from jaxdyn.io.urdf._xml import Element, fail, find_in_packages, read_robot

_NUMBERS = {
    "sphere": ("radius",),
    "cylinder": ("radius", "length"),
    "capsule": ("radius", "length"),
    "ellipsoid": ("a", "b", "c"),
}
"""The attributes of shapes with one number each. Capsules, and Drake's ellipsoids, are no part of the standard."""
_KINDS = ("mesh", "box", *_NUMBERS)


class UrdfShape(NamedTuple):
    """The shape in a `<visual>` or `<collision>` of a link."""

    link: str
    element: Element
    """`<visual>` or `<collision>`."""
    pose: np.ndarray
    """`[7]`, in the link."""
    kind: str
    """`mesh`, `box`, `cylinder`, `sphere`, `capsule` or `ellipsoid`."""
    sizes: tuple[float, ...]
    """The three scales of a mesh, edges of a box, radius of a sphere, radius and length (without caps) of a cylinder or
    capsule, semi-axes of an ellipsoid, m."""
    geometry: Element
    """The element that has the sizes."""
    url: str = ""
    """The name of the mesh's file."""
    file: Path | None = None
    """The mesh's file; None where there is none."""


def read_shapes(
    path_or_text: str | os.PathLike,
    tag: str,
    package_dirs: Sequence[str | os.PathLike],
    faults: dict[str, list[str]] | None = None,
) -> tuple[Element, list[UrdfShape]]:
    """Return the root of a URDF file, and the shapes in the elements `tag`, `visual` or `collision`, of all links.

    A mesh is named by a path from the folder of the robot's file, `file://`, or `package://name/path` (`model://`
    likewise), in `package_dirs` or in a package in which the robot's file itself lies. **Raises** `RobotFileError`; for
    faults of single shapes only without `faults`, to which their texts are added by link.
    """
    # Simulators have numbers of contacts in <gazebo>.
    skipped = frozenset({"collision", "gazebo"} if tag == "visual" else {"visual"})
    robot = read_robot(path_or_text, package_dirs, strict=False, skipped_tags=skipped)
    folder = Path(robot.source.name).resolve().parent if robot_text(path_or_text) is None else None
    version, out = format_version(robot), []
    for link in robot.all("link"):
        for element in link.all(tag):
            try:
                shape = _shape(link.attribute("name"), element, version)
            except RobotFileError as error:
                if faults is None:
                    raise
                faults.setdefault(link.attribute("name"), []).append(str(error))
                continue
            if shape.url:
                shape = shape._replace(file=_find_file(shape.url, folder, package_dirs))
            out.append(shape)
    return robot, out


def missing_meshes(shapes: Sequence[UrdfShape]) -> str:
    """Return the names of the meshes' files that do not exist, with the lines that name them."""
    places: dict[str, Element] = {}
    for shape in shapes:
        if shape.kind == "mesh" and shape.file is None:
            places.setdefault(shape.url, shape.geometry)
    return enumerate_items(f"{quote(url)} (line {e.line}, {e.owner})" for url, e in places.items())


def _shape(link: str, element: Element, version: str) -> UrdfShape:
    geometry, pose = element.require("geometry"), pose_of(element, version)
    for kind in _KINDS:
        child = geometry.child(kind) or geometry.child(f"drake:{kind}")
        if child is None:
            continue
        if kind in _NUMBERS:
            sizes = [child.number(a, minimum=0.0) for a in _NUMBERS[kind]]
        elif kind == "box":
            sizes = child.numbers("size", 3)
        else:
            sizes = child.numbers("scale", 3) if "scale" in child.attributes else [1.0] * 3
        url = child.attribute("filename") if kind == "mesh" else ""
        return UrdfShape(link, element, pose, kind, tuple(sizes), child, url)
    content = enumerate_names(e.tag for e in geometry.children) or "nothing"
    fail(geometry, f"<geometry> contains {content}; known: {', '.join(_KINDS)}")


def _find_file(url: str, folder: Path | None, package_dirs: Sequence[str | os.PathLike]) -> Path | None:
    """Return the file of a mesh, or None if there is none."""
    scheme, separator, path = url.partition("://")
    if separator and scheme in ("package", "model"):
        around = [] if folder is None else [folder, *folder.parents]
        package_dirs = [package_dirs] if isinstance(package_dirs, str | os.PathLike) else package_dirs
        try:
            return find_in_packages(f"package://{path}", [*package_dirs, *around])
        except RobotFileError:
            return None
    if separator and scheme != "file":
        return None
    file = Path(path if separator else url)
    file = file if file.is_absolute() or folder is None else folder / file
    return file if file.is_file() else None
