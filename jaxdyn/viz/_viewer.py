"""The viewer: a robot in a page of the browser, served by viser."""

from __future__ import annotations

import contextlib
import html
import io
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxdyn._durable_files import write_durably
from jaxdyn._errors import DataError, JaxdynError, naming_arguments, require_choice, require_shape, require_suffix
from jaxdyn._types import ArrayLike
from jaxdyn._waits import saying
from jaxdyn.contact import ContactForces
from jaxdyn.model import Model
from jaxdyn.simulate import State, Trajectory
from jaxdyn.viz._clips import Clip, clip_moment, clip_of, configuration_of, force_surfaces, frame_samples
from jaxdyn.viz._drawing import (
    LAYERS,
    Drawing,
    compared_layers,
)
from jaxdyn.viz._films import PICTURES, film_path, images_of, write_film, write_image
from jaxdyn.viz._geometry import Visual
from jaxdyn.viz._legend import legend, with_legend
from jaxdyn.viz._page import ContactNodes, FramePaths, JointControls, Player, RobotNodes, set_stage
from jaxdyn.viz._pull import FrameHandle
from jaxdyn.viz._ray_images import draw_robots
from jaxdyn.viz._server import add_layer_switches, start_server
from jaxdyn.viz._sources import drawing_of

_FRAMED = 50
"""The number of samples of a trajectory that the camera has to see at first."""
PAGES = (".html", ".htm")
"""The endings of the files of pages."""


