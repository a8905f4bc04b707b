"""The shapes found while a robot's file is read, and what is left out of it."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from jaxdyn._errors import ModelError, RobotFileError, UnknownNameError, look_up, require_finite
from jaxdyn.contact._hulls import hull_points
from jaxdyn.contact._law import ContactLaw
from jaxdyn.contact._pairs import ContactShape
from jaxdyn.geometry import AbstractShape, AbstractSurface, Points
from jaxdyn.io.robot_files import LeftOut, present, warn_of_what_is_left_out
from jaxdyn.model import Model


class Options(NamedTuple):
    """The arguments of `load_contact_shapes`."""

    links: tuple[str, ...] | None
    law: ContactLaw | None
    surface: str | None
    mesh_points: int
    rim_points: int
    unsupported: str


@dataclasses.dataclass
class Reading:
    """The shapes of a file, with what is left out."""

    model: Model
    options: Options
    source: str = ""
    shapes: list[ContactShape] = dataclasses.field(default_factory=list)
    names: list[str] = dataclasses.field(default_factory=list)
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
        topology = self.model.topology
        if link not in topology.frame_names and link == "world":
            body = -1
        else:
            try:
                body = topology.frame_bodies[topology.frame(link)]
            except UnknownNameError as error:
                error.add_note(f"({self.source} has this link: the model must be one of this file)")
                raise
        if body < 0:
            note = "give them to Contacts on the link 'world', in pairs with what touches them"
            self.leave_out("shapes on links that are fixed in the world", name, True, note)
        return body >= 0

    def add(self, link: str, name: str, shape: AbstractShape, pose: np.ndarray, law: ContactLaw | None = None) -> None:
        """Add a shape."""
        self.shapes.append(ContactShape(link, shape, pose, law))
        self.names.append(name)

    def law(self, friction: float) -> ContactLaw | None:
        """Return the law that was given with another friction; the same object for the same number."""
        law = self.options.law
        return law and self._laws.setdefault(friction, dataclasses.replace(law, friction=friction))

    def cylinder(self, name: str, radius: float, half_length: float) -> Points:
        """Return points on the rims of a cylinder."""
        n = self.options.rim_points
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
