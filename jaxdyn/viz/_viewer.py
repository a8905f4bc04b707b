"""The viewer: a robot in a page of the browser, served by viser."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxdyn._errors import DataError, require_shape, require_suffix
from jaxdyn._types import ArrayLike
from jaxdyn.model import Model
from jaxdyn.viz._drawing import LAYERS, MESHES, Drawing, body_poses, camera_pose, drawing_of, first_configuration
from jaxdyn.viz._extras import import_extra
from jaxdyn.viz._geometry import Visual
from jaxdyn.viz._page import Clip, JointControls, Player, RobotNodes, clip_of, frame_samples

_FRAMED = 50
"""The number of samples of a trajectory that the camera has to see at first."""
PAGES = (".html", ".htm")
"""The endings of the files of pages."""
_NAMES = ("Meshes", "Inertia ellipsoids", "Skeleton", "Frames", "Joint axes")
_TITLES: dict[str, str] = dict(zip(LAYERS, _NAMES, strict=True))


class Viewer:
    """A robot in the browser: sliders for its joints, and trajectories to play.

    ```python
    viewer = Viewer("panda.urdf")      # prints nothing: open viewer.url
    viewer.show(q)
    viewer.play(t, q_measured, compare=q_simulated)
    viewer.save_html("motion.html")
    ```

    Visible at first are meshes (the visual geometry of the file) where there are any, and otherwise the ellipsoids of
    the inertias, a skeleton, frames and joint axes; the page has switches for all of them. An ellipsoid is the uniform
    one with the mass, center of mass and moments of inertia of the body (with what was merged into it), red where no
    distribution of mass has them; the skeleton joins each joint to the next. Axes are orange where a joint turns and
    violet where it slides. Ball and free joints are moved by handles in the scene.

    **Arguments**

    - `model_or_path`: a model; or a URDF or MJCF file, its text, or a `mujoco.MjModel`, which is loaded.
    - `visuals`: the meshes to show: a list of `load_visuals`, or a file, for a model that differs from its file
      (identified, say); its frames must be frames of the model. By default the file's visuals; a model without a file
      has none. `()` shows none.
    - `package_dirs`, `skip_missing`: as in `load_visuals`.
    - `q`: `[nq]`, the configuration at first; by default `model.neutral()`, put within the limits.
    - `host`, `port`: where the page is served; only to this machine by default (`"0.0.0.0"`: to all). The next free
      port is taken if this one is not.
    - `options`: more arguments of `load_urdf` (`free_base=True`, say) or `load_mjcf`. Unless they say otherwise, faults
      of the file and parts that models do not have only warn here.

    **Raises** what the loaders raise; `UnknownNameError` for visuals in frames that the model does not have;
    `ModelError` for a model with batch axes; `ImportError` without viser.
    """

    model: Model
    """The robot's model."""

    def __init__(
        self,
        model_or_path: Model | str | os.PathLike | Any,
        *,
        visuals: Sequence[Visual] | str | os.PathLike | None = None,
        package_dirs: Sequence[str | os.PathLike] = (),
        skip_missing: bool = False,
        q: ArrayLike | None = None,
        host: str = "127.0.0.1",
        port: int = 8080,
        **options: Any,
    ):
        viser = import_extra("viser", "serve the viewer's page")
        drawing = model_or_path
        if not isinstance(drawing, Drawing):
            drawing = drawing_of(model_or_path, visuals, package_dirs, skip_missing, options)
        logging.getLogger("websockets.server").addFilter(_not_speculative)
        self._drawing = drawing
        self.model = model = drawing.model
        self._lock = threading.RLock()
        self._q = self._configuration(first_configuration(model) if q is None else q)
        poses = body_poses(model, self._q)
        # It would print a table of addresses.
        with contextlib.redirect_stdout(io.StringIO()):
            self._server = viser.ViserServer(host=host, port=port, label="jaxdyn", verbose=False)
        self._server.gui.configure_theme(show_logo=False, show_share_button=False, control_width="medium")
        self._robot = RobotNodes(self._server, drawing, "robot")
        self._robot.place(poses)
        self._compared: RobotNodes | None = None
        self._comparing = False
        self._stage(*drawing.bounds(poses))
        self._layer_switches()
        self._player = Player(self._server, self._lock, self._show_sample)
        reset = first_configuration(model)
        self._joints = JointControls(self._server, drawing, self._robot, self._change, lambda: self.show(reset))
        self._joints.update(self._q)
        self._server.flush()

    @property
    def url(self) -> str:
        """The address of the page."""
        host = self._server.get_host()
        return f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{self._server.get_port()}"

    @property
    def q(self) -> np.ndarray:
        """`[nq]`: the configuration that is shown."""
        return self._q.copy()

    def show(self, q: ArrayLike) -> None:
        """Show a configuration `[nq]`; a trajectory that is playing pauses. **Raises** `ShapeError`."""
        q = self._configuration(q)
        self._player.playing.value = False
        self._move(q, body_poses(self.model, q))

    def play(
        self, t: ArrayLike, qs: ArrayLike, *, compare: ArrayLike | None = None, speed: float = 1.0, loop: bool = True
    ) -> None:
        """Play a trajectory, without waiting for its end: the page has a switch, a slider of time, and the speed.

        **Arguments**

        - `t`, `qs`: increasing times `[n]`, s, and configurations `[n, nq]`; between two the first one is shown.
        - `compare`: `[n, nq]`, configurations at the same times of a second robot, translucent and orange: a simulation
          beside a measurement, say.
        - `speed`: seconds of the trajectory in one of the clock.
        - `loop`: whether to begin again at the end.

        **Raises** `ShapeError`, and `DataError` for times that do not increase.
        """
        clip = clip_of(self.model, t, qs, compare)
        with self._lock:
            self._show_layers(comparing=clip.compared is not None)
            both = [x[:: max(1, len(x) // _FRAMED)] for x in (clip.poses, clip.compared) if x is not None]
            self._stage(*self._drawing.bounds(np.concatenate(both)))
            self._player.start(clip, speed, loop)

    def pause(self, seconds: float | None = None) -> None:
        """Stop the trajectory where it is, or at a time (s) after its start."""
        with self._lock:
            self._player.playing.value = False
            if seconds is not None:
                self._player.seek(float(seconds))

    def save_html(self, path: str | os.PathLike, *, frames_per_second: float = 30.0) -> None:
        """Write the page as one file that needs no server.

        It shows the robot as it is now, or the trajectory with a slider of time; it turns and zooms by the mouse, and
        does not have the controls of joints. `frames_per_second` (1/s) limits the samples of the trajectory. **Raises**
        `DataError` unless the path ends with .html or .htm in a folder that exists.
        """
        path = require_page(path)
        player = self._player
        with self._lock:
            playing, player.playing.value = player.playing.value, False
            q, now = self._q, player.time.value
            self._joints.show_handles(False)
            player.seek(0.0)
            recording = self._server.get_scene_serializer()
            if player.clip is not None:
                for seconds, k in frame_samples(player.clip.t, frames_per_second):
                    recording.insert_sleep(seconds)
                    self._show_sample(player.clip, k)
            page = recording.as_html()
            self._joints.show_handles(True)
            player.seek(now)
            if player.clip is None:
                self._move(q, body_poses(self.model, q))
            player.playing.value = playing
        path.write_text(page, encoding="utf-8")

    def wait(self) -> None:
        """Wait until `close` is called from another thread, or the program is interrupted (Ctrl-C)."""
        try:
            while not self._player.closed.wait(0.5):
                pass
        except KeyboardInterrupt:
            self.close()

    def close(self) -> None:
        """Stop serving the page."""
        if not self._player.closed.is_set():
            self._player.close()
            with contextlib.redirect_stdout(io.StringIO()):
                self._server.stop()

    def __enter__(self) -> Viewer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The page

    def _stage(self, low: np.ndarray, high: np.ndarray) -> None:
        """Set the ground, and the first view of the camera, for a box in the world."""
        size = float(np.linalg.norm(high - low))
        cell = 10.0 ** np.round(np.log10(size / 10))
        ground = min(0.0, float(low[2]))
        self._server.scene.add_grid(
            "/ground",
            width=40 * cell,
            height=40 * cell,
            cell_size=cell,
            section_size=10 * cell,
            cell_color=(225, 228, 232),
            section_color=(190, 196, 204),
            shadow_opacity=0.15,
            position=(*(10 * cell * np.round((low + high)[:2] / (20 * cell))), ground),
        )
        position, center = camera_pose(low, high)
        camera = self._server.initial_camera
        camera.position, camera.look_at = tuple(position), tuple(center)
        camera.fov, camera.near, camera.far = float(np.radians(45.0)), 0.01 * size, 100 * size

    def _show_layers(self, *, comparing: bool) -> None:
        """Show the chosen layers, also of the robot to compare with, which is made when it is first needed."""
        self._comparing = comparing
        if comparing and self._compared is None:
            self._compared = RobotNodes(self._server, self._drawing, "compared", tint=True)
        self._robot.show(self._layers)
        if self._compared is not None:
            self._compared.show(self._layers if comparing else ())

    def _layer_switches(self) -> None:
        gui = self._server.gui
        self._layers = set(self._drawing.shown)
        with gui.add_folder("Show"):
            for layer in self._drawing.layers:
                switch = gui.add_checkbox(_TITLES[layer], layer in self._layers)

                @switch.on_update
                def _(event, layer=layer) -> None:
                    with self._lock:
                        (self._layers.add if event.target.value else self._layers.discard)(layer)
                        self._show_layers(comparing=self._comparing)

            if MESHES in self._drawing.layers:
                opacity = gui.add_slider("Opacity of meshes", 0.05, 1.0, 0.05, 1.0)
                opacity.on_update(lambda event: self._robot.set_opacity(MESHES, event.target.value))

    # The configuration

    def _configuration(self, q: ArrayLike) -> np.ndarray:
        q = np.asarray(q, np.float64)
        require_shape(q, (self.model.nq,), "q", f"nq = {self.model.nq} coordinates")
        return q.copy()

    def _change(self, rows: int | slice, values: ArrayLike) -> None:
        """Show coordinates that were changed on the page."""
        with self._lock:
            self._player.playing.value = False
            q = self._q.copy()
            q[rows] = values
            self._move(q, body_poses(self.model, q), handles=False)

    def _move(self, q: np.ndarray, *poses: np.ndarray, handles: bool = True) -> None:
        with self._lock:
            self._q = q
            self._place(*poses)
            self._joints.update(q, handles=handles)

    def _place(self, *poses: np.ndarray) -> None:
        """Move the bodies of the robot, and of the one to compare with where there are two, to poses `[nb, 7]`."""
        with self._server.atomic():
            for robot, bodies in zip((self._robot, self._compared), poses, strict=False):
                if robot is not None:
                    robot.place(bodies)

    def _show_sample(self, clip: Clip, k: int) -> None:
        self._move(clip.q[k], *(x[k] for x in (clip.poses, clip.compared) if x is not None))


def view(
    model_or_path: Model | str | os.PathLike | Any,
    *,
    package_dirs: Sequence[str | os.PathLike] = (),
    port: int = 8080,
    block: bool = True,
    **arguments: Any,
) -> Viewer:
    """Show a robot in the browser: a model, or a URDF or MJCF file with its meshes.

    Prints the address of the page; with `block` it waits there until the program is interrupted (Ctrl-C), otherwise it
    returns at once. `arguments` are others of `Viewer`, which says what they mean and what is raised.
    """
    viewer = Viewer(model_or_path, package_dirs=package_dirs, port=port, **arguments)
    print(f"open {viewer.url} in a browser{' (Ctrl-C ends it)' if block else ''}", flush=True)
    if block:
        viewer.wait()
    return viewer


def save_html(
    path: str | os.PathLike,
    model_or_path: Model | str | os.PathLike | Any,
    t: ArrayLike | None = None,
    qs: ArrayLike | None = None,
    *,
    compare: ArrayLike | None = None,
    frames_per_second: float = 30.0,
    **arguments: Any,
) -> None:
    """Write a page that shows a robot, or plays a trajectory, as one file that needs no server and no network.

    `t` `[n]` in s, `qs` and `compare` `[n, nq]` are a trajectory, as in `Viewer.play`; without them the robot stands
    as in `Viewer`, whose arguments the others are (`q` among them). **Raises** as `Viewer` and `Viewer.play`, and
    `DataError` where one of `t` and `qs` is missing.
    """
    if (t is None) != (qs is None):
        raise DataError("a trajectory needs both t and qs")
    path = require_page(path)
    with Viewer(model_or_path, **arguments) as viewer:
        if t is not None and qs is not None:
            viewer.play(t, qs, compare=compare)
        viewer.save_html(path, frames_per_second=frames_per_second)


def require_page(path: str | os.PathLike) -> Path:
    """Return the path of a page to be written. **Raises** `DataError` for another ending, or without its folder."""
    return require_suffix(path, PAGES, "the page")


def viewer_of(drawing: Drawing, poses: Sequence[np.ndarray]) -> Viewer:
    """Return a viewer of a drawing, with the bodies at poses `[nb, 7]`, and with a second robot if there are two. The
    camera sees both robots, and the joints have no handles."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    viewer = Viewer(drawing, port=port)
    viewer._show_layers(comparing=len(poses) > 1)
    viewer._place(*poses)
    viewer._joints.show_handles(False)
    viewer._stage(*drawing.bounds(np.stack(poses)))
    return viewer


def client_of(viewer: Viewer, patience: float) -> Any:
    """Return the first browser that opens the page. **Raises** `DataError` if none does within `patience` seconds."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        for client in viewer._server.get_clients().values():
            return client
        time.sleep(0.05)
    raise DataError(f"no browser opened {viewer.url} in {patience:g} s")


def _not_speculative(record: logging.LogRecord) -> bool:
    """Return whether a record is a failure: browsers open connections in advance and close them unused."""
    cause = getattr(record.exc_info and record.exc_info[1], "__cause__", None)
    return record.getMessage() != "opening handshake failed" or "EOFError" not in repr(cause)
