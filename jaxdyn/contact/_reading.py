"""The shapes found while a robot's file is read, and what is left out of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxdyn._errors import ModelError, RobotFileError, UnknownNameError, look_up, require_finite
from jaxdyn.contact._hulls import capsule_around, hull_points
from jaxdyn.contact._law import ContactLaw
from jaxdyn.contact._pairs import ContactPair, ContactShape
from jaxdyn.geometry import AbstractShape, AbstractSurface, Capsule, Cylinder, Ellipsoid, Points
from jaxdyn.io.robot_files import LeftOut, present, warn_of_what_is_left_out
from jaxdyn.model import Model
from jaxdyn.spatial import compose_poses, quaternion_from_z

_FIXED = "shapes on links that are fixed in the world"
BETWEEN, BY_PAIRS = "contacts between bodies, of", "pairs=True has them"
"""How it is said that contacts between bodies are left out."""


class Options(NamedTuple):
    """The arguments of `load_contact_shapes`."""

    links: tuple[str, ...] | None
    law: ContactLaw | None
    surface: str | None
    pairs: bool | str
    mesh_points: int
    rim_points: int | None
    unsupported: str


@dataclasses.dataclass
class Reading:
    """The shapes of a file, with what is left out."""

    model: Model
    options: Options
    source: str = ""
    shapes: list[ContactShape] = dataclasses.field(default_factory=list)
    names: list[str] = dataclasses.field(default_factory=list)
    pairs: list[ContactPair] = dataclasses.field(default_factory=list)
    surface: AbstractSurface | None = None
    _laws: dict[float, ContactLaw] = dataclasses.field(default_factory=dict)
    _left_out: dict[str, LeftOut] = dataclasses.field(default_factory=dict)
    _unsupported: list[str] = dataclasses.field(default_factory=list)

    def leave_out(self, kind: str, name: str, acts: bool, note: str = "") -> None:
        """Note a part of the file that is left out."""
        before = self._left_out.get(kind, LeftOut(kind, (), acts, note))
        self._left_out[kind] = dataclasses.replace(before, names=(*before.names, name))

    def refuse(self, what: str) -> None:
        """Note a part of the file that cannot be read."""
        self._unsupported.append(what)

    def wants(self, link: str, name: str) -> bool:
        """Return whether the shapes of a link are wanted, and note that they are left out where they are not.
        **Raises** `UnknownNameError` for links of another file."""
        if self.options.links is not None and link not in self.options.links:
            self.leave_out("shapes of links that were not asked for", name, False)
            return False
        if self.body(link) < 0 and not self.options.pairs:
            self.leave_out(_FIXED, name, True, BY_PAIRS)
            return False
        return True

    def body(self, link: str) -> int:
        """Return the body that a link is part of; -1 for the world. **Raises** `UnknownNameError` for links of another
        file."""
        topology = self.model.topology
        if link not in topology.frame_names and link == "world":
            return -1
        try:
            return topology.frame_bodies[topology.frame(link)]
        except UnknownNameError as error:
            error.add_note(f"({self.source} has this link: the model must be one of this file)")
            raise

    def add(
        self,
        link: str,
        name: str,
        shape: AbstractShape,
        pose: np.ndarray,
        law: ContactLaw | None = None,
        on_surface: bool = True,
    ) -> None:
        """Add a shape."""
        self.shapes.append(ContactShape(link, shape, pose, law, on_surface))
        self.names.append(name)

    def in_pairs(self) -> list[ContactShape]:
        """Return the shapes as they are in pairs: with `pairs="capsules"`, capsules for those that have few pairs."""
        if self.options.pairs != "capsules":
            return list(self.shapes)
        return [_as_capsule(x) if isinstance(x.shape, Points | Cylinder | Ellipsoid) else x for x in self.shapes]

    def pair(self, pairs: Sequence[tuple[int, int, ContactLaw | None]], shapes: Sequence[ContactShape]) -> None:
        """Add pairs of shapes, given by their numbers, of bodies that move against each other in the model; `shapes`
        has them as they are in pairs. Leaves out what touches nothing."""
        bodies = [self.body(shape.link) for shape in shapes]
        pairs = [(i, j, law) for i, j, law in pairs if bodies[i] != bodies[j]]
        self.pairs = [ContactPair(shapes[i], shapes[j], law) for i, j, law in pairs]
        paired = {number for pair in pairs for number in pair[:2]}
        kept: list[tuple[ContactShape, str]] = []
        for k, (shape, other, name) in enumerate(zip(self.shapes, shapes, self.names, strict=True)):
            fixed = bodies[k] < 0
            if (shape.on_surface and not fixed) or (k in paired and other is shape):
                kept.append((shape, name))
            elif k not in paired:
                self.leave_out(_FIXED if fixed else "shapes that touch nothing", repr(name), False)
            if k in paired and other is not shape:
                kept.append((other, f"{name} (capsule)"))
                note = "the capsule along a principal axis that contains all of the shape stands for it"
                self.leave_out("shapes that are capsules in pairs", repr(name), True, note)
        self.shapes, self.names = [x for x, _ in kept], [name for _, name in kept]

    def law(self, friction: float) -> ContactLaw | None:
        """Return the law that was given with another friction; the same object for the same number."""
        law = self.options.law
        return law and self._laws.setdefault(friction, dataclasses.replace(law, friction=friction))

    def cylinder(self, name: str, radius: float, half_length: float) -> AbstractShape:
        """Return a cylinder, or points on its rims where these are wanted."""
        n = self.options.rim_points
        if n is None:
            return Cylinder(radius, half_length)
        back = 1 - np.cos(np.pi / n)
        note = f"each is {n} points on either rim, between which it stands back by {100 * back:.2g} % of its radius"
        self.leave_out("curved surfaces of cylinders", name, True, note)
        angle = 2 * np.pi * np.arange(n) / n
        rim = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
        heights = np.repeat([-half_length, half_length], n)
        return Points(np.concatenate([np.tile(rim, (2, 1)), heights[:, None]], axis=1))

    def hull(self, name: str, vertices: np.ndarray) -> Points:
        """Return the corners of the convex hull of a mesh, or those that stand out most."""
        from scipy.spatial import QhullError

        require_finite(vertices, "the mesh")
        try:
            points, count, error = hull_points(vertices, self.options.mesh_points)
        except QhullError as failure:
            reason = str(failure).strip().splitlines()[0]
            raise ModelError(f"the convex hull of the mesh is not found: {reason}") from failure
        if count > len(points):
            what = f"{name} ({len(points)} of {count}, the others stand out by {1000 * error:.2g} mm at most)"
            self.leave_out("corners of meshes", what, True, "mesh_points has the most points of a mesh")
        return Points(points)

    def require_links(self, links: tuple[str, ...], with_shapes: set[str]) -> None:
        """Raise `UnknownNameError` for wanted links that the file does not have, `ModelError` for those without
        shapes."""
        for link in self.options.links or ():
            look_up(link, links, "link")
            if link not in with_shapes:
                shown = ", ".join(map(repr, sorted(with_shapes)[:20]))
                raise ModelError(f"{self.source}: link {link!r} has no collision geometry; links that have: {shown}")

    def finish(self) -> tuple[LeftOut, ...]:
        """Return what is left out. **Raises** `RobotFileError` for what is unsupported, unless it is to warn."""
        if self._unsupported and self.options.unsupported == "error":
            lines = "\n".join(f"- {what}" for what in self._unsupported)
            advice = "or load the others with unsupported='warn', or those of some links only"
            raise RobotFileError(f"{self.source}: parts of its collision geometry are not read:\n{lines}\n{advice}")
        refused = LeftOut("what is not read", tuple(self._unsupported), True)
        out = present([refused, *self._left_out.values()])
        warn_of_what_is_left_out(
            self.source, out, "contact shapes leave out or replace what the file has (left_out lists all"
        )
        return out


def _as_capsule(shape: ContactShape) -> ContactShape:
    """Return a capsule around a shape, for pairs."""
    sizes, turn = np.asarray(shape.shape.sizes, np.float64), 2 * np.pi * np.arange(180) / 180
    match shape.shape:
        case Points():
            points = sizes.reshape(-1, 3)
        case Cylinder():
            rim = np.stack([np.cos(turn), np.sin(turn), np.ones(180)], axis=1) * [sizes[0], sizes[0], sizes[1]]
            points = np.concatenate([rim, rim * [1, 1, -1]])
        case _:
            ring = np.stack([np.cos(turn), np.sin(turn), 0 * turn], axis=1)
            points = np.concatenate([np.roll(ring, k, axis=1) for k in range(3)]) * sizes
    radius, half, middle, axis = capsule_around(points)
    # A capsule is the same along the opposite axis.
    turn = quaternion_from_z(axis if axis[2] >= 0 else -axis)
    # Shapes of files are placed by arrays.
    place = np.asarray(shape.placement, np.float64)
    placement = compose_poses(place, np.concatenate([middle, turn]))
    return ContactShape(shape.link, Capsule(radius, half), placement, shape.law, False)
