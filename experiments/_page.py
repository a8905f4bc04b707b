"""A page of a browser without a screen, under remote control (https://chromedevtools.github.io/devtools-protocol)."""

from __future__ import annotations

import base64
import contextlib
import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

from websockets.sync.client import connect

from jaxdyn.viz import open_page

PATIENCE = 300.0
"""Time after which a page that does not answer is given up, s."""


class Page:
    """A page that takes commands over a socket."""

    def __init__(self, socket: Any):
        self._socket, self._sent = socket, 0

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._sent += 1
        self._socket.send(json.dumps({"id": self._sent, "method": method, "params": parameters}))
        until = time.monotonic() + PATIENCE
        while True:
            answer = json.loads(self._socket.recv(timeout=until - time.monotonic()))
            if answer.get("id") == self._sent:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait until an expression of JavaScript is true. **Raises** `TimeoutError`."""
        wait_until(lambda: self.evaluate(condition), condition)

    def screenshot(self) -> bytes:
        """Return a picture of the page as the bytes of a PNG file."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def drag(self, start: tuple[float, float], end: tuple[float, float], steps: int = 4) -> None:
        """Drag with the left button of the mouse, between points in pixels."""
        self._mouse("mouseMoved", *start)
        self._mouse("mousePressed", *start)
        for k in range(1, steps + 1):
            x, y = (a + (b - a) * k / steps for a, b in zip(start, end, strict=True))
            self._mouse("mouseMoved", x, y)
        self._mouse("mouseReleased", *end)

    def _mouse(self, kind: str, x: float, y: float) -> None:
        pressed = {} if kind == "mouseMoved" else {"clickCount": 1}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, **pressed)


@contextlib.contextmanager
def page(url: str, width: int, height: int) -> Iterator[Page]:
    with open_page(url, width, height) as profile:
        port = profile / "DevToolsActivePort"
        wait_until(lambda: port.exists() and port.read_text().count("\n") >= 1, "the browser's port")
        listing = f"http://127.0.0.1:{port.read_text().split()[0]}/json/list"

        def target() -> str:
            with urllib.request.urlopen(listing, timeout=PATIENCE) as answer:
                pages = [x for x in json.load(answer) if x["type"] == "page" and x["url"].startswith(url)]
            return pages[0]["webSocketDebuggerUrl"] if pages else ""

        wait_until(target, f"the page {url}")
        with connect(target(), max_size=None, open_timeout=PATIENCE) as socket:
            shown = Page(socket)
            shown.call(
                "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
            )
            yield shown


def wait_until(condition: Callable[[], Any], what: str) -> None:
    """Wait until a condition holds. **Raises** `TimeoutError`."""
    until = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"waited {PATIENCE:g} s for {what}")
        time.sleep(0.1)
