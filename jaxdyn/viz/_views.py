"""Viewers and pages of one call."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from jaxdyn._errors import DataError, naming_arguments
from jaxdyn._types import ArrayLike
from jaxdyn.contact import ContactForces
from jaxdyn.model import Model
from jaxdyn.simulate import State, Trajectory
from jaxdyn.viz._viewer import Viewer, require_page


def view(
    model_or_path: Model | str | os.PathLike | Any,
    *,
    package_dirs: Sequence[str | os.PathLike] = (),
    port: int = 8080,
    block: bool = True,
    **arguments: Any,
) -> Viewer:
    """Show a robot in the browser: a model, a world, or a URDF or MJCF file with its meshes.

    Prints the address of the page; with `block` it waits there until the program is interrupted (Ctrl-C), otherwise it
    returns at once. `arguments` are others of `Viewer`, which says what they mean and what is raised.
    """
    viewer = Viewer(model_or_path, package_dirs=package_dirs, port=port, **arguments)
    print(f"open {viewer.url} in a browser{' (Ctrl-C ends it)' if block else ''}", flush=True)
    if block:
        viewer.wait()
    return viewer


@naming_arguments
def save_html(
    path: str | os.PathLike,
    model_or_path: Model | str | os.PathLike | Any,
    t: ArrayLike | Trajectory | State | None = None,
    qs: ArrayLike | None = None,
    *,
    compare: ArrayLike | Trajectory | State | None = None,
    forces: ContactForces | None = None,
    newtons_per_meter: float | None = None,
    frames_per_second: float = 30.0,
    **arguments: Any,
) -> None:
    """Write a page that shows a robot, or plays a trajectory, as one file that needs no server and no network.

    `t` `[n]` in s, `qs` and `compare` `[n, nq]`, `forces` and `newtons_per_meter` are a trajectory, as in
    `Viewer.play`; without them the robot stands as in `Viewer`, whose arguments the others are (`q` among them).
    **Raises** as `Viewer` and `Viewer.play`, and `DataError` where one of `t` and `qs` is missing.
    """
    if t is None and qs is not None:
        raise DataError("a trajectory needs both t and qs")
    path = require_page(path)
    with Viewer(model_or_path, **arguments) as viewer:
        if t is not None:
            viewer.play(t, qs, compare=compare, forces=forces, newtons_per_meter=newtons_per_meter)
        viewer.save_html(path, frames_per_second=frames_per_second)
