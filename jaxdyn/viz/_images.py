"""Images of robots: by a browser without a screen, or by matplotlib."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from jaxdyn._errors import DataError, naming_arguments, require_choice, require_suffix
from jaxdyn._types import ArrayLike
from jaxdyn.model import Model
from jaxdyn.viz._drawing import Drawing, body_poses, camera_pose, drawing_of, first_configuration
from jaxdyn.viz._geometry import Solid, Visual, without_slivers
from jaxdyn.viz._page import COMPARED, COMPARED_OPACITY
from jaxdyn.viz._plots import figure_class
from jaxdyn.viz._viewer import client_of, viewer_of

type Renderer = Literal["auto", "browser", "matplotlib"]

PICTURES = (".png", ".jpg", ".jpeg", ".webp")
"""The endings of the files that `save_png` can write, with a browser and without."""
_PATIENCE = 300.0
"""The time for a browser to start and to draw, s."""
_MOST_TRIANGLES = 40_000
"""The most triangles that matplotlib draws; meshes are made coarser until they have fewer."""
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
_BROWSER_OPTIONS = (
    *("--headless=new", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--ignore-gpu-blocklist"),
    *("--hide-scrollbars", "--no-first-run", "--disable-extensions", "--disable-background-networking"),
    *("--disable-component-update", "--disable-dev-shm-usage", "--remote-debugging-port=0"),
)
_LIGHT = np.array([0.45, -0.55, 0.7])


@naming_arguments
def save_png(
    path: str | os.PathLike,
    model_or_path: Model | str | os.PathLike | Any,
    q: ArrayLike | None = None,
    *,
    compare: ArrayLike | None = None,
    renderer: Renderer = "auto",
    width: int = 1200,
    height: int = 900,
    visuals: Sequence[Visual] | str | os.PathLike | None = None,
    package_dirs: Sequence[str | os.PathLike] = (),
    skip_missing: bool = False,
    show: Sequence[str] | None = None,
    **options: Any,
) -> None:
    """Write a picture of a robot as a PNG file; no screen is needed.

    **Arguments**

    - `q`: `[nq]`, the configuration; by default as in `Viewer`, which also says what `model_or_path`, `visuals`,
      `package_dirs`, `skip_missing` and `options` are.
    - `compare`: `[nq]`, of a second robot, translucent and orange.
    - `renderer`: `"browser"`, the page of `Viewer` in Chromium (or Chrome, or Edge) without a screen; `"matplotlib"`,
      without shadows and images on meshes, and with coarser meshes; `"auto"`, the browser where there is one.
    - `width`, `height`: in pixels.
    - `show`: what is drawn, of `"meshes"`, `"ellipsoids"`, `"skeleton"`, `"frames"`, `"axes"`; by default as in
      `Viewer`.

    The path ends with .png, or with .jpg, .jpeg or .webp for a picture in another format.

    **Raises** `DataError` for another ending or a folder that does not exist, before anything is drawn; else as
    `Viewer`; `ModelError` for another `renderer` or something unknown in `show`; `DataError` where the
    browser is not found or draws nothing; `ImportError` without viser or matplotlib.
    """
    path = require_suffix(path, PICTURES, "the picture")
    require_choice(renderer, get_args(Renderer.__value__), "renderer")
    if renderer == "browser" and browser_path() is None:
        raise DataError("no browser found on the PATH (chromium or google-chrome); use renderer='matplotlib'")
    drawing = drawing_of(model_or_path, visuals, package_dirs, skip_missing, options).with_layers(show)
    model = drawing.model
    shown = first_configuration(model) if q is None else np.asarray(q, np.float64)
    poses = [body_poses(model, x) for x in ((shown,) if compare is None else (shown, compare))]
    if renderer == "matplotlib" or browser_path() is None:
        _by_matplotlib(path, drawing, poses, width, height)
    else:
        _by_browser(path, drawing, poses, width, height)


def browser_path() -> str | None:
    """Return the program of a browser of the family of Chromium, or None."""
    return next((x for x in map(shutil.which, _BROWSERS) if x), None)


@contextlib.contextmanager
def open_page(url: str, width: int, height: int) -> Iterator[Path]:
    """Open a page in a new browser as long as the context lasts; a graphics card is not needed. Yields the folder of
    its profile, where the file `DevToolsActivePort` has the port at which it takes commands."""
    program = browser_path()
    assert program is not None
    with tempfile.TemporaryDirectory(prefix="jaxdyn-browser-", ignore_cleanup_errors=True) as folder:
        options = [*_BROWSER_OPTIONS, f"--user-data-dir={folder}", f"--window-size={width},{height}"]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            # The browser refuses to protect itself when it runs as root.
            options.append("--no-sandbox")
        quiet = subprocess.DEVNULL
        process = subprocess.Popen([program, *options, url], stdin=quiet, stdout=quiet, stderr=quiet)
        try:
            yield Path(folder)
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _by_browser(path: Path, drawing: Drawing, poses: list[np.ndarray], width: int, height: int) -> None:
    from PIL import Image

    with viewer_of(drawing, poses) as viewer, open_page(viewer.url, width, height):
        client = client_of(viewer, _PATIENCE)
        try:
            settle(client)
            image = client.get_render(height, width, transport_format="png", timeout=_PATIENCE)
        except (TimeoutError, RuntimeError) as error:
            raise DataError(f"the browser drew nothing: {error}; use renderer='matplotlib'") from error
    alpha = image[..., 3:].astype(np.float64) / 255
    Image.fromarray(np.round(image[..., :3] * alpha + 255 * (1 - alpha)).astype(np.uint8)).save(path)


def settle(client: Any) -> None:
    """Wait until the page of a client no longer changes: light and images arrive late."""
    last = None
    for _ in range(20):
        image = client.get_render(90, 120, transport_format="png", timeout=_PATIENCE).astype(np.float64)
        if last is not None and np.abs(image - last).mean() < 0.1:
            return
        last = image


def _by_matplotlib(path: Path, drawing: Drawing, poses: list[np.ndarray], width: int, height: int) -> None:
    figure = figure_class()(figsize=(width / 100, height / 100), dpi=100)
    from mpl_toolkits.mplot3d.art3d import Line3DCollection, Poly3DCollection

    surfaces = [x for x in drawing.surfaces if x.layer in drawing.shown]
    solids = _coarse([x.solid for x in surfaces], _MOST_TRIANGLES // len(poses))
    triangles, colors = [], []
    for k, robot in enumerate(poses):
        for surface, solid in zip(surfaces, solids, strict=True):
            posed = solid if surface.body < 0 else solid.transform(robot[surface.body])
            corners = posed.vertices[posed.faces]
            color = surface.color if k == 0 else np.array([*(x / 255 for x in COMPARED), COMPARED_OPACITY])
            triangles.append(corners)
            colors.append(_shade(corners, color))
    axes = figure.add_axes((0, 0, 1, 1), projection="3d", computed_zorder=False)
    low, high = drawing.bounds(np.stack(poses))
    away, center = camera_pose(low, high)
    x, y, z = away - center
    half = 0.36 * float(np.linalg.norm(high - low))
    ground = _ground(low, high)
    axes.add_collection3d(Line3DCollection(ground, colors="0.88", linewidths=0.6, clip_on=False))
    axes.add_collection3d(
        Poly3DCollection(np.concatenate(triangles), facecolors=np.concatenate(colors), linewidths=0, antialiased=False)
    )
    axes.set(**{f"{name}lim": (c - half, c + half) for name, c in zip("xyz", center, strict=True)})
    axes.set_box_aspect((1, 1, 1), zoom=1.5)
    axes.view_init(elev=np.degrees(np.arctan2(z, np.hypot(x, y))), azim=np.degrees(np.arctan2(y, x)))
    axes.set_proj_type("persp", focal_length=1.6)
    axes.set_axis_off()
    figure.savefig(path, facecolor="white")


def _shade(corners: np.ndarray, color: np.ndarray) -> np.ndarray:
    """Return the color `[n, 4]` of each triangle by its angle to the light; both of its sides are lit."""
    a, b, c = np.moveaxis(corners, 1, 0)
    normal = np.cross(b - a, c - a)
    normal /= np.maximum(np.linalg.norm(normal, axis=1, keepdims=True), 1e-300)
    lit = 0.45 + 0.35 * np.abs(normal @ _LIGHT) / np.linalg.norm(_LIGHT) + 0.2 * np.maximum(normal[:, 2], 0)
    return np.concatenate([np.clip(lit[:, None] * color[:3], 0, 1), np.full((len(lit), 1), color[3])], axis=1)


def _ground(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return the lines `[lines, 2, 3]` of a grid below the robot."""
    size, (x, y, _) = float(np.linalg.norm(high - low)), (low + high) / 2
    offsets, z = np.linspace(-0.6, 0.6, 13) * size, min(0.0, low[2])
    lines = [[(x + a, y - 0.6 * size, z), (x + a, y + 0.6 * size, z)] for a in offsets]
    lines += [[(x - 0.6 * size, y + a, z), (x + 0.6 * size, y + a, z)] for a in offsets]
    return np.array(lines)


def _coarse(solids: list[Solid], most: int) -> list[Solid]:
    """Return solids with at most `most` triangles in all: vertices in one cell of a grid become one, and cells grow."""
    if not solids:
        return solids
    everything = np.concatenate([x.vertices for x in solids])
    cell = float(np.linalg.norm(np.ptp(everything, axis=0))) / 500
    out = solids
    while sum(len(x.faces) for x in out) > most:
        out, cell = [_cluster(x, cell) if len(x.faces) > 500 else x for x in solids], 1.3 * cell
    return out


def _cluster(solid: Solid, cell: float) -> Solid:
    keys = np.floor(solid.vertices / cell).astype(np.int64)
    _, which, counts = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    which = which.ravel()
    sums = np.stack([np.bincount(which, weights=solid.vertices[:, k]) for k in range(3)], axis=1)
    return without_slivers(Solid(sums / counts[:, None], which[solid.faces]))
