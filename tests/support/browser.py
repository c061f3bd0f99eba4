"""Debian's Chromium without a display, driven over the DevTools protocol."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import websocket

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (Debian: chromium)")
WITHIN_S = 60.0


class Tab:
    """One page. ``problems``: errors of its console and violations of its security policy."""

    def __init__(self, address: str) -> None:
        self._socket = websocket.create_connection(address, timeout=WITHIN_S, suppress_origin=True)
        self._numbers = itertools.count(1)
        self.problems: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv())
            self._note(message)
            if message.get("id") == number:
                assert "error" not in message, (method, message)
                return dict(message["result"])

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.problems.append(str(params["exceptionDetails"].get("exception", {}).get("description")))
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                self.problems.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])

    def open(self, url: str) -> None:
        self.call("Page.navigate", url="about:blank")
        # A navigation that begins before the previous one has ended may be dropped.
        self.wait("location.href === 'about:blank' && document.readyState === 'complete'")
        self.call("Page.navigate", url=url)

    def js(self, expression: str) -> Any:
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Wait until the expression is true, and return it."""
        until = time.monotonic() + WITHIN_S
        while not (found := self.js(f"(() => {{ try {{ return {expression} }} catch (e) {{ return null }} }})()")):
            assert time.monotonic() < until, (expression, self.text(), self.problems)
            time.sleep(0.05)
        return found

    def text(self) -> str:
        """Return all text that the page shows."""
        return str(self.js("document.body.innerText"))

    def view(self, name: str) -> None:
        """Choose a view by its name, as a click does."""
        self.press("nav button", name)

    def click(self, selector: str) -> None:
        self.wait(f"!!document.querySelector({json.dumps(selector)})")
        self.js(f"document.querySelector({json.dumps(selector)}).click()")

    def press(self, selector: str, text: str) -> None:
        """Click the first of these elements that has exactly this text."""
        found = (
            f"[...document.querySelectorAll({json.dumps(selector)})].find(e => e.textContent === {json.dumps(text)})"
        )
        self.wait(f"!!{found}")
        self.js(f"{found}.click()")

    def looks(self, *, width: int, height: int, dark: bool, scale: float = 1) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 500,
        )
        self.call("Emulation.setTouchEmulationEnabled", enabled=width < 500)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        self._socket.close()


@contextmanager
def browser(folder: Path) -> Iterator[Tab]:
    """Start a browser with one page; its files are in ``folder``."""
    assert CHROMIUM is not None
    words = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-extensions", "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
        f"--user-data-dir={folder / 'profile'}", "--remote-debugging-port=0", "about:blank",
    ]  # fmt: skip
    # Chromium makes a socket there. The path of a socket is limited to about 100 characters, and TMPDIR may be longer.
    with tempfile.TemporaryDirectory(prefix="chromium-", dir="/tmp", ignore_cleanup_errors=True) as short:
        with (folder / "chromium.log").open("wb") as log:
            env = {**os.environ, "TMPDIR": short}
            process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True, env=env)
        try:
            tab = Tab(_address(folder, process))
            try:
                yield tab
                tab.call("Browser.close")
            finally:
                tab.close()
            process.wait(WITHIN_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def _address(folder: Path, process: subprocess.Popen[bytes]) -> str:
    """Return the address of the first page's socket, once the browser listens."""
    import urllib.request

    told, until = folder / "profile" / "DevToolsActivePort", time.monotonic() + WITHIN_S
    while time.monotonic() < until and process.poll() is None:
        if told.exists() and (lines := told.read_text().split()):
            with urllib.request.urlopen(f"http://127.0.0.1:{lines[0]}/json/list") as answer:
                for target in json.load(answer):
                    if target["type"] == "page":
                        return str(target["webSocketDebuggerUrl"])
        time.sleep(0.05)
    raise AssertionError(f"chromium does not listen: {(folder / 'chromium.log').read_text()[-2000:]}")
