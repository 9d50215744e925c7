"""Driving a real headless Chromium through its own protocol, over a pipe: no other package is needed.

The browser is started with `--remote-debugging-pipe` and speaks JSON, each message ended by a null
byte, on the file descriptors 3 and 4. Clicks, keys and touches are the browser's own input events.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["Browser", "Page", "find_browser", "open_browser"]

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")

LAUNCHER = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for end, wanted in zip(ends, (3, 4)):
    os.dup2(end, wanted)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Puts the pipes where the browser expects them, whatever their numbers are, and becomes the browser."""

PATIENCE_S = 120.0
"""A machine may be slow; only a browser that hangs takes this long."""


def find_browser() -> str | None:
    """The path of a Chromium, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """A running browser."""

    def __init__(self, executable: str, profile: str) -> None:
        to_browser, self._send = os.pipe()
        self._receive, from_browser = os.pipe()
        options = ["--headless=new", "--remote-debugging-pipe", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
        options += ["--disable-extensions", "--disable-background-networking", f"--user-data-dir={profile}"]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            options.append("--no-sandbox")  # which root cannot have
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, str(to_browser), str(from_browser), executable, *options, "about:blank"],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Ask for something and wait for the answer; events that come meanwhile are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._receive], [], [], max(0.0, until - time.monotonic()))
            assert ready, "the browser does not answer"
            data = os.read(self._receive, 1 << 20)
            assert data, "the browser has ended"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        parsed: dict[str, Any] = json.loads(message)
        return parsed

    def open(self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False, scale: float = 1) -> Page:
        """Open a file in a tab of its own and wait until it is drawn."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, target)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )
        theme = "dark" if dark else "light"
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        page.call("Page.navigate", url=path.resolve().as_uri())
        page.wait("document.readyState === 'complete' && window.zbsolve && zbsolve.frames() > 0")
        return page

    def close(self) -> None:
        """End the browser."""
        with contextlib.suppress(AssertionError, OSError):
            self.call("Browser.close")
        for end in (self._send, self._receive):
            os.close(end)
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self.browser, self.session, self.target = browser, session, target

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Ask for something in this tab."""
        return self.browser.call(method, self.session, **params)

    def js(self, expression: str) -> Any:
        """The value of an expression, awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until a condition holds."""
        until = time.monotonic() + PATIENCE_S
        while not self.js(f"Boolean({condition})"):
            assert time.monotonic() < until, f"never: {condition}"
            time.sleep(0.05)

    def drawn(self) -> None:
        """Wait until what was asked for is on the screen."""
        self.js("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def move(self, x: float, y: float, kind: str = "mouseMoved", **more: Any) -> None:
        """A mouse event."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x: float, y: float) -> None:
        """Press and release the mouse."""
        self.move(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.move(x, y, kind, button="left", clickCount=1, buttons=1 if kind == "mousePressed" else 0)
        self.drawn()

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Drag with the mouse."""
        self.move(*start, "mousePressed", button="left", clickCount=1, buttons=1)
        for part in (0.3, 0.7, 1.0):
            at = [a + (b - a) * part for a, b in zip(start, end, strict=True)]
            self.move(at[0], at[1], button="left", buttons=1)
        self.move(*end, "mouseReleased", button="left", clickCount=1)
        self.drawn()

    def wheel(self, x: float, y: float, delta: float, *, ctrl: bool = False) -> None:
        """Turn the wheel."""
        self.move(x, y, "mouseWheel", deltaX=0, deltaY=delta, modifiers=2 if ctrl else 0)
        self.drawn()

    def key(self, key: str) -> None:
        """Press a key."""
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)
        self.drawn()

    def touch(self, kind: str, *points: tuple[float, float]) -> None:
        """Touch with one finger or more."""
        fingers = [{"x": x, "y": y, "id": n} for n, (x, y) in enumerate(points)]
        self.call("Input.dispatchTouchEvent", type=kind, touchPoints=fingers)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Keep what is seen, or the whole page, as PNG."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def pdf(self) -> bytes:
        """Print."""
        answer = self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        return base64.b64decode(answer["data"])

    @property
    def complaints(self) -> list[str]:
        """Errors, warnings and breaches of the security policy that the page has caused."""
        self.js("1")
        found = []
        for event in self.browser.events:
            if event.get("sessionId") != self.session:
                continue
            method, params = event["method"], event["params"]
            if method == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"]))
            elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(params["entry"]["text"])
            elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(str(params["args"]))
        return found

    @property
    def requests(self) -> list[str]:
        """The addresses that the page asked for."""
        self.js("1")
        return [
            event["params"]["request"]["url"]
            for event in self.browser.events
            if event.get("sessionId") == self.session and event["method"] == "Network.requestWillBeSent"
        ]

    def close(self) -> None:
        """Close the tab."""
        self.browser.call("Target.closeTarget", targetId=self.target)


@contextlib.contextmanager
def open_browser() -> Iterator[Browser]:
    """A browser for a while."""
    executable = find_browser()
    assert executable is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(executable, profile)
        try:
            yield browser
        finally:
            browser.close()
