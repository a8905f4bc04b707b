"""`<collision>` of URDF files as contact shapes."""

from __future__ import annotations

import collections
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxdyn._errors import JaxdynError
from jaxdyn.contact._file_pairs import read_urdf_pairs
from jaxdyn.contact._reading import BETWEEN, BY_PAIRS, Reading
from jaxdyn.geometry import AbstractShape, Box, Capsule, Ellipsoid, Sphere
from jaxdyn.io.robot_files import quote, read_meshes
from jaxdyn.io.urdf import Element, UrdfShape, missing_meshes, read_shapes

_OF_GAZEBO = {"mu", "mu1", "mu2", "kp", "kd", "fdir1", "minDepth", "maxVel", "maxContacts", "selfCollide", "surface"}
"""Elements of a link's contacts in `<gazebo>`."""


def read_urdf_shapes(
    reading: Reading, path_or_text: str | os.PathLike, package_dirs: Sequence[str | os.PathLike]
) -> None:
    """Add the shapes in `<collision>` of all links."""
    faults: dict[str, list[str]] = {}
    robot, shapes = read_shapes(path_or_text, "collision", package_dirs, faults)
    reading.source = robot.source.name
    links = tuple(link.attribute("name") for link in robot.all("link"))
    reading.require_links(links, {shape.link for shape in shapes} | set(faults))
    for link, texts in faults.items():
        for text in texts if reading.wants(link, quote(link)) else ():
            reading.refuse(text)
    wanted = [(x, name) for x, name in zip(shapes, _names(shapes), strict=True) if reading.wants(x.link, quote(name))]
    if missing := missing_meshes([shape for shape, _ in wanted]):
        reading.refuse(f"files of meshes do not exist: {missing}; give package_dirs=[...] with those of the packages")
    vertices: dict[Path, np.ndarray] = {}
    for shape, name in wanted:
        if shape.kind == "mesh" and shape.file is None:
            continue
        try:
            found = _shape(reading, shape, quote(name), vertices)
        except JaxdynError as error:
            reading.refuse(f"{quote(name)} (line {shape.geometry.line}): {error}")
            continue
        reading.add(shape.link, name, found, shape.pose)
    if reading.options.pairs:
        read_urdf_pairs(reading, robot)
    elif len(between := dict.fromkeys(shape.link for shape in reading.shapes)) > 1:
        for link in between:
            reading.leave_out(BETWEEN, quote(link), False, BY_PAIRS)
    for tag, elements in _settings(robot, [shape for shape, _ in wanted]).items():
        for place in elements:
            reading.leave_out(f"<{tag}>", place, True, "give laws to World or ContactShape")


def _names(shapes: Sequence[UrdfShape]) -> list[str]:
    """Return the names of `<collision>`, or of links, with numbers where a link has several without names."""
    counts, seen, out = collections.Counter(shape.link for shape in shapes), collections.Counter(), []
    for shape in shapes:
        numbered = shape.link if counts[shape.link] == 1 else f"{shape.link}[{seen[shape.link]}]"
        out.append(shape.element.attributes.get("name") or numbered)
        seen[shape.link] += 1
    return out


def _shape(reading: Reading, shape: UrdfShape, name: str, vertices: dict[Path, np.ndarray]) -> AbstractShape:
    sizes = shape.sizes
    match shape.kind:
        case "sphere":
            return Sphere(sizes[0])
        case "box":
            return Box(0.5 * np.array(sizes))
        case "capsule":
            return Capsule(sizes[0], 0.5 * sizes[1])
        case "ellipsoid":
            return Ellipsoid(np.array(sizes))
        case "cylinder":
            return reading.cylinder(name, sizes[0], 0.5 * sizes[1])
    assert shape.file is not None
    if shape.file not in vertices:
        vertices[shape.file] = np.concatenate([_vertices(*part) for part in read_meshes(shape.file)])
    return reading.hull(name, vertices[shape.file] * sizes)


def _vertices(mesh: Any, transform: np.ndarray) -> np.ndarray:
    return np.asarray(mesh.vertices, np.float64) @ transform[:3, :3].T + transform[:3, 3]


def _settings(robot: Element, shapes: Sequence[UrdfShape]) -> dict[str, list[str]]:
    """Return the elements with numbers of the contacts of these shapes, which belong to simulators, by tag."""
    links, out = {shape.link for shape in shapes}, {}
    for element in robot.children:
        if element.tag == "link" and element.attributes["name"] in links:
            for contact in element.all("contact"):
                out.setdefault("contact", []).append(f"line {contact.line}, {contact.owner}")
        of_link = element.tag == "gazebo" and element.attributes.get("reference") in links
        if of_link and _OF_GAZEBO & {x.tag for x in element.below()}:
            out.setdefault("gazebo", []).append(f"line {element.line}, {quote(element.attributes['reference'])}")
    for shape in shapes:
        for element in shape.element.children:
            if element.tag.startswith("drake:"):
                out.setdefault(element.tag, []).append(f"line {element.line}, {element.owner}")
    return out
