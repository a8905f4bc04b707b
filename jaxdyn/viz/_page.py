"""The parts of the viewer's page: robots in the scene, the controls of joints, and the player of trajectories."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import numpy as np

from jaxdyn._errors import DataError, require_shape
from jaxdyn._types import ArrayLike
from jaxdyn.joints import JOINT_TYPES, Primitive
from jaxdyn.model import Model
from jaxdyn.viz._drawing import LAYERS, MESHES, Drawing, Surface, body_poses, slider_ranges

COMPARED = (240, 120, 40)
"""Color of the second robot."""
COMPARED_OPACITY = 0.45
_FRAMES_PER_SECOND = 30.0


class RobotNodes:
    """A robot in the scene: a node for each body, with surfaces below it."""

    def __init__(self, server: Any, drawing: Drawing, name: str, *, tint: bool = False):
        self._server, self._drawing, self._name, self._tint = server, drawing, name, tint
        names = drawing.model.body_names
        self._bodies = [server.scene.add_frame(self.node(i), show_axes=False) for i in range(len(names))]
        self._surfaces: dict[str, list[Any]] = {layer: [] for layer in LAYERS}
        for k, surface in enumerate(drawing.surfaces):
            node = self._add(f"{self.node(surface.body)}/{surface.layer}_{k}", surface)
            node.visible = surface.layer in drawing.shown
            self._surfaces[surface.layer].append(node)

    def node(self, body: int) -> str:
        """Return the path of a body's node (-1: the world's)."""
        name = "world" if body < 0 else f"{body} {self._drawing.model.body_names[body].replace('/', ':')}"
        return f"/{self._name}/{name}"

    def _add(self, path: str, surface: Surface) -> Any:
        scene = self._server.scene
        if surface.solid.textured is not None and not self._tint:
            return scene.add_mesh_trimesh(path, surface.solid.textured)
        color, opacity = surface.color[:3], float(surface.color[3])
        return scene.add_mesh_simple(
            path,
            surface.solid.vertices,
            surface.solid.faces,
            color=COMPARED if self._tint else tuple(round(255 * float(x)) for x in color),
            opacity=COMPARED_OPACITY if self._tint else None if opacity == 1 else opacity,
            # Meshes of files are not always closed, or turned outwards.
            side="double" if surface.layer == MESHES else "front",
        )

    def place(self, poses: np.ndarray) -> None:
        """Move the bodies to poses `[nb, 7]`."""
        for handle, pose in zip(self._bodies, poses, strict=True):
            handle.position, handle.wxyz = pose[:3], pose[3:]

    def show(self, layers: Collection[str]) -> None:
        """Show these layers and no others."""
        for layer, nodes in self._surfaces.items():
            for node in nodes:
                node.visible = layer in layers

    def set_opacity(self, layer: str, opacity: float) -> None:
        """Multiply the opacity of a layer; surfaces with images keep theirs."""
        original = [float(x.color[3]) for x in self._drawing.surfaces if x.layer == layer]
        for node, full in zip(self._surfaces[layer], original, strict=True):
            if hasattr(node, "opacity"):
                node.opacity = None if opacity * full == 1 else opacity * full


class JointControls:
    """A slider for each coordinate, and a handle for each ball or free joint. `change(rows, values)` is called with the
    coordinates that a user changed, `reset()` when a user clicks the button."""

    def __init__(
        self,
        server: Any,
        drawing: Drawing,
        robot: RobotNodes,
        change: Callable[[int | slice, Any], None],
        reset: Callable[[], None],
    ):
        self._server, self._drawing, self._robot, self._change = server, drawing, robot, change
        self.sliders: dict[int, Any] = {}
        self.handles: dict[int, Any] = {}
        self._joints: dict[int, Primitive] = {}
        topology = drawing.model.topology
        labels, (low, high) = topology.coordinate_names, slider_ranges(drawing.model)
        with server.gui.add_folder("Joints"):
            server.gui.add_button("Reset").on_click(lambda _: reset())
            for i, kind in enumerate(topology.joint_types):
                first, joint = topology.q_starts[i], JOINT_TYPES[kind][0]
                if joint.quaternion is not None:
                    self._add_handle(i, first, joint)
                    continue
                for k in range(first, topology.q_starts[i + 1]):
                    self._add_slider(labels[k], k, topology.coordinate_units[k], float(low[k]), float(high[k]))

    def update(self, q: np.ndarray, *, handles: bool = True) -> None:
        """Show coordinates `[nq]`; ranges of sliders grow if they have to."""
        for k, slider in self.sliders.items():
            value = float(q[k])
            if not slider.min <= value <= slider.max:
                slider.min, slider.max = min(slider.min, value), max(slider.max, value)
            slider.value = value
        for first, handle in self.handles.items() if handles else ():
            joint = self._joints[first]
            if joint.position is not None:
                handle.position = q[first + joint.position :][:3]
            if joint.quaternion is not None:
                handle.wxyz = _unit(q[first + joint.quaternion :][:4])

    def show_handles(self, visible: bool) -> None:
        for handle in self.handles.values():
            handle.visible = visible

    def _add_slider(self, label: str, k: int, measure: str, low: float, high: float) -> None:
        hint = f"{low:.4g} to {high:.4g} {measure}"
        value = min(max(0.0, low), high)
        slider = self._server.gui.add_slider(label, low, high, (high - low) / 1000 or 1e-3, value, hint=hint)
        self.sliders[k] = slider

        @slider.on_update
        def _(event) -> None:
            # Changes by the program have no client.
            if event.client is not None:
                self._change(k, event.target.value)

    def _add_handle(self, i: int, first: int, joint: Primitive) -> None:
        """Add the handle of a ball or free joint, in the joint's frame, so that its pose is the coordinates."""
        model = self._drawing.model
        place = np.asarray(model.joint_placement[i], np.float64)
        parent = self._robot.node(model.topology.parents[i])
        base = f"{parent}/handle of {model.joint_names[i].replace('/', ':')}"
        self._server.scene.add_frame(base, show_axes=False, position=place[:3], wxyz=_unit(place[3:]))
        handle = self._server.scene.add_transform_controls(
            f"{base}/pose",
            scale=0.8 * self._drawing.unit,
            disable_axes=joint.position is None,
            disable_sliders=True,
            depth_test=False,
            opacity=0.7,
        )
        self.handles[first], self._joints[first] = handle, joint

        @handle.on_update
        def _(event) -> None:
            pose = np.concatenate([event.target.position, event.target.wxyz])
            self._change(slice(first, first + joint.nq), pose[7 - joint.nq :])


