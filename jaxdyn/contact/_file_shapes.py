"""`load_contact_shapes`: the collision geometry of robots' files as contact shapes, whatever the format."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Sequence
from typing import Any, Literal

from jaxdyn._errors import ModelError, naming_arguments, require_choice, require_positive_integer
from jaxdyn.contact._law import ContactLaw
from jaxdyn.contact._mjcf_shapes import read_mjcf_shapes
from jaxdyn.contact._pairs import ContactPair, ContactShape
from jaxdyn.contact._reading import Options, Reading
from jaxdyn.contact._urdf_shapes import read_urdf_shapes
from jaxdyn.geometry import AbstractSurface
from jaxdyn.io import LeftOut, is_mjcf
from jaxdyn.model import Model


@dataclasses.dataclass(frozen=True)
class ContactShapes:
    """The contact shapes of a robot's file, for `World(model, found.shapes)`, or, where the file has a surface,
    `World(model, found.shapes, found.surface)`."""

    shapes: tuple[ContactShape, ...]
    """The shapes on links that move, in the order of the file; with pairs also those on links that are fixed in the
    world, and capsules that stand for others in pairs."""
    names: tuple[str, ...]
    """The name of each shape: that of the geom (`geom_i` without one), or of `<collision>` (without one that of the
    link, with a number where the link has several)."""
    pairs: tuple[ContactPair, ...]
    """The pairs of these shapes that touch each other, where they were asked for, for `World(...,
    pairs=found.pairs)`."""
    surface: AbstractSurface | None
    """The plane or height field that an MJCF file has in the world; None without, and for URDF files."""
    left_out: tuple[LeftOut, ...]
    """All that the file says about contact and that the shapes leave out or replace, by kind; `acts` where it acts in
    the format's own dynamics, or where the shape differs from that of the file."""


@naming_arguments
def load_contact_shapes(
    model: Model,
    path_or_text: str | os.PathLike | Any,
    *,
    links: Collection[str] | None = None,
    law: ContactLaw | None = None,
    surface: str | None = None,
    pairs: bool | Literal["capsules"] = False,
    mesh_points: int = 64,
    rim_points: int | None = None,
    package_dirs: Sequence[str | os.PathLike] = (),
    unsupported: Literal["error", "warn"] = "error",
) -> ContactShapes:
    """Return the collision geometry of a robot's file as contact shapes on the links of its model.

    In a URDF file it is `<collision>` of the links; in an MJCF file, the geoms of bodies that MuJoCo lets touch the
    surface (by `contype`, `conaffinity`, `<exclude>` and `<pair>`), or, without a surface in the file, anything.

    | in the file | here |
    |---|---|
    | sphere, capsule, cylinder, box, ellipsoid | the same |
    | mesh | `Points`: the corners of its convex hull, at most `mesh_points` |
    | plane, height field in the world of an MJCF file | `surface` of the result |

    Of a mesh with more corners those are chosen that stand out most, one after the other; `left_out` says by how much
    the others do. Every point is a contact, so few `links`, such as the feet, make fast steps.

    With `pairs=True` shapes touch each other, too, and those that are fixed in the world, such as tables and walls of
    an MJCF file or links that are welded to the root of a URDF file, are among `shapes`:

    - MJCF: the pairs of MuJoCo, which are those of `<pair>`, and the geoms with matching `contype` and `conaffinity` on
      bodies that are neither parts of one rigid body, nor parent and child, nor in `<exclude>`.
    - URDF: all pairs but those on one rigid body, on links or bodies that a joint connects, and of shapes that overlap
      by more than 1 mm where all joints are at zero.

    URDF files do not say which links may touch. The filter is that of Drake and MuJoCo, and beyond it leaves out what
    overlaps at zero, as MoveIt's assistant does: coarse shapes of a link and of the one after the next often do, and
    would push each other apart for good. `left_out` names these pairs; bodies with a free joint between them keep
    theirs. `World` refuses pairs of shapes that have no contacts (see `pair_witnesses`), such as two meshes; its
    `apart` leaves links out, and `pairs="capsules"` has other shapes.

    A height field is interpolated linearly between its nodes, where MuJoCo has two triangles for each cell, and
    continues outside its grid.

    **Arguments**

    - `model`: the model of the file, also after edits that keep its links.
    - `path_or_text`: as in `load_urdf` and `load_mjcf`, a `mujoco.MjModel` among them.
    - `links`: the links whose shapes are wanted, bodies of an MJCF file; by default all.
    - `law`: the law of the shapes and pairs of an MJCF file, whose friction is replaced by the coefficient of sliding
      friction that MuJoCo has between the geom and the surface, or between two geoms. By default they have no law of
      their own, so that `World` gives them one, and the friction of the file is left out. URDF files have no
      friction.
    - `surface`: the name of the geom that is the surface, where an MJCF file has several.
    - `pairs`: whether shapes touch each other. With `"capsules"` meshes, cylinders and ellipsoids, which have few pairs
      of their own, do so as the smallest capsules along their principal axes that contain them; `left_out` names them.
    - `mesh_points`: the most points of a mesh, at least 4.
    - `rim_points`: with a number, at least 3, a cylinder becomes `Points`, so many on each of its rims, which have
      pairs with capsules and boxes. Between two of them they stand back by `1 - cos(pi / rim_points)` of the radius at
      most (3.4 percent for 12).
    - `package_dirs`: folders with the packages of `package://name/path`, as in `load_visuals` of `jaxdyn.viz`.
    - `unsupported`: `"error"` refuses what cannot be read and names all of it; `"warn"` leaves it out. These are:
      missing files of meshes, and files that cannot be read; shapes with impossible sizes or of unknown kinds; geoms
      that are signed distance fields; several surfaces in the world without `surface`; height fields that are turned.

    **Raises** `RobotFileError` for a file that cannot be read and for what is unsupported; `UnknownNameError` for links
    or a surface that the file does not have, and for a model of another file; `ModelError` for links without collision
    geometry and wrong arguments; `ImportError` without trimesh (meshes) or MuJoCo (MJCF).

    **Warns** `LeftOutWarning`, once, of what acts in `left_out`.
    """
    require_choice(unsupported, ("error", "warn"), "unsupported")
    if not isinstance(pairs, bool) and pairs != "capsules":
        raise ModelError(f"pairs is {pairs!r}; True, False or 'capsules' is needed")
    require_positive_integer(mesh_points, "mesh_points", least=4)
    if rim_points is not None:
        require_positive_integer(rim_points, "rim_points", least=3)
    if isinstance(links, str):
        raise ModelError(f"links is the text {links!r}; a list of names is needed, such as [{links!r}]")
    chosen = None if links is None else tuple(links)
    reading = Reading(model, Options(chosen, law, surface, pairs, mesh_points, rim_points, unsupported))
    if is_mjcf(path_or_text):
        read_mjcf_shapes(reading, path_or_text)
    else:
        if surface is not None:
            raise ModelError(f"surface is {surface!r}, but URDF files have no surface of the world; leave it out")
        read_urdf_shapes(reading, path_or_text, package_dirs)
    found = tuple(reading.shapes), tuple(reading.names), tuple(reading.pairs)
    return ContactShapes(*found, reading.surface, reading.finish())
