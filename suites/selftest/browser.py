"""A real Chromium, driven through its chromedriver by WebDriver's HTTP protocol, without any package."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import Request, urlopen

from harness.host.ports import HOST, PortBlock
from harness.waiting import await_until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
CHROMEDRIVER = shutil.which("chromedriver")
LACKING = "" if CHROMIUM and CHROMEDRIVER else "no chromium and chromedriver here (apt-get install chromium-driver)"

CTRL = "\ue009"
ENTER, ESCAPE = "\ue007", "\ue00c"
# Headless, and without the services of Chromium's that use a network.
_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)


class Browser:
    """A browser window."""

    def __init__(self, base: str, profile: Path) -> None:
        self._base = base
        options = {"binary": CHROMIUM, "args": [*_FLAGS.split(), f"--user-data-dir={profile}"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        self._session = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]

    def _call(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = Request(self._base + path, data=data, method=method, headers={"Content-Type": "application/json"})
        with urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def _do(self, what: str, body: object) -> Any:
        return self._call("POST", f"/session/{self._session}/{what}", body)

    def open(self, page: Path) -> None:
        """Open a page from disk; returns when it has loaded."""
        self._do("url", {"url": page.absolute().as_uri()})

    def run(self, script: str) -> Any:
        """Run JavaScript; returns its result."""
        return self._do("execute/sync", {"script": script, "args": []})

    def resize(self, width: int, height: int) -> None:
        """Set the size of the page, in pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._do("goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": size})

    def prefer(self, scheme: str) -> None:
        """Set the colour scheme that the user prefers: "light" or "dark"."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._do("goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": {"features": [feature]}})

    def press(self, keys: str) -> None:
        """Press keys, one after another."""
        strokes = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._do("actions", {"actions": [{"type": "key", "id": "keyboard", "actions": strokes}]})

    def point(self, *moves: tuple[str, float, float]) -> None:
        """Move the mouse: each step is an action ("move", "down" or "up") and a point, in pixels of the window."""
        does = {"move": [], "down": [{"type": "pointerDown", "button": 0}], "up": [{"type": "pointerUp", "button": 0}]}
        steps = [
            step
            for what, x, y in moves
            for step in ({"type": "pointerMove", "x": round(x), "y": round(y), "duration": 0}, *does[what])
        ]
        self._do("actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": steps}]})

    def turn_wheel(self, x: float, y: float, by: int, *, holding: str) -> None:
        """Turn the mouse wheel at a point, while a key is held."""
        scroll = {"type": "scroll", "x": round(x), "y": round(y), "deltaX": 0, "deltaY": by, "duration": 0}
        held = [{"type": "keyDown", "value": holding}, {"type": "pause"}, {"type": "keyUp", "value": holding}]
        pause = {"type": "pause", "duration": 0}
        wheel = {"type": "wheel", "id": "wheel", "actions": [pause, scroll, pause]}
        self._do("actions", {"actions": [{"type": "key", "id": "keyboard", "actions": held}, wheel]})

    def complaints(self) -> list[str]:
        """The console's messages since the last call."""
        return [entry["message"] for entry in self._do("se/log", {"type": "browser"})]

    def cut_off(self) -> None:
        """Disconnect the browser from the network."""
        nothing = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        self._do("goog/cdp/execute", {"cmd": "Network.emulateNetworkConditions", "params": nothing})

    def asked_for(self) -> list[str]:
        """The URLs that its pages requested since the last call, also those that failed."""
        events = [json.loads(entry["message"])["message"] for entry in self._do("se/log", {"type": "performance"})]
        return [each["params"]["request"]["url"] for each in events if each["method"] == "Network.requestWillBeSent"]

    def close(self) -> None:
        """Close the window."""
        self._call("DELETE", f"/session/{self._session}")


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser with an empty profile."""
    assert CHROMEDRIVER is not None
    ports = PortBlock()
    base = f"http://{HOST}:{(port := ports.take())}"
    driver = subprocess.Popen([CHROMEDRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with TemporaryDirectory() as profile:
            await_until(
                lambda: urlopen(f"{base}/status", timeout=5).status,
                timeout_s=30,
                what="chromedriver to answer",
                retry_on=(OSError,),
            )
            window = Browser(base, Path(profile))
            try:
                yield window
            finally:
                window.close()
    finally:
        driver.terminate()
        driver.wait()
        ports.release()
