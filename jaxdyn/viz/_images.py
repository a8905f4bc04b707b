"""Images and films of robots: by rays, or by a browser without a screen."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import jax
import numpy as np

from jaxdyn._errors import DataError, naming_arguments, require_choice, require_suffix
from jaxdyn._types import ArrayLike
from jaxdyn._waits import saying
from jaxdyn.contact import ContactForces
from jaxdyn.model import Model
from jaxdyn.simulate import State, Trajectory
from jaxdyn.viz._browser import PATIENCE, browser_path, client_of, open_page, settle, viewer_of
from jaxdyn.viz._clips import clip_of, configuration_of, force_surfaces, forces_of
from jaxdyn.viz._contact_scene import Forces
from jaxdyn.viz._drawing import Drawing
from jaxdyn.viz._films import PICTURES, film_path, images_of, write_film, write_image
from jaxdyn.viz._ray_images import draw_robots
from jaxdyn.viz._sources import drawing_of

type Renderer = Literal["rays", "browser"]


@naming_arguments
@saying("drawing a picture")
def save_png(
    path: str | os.PathLike,
    model_or_path: Model | str | os.PathLike | Any,
    q: ArrayLike | State | None = None,
    *,
    compare: ArrayLike | State | None = None,
    forces: ContactForces | None = None,
    newtons_per_meter: float | None = None,
    renderer: Renderer = "rays",
    width: int = 1200,
    height: int = 900,
    show: Sequence[str] | None = None,
    dark: bool = False,
    **arguments: Any,
) -> None:
    """Write a picture of a robot as a PNG file; no screen is needed.

    **Arguments**

    - `q`: `[nq]`, the configuration, or a `State`; by default as in `Viewer`.
    - `compare`: the same of a second robot, translucent and orange.
    - `forces`, `newtons_per_meter`: contact forces of a world at this configuration, as in `Viewer.play`.
    - `renderer`: `"rays"` needs nothing but processors and takes seconds; `"browser"`, the page of `Viewer` in Chromium
      (or Chrome, or Edge; the environment variable `JAXDYN_BROWSER` names its program if it is not on the `PATH`),
      takes longer without a graphics card.
    - `width`, `height`: in pixels.
    - `show`: what is drawn, of `"meshes"`, `"collisions"`, `"ellipsoids"`, `"skeleton"`, `"frames"`, `"axes"`,
      `"loops"`, `"tendons"`, `"contacts"`, `"forces"`; by default as in `Viewer`.
    - `dark`: draw on a dark background, for pages that have one; not by the browser.
    - `arguments`: `visuals`, `package_dirs`, `skip_missing`, `contacts` and the loader's options, as in `Viewer`.

    To draw a moment of a trajectory, give its configuration, or use `Viewer.save_png`.

    The path ends with .png, or with .jpg, .jpeg or .webp for a picture in another format.

    **Raises** `DataError` for another ending or a folder that does not exist, before anything is drawn, and where the
    browser is not found or draws nothing; `ModelError` for another `renderer` or something unknown in `show`; else as
    `Viewer`; `ImportError` without viser, trimesh or embreex.
    """
    path = require_suffix(path, PICTURES, "the picture")
    require_choice(renderer, get_args(Renderer.__value__), "renderer")
    if renderer == "browser" and browser_path() is None:
        advice = "use renderer='rays', or name its program in the environment variable JAXDYN_BROWSER"
        raise DataError(f"no browser found on the PATH (chromium or google-chrome); {advice}")
    drawing = _drawing_of(model_or_path, arguments, show)
    drawn = None
    if forces is not None:
        single = jax.tree.map(lambda x: x[None], forces)
        drawn = forces_of(drawing, single, 1, newtons_per_meter)
    shown = drawing.start if q is None else q
    poses = [drawing.poses(*configuration_of(x)) for x in ((shown,) if compare is None else (shown, compare))]
    if renderer == "browser":
        return _by_browser(path, drawing, poses, drawn, (width, height))
    more = force_surfaces(drawing, drawn, 0)
    write_image(path, draw_robots(drawing, poses, (width, height), more=more, dark=dark))


@naming_arguments
def save_video(
    path: str | os.PathLike,
    model_or_path: Model | str | os.PathLike | Any,
    t: ArrayLike | Trajectory | State,
    qs: ArrayLike | None = None,
    *,
    compare: ArrayLike | Trajectory | State | None = None,
    path_of: str | None = None,
    follow: str | None = None,
    forces: ContactForces | None = None,
    frames_per_second: float = 25.0,
    speed: float = 1.0,
    width: int = 640,
    height: int = 480,
    **arguments: Any,
) -> None:
    """Write a film of a trajectory, as MP4, WebM, GIF or WebP by the suffix of `path`; no screen is needed.

    **Arguments**

    - `t`, `qs`, `compare`: the trajectory, and that of a second robot, as in `Viewer.play`.
    - `path_of`: the name of a frame whose path is drawn.
    - `follow`: the name of a frame with which the camera moves horizontally, such as the trunk of a robot that runs;
      by default the camera stands still and sees the whole trajectory.
    - `forces`: contact forces of a world at each time, as in `Viewer.play`.
    - `frames_per_second`: pictures in a second of the film; `speed`: seconds of the trajectory in one of the film.
    - `width`, `height`: of the pictures, in pixels.
    - `arguments`: `show`, `dark`, `newtons_per_meter` and the others of `save_png`.

    **Raises** as `Viewer`, `Viewer.play` and `save_png`; `DataError` for another suffix; `ImportError` without imageio,
    which needs imageio-ffmpeg for MP4 and WebM.
    """
    path = film_path(path)
    dark, scale = arguments.pop("dark", False), arguments.pop("newtons_per_meter", None)
    drawing = _drawing_of(model_or_path, arguments, arguments.pop("show", None))
    clip = clip_of(drawing, t, qs, compare, forces, scale)
    images = images_of(drawing, clip, frames_per_second, speed, path_of, (width, height), follow=follow, dark=dark)
    write_film(path, images, frames_per_second)


def _drawing_of(model_or_path: Any, arguments: dict[str, Any], show: Sequence[str] | None) -> Drawing:
    """Return the drawing for the arguments of `Viewer`, with these layers visible."""
    visuals, package_dirs = arguments.pop("visuals", None), arguments.pop("package_dirs", ())
    skip_missing, contacts = arguments.pop("skip_missing", False), arguments.pop("contacts", False)
    return drawing_of(model_or_path, visuals, package_dirs, skip_missing, arguments, contacts).with_layers(show)


def _by_browser(
    path: Path, drawing: Drawing, poses: list[np.ndarray], forces: Forces | None, size: tuple[int, int]
) -> None:
    width, height = size
    with viewer_of(drawing, poses, forces) as viewer, open_page(viewer.url, width, height):
        client = client_of(viewer, PATIENCE)
        try:
            settle(client)
            image = client.get_render(height, width, transport_format="png", timeout=PATIENCE)
        except (TimeoutError, RuntimeError) as error:
            raise DataError(f"the browser drew nothing: {error}; use renderer='rays'") from error
    alpha = image[..., 3:].astype(np.float64) / 255
    write_image(path, np.round(image[..., :3] * alpha + 255 * (1 - alpha)).astype(np.uint8))
