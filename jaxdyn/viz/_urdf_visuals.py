"""The visual geometry in a URDF file: `<visual>` of its links (http://wiki.ros.org/urdf/XML/link)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxdyn._errors import RobotFileError
from jaxdyn.io.robot_files import enumerate_items, enumerate_names, quote, robot_text, warn
from jaxdyn.io.urdf import Element, fail, find_in_packages, format_version, pose_of, read_robot
from jaxdyn.viz._geometry import Solid, Visual, box, capsule, cylinder, sphere
from jaxdyn.viz._mesh_files import MeshPart, read_mesh

GRAY = np.array([0.73, 0.75, 0.78, 1.0])
"""Default color of a surface."""


def urdf_visuals(
    path_or_text: str | os.PathLike, package_dirs: Sequence[str | os.PathLike], skip_missing: bool
) -> list[Visual]:
    """Return the visuals of a URDF file. See `load_visuals`."""
    robot = read_robot(path_or_text, package_dirs, strict=False, skipped_tags=frozenset({"collision", "gazebo"}))
    folder = Path(robot.source.name).resolve().parent if robot_text(path_or_text) is None else None
    # Colors given inside a link may be used by name elsewhere.
    inside = (m for link in robot.all("link") for v in link.all("visual") for m in v.all("material"))
    colors: dict[str, np.ndarray] = {}
    for material in (*robot.all("material")[::-1], *inside):
        name, color = material.attributes.get("name"), _color(material)
        if name and color is not None:
            colors.setdefault(name, color)
    out: list[Visual] = []
    meshes: dict[Path, list[MeshPart]] = {}
    missing: dict[str, Element] = {}
    for link in robot.all("link"):
        for visual in link.all("visual"):
            geometry = visual.require("geometry")
            place = pose_of(visual, format_version(robot))
            color = _material(visual, colors)
            mesh = geometry.child("mesh")
            if mesh is None:
                parts = [MeshPart(_primitive(geometry), None)]
            else:
                path = find_file(mesh.attribute("filename"), folder, package_dirs)
                if path is None:
                    missing.setdefault(mesh.attribute("filename"), mesh)
                    continue
                if path not in meshes:
                    meshes[path] = read_mesh(path)
                scale = mesh.numbers("scale", 3) if "scale" in mesh.attributes else 1.0
                parts = [part.scale(scale) for part in meshes[path]]
            out += [part.transform(place).visual(link.attribute("name"), color) for part in parts]
    if missing:
        _report(robot.source.name, missing, skip_missing)
    return out


def find_file(url: str, folder: Path | None, package_dirs: Sequence[str | os.PathLike]) -> Path | None:
    """Return the file of a mesh, or None if there is none.

    It is given by a path from the folder of the robot's file, `file://`, or `package://name/path` (`model://`
    likewise), in `package_dirs` or in a package in which the robot's file itself lies.
    """
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


def _primitive(geometry: Element) -> Solid:
    if (shape := geometry.child("box")) is not None:
        return box(shape.numbers("size", 3))
    if (shape := geometry.child("sphere")) is not None:
        return sphere(shape.number("radius", minimum=0.0))
    for tag, make in (("cylinder", cylinder), ("capsule", capsule)):
        if (shape := geometry.child(tag)) is not None:
            return make(shape.number("radius", minimum=0.0), shape.number("length", minimum=0.0))
    content = enumerate_names(e.tag for e in geometry.children) or "nothing"
    fail(geometry, f"<geometry> contains {content}; known: mesh, box, cylinder, sphere, capsule")


def _material(visual: Element, colors: dict[str, np.ndarray]) -> np.ndarray:
    material = visual.child("material")
    if material is None:
        return GRAY
    color = _color(material)
    return colors.get(material.attributes.get("name", ""), GRAY) if color is None else color


def _color(material: Element) -> np.ndarray | None:
    color = material.child("color")
    return None if color is None else np.clip(color.numbers("rgba", 4), 0.0, 1.0)


def _report(source: str, missing: dict[str, Element], skip: bool) -> None:
    files = enumerate_items(f"{quote(url)} (line {e.line}, {e.owner})" for url, e in missing.items())
    what = f"{source}: files of meshes do not exist: {files}"
    if skip:
        warn(f"{what}; shown without them")
        return
    advice = "give package_dirs=[...] with the folders of the packages, or skip_missing=True to show it without them"
    raise RobotFileError(f"{what}; {advice}")