class Viewer:
    """A robot or a world in the browser: sliders for its joints, and trajectories to play.

    ```python
    viewer = Viewer("panda.urdf")      # prints nothing: open viewer.url
    viewer.show(q)
    viewer.pull("panda_hand")          # a handle in the scene moves the hand
    viewer.play(t, q_measured, compare=q_simulated, names=("measured", "simulated"), path_of="panda_hand")
    viewer.save_html("motion.html")
    viewer.save_video("motion.mp4")
    viewer.save_png("moment.png", time=1.5)

    viewer = Viewer(jaxdyn.load_world("scene.xml"))        # geoms, tendons, mocap bodies
    viewer.play(world.rollout(state, controls))
    while running:
        state = world.step(state, control)
        viewer.show(state)

    world = jaxdyn.World(model, shapes)             # its viewer shows shapes, surface, and the forces of a roll-out
    states = State(motion.q, motion.v)
    Viewer(world).play(motion, forces=world.contact_forces(states, of_step=False))
    ```

    In a notebook, a viewer as the last value of a cell is shown as a page that needs no server, so it stays visible
    when the notebook is opened elsewhere; `IPython.display.IFrame(viewer.url, 900, 600)` shows the page with controls.

    Visible at first are meshes (the visual geometry of the file) where there are any, and otherwise the ellipsoids of
    the inertias, a skeleton, frames and joint axes; the page has switches for all of them. An ellipsoid is the uniform
    one with the mass, center of mass and moments of inertia of the body (with what was merged into it), red where no
    distribution of mass has them; the skeleton joins each joint to the next. Axes are orange where a joint turns and
    violet where it slides. Closed loops have a ball at both frames, and a line between them where they are apart. Ball
    and free joints are moved by handles in the scene, and any frame by one that inverse kinematics follows. The page
    has a legend; surfaces under the pointer are outlined, and a click on one shows the name of its link, joint or
    frame.

    **Arguments**

    - `model_or_path`: a model; a `World`, whose geoms, tendons and mocap bodies are shown as its numbers are now; or a
      URDF or MJCF file, its text, or a `mujoco.MjModel`, which is loaded as a model.
    - `visuals`: the meshes to show: a list of `load_visuals`, or a file, for a model that differs from its file
      (identified, say); its frames must be frames of the model. By default the visuals of the file or the world; a
      model without a file has none. `()` shows none.
    - `package_dirs`, `skip_missing`: as in `load_visuals`.
    - `contacts`: whether to show the shapes that `load_contact_shapes` makes of the file, green and translucent (points
      as small balls), with the surface around the robot, as a `World` with a `ContactLaw` has them.
    - `q`: `[nq]`, the configuration at first, or a `State`; by default that of the MJCF file or the world (`qpos0`),
      else `model.neutral()`, put within the limits.
    - `host`, `port`: where the page is served; only to this machine by default (`"0.0.0.0"`: to all). The next free
      port is taken if this one is not.
    - `options`: more arguments of `load_urdf` (`free_base=True`, say) or `load_mjcf`. Unless they say otherwise, faults
      of the file and parts that models do not have only warn here.

    **Raises** what the loaders raise; `UnknownNameError` for visuals in frames that the model does not have;
    `ModelError` for a model or a world with batch axes; `ImportError` without viser.
    """

    model: Model
    """The robot's model."""

    @naming_arguments
    @saying("loading and drawing the robot")
    def __init__(
        self,
        model_or_path: Model | str | os.PathLike | Any,
        *,
        visuals: Sequence[Visual] | str | os.PathLike | None = None,
        package_dirs: Sequence[str | os.PathLike] = (),
        skip_missing: bool = False,
        contacts: bool = False,
        q: ArrayLike | State | None = None,
        host: str = "127.0.0.1",
        port: int = 8080,
        **options: Any,
    ):
        drawing = model_or_path
        if not isinstance(drawing, Drawing):
            drawing = drawing_of(model_or_path, visuals, package_dirs, skip_missing, options, contacts)
        self._drawing = drawing
        self.model = drawing.model
        self._lock = threading.RLock()
        self._q, self._mocap = self._configuration(drawing.start if q is None else q)
        poses = drawing.poses(self._q, self._mocap)
        self._server = start_server(host, port)
        self._robot = RobotNodes(self._server, drawing, "robot")
        self._robot.place(poses)
        self._compared: RobotNodes | None = None
        self._compared_names: tuple[str, str] | None = None
        self._layers = set(drawing.shown)
        self._cell = 1.0
        self._legend = self._server.gui.add_html("")
        self._contacts = ContactNodes(self._server, drawing)
        self._paths = FramePaths(self._server, drawing, self._explain)
        self._stage(*drawing.bounds(poses))
        self._switches = add_layer_switches(self._server, drawing, self._robot, self.show_layer)
        self._player = Player(self._server, self._lock, self._show_sample, self._paths)
        self._handle = FrameHandle(self._server, drawing, lambda: self.q, self._pulled)
        self._joints = JointControls(self._server, drawing, self._robot, self._change, lambda: self.show(drawing.start))
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

    @naming_arguments
    def show(self, q: ArrayLike | State) -> None:
        """Show a configuration `[nq]`, or a state, with the mocap bodies where it has them; a trajectory that is
        playing pauses. **Raises** `ShapeError`."""
        q, self._mocap = self._configuration(q)
        self._player.playing.value = False
        self._move(q, self._drawing.poses(q, self._mocap))

    def show_layer(self, layer: str, visible: bool = True) -> None:
        """Show or hide a layer, as the switches of the page do: `"meshes"`, `"collisions"`, `"ellipsoids"`,
        `"skeleton"`, `"frames"`, `"axes"`, `"loops"`, `"tendons"`, `"contacts"` or `"forces"`.

        Collision geometry is read from the robot's file when it is first shown. **Raises** `ModelError` for a layer
        that there is not, and as `load_visuals`.
        """
        require_choice(layer, self._drawing.layers, "layer")
        with self._lock:
            before = set(self._layers)
            (self._layers.add if visible else self._layers.discard)(layer)
            try:
                self._show_layers(self._compared_names)
            except (JaxdynError, ImportError):
                self._layers = before
                raise
            self._switches[layer].value = visible

    def pull(self, frame: str | None) -> None:
        """Put a handle at a frame, which the page also offers; None takes it away.

        While the handle is dragged, `inverse_kinematics` moves the joints, within their limits, from where they are to
        where the frame is at the handle; the page says how the search ended. **Raises** `UnknownNameError`, and
        `ModelError` for a frame that does not move.
        """
        with self._lock:
            self._handle.choose(frame)

    @naming_arguments
    def play(
        self,
        t: ArrayLike | Trajectory | State,
        qs: ArrayLike | State | None = None,
        *,
        compare: ArrayLike | Trajectory | State | None = None,
        names: tuple[str, str] = ("robot", "compared"),
        path_of: str | None = None,
        speed: float = 1.0,
        loop: bool = True,
        forces: ContactForces | None = None,
        newtons_per_meter: float | None = None,
    ) -> None:
        """Play a trajectory, without waiting for its end: the page has a switch, a slider of time, and the speed.

        **Arguments**

        - `t`, `qs`: increasing times `[n]`, s, and configurations `[n, nq]`, or states; between two the first one is
          shown. Or, without `qs`, a `Trajectory`, or states of a world with their times.
        - `compare`: the same at these times, `[n, nq]`, of a second robot, translucent and orange: a simulation
          beside a measurement, say.
        - `names`: of the two robots, for the legend.
        - `path_of`: the name of a frame, whose path is drawn as a line.
        - `speed`: seconds of the trajectory in one of the clock.
        - `loop`: whether to begin again at the end.
        - `forces`: contact forces at each time, from `World.contact_forces`, for a viewer of that world: a ball at each
          closed contact, and an arrow along the force on the robot.
        - `newtons_per_meter`: N in a meter of an arrow; by default a number that makes the largest force of a usual
          sample about as long as a link. The legend says it.

        **Raises** `ShapeError`; `DataError` for times that do not increase; `UnknownNameError` for `path_of`;
        `ModelError` for forces without contacts, or a scale that is not positive.
        """
        clip = clip_of(self._drawing, t, qs, compare, forces, newtons_per_meter)
        with self._lock:
            self._paths.draw(clip, path_of)
            self._contacts.load(clip.forces)
            self._show_layers(None if clip.compared is None else names)
            both = [x[:: max(1, len(x) // _FRAMED)] for x in (clip.poses, clip.compared) if x is not None]
            self._stage(*self._drawing.bounds(np.concatenate(both)))
            self._player.start(clip, speed, loop)

    def pause(self, seconds: float | None = None) -> None:
        """Stop the trajectory where it is, or at a time (s) after its start."""
        with self._lock:
            self._player.playing.value = False
            if seconds is not None:
                self._player.seek(float(seconds))

    @naming_arguments
    @saying("writing a page")
    def save_html(self, path: str | os.PathLike, *, frames_per_second: float = 30.0) -> None:
        """Write the page as one file that needs no server.

        It shows the robot as it is now, or the trajectory with a slider of time; it turns and zooms by the mouse, has a
        legend, and does not have the controls of joints. `frames_per_second` (1/s) limits the samples of the
        trajectory. **Raises** `DataError` unless the path ends with .html or .htm in a folder that exists.
        """
        path = require_page(path)
        page = self._page(frames_per_second)
        write_durably(path, lambda temporary: temporary.write_text(page, encoding="utf-8"))

    @naming_arguments
    @saying("drawing a picture")
    def save_png(
        self,
        path: str | os.PathLike,
        *,
        time: float | None = None,
        sample: int | None = None,
        width: int = 1200,
        height: int = 900,
    ) -> None:
        """Write a picture of the robot as it is now, or at a moment of the trajectory, as the function `save_png` does.

        The moment is `time`, in s after the start, or the number `sample` of a row of the trajectory (from its end, if
        it is negative). `width` and `height` are in pixels. **Raises** `DataError` for a moment without a trajectory,
        for both, for one that the trajectory does not have, and for a path as that function does.
        """
        path = require_suffix(path, PICTURES, "the picture")
        drawing, clip = self._visible(), self._player.clip
        poses, k = [drawing.poses(self.q, self._mocap)], self._contacts.sample
        if time is not None or sample is not None:
            clip, k = clip_moment(clip, time, sample)
            poses = clip.poses_at(k)
        elif clip is not None and self._compared_names is not None:
            poses = clip.poses_at(clip.sample_at(self._player.time.value))
        more = [*self._paths.surfaces, *force_surfaces(drawing, self._contacts.forces, k)]
        write_image(path, draw_robots(drawing, poses, (width, height), more=more))

    @naming_arguments
    def save_video(
        self, path: str | os.PathLike, *, frames_per_second: float = 25.0, width: int = 640, height: int = 480
    ) -> None:
        """Write a film of the trajectory that was played last, at its speed, as the function `save_video` does.
        **Raises** `DataError` where no trajectory was played, and as that function."""
        path, clip = film_path(path), self._player.clip
        if clip is None:
            raise DataError("there is no trajectory for a film; call play(t, qs) first")
        speed, size = self._player.speed.value, (width, height)
        images = images_of(self._visible(), clip, frames_per_second, speed, self._paths.frame, size)
        write_film(path, images, frames_per_second)

    def _repr_html_(self) -> str:
        """Return the page that needs no server, in a frame of a notebook."""
        page = html.escape(self._page(30.0), quote=True)
        return f'<iframe srcdoc="{page}" width="100%" height="480" style="border:1px solid #ddd"></iframe>'

    def _page(self, frames_per_second: float) -> str:
        """Return the text of the page that needs no server."""
        player = self._player
        with self._lock:
            playing, player.playing.value = player.playing.value, False
            q, now = self._q, player.time.value
            self._show_handles(False)
            player.seek(0.0)
            recording = self._server.get_scene_serializer()
            if player.clip is not None:
                for seconds, k in frame_samples(player.clip.t, frames_per_second):
                    recording.insert_sleep(seconds)
                    self._show_sample(player.clip, k)
            page = recording.as_html()
            self._show_handles(True)
            player.seek(now)
            if player.clip is None:
                self._move(q, self._drawing.poses(q, self._mocap))
            player.playing.value = playing
        return with_legend(page, self._legend.content)

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
        self._cell = set_stage(self._server, self._drawing, low, high)
        self._contacts.stage(low, high)
        self._explain()

    def _show_layers(self, names: tuple[str, str] | None) -> None:
        """Show the chosen layers, also of the robot to compare with, which is made when it is first needed."""
        self._compared_names = names
        if names is not None and self._compared is None:
            self._compared = RobotNodes(self._server, self._drawing, "compared", tint=True)
        self._robot.show(self._layers)
        self._contacts.show(self._layers)
        if self._compared is not None:
            self._compared.show(() if names is None else compared_layers(self._layers))
        self._explain()

    def _explain(self) -> None:
        """Bring the legend up to date."""
        names = self._compared_names or ("robot",)
        forces, path = self._contacts.forces, self._paths.frame
        scale = None if forces is None else forces.scale
        self._legend.content = legend(self._drawing, self._layers, names, path, self._cell, scale)

    def _show_handles(self, visible: bool) -> None:
        self._joints.show_handles(visible)
        self._handle.show(visible)

    def _visible(self) -> Drawing:
        """Return the drawing with the layers that are visible now."""
        return self._drawing.with_layers([x for x in LAYERS if x in self._layers])

    # The configuration

    def _configuration(self, shown: Any) -> tuple[np.ndarray, Any]:
        """Return a configuration, and the poses of mocap bodies that a state has. **Raises** `ShapeError`."""
        q, mocap = configuration_of(shown)
        q = np.array(q, np.float64)
        require_shape(q, (self.model.nq,), "q", f"nq = {self.model.nq} coordinates")
        return q, mocap

    def _change(self, rows: int | slice, values: ArrayLike) -> None:
        """Show coordinates that were changed on the page, by a slider or the handle of a joint, which stays."""
        with self._lock:
            self._player.playing.value = False
            q = self._q.copy()
            q[rows] = values
            self._move(q, self._drawing.poses(q, self._mocap), joints=False)

    def _pulled(self, q: np.ndarray) -> None:
        """Show the configuration that the handle of a frame, which stays, asks for."""
        with self._lock:
            self._player.playing.value = False
            self._move(q, self._drawing.poses(q, self._mocap), frame=False)

    def _move(
        self, q: np.ndarray, *poses: np.ndarray, joints: bool = True, frame: bool = True, sample: int | None = None
    ) -> None:
        """Show a configuration, with the handles of joints and that of a frame where they belong, and the forces at a
        sample of the trajectory."""
        with self._lock:
            self._q = q
            self._place(*poses)
            self._contacts.place(sample)
            self._joints.update(q, handles=joints)
            if frame:
                self._handle.follow(q)

    def _place(self, *poses: np.ndarray) -> None:
        """Move the bodies of the robot, and of the one to compare with where there are two, to poses `[nb, 7]`."""
        with self._server.atomic():
            for robot, bodies in zip((self._robot, self._compared), poses, strict=False):
                if robot is not None:
                    robot.place(bodies)

    def _show_sample(self, clip: Clip, k: int) -> None:
        self._mocap = None if clip.mocap is None else clip.mocap[k]
        self._move(clip.q[k], *clip.poses_at(k), sample=k)


def require_page(path: str | os.PathLike) -> Path:
    """Return the path of a page to be written. **Raises** `DataError` for another ending, or without its folder."""
    return require_suffix(path, PAGES, "the page")
