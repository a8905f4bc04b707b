"""A browser without a screen, where one is installed."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
_OPTIONS = (
    *("--headless=new", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--ignore-gpu-blocklist"),
    *("--hide-scrollbars", "--no-first-run", "--disable-extensions", "--disable-background-networking"),
    *("--disable-component-update", "--disable-dev-shm-usage", "--remote-debugging-port=0"),
)


def browser_path() -> str | None:
    """Return the program of a browser of the family of Chromium, or None."""
    return next((x for x in map(shutil.which, _NAMES) if x), None)


@contextlib.contextmanager
def open_page(url: str, width: int, height: int) -> Iterator[Path]:
    """Open a page in a new browser as long as the context lasts; a graphics card is not needed. Yields the folder of
    its profile, where the file `DevToolsActivePort` has the port at which it takes commands."""
    program = browser_path()
    assert program is not None
    with tempfile.TemporaryDirectory(prefix="jaxdyn-browser-", ignore_cleanup_errors=True) as folder:
        options = [*_OPTIONS, f"--user-data-dir={folder}", f"--window-size={width},{height}"]
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
