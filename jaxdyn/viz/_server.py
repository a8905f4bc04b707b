"""The server of the viewer's page, and the page's switches of layers."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Callable
from typing import Any

from jaxdyn._errors import JaxdynError
from jaxdyn._extras import import_extra
from jaxdyn.viz._drawing import LAYERS, MESHES, Drawing
from jaxdyn.viz._page import RobotNodes

_NAMES = (
    *("Meshes", "Collision geometry", "Inertia ellipsoids", "Skeleton", "Frames", "Joint axes", "Loops"),
    *("Tendons", "Contact shapes", "Contact forces"),
)
_TITLES: dict[str, str] = dict(zip(LAYERS, _NAMES, strict=True))


def start_server(host: str, port: int) -> Any:
    """Return a `viser.ViserServer` that prints nothing. **Raises** `ImportError` without viser."""
    viser = import_extra("viser", "serve the viewer's page")
    logging.getLogger("websockets.server").addFilter(_not_speculative)
    # It would print a table of addresses.
    with contextlib.redirect_stdout(io.StringIO()):
        server = viser.ViserServer(host=host, port=port, label="jaxdyn", verbose=False)
    server.gui.configure_theme(show_logo=False, show_share_button=False, control_width="medium")
    return server


def add_layer_switches(
    server: Any, drawing: Drawing, robot: RobotNodes, show_layer: Callable[[str, bool], None]
) -> dict[str, Any]:
    """Add the switches of layers and of names, and return those of layers."""
    gui, switches = server.gui, {}
    with gui.add_folder("Show"):
        for layer in drawing.layers:
            switches[layer] = gui.add_checkbox(_TITLES[layer], layer in drawing.shown)

            @switches[layer].on_update
            def _(event, layer=layer) -> None:
                # Changes by the program have no client.
                if event.client is None:
                    return
                try:
                    show_layer(layer, event.target.value)
                except (JaxdynError, ImportError) as error:
                    event.target.value = False
                    event.client.add_notification("Cannot be shown", str(error), color="red")

        names = gui.add_checkbox("Names", False, hint="Of links with their joints, and of other frames")
        names.on_update(lambda event: robot.show_names(event.target.value))
        if MESHES in drawing.layers:
            opacity = gui.add_slider("Opacity of meshes", 0.05, 1.0, 0.05, 1.0)
            opacity.on_update(lambda event: robot.set_opacity(MESHES, event.target.value))
    return switches


def _not_speculative(record: logging.LogRecord) -> bool:
    """Return whether a record is a failure: browsers open connections in advance and close them unused."""
    cause = getattr(record.exc_info and record.exc_info[1], "__cause__", None)
    return record.getMessage() != "opening handshake failed" or "EOFError" not in repr(cause)
