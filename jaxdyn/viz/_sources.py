"""The drawing of what a user hands over: a model, what has one, or a robot's file."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdyn._errors import ModelError, require_kind
from jaxdyn.contact import ShapeContacts, load_contact_shapes
from jaxdyn.io import LeftOutWarning, is_mjcf
from jaxdyn.io.mjcf import compile_massless_mjcf
from jaxdyn.io.robot_files import named_robot, unbatched_leaves
from jaxdyn.model import Model
from jaxdyn.viz._contact_scene import shape_meshes
from jaxdyn.viz._drawing import (
    COLLISIONS,
    CONTACTS,
    FORCES,
    MESHES,
    SHAPE,
    SHAPE_OPACITY,
    Drawing,
    Surface,
    body_name,
    draw,
    first_configuration,
    rgba,
    surface_of,
)
from jaxdyn.viz._geometry import Visual
from jaxdyn.viz._visuals import load_robot, load_visuals
from jaxdyn.viz._world_surfaces import draw_world
from jaxdyn.worlds import World

_FILES = "the path or the text of a URDF or MJCF file, or a mujoco.MjModel"


def drawing_of(
    source: Any,
    visuals: Any,
    package_dirs: Sequence[str | os.PathLike],
    skip_missing: bool,
    options: dict[str, Any],
    contacts: bool = False,
) -> Drawing:
    """Return the drawing of a model, a world or a robot's file. See `Viewer` for the arguments."""
    require_kind(contacts, bool, "contacts", "a World has its contacts", error=ModelError)
    model: Any = source if isinstance(source, Model) else getattr(source, "model", None)
    given = isinstance(model, Model)
    if given and options:
        raise ModelError(f"{', '.join(options)}: arguments of a file's loader, but a model is given, no file")
    if not given:
        source = named_robot(source, ("MJCF", "URDF"))
        if not _is_file(source):
            require_kind(
                source,
                Model,
                "what is shown",
                f"what has one as its `model`, such as a World, {_FILES}",
                error=ModelError,
            )
        model = load_robot(source, package_dirs, **options)
    by_itself = visuals is None
    if by_itself:
        visuals = () if given else source
    file, files = None, {"package_dirs": package_dirs, "skip_missing": skip_missing}
    if not isinstance(visuals, list | tuple):
        if not _is_file(visuals):
            require_kind(visuals, list, "visuals", "a tuple of Visual", _FILES, error=ModelError)
        file, visuals = visuals, load_visuals(visuals, **files)
    for visual in visuals:
        require_kind(visual, Visual, "an element of visuals", error=ModelError)
    unbatched_leaves(model)
    if isinstance(source, World) and by_itself:
        drawing = draw_world(source, skip_missing=skip_missing)
    else:

        def load_collisions() -> list[Surface]:
            return [surface_of(model, x, COLLISIONS) for x in load_visuals(file, collision=True, **files)]

        surfaces = [surface_of(model, visual, MESHES) for visual in visuals]
        loading = None if file is None else load_collisions
        drawing = draw(model, surfaces, _start_of(source, model, given), load_collisions=loading)
    touching = source.parts.touching if isinstance(source, World) and source.contact_names else None
    if contacts and touching is None:
        touching = _contacts_of_file(model, file if given else source, package_dirs, skip_missing)
    return drawing if touching is None else _with_contacts(drawing, touching)


def _is_file(source: Any) -> bool:
    # The class is known by its name, so that MuJoCo is needed for its own files only.
    return isinstance(source, str | os.PathLike) or type(source).__name__ == "MjModel"


def _start_of(source: Any, model: Model, given: bool) -> np.ndarray:
    """Return the configuration `[nq]` in which a scene or an MJCF file has the robot, or that of zeros within limits:
    at zero, robots of files that have a reference or a free joint may be under the floor."""
    start = getattr(source, "start", None)
    if not given and is_mjcf(source):
        start = compile_massless_mjcf(source, kinematics_only=True)[0].qpos0
    if getattr(start, "shape", None) != (model.nq,):
        return first_configuration(model)
    return np.array(start, np.float64)


def _contacts_of_file(model: Model, file: Any, package_dirs: Sequence[str | os.PathLike], skip: bool) -> ShapeContacts:
    """Return the contacts of a file's collision geometry. **Raises** as `load_contact_shapes`; `ModelError` without a
    file or without such geometry."""
    if file is None:
        raise ModelError("contacts=True draws the shapes of a file, but a model is given; give a World with contacts")
    with warnings.catch_warnings():
        # What the shapes replace and leave out does not matter for a picture.
        warnings.simplefilter("ignore", LeftOutWarning)
        unsupported = "warn" if skip else "error"
        found = load_contact_shapes(model, file, package_dirs=package_dirs, unsupported=unsupported)
    if not found.shapes:
        raise ModelError("the file has no collision geometry on links that move; leave contacts out")
    return ShapeContacts(model, found.shapes, found.surface or "ground")


def _with_contacts(drawing: Drawing, contacts: ShapeContacts) -> Drawing:
    """Return the drawing with the shapes of contacts."""
    color = rgba(SHAPE, SHAPE_OPACITY)
    shapes = [
        Surface(CONTACTS, body, mesh, color, f"contact shape on {body_name(drawing.model, body)}")
        for body, mesh in shape_meshes(contacts, drawing.unit)
    ]
    shown = (*drawing.shown, CONTACTS, FORCES)
    return dataclasses.replace(drawing, surfaces=[*drawing.surfaces, *shapes], shown=shown, contacts=contacts)
