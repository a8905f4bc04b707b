"""What a URDF file says about the looks of a robot: `<visual>` of its links (http://wiki.ros.org/urdf/XML/link)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxdyn._errors import RobotFileError
from jaxdyn.io._urdf import format_version, pose_of
from jaxdyn.io._urdf_xml import Element, fail, in_package, listed, read, shown, warn
from jaxdyn.viz._geometry import Solid, Visual, box, capsule, cylinder, sphere
from jaxdyn.viz._mesh_files import MeshPart, read_mesh

GRAY = np.array([0.73, 0.75, 0.78, 1.0])
"""Of what has no color in the file."""


def urdf_visuals(
    path_or_text: str | os.PathLike, package_dirs: Sequence[str | os.PathLike], skip_missing: bool
) -> list[Visual]:
    """See `load_visuals`."""
    robot = read(path_or_text, package_dirs, strict=False, passed_over=frozenset({"collision", "gazebo"}))
    folder = _folder(path_or_text, robot.source.name)
    given = ((m.attributes.get("name"), _color(m)) for m in robot.named("material"))
    colors = {name: color for name, color in given if name and color is not None}
    # Colors given inside a link may be used by name elsewhere.
    for link in robot.named("link"):
        for material in (m for v in link.named("visual") for m in v.named("material")):
            name, color = material.attributes.get("name"), _color(material)
            if name and color is not None:
                colors.setdefault(name, color)
    out: list[Visual] = []
    meshes: dict[Path, list[MeshPart]] = {}
    missing: dict[str, Element] = {}
    for link in robot.named("link"):
        for visual in link.named("visual"):
            geometry = visual.required("geometry")
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
                parts = [part.scaled(scale) for part in meshes[path]]
            out += [part.moved(place).visual(link.attribute("name"), color) for part in parts]
    if missing:
        _report(robot.source.name, missing, skip_missing)
    return out


def find_file(url: str, folder: Path | None, package_dirs: Sequence[str | os.PathLike]) -> Path | None:
    """The file of a mesh: a path from the folder of the robot's file, `file://`, or `package://name/path` (`model://`
    likewise), in `package_dirs`, or in a package in which the robot's file itself lies. None if there is none."""
    scheme, found, path = url.partition("://")
    if found and scheme in ("package", "model"):
        around = [] if folder is None else [folder, *folder.parents]
        given = [package_dirs] if isinstance(package_dirs, str | os.PathLike) else package_dirs
        try:
            return in_package(f"package://{path}", [*given, *around])
        except RobotFileError:
            return None
    if found and scheme != "file":
        return None
    file = Path(path if found else url)
    file = file if file.is_absolute() or folder is None else folder / file
    return file if file.is_file() else None


def _folder(path_or_text, name: str) -> Path | None:
    """Of the robot's file; None if it is text."""
    if isinstance(path_or_text, str) and path_or_text.lstrip("\ufeff \t\r\n").startswith("<"):
        return None
    return Path(name).resolve().parent


def _primitive(geometry: Element) -> Solid:
    shape = geometry.child("box")
    if shape is not None:
        return box(shape.numbers("size", 3))
    shape = geometry.child("sphere")
    if shape is not None:
        return sphere(shape.number("radius", minimum=0.0))
    for tag, make in (("cylinder", cylinder), ("capsule", capsule)):
        shape = geometry.child(tag)
        if shape is not None:
            return make(shape.number("radius", minimum=0.0), shape.number("length", minimum=0.0))
    known = "mesh, box, cylinder, sphere, capsule"
    fail(geometry, f"<geometry> has {listed(e.tag for e in geometry.children) or 'nothing'} in it; known: {known}")


def _material(visual: Element, colors: dict[str, np.ndarray]) -> np.ndarray:
    material = visual.child("material")
    if material is None:
        return GRAY
    own = _color(material)
    return colors.get(material.attributes.get("name", ""), GRAY) if own is None else own


def _color(material: Element) -> np.ndarray | None:
    color = material.child("color")
    return None if color is None else np.clip(color.numbers("rgba", 4), 0.0, 1.0)


def _report(source: str, missing: dict[str, Element], skip: bool) -> None:
    found = [f"{shown(url)} (line {e.line}, {e.owner})" for url, e in list(missing.items())[:20]]
    more = f"; and {len(missing) - 20} more" if len(missing) > 20 else ""
    what = f"{source}: files of meshes do not exist: {'; '.join(found)}{more}"
    if skip:
        warn(f"{what}; shown without them")
        return
    advice = "give package_dirs=[...] with the folders of the packages, or skip_missing=True to show it without them"
    raise RobotFileError(f"{what}; {advice}")
