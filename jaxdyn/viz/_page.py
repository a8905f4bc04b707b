"""The parts of the viewer's page: robots in the scene, the controls of joints, and the player of trajectories."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from jaxdyn.joints import JOINT_TYPES, Primitive
from jaxdyn.viz._clips import Clip
from jaxdyn.viz._contact_scene import Forces, part_meshes
from jaxdyn.viz._drawing import (
    COLLISIONS,
    CONTACTS,
    FIELD_OF_VIEW,
    FORCE,
    FORCES,
    MESHES,
    Drawing,
    Surface,
    camera_pose,
    rgba,
    slider_ranges,
)

_FRAMES_PER_SECOND = 30.0
_NO_PATH = "none"
"""The choice of no path."""


class RobotNodes:
    """A robot in the scene: a node for each body, with surfaces and names below it. A click on a surface shows the name
    of what it belongs to, or hides it."""

    def __init__(self, server: Any, drawing: Drawing, name: str, *, tint: bool = False):
        self._server, self._drawing, self._name, self._tint = server, drawing, name, tint
        self._bodies = [server.scene.add_frame(self.node(i), show_axes=False) for i in range(len(drawing.nodes))]
        self._surfaces: dict[str, list[Any]] = {}
        self._names: list[Any] = []
        self._clicked: dict[str, Any] = {}
        self._lines: dict[str, Any] = {}
        self._shown: Collection[str] = drawing.shown
        self._poses: np.ndarray | None = None
        for surface in drawing.surfaces:
            self._add(surface)

    def node(self, body: int) -> str:
        """Return the path of a body's node (-1: the world's)."""
        name = "world" if body < 0 else f"{body} {self._drawing.nodes[body].replace('/', ':')}"
        return f"/{self._name}/{name}"

    def _add(self, surface: Surface) -> None:
        nodes = self._surfaces.setdefault(surface.layer, [])
        if self._tint and self._drawing.is_shared(surface):
            return
        shown = surface.as_compared(self._drawing.unit) if self._tint else surface
        path = f"{self.node(surface.body)}/{surface.layer}_{len(nodes)}"
        node = add_surface(self._server, path, shown)
        node.visible = surface.layer in self._drawing.shown
        node.on_click(lambda _: self.toggle_name(path, surface))
        nodes.append(node)

    def toggle_name(self, path: str, surface: Surface) -> None:
        """Show the name of what a surface belongs to, at the middle of the surface, or hide it."""
        label = self._clicked.pop(path, None)
        if label is not None:
            label.remove()
        else:
            center = tuple(surface.mesh.bounds.mean(axis=0))
            name = f"{self.node(surface.body)}/name of {path.rpartition('/')[2]}"
            self._clicked[path] = self._server.scene.add_label(
                name, surface.name, position=center, anchor="center-center"
            )

    def show_names(self, visible: bool) -> None:
        """Show or hide the names of all frames at their origins, and of joints beside them."""
        model = self._drawing.model
        if visible and not self._names:
            places = np.asarray(model.frame_placement, np.float64)[:, :3]
            for k, (name, body) in enumerate(zip(model.topology.frame_names, model.topology.frame_bodies, strict=True)):
                text = f"{name} (joint {model.joint_names[body]})" if k < model.nb else name
                path = f"{self.node(body)}/name {k}"
                label = self._server.scene.add_label(path, text, position=tuple(places[k]), font_screen_scale=0.75)
                self._names.append(label)
        for label in self._names:
            label.visible = visible

    def place(self, poses: np.ndarray) -> None:
        """Move the bodies to poses `[nodes, 7]`."""
        for handle, pose in zip(self._bodies, poses, strict=True):
            handle.position, handle.wxyz = pose[:3], pose[3:]
        self._draw_lines(poses)

    def _draw_lines(self, poses: np.ndarray) -> None:
        """Draw the lines of loops and the tendons, which move with several bodies."""
        lines = self._drawing.lines(poses)
        for line in [x.as_compared(self._drawing.unit) for x in lines] if self._tint else lines:
            if line.name in self._lines:
                self._lines[line.name].vertices = np.asarray(line.mesh.vertices, np.float32)
            else:
                path = f"{self.node(-1)}/line of {line.name.replace('/', ':')}"
                self._lines[line.name] = add_surface(self._server, path, line)
        shown = {x.name for x in lines if x.layer in self._shown}
        for name, node in self._lines.items():
            node.visible = name in shown
        self._poses = poses

    def show(self, layers: Collection[str]) -> None:
        """Show these layers and no others. **Raises** as `load_visuals` where collision geometry is read."""
        if COLLISIONS in layers and COLLISIONS not in self._surfaces:
            for surface in self._drawing.collisions():
                self._add(surface)
        for layer, nodes in self._surfaces.items():
            for node in nodes:
                node.visible = layer in layers
        self._shown = layers
        if self._poses is not None:
            self._draw_lines(self._poses)

    def set_opacity(self, layer: str, opacity: float) -> None:
        """Multiply the opacity of a layer; surfaces with images keep theirs."""
        original = [float(x.color[3]) for x in self._drawing.surfaces if x.layer == layer]
        for node, full in zip(self._surfaces[layer], original, strict=True):
            if hasattr(node, "opacity"):
                node.opacity = None if opacity * full == 1 else opacity * full


def add_surface(server: Any, path: str, surface: Surface) -> Any:
    """Add a surface to the scene and return its node."""
    if surface.textured:
        return server.scene.add_mesh_trimesh(path, surface.mesh)
    opacity = float(surface.color[3])
    return server.scene.add_mesh_simple(
        path,
        np.asarray(surface.mesh.vertices),
        np.asarray(surface.mesh.faces),
        color=tuple(round(255 * float(x)) for x in surface.color[:3]),
        opacity=None if opacity == 1 else opacity,
        # Meshes of files are not always closed, or turned outwards.
        side="double" if surface.layer in (MESHES, COLLISIONS, CONTACTS) else "front",
    )


def set_stage(server: Any, drawing: Drawing, low: np.ndarray, high: np.ndarray) -> float:
    """Set the ground, and the first view of the camera, for a box in the world. Returns the size of the cells of the
    ground's grid, m."""
    size, (ground, cell) = float(np.linalg.norm(high - low)), drawing.ground(low, high)
    server.scene.add_grid(
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
    camera = server.initial_camera
    camera.position, camera.look_at = tuple(position), tuple(center)
    camera.fov, camera.near, camera.far = FIELD_OF_VIEW, 0.01 * size, 100 * size
    return cell


class ContactNodes:
    """The surface of the world, and the contact forces of a trajectory, in the scene."""

    def __init__(self, server: Any, drawing: Drawing):
        self._server, self._drawing = server, drawing
        self._surface: Any = None
        self._parts: dict[str, Any] = {}
        self._layers: Collection[str] = drawing.shown
        self.forces: Forces | None = None
        self.sample: int | None = None
        """The sample whose forces are shown; None while none are."""

    def stage(self, low: np.ndarray, high: np.ndarray) -> None:
        """Draw the surface of the world around a box."""
        if self._surface is not None:
            self._surface.remove()
        surface = self._drawing.world_surface(low, high)
        self._surface = None if surface is None else add_surface(self._server, "/surface", surface)
        self.show(self._layers)

    def load(self, forces: Forces | None) -> None:
        """Make the nodes of the forces of a trajectory."""
        for node in self._parts.values():
            node.remove()
        self.forces, self.sample, self._parts = forces, None, {}
        if forces is None or not forces.most:
            return
        color = tuple(round(255 * float(x)) for x in rgba(FORCE)[:3])
        for name, places in forces.instances(0).items():
            mesh = part_meshes()[name]
            self._parts[name] = self._server.scene.add_batched_meshes_simple(
                f"/forces/{name}",
                np.asarray(mesh.vertices),
                np.asarray(mesh.faces),
                places.wxyzs,
                places.positions,
                batched_scales=places.scales,
                batched_colors=color,
                cast_shadow=False,
                visible=False,
            )

    def place(self, sample: int | None) -> None:
        """Show the forces at a sample, or none."""
        self.sample = sample
        if self.forces is not None and sample is not None:
            for name, places in self.forces.instances(sample).items() if self._parts else ():
                node = self._parts[name]
                node.batched_positions, node.batched_wxyzs = (np.asarray(x, np.float32) for x in places[:2])
                node.batched_scales = np.asarray(places.scales, np.float32)
        self.show(self._layers)

    def show(self, layers: Collection[str]) -> None:
        """Show the surface and the forces where their layers are shown."""
        self._layers = layers
        if self._surface is not None:
            self._surface.visible = CONTACTS in layers
        for node in self._parts.values():
            node.visible = FORCES in layers and self.sample is not None


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
        hint = f"{label}: {low:.4g} to {high:.4g} {measure}"
        if measure == "rad":
            hint += f" ({np.degrees(low):.0f}° to {np.degrees(high):.0f}°)"
        value = min(max(0.0, low), high)
        slider = self._server.gui.add_slider(
            f"{label}, {measure}", low, high, (high - low) / 1000 or 1e-3, value, hint=hint
        )
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


class FramePaths:
    """The lines along which a frame of the robots moves, and their choice on the page. `changed()` is called when the
    lines are other ones."""

    def __init__(self, server: Any, drawing: Drawing, changed: Callable[[], None]):
        self._server, self._drawing, self._changed = server, drawing, changed
        self._nodes: list[Any] = []
        self.surfaces: list[Surface] = []
        self.frame: str | None = None
        """The frame whose path is drawn."""

    def add_choice(self, clip: Callable[[], Clip | None]) -> None:
        """Add the choice of a frame to the page; `clip()` returns the trajectory."""
        frames = (_NO_PATH, *self._drawing.model.topology.frame_names)
        self.choice = self._server.gui.add_dropdown("Path of", frames, hint="The frame whose path is drawn")

        @self.choice.on_update
        def _(event) -> None:
            # Changes by the program have no client.
            if event.client is not None:
                self.draw(clip(), None if event.target.value == _NO_PATH else event.target.value)

    def draw(self, clip: Clip | None, frame: str | None) -> None:
        """Draw the path of a frame, or none. **Raises** `UnknownNameError`."""
        drawn = [] if clip is None or frame is None else [x for x in (clip.poses, clip.compared) if x is not None]
        self.surfaces = [self._drawing.path(frame or "", poses, compared=k > 0) for k, poses in enumerate(drawn)]
        for node in self._nodes:
            node.remove()
        self._nodes = [add_surface(self._server, f"/paths/{k}", x) for k, x in enumerate(self.surfaces)]
        self.frame = frame if self.surfaces else None
        self.choice.value = self.frame or _NO_PATH
        self._changed()


class Player:
    """A switch, a slider of time and the speed on the page, and a thread that moves through the clip. `show(clip, k)`
    is called to show sample `k`. All that changes the page holds `lock`."""

    def __init__(self, server: Any, lock: threading.RLock, show: Callable[[Clip, int], None], paths: FramePaths):
        self._lock, self._show = lock, show
        self._paths = paths
        self.clip: Clip | None = None
        self.closed = threading.Event()
        self._thread: threading.Thread | None = None
        gui = server.gui
        self._folder = gui.add_folder("Motion", visible=False)
        with self._folder:
            self.playing = gui.add_checkbox("Play", False)
            self.time = gui.add_slider("Time, s", 0.0, 1.0, 0.001, 0.0)
            self.speed = gui.add_slider("Speed, s/s", 0.05, 4.0, 0.05, 1.0, hint="Seconds of the motion in one second")
            self.loop = gui.add_checkbox("Repeat", True)
            paths.add_choice(lambda: self.clip)

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
        self._show(self.clip, self.clip.sample_at(seconds))

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
