"""The controls of joints in the viewer: sliders on the page, and handles in the scene."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxdyn.joints import JOINT_TYPES, Primitive
from jaxdyn.viz._drawing import Drawing
from jaxdyn.viz._nodes import RobotNodes
from jaxdyn.viz._playback import slider_ranges, unit


class JointControls:
    """A slider for each coordinate, and a handle for each ball or free joint.

    `change(rows, values)` is called with the coordinates that a user changed, `reset()` when a user clicks the button.
    """

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
        low, high = slider_ranges(drawing.model)
        with server.gui.add_folder("Joints"):
            server.gui.add_button("Reset").on_click(lambda _: reset())
            for i, (name, kind) in enumerate(zip(topology.joint_names, topology.joint_types, strict=True)):
                if i in topology.leaders:
                    continue
                first, chain = topology.q_starts[i], JOINT_TYPES[kind]
                if chain[0].quaternion is not None:
                    self._add_handle(i, first, chain[0])
                    continue
                for k, joint in enumerate(chain):
                    label = name if len(chain) == 1 else f"{name}[{k}]"
                    self._add_slider(label, first + k, joint.units[0], float(low[first + k]), float(high[first + k]))

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
                handle.wxyz = unit(q[first + joint.quaternion :][:4])

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
        self._server.scene.add_frame(base, show_axes=False, position=place[:3], wxyz=unit(place[3:]))
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