class Clip(NamedTuple):
    """A trajectory to play: times `[n]`, configurations `[n, nq]` and poses of bodies `[n, nb, 7]`; and the poses of a
    second robot, if there is one."""

    t: np.ndarray
    q: np.ndarray
    poses: np.ndarray
    compared: np.ndarray | None


def clip_of(model: Model, t: ArrayLike, qs: ArrayLike, compare: ArrayLike | None) -> Clip:
    """Return a clip, for the arguments of `Viewer.play`. **Raises** `ShapeError`, `DataError`."""
    t, q = np.asarray(t, np.float64), np.asarray(qs, np.float64)
    require_shape(q, (len(q) if q.ndim else 0, model.nq), "qs", f"a row of nq = {model.nq} coordinates for each time")
    require_shape(t, (len(q),), "t", "a time in s for each row of qs")
    if len(t) < 2 or not np.all(np.diff(t) > 0):
        raise DataError("t must have at least two times, in s, that increase; sort them and drop repeated ones")
    compared = None
    if compare is not None:
        second = np.asarray(compare, np.float64)
        require_shape(second, q.shape, "compare", "configurations at the same times as qs")
        compared = body_poses(model, second)
    return Clip(t, q, body_poses(model, q), compared)


def frame_samples(t: np.ndarray, per_second: float) -> list[tuple[float, int]]:
    """Return the samples to keep of times `[n]`: for each the seconds since the one before, and its number."""
    out, last = [], 0
    for k in range(1, len(t)):
        if t[k] - t[last] >= (1 - 1e-6) / per_second or k == len(t) - 1:
            out.append((float(t[k] - t[last]), k))
            last = k
    return out


class Player:
    """A switch, a slider of time and the speed on the page, and a thread that moves through the clip. `show(clip, k)`
    is called to show sample `k`. All that changes the page holds `lock`."""

    def __init__(self, server: Any, lock: threading.RLock, show: Callable[[Clip, int], None]):
        self._lock, self._show = lock, show
        self.clip: Clip | None = None
        self.closed = threading.Event()
        self._thread: threading.Thread | None = None
        gui = server.gui
        self._folder = gui.add_folder("Motion", visible=False)
        with self._folder:
            self.playing = gui.add_checkbox("Play", False)
            self.time = gui.add_slider("Time, s", 0.0, 1.0, 0.001, 0.0)
            self.speed = gui.add_slider("Speed", 0.05, 4.0, 0.05, 1.0)
            self.loop = gui.add_checkbox("Repeat", True)

        @self.time.on_update
        def _(event) -> None:
            # Changes by the player itself have no client.
            if event.client is not None:
                with lock:
                    self.playing.value = False
                    self.seek(event.target.value)

        @self.playing.on_update
        def _(event) -> None:
            with lock:
                if event.client is not None and event.target.value and self.time.value >= self.time.max:
                    self.seek(0.0)

    def start(self, clip: Clip, speed: float, loop: bool) -> None:
        self.clip = clip
        self._folder.visible = True
        self.time.min, self.time.max = 0.0, float(clip.t[-1] - clip.t[0])
        self.speed.value, self.loop.value = float(speed), bool(loop)
        self.seek(0.0)
        self.playing.value = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="jaxdyn-viewer", daemon=True)
            self._thread.start()

    def seek(self, seconds: float) -> None:
        """Show the clip at a time after its start; within its length."""
        if self.clip is None:
            return
        seconds = float(np.clip(seconds, 0.0, self.time.max))
        self.time.value = seconds
        t = self.clip.t - self.clip.t[0]
        self._show(self.clip, int(np.clip(np.searchsorted(t, seconds + 1e-9, side="right") - 1, 0, len(t) - 1)))

    def close(self) -> None:
        self.closed.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        last = time.monotonic()
        while not self.closed.wait(1 / _FRAMES_PER_SECOND):
            now = time.monotonic()
            passed, last = now - last, now
            with self._lock:
                if not self.playing.value:
                    continue
                seconds = self.time.value + passed * self.speed.value
                if seconds > self.time.max:
                    seconds = 0.0 if self.loop.value else self.time.max
                    self.playing.value = self.loop.value
                self.seek(seconds)


def _unit(quaternion: np.ndarray) -> np.ndarray:
    """Return the unit quaternion of the same direction."""
    return quaternion / np.linalg.norm(quaternion)
