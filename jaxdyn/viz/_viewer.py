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

from jaxdyn._errors import DataError, require_shape
from jaxdyn._types import ArrayLike
from jaxdyn.model import Model
from jaxdyn.model._topology import PRIMITIVES
from jaxdyn.viz._drawing import LAYERS, MESHES, Drawing, body_poses, drawing_of
from jaxdyn.viz._geometry import Visual
from jaxdyn.viz._nodes import RobotNodes
from jaxdyn.viz._playback import (
    FIELD_OF_VIEW,
    Motion,
    camera,
    first_configuration,
    frames,
    motion_of,
    slider_ranges,
    unit,
)

_FRAMES_PER_SECOND = 30.0
_FRAMED = 50
"""So many samples of a trajectory tell where the camera is at first."""
_TITLES = {
    "meshes": "Meshes",
    "ellipsoids": "Inertia ellipsoids",
    "skeleton": "Skeleton",
    "frames": "Frames",
    "axes": "Joint axes",
}


def viser() -> Any:
    """The module, which is optional. **Raises** `ImportError` that says how to install it."""
    try:
        import viser
    except ImportError as error:
        reason = "the viewer's page is served by viser, which is not installed"
        raise ImportError(f"{reason}: pip install 'jaxdyn[viz]'") from error
    return viser


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
    - `visuals`: what is shown as meshes: a list of `load_visuals`, or a file, to show a model that is no longer that of
      its file (identified, say); its frames must be frames of the model. By default those of the file, and none for a
      model; `()` for none.
    - `package_dirs`, `skip_missing`: as in `load_visuals`.
    - `q`: `[nq]`, the configuration at first; by default `model.neutral()`, put within the limits.
    - `host`, `port`: where the page is served; only to this machine by default (`"0.0.0.0"`: to all). The next free
      port is taken if this one is not.
    - `options`: more arguments of `load_urdf` (`free_base=True`, say) or `load_mjcf`. Unless they say otherwise, slips
      of the pen and parts that no model has only warn here.

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
        viser()
        drawing = drawing_of(model_or_path, visuals, package_dirs, skip_missing, options)
        self._open(drawing, q, host, port)

    def _open(self, drawing: Drawing, q: ArrayLike | None, host: str, port: int) -> None:
        module = viser()
        logging.getLogger("websockets.server").addFilter(_not_speculative)
        self._drawing = drawing
        self.model = model = drawing.model
        self._lock = threading.RLock()
        self._lower, self._upper = slider_ranges(model)
        self._q = self._checked(first_configuration(model) if q is None else q)
        poses = body_poses(model, self._q)
        # It would print a table of addresses.
        with contextlib.redirect_stdout(io.StringIO()):
            self._server = module.ViserServer(host=host, port=port, label="jaxdyn", verbose=False)
        self._closed = threading.Event()
        self._server.gui.configure_theme(show_logo=False, show_share_button=False, control_width="medium")
        self._robot = RobotNodes(self._server, drawing, "robot")
        self._robot.place(poses)
        self._compared: RobotNodes | None = None
        self._motion: Motion | None = None
        self._player: threading.Thread | None = None
        low, high = drawing.bounds(poses)
        self._stage(low, high)
        self._layer_switches()
        self._motion_folder = self._server.gui.add_folder("Motion", visible=False)
        self._motion_controls()
        self._sliders: dict[int, Any] = {}
        self._handles: dict[int, Any] = {}
        self._joint_controls()
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
        q = self._checked(q)
        self._playing.value = False
        self._move(q, body_poses(self.model, q))

    def play(
        self,
        t: ArrayLike,
        qs: ArrayLike,
        *,
        compare: ArrayLike | None = None,
        speed: float = 1.0,
        loop: bool = True,
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
        motion = motion_of(self.model, t, qs, compare)
        with self._lock:
            self._motion = motion
            self._second(motion.compared is not None)
            both = [x[:: max(1, len(x) // _FRAMED)] for x in (motion.poses, motion.compared) if x is not None]
            self._stage(*self._drawing.bounds(np.concatenate(both)))
            self._motion_folder.visible = True
            self._time.min, self._time.max = 0.0, float(motion.t[-1] - motion.t[0])
            self._speed.value, self._loop.value = float(speed), bool(loop)
            self._at(0.0)
            self._playing.value = True
            if self._player is None:
                self._player = threading.Thread(target=self._keep_time, name="jaxdyn-viewer", daemon=True)
                self._player.start()

    def pause(self, seconds: float | None = None) -> None:
        """Stop the trajectory where it is, or at a time (s) after its start."""
        with self._lock:
            self._playing.value = False
            if seconds is not None:
                self._at(float(np.clip(seconds, 0.0, self._time.max)))

    def save_html(self, path: str | os.PathLike, *, frames_per_second: float = 30.0) -> None:
        """Write the page as one file that needs no server: what is shown now, and the trajectory, if there is one, with
        a slider of time; turned and zoomed by the mouse, without the controls of joints. `frames_per_second`: of the
        trajectory's own time, at most."""
        with self._lock:
            playing, self._playing.value = self._playing.value, False
            q, now = self._q, self._time.value
            for handle in self._handles.values():
                handle.visible = False
            motion = self._motion
            if motion is not None:
                self._at(0.0)
            recording = self._server.get_scene_serializer()
            if motion is not None:
                for seconds, k in frames(motion.t, frames_per_second):
                    recording.insert_sleep(seconds)
                    self._place(motion, k)
            page = recording.as_html()
            for handle in self._handles.values():
                handle.visible = True
            if motion is not None:
                self._at(now)
            else:
                self._move(q, body_poses(self.model, q))
            self._playing.value = playing
        Path(path).write_text(page, encoding="utf-8")

    def wait(self) -> None:
        """Wait until `close` is called from another thread, or the program is interrupted (Ctrl-C)."""
        try:
            while not self._closed.wait(0.5):
                pass
        except KeyboardInterrupt:
            self.close()

    def close(self) -> None:
        """Stop serving the page."""
        if not self._closed.is_set():
            self._closed.set()
            if self._player is not None:
                self._player.join()
            with contextlib.redirect_stdout(io.StringIO()):
                self._server.stop()

    def __enter__(self) -> Viewer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What is on the page

    def _stage(self, low: np.ndarray, high: np.ndarray) -> None:
        """The ground, and where the camera is at first."""
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
        position, center = camera(low, high)
        self._server.initial_camera.position = tuple(position)
        self._server.initial_camera.look_at = tuple(center)
        self._server.initial_camera.fov = FIELD_OF_VIEW
        self._server.initial_camera.near = 0.01 * size
        self._server.initial_camera.far = 100 * size

    def _second(self, visible: bool) -> Any:
        """The robot to compare with, shown or hidden; made where it is first needed."""
        if visible and self._compared is None:
            self._compared = RobotNodes(self._server, self._drawing, "compared", tint=True)
        if self._compared is not None:
            self._compared.show_all(self._layers, visible=visible)
        return self._compared

    def _layer_switches(self) -> None:
        gui = self._server.gui
        self._layers = set(self._drawing.shown)
        with gui.add_folder("Show"):
            for layer in LAYERS:
                if not any(x.layer == layer for x in self._drawing.surfaces):
                    continue
                switch = gui.add_checkbox(_TITLES[layer], layer in self._layers)

                @switch.on_update
                def _(event, layer=layer) -> None:
                    with self._lock:
                        (self._layers.add if event.target.value else self._layers.discard)(layer)
                        self._robot.show(layer, event.target.value)
                        if self._compared is not None and self._motion is not None:
                            self._compared.show(layer, event.target.value and self._motion.compared is not None)

            if any(x.layer == MESHES for x in self._drawing.surfaces):
                opacity = gui.add_slider("Opacity of meshes", 0.05, 1.0, 0.05, 1.0)
                opacity.on_update(lambda event: self._robot.fade(MESHES, event.target.value))

    def _motion_controls(self) -> None:
        gui = self._server.gui
        with self._motion_folder:
            self._playing = gui.add_checkbox("Play", False)
            self._time = gui.add_slider("Time, s", 0.0, 1.0, 0.001, 0.0)
            self._speed = gui.add_slider("Speed", 0.05, 4.0, 0.05, 1.0)
            self._loop = gui.add_checkbox("Repeat", True)

        @self._time.on_update
        def _(event) -> None:
            # What the player sets has no client.
            if event.client is not None:
                with self._lock:
                    self._playing.value = False
                    self._at(event.target.value)

        @self._playing.on_update
        def _(event) -> None:
            with self._lock:
                if event.client is not None and event.target.value and self._time.value >= self._time.max:
                    self._at(0.0)

    def _joint_controls(self) -> None:
        gui, model = self._server.gui, self.model
        with gui.add_folder("Joints"):
            reset = gui.add_button("Reset")
            reset.on_click(lambda _: self.show(first_configuration(model)))
            topology = model.topology
            for i, (name, kind) in enumerate(zip(topology.joint_names, topology.joint_types, strict=True)):
                if i in topology.leaders:
                    continue
                first, letters = topology.q_starts[i], PRIMITIVES[kind]
                if letters in ("B", "F"):
                    self._add_handle(i, name, first, translates=letters == "F")
                    continue
                for k, letter in enumerate(letters):
                    label = name if len(letters) == 1 else f"{name}[{k}]"
                    self._add_slider(label, first + k, "m" if letter == "P" else "rad")

    def _add_slider(self, label: str, k: int, unit: str) -> None:
        low, high, value = float(self._lower[k]), float(self._upper[k]), float(self._q[k])
        low, high = min(low, value), max(high, value)
        slider = self._server.gui.add_slider(
            label, low, high, (high - low) / 1000 or 1e-3, value, hint=f"{low:.4g} to {high:.4g} {unit}"
        )
        self._sliders[k] = slider

        @slider.on_update
        def _(event) -> None:
            if event.client is not None:
                self._set(k, event.target.value)

    def _add_handle(self, i: int, name: str, first: int, *, translates: bool) -> None:
        """Of a ball or free joint: it stands in the frame of the joint, so that its pose is the coordinates."""
        place = np.asarray(self.model.joint_placement[i], np.float64)
        parent = self._robot.node(self.model.topology.parents[i])
        base = f"{parent}/handle of {name.replace('/', ':')}"
        self._server.scene.add_frame(base, show_axes=False, position=place[:3], wxyz=unit(place[3:]))
        count = 7 if translates else 4
        handle = self._server.scene.add_transform_controls(
            f"{base}/pose",
            scale=0.8 * self._drawing.unit,
            disable_axes=not translates,
            disable_sliders=True,
            depth_test=False,
            opacity=0.7,
        )
        self._handles[first] = handle
        self._put_handle(first, handle)

        @handle.on_update
        def _(event) -> None:
            pose = np.concatenate([event.target.position, event.target.wxyz])
            self._set(slice(first, first + count), pose[7 - count :])

    def _put_handle(self, first: int, handle: Any) -> None:
        if self._is_free(first):
            handle.position, first = self._q[first : first + 3], first + 3
        handle.wxyz = unit(self._q[first : first + 4])

    def _is_free(self, first: int) -> bool:
        kinds, starts, _ = self.model.topology.blocks
        return kinds[np.flatnonzero(starts == first)[0]] == "F"

    # How it moves

    def _checked(self, q: ArrayLike) -> np.ndarray:
        q = np.asarray(q, np.float64)
        require_shape(q, (self.model.nq,), "q", f"nq = {self.model.nq} coordinates")
        return q.copy()

    def _set(self, where: int | slice, value: ArrayLike) -> None:
        """Coordinates that were changed on the page."""
        with self._lock:
            self._playing.value = False
            q = self._q.copy()
            q[where] = value
            self._move(q, body_poses(self.model, q), from_page=True)

    def _move(self, q: np.ndarray, poses: np.ndarray, *, from_page: bool = False) -> None:
        with self._lock:
            self._q = q
            with self._server.atomic():
                self._robot.place(poses)
            for k, slider in self._sliders.items():
                value = float(q[k])
                if not slider.min <= value <= slider.max:
                    slider.min, slider.max = min(slider.min, value), max(slider.max, value)
                slider.value = value
            if not from_page:
                for first, handle in self._handles.items():
                    self._put_handle(first, handle)

    def _at(self, seconds: float) -> None:
        """Show the trajectory at a time after its start."""
        if self._motion is None:
            return
        t = self._motion.t
        self._time.value = float(seconds)
        k = int(np.clip(np.searchsorted(t - t[0], seconds + 1e-9, side="right") - 1, 0, len(t) - 1))
        self._place(self._motion, k)

    def _place(self, motion: Motion, k: int) -> None:
        self._move(motion.q[k], motion.poses[k])
        if motion.compared is not None and self._compared is not None:
            with self._server.atomic():
                self._compared.place(motion.compared[k])

    def _keep_time(self) -> None:
        last = time.monotonic()
        while not self._closed.wait(1 / _FRAMES_PER_SECOND):
            now = time.monotonic()
            passed, last = now - last, now
            with self._lock:
                if not self._playing.value:
                    continue
                seconds = self._time.value + passed * self._speed.value
                if seconds > self._time.max:
                    seconds = 0.0 if self._loop.value else self._time.max
                    self._playing.value = self._loop.value
                self._at(seconds)


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

    `t`, `qs` and `compare` are a trajectory, as in `Viewer.play`; without them the robot stands as in `Viewer`, whose
    arguments the others are (`q` among them). **Raises** as `Viewer` and `Viewer.play`.

    `t` is `[n]` in s, `qs` and `compare` `[n, nq]`. `DataError` where one of `t` and `qs` is missing.
    """
    if (t is None) != (qs is None):
        raise DataError("a trajectory needs both t and qs")
    with Viewer(model_or_path, **arguments) as viewer:
        if t is not None and qs is not None:
            viewer.play(t, qs, compare=compare)
        viewer.save_html(path, frames_per_second=frames_per_second)


def viewer_of(drawing: Drawing, poses: Sequence[np.ndarray]) -> Viewer:
    """The viewer of what is drawn already, with the bodies at poses `[nb, 7]`; if there are two, of a second robot,
    too. The camera sees all of it, and nothing is there to be dragged."""
    viewer = Viewer.__new__(Viewer)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    viewer._open(drawing, None, "127.0.0.1", port)
    viewer._robot.place(poses[0])
    if len(poses) > 1:
        viewer._second(True).place(poses[1])
    for handle in viewer._handles.values():
        handle.visible = False
    viewer._stage(*drawing.bounds(np.stack(poses)))
    return viewer


def client_of(viewer: Viewer, patience: float) -> Any:
    """The first browser that opens the page. **Raises** `DataError` if none does for so many seconds."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        for client in viewer._server.get_clients().values():
            return client
        time.sleep(0.05)
    raise DataError(f"no browser opened {viewer.url} in {patience:g} s")


def _not_speculative(record: logging.LogRecord) -> bool:
    """Browsers open connections in advance and close them unused, which is no failure worth a traceback."""
    cause = getattr(record.exc_info and record.exc_info[1], "__cause__", None)
    return record.getMessage() != "opening handshake failed" or "EOFError" not in repr(cause)
