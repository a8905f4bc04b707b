"""The player of trajectories in the viewer: its controls on the page, and its clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxdyn.viz._playback import Clip

_FRAMES_PER_SECOND = 30.0


class Player:
    """A switch, a slider of time and the speed on the page, and a thread that moves through the clip.

    `show(clip, k)` is called to show sample `k`. All that changes the page holds `lock`.
    """

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
