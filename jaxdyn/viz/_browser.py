"""Browsers without a screen, and viewers for them."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxdyn._errors import DataError
from jaxdyn.viz._contact_scene import Forces
from jaxdyn.viz._drawing import Drawing
from jaxdyn.viz._viewer import Viewer

PATIENCE = 300.0
"""The time for a browser to start and to draw, s."""
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
_BROWSER_OPTIONS = (
    *("--headless=new", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--ignore-gpu-blocklist"),
    *("--hide-scrollbars", "--no-first-run", "--disable-extensions", "--disable-background-networking"),
    *("--disable-component-update", "--disable-dev-shm-usage", "--remote-debugging-port=0"),
)


def browser_path() -> str | None:
    """Return the program of a browser of the family of Chromium, or None: that which `JAXDYN_BROWSER` names, or else
    the first on the `PATH`."""
    names = (os.environ.get("JAXDYN_BROWSER", ""), *_BROWSERS)
    return next((x for x in (shutil.which(name) for name in names if name) if x), None)


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


def viewer_of(drawing: Drawing, poses: Sequence[np.ndarray], forces: Forces | None = None) -> Viewer:
    """Return a viewer of a drawing, with the bodies at poses `[nb, 7]`, with a second robot if there are two, and with
    contact forces of one sample. The camera sees both robots, and the joints have no handles."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    viewer = Viewer(drawing, port=port)
    viewer._show_layers(("robot", "compared") if len(poses) > 1 else None)
    viewer._place(*poses)
    viewer._contacts.load(forces)
    viewer._contacts.place(0)
    viewer._show_handles(False)
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


def settle(client: Any) -> None:
    """Wait until the page of a client no longer changes: light and images arrive late."""
    last = None
    for _ in range(20):
        image = client.get_render(90, 120, transport_format="png", timeout=PATIENCE).astype(np.float64)
        if last is not None and np.abs(image - last).mean() < 0.1:
            return
        last = image
