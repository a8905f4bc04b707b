"""A robot in viser's scene."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxdyn.viz._drawing import LAYERS, MESHES, Drawing, Surface

COMPARED = (240, 120, 40)
"""Color of the second robot."""
COMPARED_OPACITY = 0.45


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
        if surface.textured is not None and not self._tint:
            return scene.add_mesh_trimesh(path, surface.textured)
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

    def show(self, layer: str, visible: bool) -> None:
        for node in self._surfaces[layer]:
            node.visible = visible

    def show_all(self, layers: set[str], *, visible: bool) -> None:
        for layer in LAYERS:
            self.show(layer, visible and layer in layers)

    def set_opacity(self, layer: str, opacity: float) -> None:
        """Multiply the opacity of a layer; surfaces with images keep theirs."""
        original = [float(x.color[3]) for x in self._drawing.surfaces if x.layer == layer]
        for node, full in zip(self._surfaces[layer], original, strict=True):
            if hasattr(node, "opacity"):
                node.opacity = None if opacity * full == 1 else opacity * full
