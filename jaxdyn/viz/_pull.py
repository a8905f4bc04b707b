"""The handle of the page that pulls a frame by inverse kinematics."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxdyn._errors import ModelError
from jaxdyn._status import Status
from jaxdyn.algorithms import FrameTarget, inverse_kinematics
from jaxdyn.spatial import quaternion_to_rotation
from jaxdyn.viz._drawing import Drawing, body_poses, frame_poses

NONE = "none"
"""The choice of no frame."""
_TOLERANCE = 1e-4
"""The error, m and rad, below which a target counts as reached."""


class FrameHandle:
    """A choice of a frame on the page, a handle at it, and inverse kinematics that brings the frame to the handle.

    `configuration()` returns the configuration that is shown, at which a search begins; `change(q)` shows another."""

    def __init__(
        self,
        server: Any,
        drawing: Drawing,
        configuration: Callable[[], np.ndarray],
        change: Callable[[np.ndarray], None],
    ):
        self._model, self._configuration, self._change = drawing.model, configuration, change
        topology = drawing.model.topology
        pairs = zip(topology.frame_names, topology.frame_bodies, strict=True)
        self.frames = [name for name, body in pairs if body >= 0]
        self._busy, self._waiting = threading.Lock(), threading.Event()
        gui = server.gui
        with gui.add_folder("Inverse kinematics", expand_by_default=False):
            self.choice = gui.add_dropdown("Frame", (NONE, *self.frames), hint="The frame that the handle pulls")
            self.turning = gui.add_checkbox("Rotation too", True, hint="Off: only the frame's origin follows")
            self.status = gui.add_markdown("Choose a frame, and drag the handle at it.")
        self.handle = server.scene.add_transform_controls(
            "/handle of a frame", scale=0.8 * drawing.unit, depth_test=False, opacity=0.8, visible=False
        )
        self.handle.on_update(lambda _: self.reach())

        @self.choice.on_update
        def _(event) -> None:
            if event.client is not None:
                self.choose(None if event.target.value == NONE else event.target.value)

    def choose(self, frame: str | None) -> None:
        """Put the handle at a frame, or hide it. **Raises** `UnknownNameError`; `ModelError` for a frame that does not
        move."""
        if frame is not None:
            self._model.topology.frame(frame)
            if frame not in self.frames:
                raise ModelError(f"frame {frame!r} is fixed in the world; choose one that moves")
        self.choice.value = frame or NONE
        self.handle.visible = frame is not None
        self.follow(self._configuration())
        self.status.content = "Drag the handle." if frame else "Choose a frame, and drag the handle at it."

    def show(self, visible: bool) -> None:
        """Show the handle, if a frame is chosen, or hide it."""
        self.handle.visible = visible and self.choice.value != NONE

    def follow(self, q: np.ndarray) -> None:
        """Put the handle where the frame is."""
        if self.choice.value != NONE:
            pose = frame_poses(self._model, self.choice.value, body_poses(self._model, q))
            self.handle.position, self.handle.wxyz = pose[:3], pose[3:]

    def reach(self) -> None:
        """Bring the frame to the handle. While a search runs, of further calls only one waits, for the last place of
        the handle."""
        self._waiting.set()
        while self._waiting.is_set() and self._busy.acquire(blocking=False):
            try:
                self._waiting.clear()
                self._search()
            finally:
                self._busy.release()

    def _search(self) -> None:
        frame = self.choice.value
        if frame == NONE:
            return
        rotation = quaternion_to_rotation(np.asarray(self.handle.wxyz, np.float64)) if self.turning.value else None
        target = FrameTarget(frame, np.asarray(self.handle.position, np.float64), rotation)
        found = inverse_kinematics(self._model, target, self._configuration(), tolerance=_TOLERANCE, max_iterations=50)
        self._change(np.asarray(found.q, np.float64))
        units = "mm or mrad" if self.turning.value else "mm"
        text, error = Status(int(found.status)).text, float(found.error)
        self.status.content = f"**{text.partition(':')[0].capitalize()}**; largest error {1000 * error:.2g} {units}"
